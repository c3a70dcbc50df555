//! Where frames go: the ports of a device.

mod tap;

pub use tap::{Tap, TapError, TapOffloads, TapSpec};
