//! The VMs of a supervisor, each with a child of its own.

use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Instant;

use zerowire_capture::{Capture, Captured};
use zerowire_net::{
    ChangeError, Fleet, NetChange, ServerError, ServerStats, VmConfig, VmInfo, VmStats, check_vms,
};
use zerowire_vhost::serve::{Listener, StartError, VmFleet, VmState, VmTurn, add_or_restore, side_by_side};

use super::changing;
use super::message::ChildWord;
use super::vm::{Common, NetVm};
use crate::sandbox::capture::{CaptureRelay, LOOK, PATIENCE, keep_captured};
use crate::sandbox::keeper::Keeper;
use crate::sandbox::link::ANSWER_PATIENCE;
use crate::sandbox::lock;
use crate::sandbox::roster::{KeptStage, KeptVm, Roster, stopping};

/// A VM with its child.
type VmKeeper = Keeper<NetVm>;

/// How far a VM is that leaves.
enum NetLeaving {
    /// Somebody waits for its child. `ended`: it has ended, and all that was open for it is closed.
    Awaited { ended: bool },
    /// Nobody waits any more for its child, which was told to end. The VM that is added under this
    /// name as soon as it has gone.
    Held(Option<Box<VmConfig>>),
}

type KeptNet = KeptVm<VmConfig, Arc<VmKeeper>, NetLeaving, ()>;
type NetRoster = Roster<VmConfig, Arc<VmKeeper>, NetLeaving, ()>;

impl KeptNet {
    fn state(&self) -> VmState {
        match &self.stage {
            KeptStage::Opening => VmState::Opening,
            KeptStage::Running(keeper) if keeper.charge.is_draining() => VmState::Draining,
            KeptStage::Running(_) => VmState::Running,
            KeptStage::Leaving(_) => VmState::Leaving,
        }
    }
}

impl NetRoster {
    /// Enters a VM that is being opened, if it can be served beside the others.
    fn admit(&mut self, config: VmConfig) -> Result<usize, ServerError> {
        if self.closed {
            return Err(stopping(config.name));
        }
        let all: Vec<_> = self.all.iter().map(|kept| &kept.config).chain([&config]).collect();
        check_vms(&all)?;
        Ok(self.enter(config, ()))
    }

    /// Nobody waits any more for the child of a VM that leaves. False: it has ended by now.
    /// `now` are the settings that it has had.
    fn hold(&mut self, number: usize, now: VmConfig) -> bool {
        let kept = self.all.iter_mut().find(|kept| kept.number == number);
        let is_awaited = |kept: &&mut KeptNet| {
            matches!(kept.stage, KeptStage::Leaving(NetLeaving::Awaited { ended: false }))
        };
        let held = KeptStage::Leaving(NetLeaving::Held(None));
        kept.filter(is_awaited).map(|kept| (kept.stage, kept.config) = (held, now)).is_some()
    }

    /// The last child of a VM has ended, and what was open for it is closed. Forgets the VM if
    /// nobody else does. Returns what comes after it, and what it was itself.
    fn ended(&mut self, number: usize) -> Option<(VmConfig, VmConfig)> {
        let kept = self.all.iter_mut().find(|kept| kept.number == number)?;
        let next = match &mut kept.stage {
            KeptStage::Leaving(NetLeaving::Awaited { ended }) => {
                *ended = true;
                return None;
            }
            KeptStage::Running(keeper) if keeper.charge.is_draining() => {
                tracing::info!("{}: drained and removed", kept.config.name);
                None
            }
            // Its only connection has ended; or it could not be opened.
            KeptStage::Running(_) | KeptStage::Opening => return None,
            KeptStage::Leaving(NetLeaving::Held(next)) => {
                tracing::info!("{}: removed after all", kept.config.name);
                next.take()
            }
        };
        let next = next.map(|next| (*next, kept.config.clone()));
        self.forget(number);
        next
    }
}

/// Refuses a VM that no child can serve.
fn check(config: &VmConfig) -> Result<(), ServerError> {
    super::check(config).map_err(|text| StartError::Limit { vm: config.name.clone(), text }.into())
}

/// A process that serves each VM by a confined child.
pub(in crate::net) struct Supervisor {
    parts: SupervisorParts,
    start: Instant,
}

/// What adds a VM.
#[derive(Clone)]
struct SupervisorParts {
    vms: Arc<Mutex<NetRoster>>,
    common: Common,
}

impl Supervisor {
    /// Without VMs yet.
    pub(super) fn new(common: Common, capture: Option<Arc<Capture>>) -> Self {
        let parts = SupervisorParts { vms: Arc::new(Mutex::new(Roster::new(capture))), common };
        Self { parts, start: Instant::now() }
    }

    fn lock(&self) -> MutexGuard<'_, NetRoster> {
        lock(&self.parts.vms)
    }

    /// Adds a VM, whose socket may be one that this process was started with.
    pub(super) fn open(&self, config: VmConfig, inherited: Option<Listener>) -> Result<(), ServerError> {
        self.parts.open(config, inherited, None)
    }
}

impl SupervisorParts {
    /// Adds a VM ([`Supervisor::open`]), which is entered in `turn`.
    fn open(
        &self,
        config: VmConfig,
        inherited: Option<Listener>,
        turn: Option<VmTurn<'_>>,
    ) -> Result<(), ServerError> {
        let name = config.name.clone();
        check(&config)?;
        let (number, capture) = {
            let mut vms = lock(&self.vms);
            (vms.admit(config.clone())?, vms.capture.clone())
        };
        drop(turn);
        let (common, gone) = (self.common.clone(), self.gone(number));
        let started = NetVm::start(config, inherited, common, capture.as_deref(), gone);
        let keeper = started.inspect_err(|_| lock(&self.vms).forget(number))?;
        if !self.keep(number, &keeper, capture) {
            keeper.stop();
            return Err(stopping(name));
        }
        Ok(())
    }

    /// Serves a VM that was entered, and opened with this capture. False: the server has stopped
    /// meanwhile.
    fn keep(&self, number: usize, keeper: &Arc<VmKeeper>, capture: Option<Arc<Capture>>) -> bool {
        let keep = |capture: Option<&Arc<Capture>>| lock(&self.vms).keep(number, keeper, capture);
        keep_captured(capture, keep, |capture, deadline| {
            CaptureRelay::finish(keeper.charge.set_capture(capture, deadline), deadline);
        })
    }

    /// What takes a VM out of the roster that was drained, or whose removal nobody waits for.
    fn gone(&self, number: usize) -> impl FnOnce() + Send + use<> {
        let (vms, common): (Weak<_>, _) = (Arc::downgrade(&self.vms), self.common.clone());
        move || {
            let Some(vms) = vms.upgrade() else { return };
            let next = lock(&vms).ended(number);
            let (Some((next, before)), parts) = (next, Self { vms, common }) else { return };
            if let Err(e) = add_or_restore(|config| parts.open(config, None, None), next, before) {
                tracing::error!("{e}");
            }
        }
    }
}

impl VmFleet for Supervisor {
    type Config = VmConfig;
    type Error = ServerError;
    type Stats = VmStats;

    fn vms(&self) -> Vec<VmInfo> {
        let listed = |kept: &KeptNet| (kept.config.clone(), kept.state(), kept.running().cloned());
        let all: Vec<_> = self.lock().all.iter().map(listed).collect();
        // Nobody else waits for the VM that answers here.
        let info = |(config, state, keeper): (VmConfig, VmState, Option<Arc<VmKeeper>>)| match keeper {
            Some(keeper) => {
                VmInfo { config: keeper.charge.config(), state, connected: keeper.charge.is_connected() }
            }
            None => VmInfo { config, state, connected: false },
        };
        all.into_iter().map(info).collect()
    }

    /// Asks all children at once: those that do not answer cost the time of one.
    fn stats(&self) -> ServerStats {
        let running = self.lock().running();
        let asked: Vec<_> = running.iter().map(|keeper| keeper.charge.ask_stats()).collect();
        let deadline = Instant::now() + ANSWER_PATIENCE;
        let told = running.iter().zip(asked).map(|(keeper, asked)| keeper.charge.stats(asked, deadline));
        let vms = told.collect();
        let own = ServerStats::since(self.start, Vec::new());
        let cpu_seconds = own.cpu_seconds + self.parts.common.cpu.seconds();
        ServerStats { cpu_seconds, confined: true, vms, ..own }
    }

    fn add(&self, config: VmConfig, turn: Option<VmTurn<'_>>) -> Result<(), ServerError> {
        StartError::check_late(&config.name, &config.endpoint)?;
        self.parts.open(config, None, turn)
    }

    fn add_later(&self, config: VmConfig) -> Result<(), ServerError> {
        check(&config)?;
        let mut vms = self.lock();
        let found = vms.find::<ServerError>(&config.name);
        if let Ok(KeptVm { stage: KeptStage::Leaving(NetLeaving::Held(next)), .. }) = found {
            *next = Some(Box::new(config));
            return Ok(());
        }
        drop(vms);
        self.add(config, None)
    }

    fn try_open(&self, running: &VmConfig, wanted: &VmConfig) -> Result<(), ServerError> {
        check(wanted)?;
        zerowire_net::try_open(running, wanted, |port| port.keep().map(drop))
    }

    fn remove(&self, name: &str) -> Result<(), ChangeError> {
        let (number, keeper) = {
            let mut vms = self.lock();
            let kept = vms.find(name)?;
            if let KeptStage::Leaving(NetLeaving::Held(next)) = &mut kept.stage {
                *next = None;
                return Err(ChangeError::Stuck(name.to_owned()));
            }
            let keeper = kept.running().cloned().ok_or_else(|| ChangeError::Busy(name.to_owned()))?;
            kept.stage = KeptStage::Leaving(NetLeaving::Awaited { ended: false });
            (kept.number, keeper)
        };
        let now = keeper.charge.config();
        let has_ended = keeper.remove();
        // Who asks about it just now may let go of it later.
        keeper.charge.refuse();
        drop(keeper);
        let mut vms = self.lock();
        if !has_ended && vms.hold(number, now) {
            return Err(ChangeError::Stuck(name.to_owned()));
        }
        vms.forget(number);
        drop(vms);
        tracing::info!("{name}: removed");
        Ok(())
    }

    fn drain(&self, name: &str) -> Result<(), ChangeError> {
        let keeper = self.lock().served(name)?;
        keeper.charge.drain().map_err(|text| ServerError::Process { vm: name.to_owned(), text }.into())
    }

    fn is_alive(&self) -> bool {
        let is_alive = |kept: &KeptNet| kept.running().is_none_or(|keeper| keeper.is_alive());
        self.lock().all.iter().any(is_alive)
    }

    fn stop(&self) {
        let running = self.lock().close();
        running.iter().for_each(|keeper| keeper.ask_to_stop());
        side_by_side(running, |keeper| keeper.stop());
    }
}

/// Waits until the child of a VM records for the capture that it was told of, or until `deadline`.
fn await_capture(vm: &NetVm, deadline: Instant) {
    let records = |answer| match answer {
        Some(ChildWord::Statistics(_, told)) => told.state.captures,
        // It does not answer, or has gone.
        _ => true,
    };
    while vm.ask_stats().is_some_and(|asked| !records(asked.answer(deadline))) && Instant::now() < deadline {
        std::thread::sleep(LOOK);
    }
}

impl Captured for Supervisor {
    fn capture(&self) -> Option<Arc<Capture>> {
        self.lock().capture.clone()
    }

    fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>> {
        let deadline = Instant::now() + PATIENCE;
        // A child may keep its VM's turn: nobody waits for that with the lock.
        let (before, running) = {
            let mut vms = self.lock();
            (std::mem::replace(&mut vms.capture, capture.clone()), vms.running())
        };
        let change = |keeper: &Arc<VmKeeper>| keeper.charge.set_capture(capture.as_deref(), deadline);
        CaptureRelay::finish(running.iter().filter_map(change), deadline);
        if capture.is_some() {
            running.iter().for_each(|keeper| await_capture(&keeper.charge, deadline));
        }
        before
    }
}

impl Fleet for Supervisor {
    fn change(&self, changes: Vec<NetChange>) -> Vec<ChangeError> {
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        for change in changes {
            match self.lock().served(&change.vm) {
                Ok(keeper) => found.push((keeper, change)),
                Err(e) => failed.push(e),
            }
        }
        failed.extend(changing::change(found).into_iter().map(ChangeError::from));
        failed
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
