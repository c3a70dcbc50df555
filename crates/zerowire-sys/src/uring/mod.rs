//! What io_uring can do here, and what the `io-uring` crate does not name.

pub mod buffer_ring;
mod calls;
mod refusal;
pub mod ring;
mod send_features;
pub mod sqe;
pub mod wide;
pub mod zcrx;

pub use refusal::{UringProbeError, refusal};
pub use send_features::{SendFeatures, send_features};
