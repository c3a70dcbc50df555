//! What serves a virtqueue, whatever device it belongs to.

mod setup;

pub use setup::{RingSetup, RingState};
