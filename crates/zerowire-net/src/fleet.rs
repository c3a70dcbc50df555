//! What serves VMs that come and go: the threads of a [`Server`], or processes of a supervisor.

use std::sync::Arc;

use zerowire_capture::Capture;
use zerowire_vhost::limit::Limits;
use zerowire_vhost::serve::Reloaded;

use crate::metadata::MetadataSource;
use crate::reload::reload;
use crate::server::{ChangeError, Server, VmInfo};
use crate::stats::ServerStats;
use crate::vm::{ServerError, VmConfig};

/// VMs that are served. Calls come from several threads at once.
pub trait Fleet: Send + Sync {
    /// All VMs, in the order in which they were added.
    fn vms(&self) -> Vec<VmInfo>;

    /// What was moved so far, of the VMs that run.
    fn stats(&self) -> ServerStats;

    /// Adds a VM and begins to listen for its front end.
    ///
    /// # Errors
    /// [`ServerError`]. Nothing is left behind, and nothing has changed.
    fn add(&self, config: VmConfig) -> Result<(), ServerError>;

    /// Adds a VM as soon as the one of its name has gone, whose removal gave up
    /// ([`ChangeError::Stuck`]). Where no removal gives up it is just added.
    ///
    /// # Errors
    /// As for [`Self::add`].
    fn add_later(&self, config: VmConfig) -> Result<(), ServerError> {
        self.add(config)
    }

    /// Removes a VM with its socket and its port. It is gone when this returns.
    ///
    /// # Errors
    /// [`ChangeError`]. The VM stays, but for [`ChangeError::Stuck`]: it is not served any more
    /// then, and goes as soon as its threads end.
    fn remove(&self, name: &str) -> Result<(), ChangeError>;

    /// Takes no further front end for a VM, and removes it when the present one has left.
    ///
    /// # Errors
    /// [`ChangeError`].
    fn drain(&self, name: &str) -> Result<(), ChangeError>;

    /// Gives a VM other metadata, or the same file read again.
    ///
    /// # Errors
    /// [`ChangeError`]. The old metadata stay.
    fn set_metadata(&self, name: &str, source: MetadataSource) -> Result<(), ChangeError>;

    /// Gives a VM other limits, which hold at once.
    ///
    /// # Errors
    /// [`ChangeError`]. The old limits stay.
    fn set_limits(&self, name: &str, limits: Limits) -> Result<(), ChangeError>;

    /// Where the frames of all VMs go as well.
    fn capture(&self) -> Option<Arc<Capture>>;

    /// Has the frames of all VMs go to another capture from now on, or to none. The one before gets
    /// what is under way, and is returned.
    fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>>;

    /// Asks what serves the VMs for a sign of life, see [`Self::silent`].
    fn ask(&self);

    /// Names of the VMs for which there was none since it was asked for last.
    fn silent(&self) -> Vec<String>;

    /// Whether a connection is there or may still come.
    fn is_alive(&self) -> bool;

    /// Stops all VMs; further ones are refused or stopped at once.
    fn stop(&self);

    /// Reads all metadata files again. A file that can't be read leaves the old metadata in place;
    /// the texts say so.
    fn reload_metadata(&self) -> Vec<String> {
        let sources = self.vms().into_iter().filter_map(|vm| Some((vm.config.name, vm.config.metadata?)));
        let failed = sources.filter_map(|(name, source)| self.set_metadata(&name, source).err());
        // A VM that has left meanwhile needs none.
        failed.filter(|e| !matches!(e, ChangeError::Unknown(_))).map(|e| e.to_string()).collect()
    }

    /// Makes the VMs of a file those of `wanted`. `before` are the names that the file had when it
    /// was read last: those that it has no more are removed. Further VMs, which somebody else has
    /// added, stay as they are.
    ///
    /// A VM that is the same in all but its metadata and limits keeps its front end. Another one
    /// that was there is removed and added again, unless it is on a descriptor that was handed
    /// over. If its front end holds up its removal, it is added as soon as it has gone.
    ///
    /// # Errors
    /// The VMs can't be beside each other and those of others, or their metadata can't be read.
    /// Nothing has changed then. What fails later, such as a port that another program holds, is
    /// one of [`Reloaded::errors`].
    fn reload(&self, before: &[String], wanted: Vec<VmConfig>) -> Result<Reloaded, ServerError> {
        reload(self, before, wanted)
    }
}

impl Fleet for Server {
    fn vms(&self) -> Vec<VmInfo> {
        self.vms()
    }

    fn stats(&self) -> ServerStats {
        self.stats()
    }

    fn add(&self, config: VmConfig) -> Result<(), ServerError> {
        self.add(config)
    }

    fn add_later(&self, config: VmConfig) -> Result<(), ServerError> {
        self.add_later(config)
    }

    fn remove(&self, name: &str) -> Result<(), ChangeError> {
        self.remove(name)
    }

    fn drain(&self, name: &str) -> Result<(), ChangeError> {
        self.drain(name)
    }

    fn set_metadata(&self, name: &str, source: MetadataSource) -> Result<(), ChangeError> {
        self.set_metadata(name, source)
    }

    fn set_limits(&self, name: &str, limits: Limits) -> Result<(), ChangeError> {
        self.set_limits(name, limits)
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
