//! Where frames go: the ports of a device.

mod tap;

pub use tap::{MAX_QUEUES, Tap, TapError, TapOffloads, TapSpec};
