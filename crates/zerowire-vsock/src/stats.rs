//! What the vsock server has to tell.

use std::sync::atomic::Ordering;

use serde::Serialize;
use zerowire_capture::{CaptureInterface, CaptureStats};
use zerowire_vhost_user::features;

use crate::VsockTotals;
use crate::config::VsockConfig;
use crate::device::VsockContext;

/// One VM.
#[derive(Clone, Debug, Serialize)]
pub struct VsockVmStats {
    /// Its name.
    pub name: String,
    /// Where its front end connects.
    pub socket: String,
    /// The guest's address.
    pub cid: u64,
    /// Where the host meets the guest.
    pub uds: String,
    /// VMs that share one of these reach each other.
    pub groups: Vec<String>,
    /// Whether a front end is connected.
    pub connected: bool,
    /// Connections of front ends so far.
    pub connections: u64,
    /// Connections of front ends that ended by a protocol error.
    pub connection_errors: u64,
    /// Features that the guest acknowledged.
    pub features: Vec<String>,
    /// vhost-user protocol features that the front end acknowledged.
    pub protocol_features: String,
    /// Device status as the front end last set it (virtio 1.3 §2.1).
    pub device_status: u64,
    /// The path that payload takes, and why.
    pub path: &'static str,
    /// Copies on the way that this process does not make.
    pub kernel_copies: &'static str,
    /// What was moved. Its last error is the last one of the guest's or the front end's.
    #[serde(flatten)]
    pub totals: VsockTotals,
    /// What a capture has of its packets; None without a capture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capture: Option<CaptureStats>,
}

/// All VMs.
pub type VsockServerStats = zerowire_vhost::serve::ServerStats<VsockVmStats>;

impl VsockVmStats {
    /// [`Self::path`].
    pub const PATH: &str = "one vectored system call moves many packets; a copy in user space is made into windows that a \
                            program has mapped (window; none where they are direct), of what a full unix socket refuses or \
                            a program holds too long (held), and between guests (sibling)";

    /// [`Self::kernel_copies`].
    pub const KERNEL_COPIES: &str = "one each way, between guest memory and the unix socket's buffer (net/unix/af_unix.c); \
                                     none into mapped windows";

    pub(super) fn new(vm: &VsockContext, config: &VsockConfig) -> Self {
        let control = &vm.control;
        Self {
            name: control.name.clone(),
            socket: config.endpoint.to_string(),
            cid: vm.cid,
            uds: config.uds.display().to_string(),
            groups: config.groups.clone(),
            connected: control.connected.load(Ordering::Relaxed),
            connections: control.connections.load(Ordering::Relaxed),
            connection_errors: control.connection_errors.load(Ordering::Acquire),
            features: features::vsock_names(control.acked_features.load(Ordering::Relaxed)),
            protocol_features: format!("{:#x}", control.protocol_features.load(Ordering::Relaxed)),
            device_status: control.status.load(Ordering::Relaxed),
            path: Self::PATH,
            kernel_copies: Self::KERNEL_COPIES,
            totals: vm.counters.snapshot(),
            capture: vm.capture().as_ref().map(CaptureInterface::stats),
        }
    }
}
