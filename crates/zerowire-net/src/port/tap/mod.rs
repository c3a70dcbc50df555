//! A tap interface: a descriptor of one of its queues a worker, a frame a system call.

mod control;
mod interface;
mod queue;
mod spec;

pub(super) use control::TapPort;
pub use interface::{Tap, TapError};
pub use queue::{TapInlet, TapOutlet};
pub use spec::TapSpec;
