//! Serving front ends over vhost-user (QEMU docs/interop/vhost-user.rst).
//!
//! Each VM has a control thread (`control`), which listens on its socket and speaks the protocol
//! (`session`) for the server's `device`. `net` has a worker thread (`worker`) for each queue pair
//! in use while a front end is connected. `vsock` has one thread for all VMs that share groups.
//! Threads share no locks on the way of a frame or a packet. A VM that misbehaves holds up only the
//! threads that serve it.

mod access;
mod control;
mod device;
mod link;
mod listen;
mod metadata;
mod net;
mod pace;
mod session;
pub(crate) mod stats;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod vm;
mod vsock;
pub(crate) mod worker;

pub use access::SocketAccess;
pub use link::{LinkState, LinkStats};
pub(crate) use listen::bind_unix;
pub use listen::{Endpoint, ListenError};
pub use metadata::MetadataSource;
pub use stats::{DirectionStats, ServerStats, VmStats};
pub use vm::{MAX_VMS, Server, ServerError, VmConfig};
pub use vsock::{DEFAULT_GROUP, VsockConfig, VsockServer, VsockServerStats, VsockVmStats};
