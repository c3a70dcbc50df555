//! What serves a virtqueue, whatever device it belongs to.

pub(crate) mod mailbox;
mod ring;
mod setup;
pub(crate) mod writers;

pub use ring::HostRing;
pub use setup::{RingSetup, RingState};
