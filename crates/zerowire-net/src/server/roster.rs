//! The VMs of a server, and where they are on their way.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use zerowire_capture::Capture;
use zerowire_vhost::serve::Served;

use super::arrival::add;
use super::{ChangeError, VmState};
use crate::vm::{self, VmConfig, VmContext};

/// What a VM has where it is on its way.
pub(super) enum VmStage {
    Opening,
    Running(Served<VmContext>),
    /// Somebody waits for its threads. `ended`: its control thread was at its end before.
    Leaving {
        ended: bool,
    },
    /// Its threads were told to end, and nobody waits for them any more.
    Held(Served<VmContext>),
}

/// A VM in the roster.
pub(super) struct RosterEntry {
    pub config: VmConfig,
    pub stage: VmStage,
    /// What is added under this name as soon as the VM has gone.
    pub next: Option<VmConfig>,
}

impl RosterEntry {
    pub fn state(&self) -> VmState {
        match &self.stage {
            VmStage::Opening => VmState::Opening,
            VmStage::Running(served) if served.vm.control.is_draining() => VmState::Draining,
            VmStage::Running(_) => VmState::Running,
            VmStage::Leaving { .. } | VmStage::Held(_) => VmState::Leaving,
        }
    }

    pub fn running(&self) -> Option<&Served<VmContext>> {
        match &self.stage {
            VmStage::Running(served) => Some(served),
            VmStage::Opening | VmStage::Leaving { .. } | VmStage::Held(_) => None,
        }
    }

    /// The VM, where its threads run and nobody waits for their end.
    pub fn served(&self) -> Option<&Served<VmContext>> {
        match &self.stage {
            VmStage::Running(served) | VmStage::Held(served) => Some(served),
            VmStage::Opening | VmStage::Leaving { .. } => None,
        }
    }

    /// Whether its threads were told to end, and nobody waits for them any more.
    pub fn is_held(&self) -> bool {
        matches!(self.stage, VmStage::Held(_))
    }

    /// Takes the VM out of its entry, which says that it leaves. None comes after it.
    pub fn take(&mut self) -> Option<Served<VmContext>> {
        self.served()?;
        self.next = None;
        match std::mem::replace(&mut self.stage, VmStage::Leaving { ended: false }) {
            VmStage::Running(served) | VmStage::Held(served) => Some(served),
            VmStage::Opening | VmStage::Leaving { .. } => None,
        }
    }

    /// Nobody waits any more for the threads of a VM that was taken. Returns it where its control
    /// thread is at its end by now, and would not remove it.
    pub fn hold(&mut self, served: Served<VmContext>) -> Option<Served<VmContext>> {
        if matches!(self.stage, VmStage::Leaving { ended: true }) {
            return Some(served);
        }
        self.stage = VmStage::Held(served);
        None
    }

    /// The VM's control thread is at its end. Returns the VM where the thread has to remove it.
    pub fn ended(&mut self) -> Option<Served<VmContext>> {
        match &mut self.stage {
            VmStage::Running(served) if !served.vm.control.is_draining() => None,
            VmStage::Running(_) | VmStage::Held(_) => self.take(),
            VmStage::Opening => None,
            // Somebody else removes the VM, and waits for this thread.
            VmStage::Leaving { ended } => {
                *ended = true;
                None
            }
        }
    }
}

/// All VMs.
#[derive(Default)]
pub(super) struct Roster {
    pub entries: Vec<RosterEntry>,
    /// Where frames of all VMs go as well.
    pub capture: Option<Arc<Capture>>,
    /// The server stops: nothing may be added.
    pub closed: bool,
}

impl Roster {
    pub fn find(&mut self, name: &str) -> Result<&mut RosterEntry, ChangeError> {
        let entry = self.entries.iter_mut().find(|e| e.config.name == name);
        entry.ok_or_else(|| ChangeError::Unknown(name.to_owned()))
    }

    pub fn forget(&mut self, name: &str) {
        self.entries.retain(|e| e.config.name != name);
        vm::share_budget(self.entries.iter().map(|e| &e.config));
    }
}

pub(super) fn lock(roster: &Mutex<Roster>) -> MutexGuard<'_, Roster> {
    roster.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a VM takes itself out of the roster that was drained, or whose removal nobody waits for.
#[derive(Clone)]
pub(crate) struct Departure(pub(super) Weak<Mutex<Roster>>);

impl Departure {
    /// The last act of a VM's control thread.
    pub(crate) fn leave(&self, vm: Arc<VmContext>) {
        let Some(roster) = self.0.upgrade() else { return };
        let name = vm.control.name.clone();
        let gone = lock(&roster).find(&name).ok().and_then(|entry| {
            let next = entry.next.take();
            Some((entry.ended()?, next))
        });
        let Some((served, next)) = gone else { return };
        let how = if vm.control.is_draining() { "drained and removed" } else { "removed after all" };
        // The port closes here. Until then nobody else can have it.
        drop((served, vm));
        lock(&roster).forget(&name);
        tracing::info!("{name}: {how}");
        if let Some(Err(e)) = next.map(|config| add(&roster, config)) {
            tracing::error!("{e}; VM {name} is not served");
        }
    }
}
