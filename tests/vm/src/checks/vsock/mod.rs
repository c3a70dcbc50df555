//! `zerowire vsock` carries a stock guest's streams and messages.

pub mod change;
pub mod many;
pub mod pci;
pub mod setup;
pub mod siblings;
pub mod stalled;
pub mod transfer;
