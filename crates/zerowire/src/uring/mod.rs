//! io_uring operations and set-up that the `io-uring` crate (0.7.15) lacks.
//!
//! The builders here make submission queue entries for `IORING_OP_READV_FIXED` and
//! `IORING_OP_WRITEV_FIXED` (include/uapi/linux/io_uring.h, Linux 6.15): vectored reads and writes whose
//! segments all lie inside one registered buffer. The kernel does not look at page tables for them, which
//! is what makes many small cold segments cheap.

mod entry;
mod features;

pub use entry::{RWF_NOWAIT, readv_fixed, writev_fixed};
pub use features::{UringFeatures, UringProbeError, probe};
