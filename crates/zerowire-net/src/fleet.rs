//! What serves VMs that come and go: the threads of a [`Server`], or processes of a supervisor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zerowire_capture::{Capture, Captured};
use zerowire_vhost::limit::Limits;
use zerowire_vhost::serve::{self, ChangeTurn, Reloaded, ReplaceError, VmFleet};

use crate::guard::FrameGuard;
use crate::metadata::MetadataSource;
use crate::reload::check_metadata;
use crate::server::{ChangeError, Server};
use crate::stats::VmStats;
use crate::vm::{ServerError, VmConfig};

/// How long a capture may take to begin, and the pause between two looks meanwhile.
const CAPTURE_PATIENCE: Duration = Duration::from_secs(2);
const CAPTURE_LOOK: Duration = Duration::from_millis(1);

/// VMs with network devices that are served.
pub trait Fleet: VmFleet<Config = VmConfig, Error = ServerError, Stats = VmStats> + Captured {
    /// Changes VMs while their front ends stay. Returns what failed. A VM whose metadata can't be
    /// had has its old ones, and all else of the change. Those that do not answer cost the time of
    /// one.
    fn change(&self, changes: Vec<NetChange>) -> Vec<ChangeError>;
}

/// What a VM gets while its front end stays. None: what it has.
#[derive(Clone, Debug, Default)]
pub struct NetChange {
    /// The VM.
    pub vm: String,
    /// Other metadata, or the same file read again.
    pub metadata: Option<MetadataSource>,
    /// Other limits of the rate.
    pub limits: Option<Limits>,
    /// What its guest may send; Some(None): all.
    pub guard: Option<Option<FrameGuard>>,
}

impl dyn Fleet + '_ {
    /// Makes the VMs of a file those of `wanted`. `before` are the names that the file had when it
    /// was read last: those that it has no more are removed. Further VMs, which somebody else has
    /// added, stay as they are. Nobody else changes a VM of the file meanwhile
    /// ([`ChangeTurn::entering_all`]).
    ///
    /// A VM that is the same in all but its metadata, limits and guard keeps its front end. Another
    /// one that was there is removed and added again, unless it is on a descriptor that was handed
    /// over. If its front end holds up its removal, it is added as soon as it has gone.
    ///
    /// # Errors
    /// The VMs can't be beside each other and those of others, or their metadata can't be read.
    /// Nothing has changed then. What fails later, such as a port that another program holds, is
    /// one of [`Reloaded::errors`]; a VM that was there has its old settings again then.
    pub fn reload(&self, before: &[String], wanted: Vec<VmConfig>) -> Result<Reloaded, ServerError> {
        wanted.iter().try_for_each(check_metadata)?;
        serve::reload(self, before, wanted)
    }

    /// Gives a VM that runs as `before` other settings. If more than its metadata, limits and guard
    /// differ, it is removed and added again in a turn of its own, and its front end has to connect
    /// again. Others do not notice.
    ///
    /// # Errors
    /// [`ReplaceError`]. Nothing has changed where the VMs can't be beside each other, where the
    /// metadata can't be read, or where the port or the socket can't be had. What shows only when
    /// the VM is gone has it added again as it was.
    pub fn replace(
        &self,
        before: &VmConfig,
        wanted: VmConfig,
        turn: &ChangeTurn,
    ) -> Result<(), ReplaceError<ServerError>> {
        serve::replace(self, before, wanted, turn)
    }
}

impl Captured for Server {
    fn capture(&self) -> Option<Arc<Capture>> {
        self.capture()
    }

    fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>> {
        let begin = Instant::now();
        let (begins, before) = (capture.is_some(), self.set_capture(capture));
        while begins && !self.captures() && begin.elapsed() < CAPTURE_PATIENCE {
            std::thread::park_timeout(CAPTURE_LOOK);
        }
        before
    }
}

impl Fleet for Server {
    fn change(&self, changes: Vec<NetChange>) -> Vec<ChangeError> {
        let change = |NetChange { vm, metadata, limits, guard }: NetChange| {
            let read = metadata.map(|source| self.set_metadata(&vm, source));
            let limited = limits.map(|limits| self.set_limits(&vm, limits));
            let guarded = guard.map(|guard| self.set_guard(&vm, guard));
            [read, limited, guarded].into_iter().flatten().filter_map(Result::err)
        };
        changes.into_iter().flat_map(change).collect()
    }
}
