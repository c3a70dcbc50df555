//! A tap interface: a descriptor of one of its queues a worker, a frame a system call.

mod again;
mod attach;
mod control;
mod error;
mod interface;
mod kept;
mod spec;
mod system_calls;

use control::TapPort;
pub use error::TapError;
pub use interface::{Tap, TapFacts, TapSettings};
pub use spec::TapSpec;
pub use system_calls::SYSTEM_CALLS;

/// Sends to one queue of a tap.
pub type TapOutlet = crate::transmit::SendBatch;

/// Receives from one queue of a tap.
pub type TapInlet = crate::receive::ReadBatch;

/// Copies on the way of frames that no process makes.
pub const KERNEL_COPIES: &str =
    "one each way, between the frame and the tap's socket buffer (drivers/net/tun.c)";
