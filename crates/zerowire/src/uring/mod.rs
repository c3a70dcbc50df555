//! What io_uring can do here, and what the `io-uring` crate does not name.

pub(crate) mod buffer_ring;
mod enter;
mod features;
mod mapping;
pub mod ring;
mod send_features;
pub mod sqe;
pub(crate) mod wide;
pub(crate) mod zcrx;

pub(crate) use features::refusal;
pub use features::{UringFeatures, UringProbeError, probe};
pub use send_features::{SendFeatures, send_features};

/// `RWF_NOWAIT` (include/uapi/linux/fs.h): a read or write that would block ends with EAGAIN at once,
/// where io_uring would otherwise arm a poll even on a file opened with `O_NONBLOCK`.
pub const RWF_NOWAIT: i32 = 0x8;
