//! Serves virtio-vsock: a control thread for each VM, and one data thread for each set of VMs that
//! share groups.

mod config;
mod device;
mod server;
mod stats;

pub use config::{DEFAULT_GROUP, VsockConfig};
pub use server::VsockServer;
pub use stats::{VsockServerStats, VsockVmStats};
