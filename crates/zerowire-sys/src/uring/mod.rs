//! What io_uring can do here, and what the `io-uring` crate does not name.

pub mod buffer_ring;
mod calls;
mod features;
pub mod ring;
mod send_features;
pub mod sqe;
pub mod wide;
pub mod zcrx;

pub use features::{UringFeatures, UringProbeError, probe, refusal};
pub use send_features::{SendFeatures, send_features};
