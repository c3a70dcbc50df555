//! Guest memory.
//!
//! **Who owns these bytes.** The guest does. It changes them at any moment, from other CPUs, while
//! this process reads them. No Rust reference (`&[u8]`, `&mut [u8]`) into guest memory ever exists.
//! The process reaches it only through raw pointers, by volatile or atomic accesses, by `copy`
//! functions into private memory, or by the kernel. What is read once is checked in its private
//! copy and never read again.
//!
//! **Until when.** A [`GuestMemory`] is an immutable snapshot of the memory table behind an `Arc`.
//! A thread that works on rings keeps one snapshot, and the mapping goes when the last snapshot
//! goes. So no thread can touch memory that was unmapped (CVE-2021-3748 is the case of a device
//! that did).

pub mod access;
mod budget;
mod composite;
mod error;
mod file;
mod io_list;
mod log;
mod region_pool;
mod sigbus;
mod table;
mod userfault;

pub use zerowire_sys::map::{Mapping, PrivateMap};

pub use access::HostPtr;
pub(crate) use access::{KeepsMapped, SharedWords};
pub use budget::{OverBudget, PinBudget, PinClaim, Shares};
pub use composite::Composite;
pub use error::MemoryError;
pub use file::{NotMemory, file_len, memory_file};
pub(crate) use file::{check_memory, closes_at_once, is_eventfd, page_size};
pub use io_list::IoList;
pub use log::{DirtyLog, LogError, PAGE_BYTES};
pub(crate) use sigbus::Guarded;
pub use sigbus::{LineFormat, catch_lost_pages, write_lines_as};
pub use table::{GuestMemory, MAX_REGIONS, ReadOnlyRegion, Region, RegionConfig, Segment};
pub use userfault::Userfault;
