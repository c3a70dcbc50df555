//! Serving front ends over vhost-user (QEMU docs/interop/vhost-user.rst).
//!
//! Each VM has a control thread, which listens on its socket and speaks the protocol ([`session`]), and while a front end is
//! connected a worker thread for each queue pair in use ([`worker`]), which moves frames. Threads share no locks on the
//! way of a frame; a VM that misbehaves or hangs holds up only its own threads.

mod command;
mod listen;
mod metadata;
mod rings;
mod session;
mod stats;
mod vm;
mod worker;

pub use listen::{Endpoint, ListenError};
pub use metadata::MetadataSource;
pub use stats::{DirectionStats, ServerStats, VmStats};
pub use vm::{MAX_VMS, Server, ServerError, VmConfig};
