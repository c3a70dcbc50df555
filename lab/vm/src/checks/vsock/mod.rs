//! `zerowire vsock` carries a stock guest's streams and messages.

pub mod change;
pub mod credit;
pub mod ends;
pub mod groups;
pub mod lent;
pub mod many;
pub mod pair;
pub mod pci;
pub mod rx;
pub mod send;
pub mod setup;
pub mod siblings;
pub mod stalled;
pub mod transfer;
pub mod unread;
