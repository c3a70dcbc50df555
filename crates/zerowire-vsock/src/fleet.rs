//! What serves VMs that come and go: the threads of a [`VsockServer`], or processes of a
//! supervisor.

use std::sync::Arc;

use zerowire_capture::{Capture, Captured};
use zerowire_vhost::limit::Limits;
use zerowire_vhost::serve::VmFleet;

use crate::config::VsockConfig;
use crate::error::VsockServerError;
use crate::server::{VsockChangeError, VsockServer};
use crate::sets::SetMember;
use crate::stats::VsockVmStats;

/// VMs with vsock devices that are served.
pub trait VsockFleet:
    VmFleet<Config = VsockConfig, Error = VsockServerError, Stats = VsockVmStats> + Captured
{
    /// The VMs that are served, and which of them together.
    fn members(&self) -> Vec<SetMember>;

    /// Gives VMs other limits, by their names, which hold at once. Returns what failed. Those that
    /// do not answer cost the time of one.
    fn set_limits(&self, all: Vec<(String, Limits)>) -> Vec<VsockChangeError>;
}

impl Captured for VsockServer {
    fn capture(&self) -> Option<Arc<Capture>> {
        self.capture()
    }

    fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>> {
        self.set_capture(capture)
    }
}

impl VsockFleet for VsockServer {
    fn members(&self) -> Vec<SetMember> {
        self.members()
    }

    fn set_limits(&self, all: Vec<(String, Limits)>) -> Vec<VsockChangeError> {
        all.into_iter().filter_map(|(name, limits)| self.set_rates(&name, limits).err()).collect()
    }
}
