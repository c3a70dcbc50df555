//! What serves VMs that come and go: the threads of a [`VsockServer`], or processes of a
//! supervisor.

use std::sync::Arc;

use zerowire_capture::Capture;
use zerowire_vhost::limit::Limits;
use zerowire_vhost::serve::Reloaded;

use crate::config::VsockConfig;
use crate::error::VsockServerError;
use crate::reload::reload;
use crate::server::{VsockChangeError, VsockServer, VsockVmInfo};
use crate::sets::SetMember;
use crate::stats::VsockServerStats;

/// VMs that are served. Calls come from several threads at once.
pub trait VsockFleet: Send + Sync {
    /// All VMs, in the order in which they were added.
    fn vms(&self) -> Vec<VsockVmInfo>;

    /// What was moved so far, of the VMs that run.
    fn stats(&self) -> VsockServerStats;

    /// The VMs that are served, and which of them together.
    fn members(&self) -> Vec<SetMember>;

    /// Adds a VM and begins to listen for its front end.
    ///
    /// # Errors
    /// [`VsockServerError`]. Nothing is left behind, and nothing has changed.
    fn add(&self, config: VsockConfig) -> Result<(), VsockServerError>;

    /// Adds a VM as soon as the one of its name has gone, whose removal gave up
    /// ([`VsockChangeError::Stuck`]). The log says when, or why it can't.
    ///
    /// # Errors
    /// As for [`Self::add`].
    fn add_later(&self, config: VsockConfig) -> Result<(), VsockServerError>;

    /// Removes a VM with its sockets. It is gone when this returns.
    ///
    /// # Errors
    /// [`VsockChangeError`]. The VM stays, but for [`VsockChangeError::Stuck`]: it is not served
    /// any more then, and goes as soon as its threads end.
    fn remove(&self, name: &str) -> Result<(), VsockChangeError>;

    /// Takes no further front end for a VM, and removes it when the present one has left.
    ///
    /// # Errors
    /// [`VsockChangeError`].
    fn drain(&self, name: &str) -> Result<(), VsockChangeError>;

    /// Gives a VM other limits, which hold at once.
    ///
    /// # Errors
    /// [`VsockChangeError`]. The old limits stay.
    fn set_rates(&self, name: &str, rates: Limits) -> Result<(), VsockChangeError>;

    /// Where the packets of all VMs go as well.
    fn capture(&self) -> Option<Arc<Capture>>;

    /// Has the packets of all VMs go to another capture from now on, or to none. The one before
    /// gets what is under way, and is returned.
    fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>>;

    /// Asks what serves the VMs for a sign of life, see [`Self::silent`].
    fn ask(&self);

    /// Names of the VMs for which there was none since it was asked for last.
    fn silent(&self) -> Vec<String>;

    /// Whether a connection is there or may still come, and can be served.
    fn is_alive(&self) -> bool;

    /// Stops all VMs; further ones are refused or stopped at once.
    fn stop(&self);

    /// Makes the VMs of a file those of `wanted`. `before` are the names that the file had when it
    /// was read last: those that it has no more are removed. Further VMs, which somebody else has
    /// added, stay as they are. A VM that is the same in all but its limits keeps its front end.
    ///
    /// # Errors
    /// The VMs can't be beside each other and those of others. Nothing has changed then. What fails
    /// later is one of [`Reloaded::errors`].
    fn reload(&self, before: &[String], wanted: Vec<VsockConfig>) -> Result<Reloaded, VsockServerError> {
        reload(self, before, wanted)
    }
}

impl VsockFleet for VsockServer {
    fn vms(&self) -> Vec<VsockVmInfo> {
        self.vms()
    }

    fn stats(&self) -> VsockServerStats {
        self.stats()
    }

    fn members(&self) -> Vec<SetMember> {
        self.members()
    }

    fn add(&self, config: VsockConfig) -> Result<(), VsockServerError> {
        self.add(config)
    }

    fn add_later(&self, config: VsockConfig) -> Result<(), VsockServerError> {
        self.add_later(config)
    }

    fn remove(&self, name: &str) -> Result<(), VsockChangeError> {
        self.remove(name)
    }

    fn drain(&self, name: &str) -> Result<(), VsockChangeError> {
        self.drain(name)
    }

    fn set_rates(&self, name: &str, rates: Limits) -> Result<(), VsockChangeError> {
        self.set_rates(name, rates)
    }

    fn capture(&self) -> Option<Arc<Capture>> {
        self.capture()
    }

    fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>> {
        self.set_capture(capture)
    }

    fn ask(&self) {
        self.ask();
    }

    fn silent(&self) -> Vec<String> {
        self.silent()
    }

    fn is_alive(&self) -> bool {
        self.is_alive()
    }

    fn stop(&self) {
        self.stop();
    }
}
