//! What io_uring can do here, and what the `io-uring` crate does not name.

pub(crate) mod buffer_ring;
mod enter;
mod features;
pub mod ring;
mod send_features;
pub mod sqe;
pub(crate) mod wide;
pub(crate) mod zcrx;

pub(crate) use features::refusal;
pub use features::{UringFeatures, UringProbeError, probe};
pub use send_features::{SendFeatures, send_features};
