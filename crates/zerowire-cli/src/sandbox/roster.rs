//! The VMs of a supervisor.
//!
//! They stand in one roster under a lock, which is held to look something up or to enter a result,
//! never while a child is started, asked or waited for.

use std::sync::Arc;

use zerowire_capture::Capture;
use zerowire_vhost::serve::{ChangeError, RosterConfig, StartError};

use super::capture::KeepOutcome;

/// Where a VM is on its way. `S` serves it, and `L` is known of one that leaves.
pub(crate) enum KeptStage<S, L> {
    Opening,
    Running(S),
    Leaving(L),
}

/// A VM. `M` is the set of those that are served together, if there are sets.
pub(crate) struct KeptVm<C, S, L, M> {
    /// No other VM has it, also none of the same name.
    pub number: usize,
    pub config: C,
    /// The VMs that it is served with.
    pub set: M,
    pub stage: KeptStage<S, L>,
}

impl<C, S, L, M> KeptVm<C, S, L, M> {
    /// What serves it.
    pub(crate) fn running(&self) -> Option<&S> {
        match &self.stage {
            KeptStage::Running(served) => Some(served),
            KeptStage::Opening | KeptStage::Leaving(_) => None,
        }
    }
}

/// All VMs, in the order in which they were added.
pub(crate) struct Roster<C, S, L, M> {
    pub all: Vec<KeptVm<C, S, L, M>>,
    /// The number of the VM that was added last.
    pub last: usize,
    /// Where frames or packets go as well.
    pub capture: Option<Arc<Capture>>,
    /// The supervisor stops: nothing may be added.
    pub closed: bool,
}

impl<C: RosterConfig, S: Clone, L, M> Roster<C, S, L, M> {
    /// Without VMs yet.
    pub(crate) fn new(capture: Option<Arc<Capture>>) -> Self {
        Self { all: Vec::new(), last: 0, capture, closed: false }
    }

    pub(crate) fn find<E>(&mut self, name: &str) -> Result<&mut KeptVm<C, S, L, M>, ChangeError<E>> {
        let kept = self.all.iter_mut().find(|kept| kept.config.name() == name);
        kept.ok_or_else(|| ChangeError::Unknown(name.to_owned()))
    }

    /// What serves a VM that runs.
    pub(crate) fn served<E>(&mut self, name: &str) -> Result<S, ChangeError<E>> {
        let served = self.find(name)?.running().cloned();
        served.ok_or_else(|| ChangeError::Busy(name.to_owned()))
    }

    /// What serves the VMs that run.
    pub(crate) fn running(&self) -> Vec<S> {
        self.all.iter().filter_map(KeptVm::running).cloned().collect()
    }

    /// Enters a VM that is being opened. Returns its number.
    pub(crate) fn enter(&mut self, config: C, set: M) -> usize {
        self.last += 1;
        self.all.push(KeptVm { number: self.last, config, set, stage: KeptStage::Opening });
        self.share_out();
        self.last
    }

    /// A VM that was entered is served. What it moves goes to this capture.
    pub(crate) fn keep(&mut self, number: usize, served: &S, capture: Option<&Arc<Capture>>) -> KeepOutcome {
        let Some(kept) = self.all.iter_mut().find(|kept| kept.number == number) else {
            return KeepOutcome::Stopping;
        };
        if self.capture.as_ref().map(Arc::as_ptr) != capture.map(Arc::as_ptr) {
            return KeepOutcome::OtherCapture(self.capture.clone());
        }
        kept.stage = KeptStage::Running(served.clone());
        KeepOutcome::Running
    }

    /// A VM has gone, or could not be opened.
    pub(crate) fn forget(&mut self, number: usize) {
        self.all.retain(|kept| kept.number != number);
        self.share_out();
    }

    /// Takes out all VMs; no further one is entered. Returns what serves those that run.
    pub(crate) fn close(&mut self) -> Vec<S> {
        self.closed = true;
        let running = self.running();
        self.all.clear();
        running
    }

    /// Gives each VM its share of what they have together.
    fn share_out(&self) {
        C::share_out(&self.all.iter().map(|kept| &kept.config).collect::<Vec<_>>());
    }
}

/// Why a VM is not added any more.
pub(crate) fn stopping<E: From<StartError>>(vm: String) -> E {
    StartError::Limit { vm, text: "the server stops: it takes no further VM".to_owned() }.into()
}
