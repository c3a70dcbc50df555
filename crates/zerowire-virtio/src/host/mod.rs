//! What serves a virtqueue, whatever device it belongs to.

mod ring;
mod setup;

pub use ring::HostRing;
pub use setup::{RingSetup, RingState};
