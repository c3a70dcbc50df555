//! Captures: packets of devices into a pcapng file, without holding up those that move them.
//!
//! ```text
//!  worker   CaptureQueue: record… publish ─▶ ring ─┐
//!  worker   CaptureQueue: record… publish ─▶ ring ─┼─▶ writer thread ─▶ FILE, FILE.1, … or stdout
//! ```
//!
//! * [`Capture`] has the thread, and an interface block for each [`CaptureInterface`].
//! * [`CaptureQueue`] is a worker's end of a ring (`queue`). To record a packet copies its first
//!   bytes. If the ring is full the packet is lost to the capture, and counted; nobody waits.
//! * The thread (`writer`) merges the rings by time, leaves out what does not pass the
//!   [`CaptureFilter`], and writes blocks (`sink`). If it can't write,
//!   the capture ends and the log says why. The devices go on.
//!
//! **Who owns what.** A ring belongs to one worker and the thread. Its memory goes when both have
//! let go of it: the worker by dropping its end, the thread when it has taken all of it.
#![warn(missing_docs)]
#![forbid(unsafe_code)]

mod capture;
mod filter;
mod options;
mod queue;
mod shared;
mod sink;
mod stream;
mod writer;

pub use capture::{Capture, CaptureInterface, CaptureStats, Captured};
pub use filter::{BadFilter, CaptureFilter};
pub use options::{CaptureError, CaptureOptions, CaptureRotation, CaptureTarget, MAX_SNAPLEN};
pub use queue::CaptureQueue;
pub use zerowire_wire::pcapng::{LINKTYPE_ETHERNET, LINKTYPE_VSOCK, PacketDirection};
