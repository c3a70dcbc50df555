//! The VMs of a group as they come and go, and what the child that runs has of them.
//!
//! ```text
//! Away ─▶ Starting: it is given one VM after the other ─▶ Serving: it takes changes at once
//!   ▲        │ changes of those that it has wait             │
//!   └────────┴────────────── it has died ◀───────────────────┘
//! ```
//!
//! They stand under a lock, which nobody holds while a child may keep him waiting.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use super::message::{VmChange, VmSetup};
use super::vm::KeptVsock;
use crate::sandbox::keeper::START_PATIENCE;

/// How long a child may take for a change. Its threads have 5 s.
const CHANGE_PATIENCE: Duration = Duration::from_secs(6);

/// A change, and the descriptors that go with it.
pub(super) type SentChange = (VmChange, Vec<OwnedFd>);

/// How a VM is given, with what is open for it.
pub(super) type GivenSetup = (Box<VmSetup>, Vec<OwnedFd>);

/// Where the child is on its way.
#[derive(Default)]
enum ChildStage {
    /// None is there. The next one learns of changes by the setup of its VMs.
    #[default]
    Away,
    /// It is being given its VMs, and these changes behind them.
    Starting(Vec<SentChange>),
    Serving,
}

/// The VMs of a group.
#[derive(Default)]
pub(super) struct GroupMembers {
    pub vms: Vec<Arc<KeptVsock>>,
    /// Numbers of those that the child has. The next one gets them all.
    given: Vec<usize>,
    /// Numbers of those that have come behind its start, and that it has not taken yet.
    coming: Vec<usize>,
    stage: ChildStage,
    /// True: the last VM has left, and none can join.
    pub over: bool,
}

impl GroupMembers {
    pub(super) fn new(vms: Vec<Arc<KeptVsock>>) -> Self {
        Self { vms, ..Self::default() }
    }

    /// Whether the child has this VM.
    pub(super) fn has(&self, vm: usize) -> bool {
        self.given.contains(&vm)
    }

    /// Whether a child is there that takes changes, now or as soon as it has its VMs.
    pub(super) fn has_child(&self) -> bool {
        !matches!(self.stage, ChildStage::Away)
    }

    /// Whether the child has got all of its VMs, and takes questions.
    pub(super) fn is_serving(&self) -> bool {
        matches!(self.stage, ChildStage::Serving)
    }

    /// How long the child that is there may take for a change.
    pub(super) fn patience(&self) -> Duration {
        match self.stage {
            ChildStage::Starting(_) => START_PATIENCE + CHANGE_PATIENCE,
            ChildStage::Away | ChildStage::Serving => CHANGE_PATIENCE,
        }
    }

    /// A child is given the VMs from now on. Returns them.
    pub(super) fn begin(&mut self) -> Vec<Arc<KeptVsock>> {
        self.stage = ChildStage::Starting(Vec::new());
        self.vms.clone()
    }

    /// What gives the child a VM. None: that has left. Later changes follow behind it.
    pub(super) fn give(&mut self, vm: &KeptVsock) -> Result<Option<GivenSetup>, String> {
        if vm.leaves() || self.vms.iter().all(|other| other.number != vm.number) {
            return Ok(None);
        }
        self.given.push(vm.number);
        vm.setup().map(Some)
    }

    /// The changes that have waited for the child. It takes further ones at once if there are none.
    pub(super) fn late_changes(&mut self) -> Vec<SentChange> {
        let ChildStage::Starting(late) = &mut self.stage else { return Vec::new() };
        let late = std::mem::take(late);
        if late.is_empty() {
            self.stage = ChildStage::Serving;
        }
        late
    }

    /// One more VM. The child that is there may not take it any more: its end says nothing of this
    /// VM then.
    pub(super) fn add(&mut self, vm: &Arc<KeptVsock>) {
        self.vms.push(vm.clone());
        if self.has_child() {
            self.coming.push(vm.number);
        }
    }

    /// The child has taken a VM that was added.
    pub(super) fn taken(&mut self, vm: usize) {
        self.given.extend(self.coming.extract_if(.., |number| *number == vm));
    }

    /// Takes VMs out. None can join behind the last one.
    pub(super) fn take_out(&mut self, goes: impl Fn(&KeptVsock) -> bool) -> Vec<Arc<KeptVsock>> {
        let (gone, stay): (Vec<_>, _) = std::mem::take(&mut self.vms).into_iter().partition(|vm| goes(vm));
        self.vms = stay;
        let stays = |number: &usize| gone.iter().all(|vm| vm.number != *number);
        self.given.retain(stays);
        self.coming.retain(stays);
        self.over = self.vms.is_empty();
        gone
    }

    /// The child has ended. Returns the VMs, and whether it was theirs.
    pub(super) fn end(&mut self) -> Vec<(Arc<KeptVsock>, bool)> {
        self.stage = ChildStage::Away;
        self.given.clear();
        let coming = std::mem::take(&mut self.coming);
        self.vms.iter().map(|vm| (vm.clone(), !coming.contains(&vm.number))).collect()
    }

    /// Has a change wait until the child has its VMs. Some: it has them, and this can be sent.
    pub(super) fn defer(&mut self, change: VmChange, fds: Vec<OwnedFd>) -> Option<SentChange> {
        if let ChildStage::Starting(late) = &mut self.stage {
            late.push((change, fds));
            return None;
        }
        Some((change, fds))
    }
}
