//! The device side of a split virtqueue (virtio 1.3 §2.7).
//!
//! **Memory rules.** The descriptor table, the available ring and the used ring lie in guest
//! memory, which the guest changes at any time. Each field is read once, by a volatile or atomic
//! access, into a private copy. An index from the guest never becomes an address before it was
//! checked. The ring's parts were checked against the memory table when the ring was started, and
//! the ring keeps them mapped. What chains name is mapped as long as the ring's owner holds that
//! table.

mod chain;
mod error;
pub mod inflight;
mod notify;
mod rx_chains;
mod split;

pub use chain::{ChainCursor, Descriptor, MAX_INDIRECT};
pub use error::{RingError, RingRule};
pub use rx_chains::RxChains;
pub use split::{RingAddresses, RingLog, SplitRing, UsedOrder, used_ring_bytes};
