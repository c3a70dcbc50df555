//! The VMs of a supervisor, and the children that serve them.
//!
//! VMs that may reach each other, also by way of others, form a set, which has a child. A VM joins
//! the set whose groups it shares, and stays in it: sets that run can't become one. A set ends with
//! its last VM.
//!
//! What changes a set takes turns.

use std::sync::Arc;
use std::time::Instant;

use zerowire_capture::{Capture, Captured};
use zerowire_confine::Owner;
use zerowire_vhost::serve::{ListenError, Listener, StartError, VmFleet, VmTurn, inherit};
use zerowire_vsock::{
    HostSockets, Limits, OwnSockets, SetMember, VsockChangeError, VsockConfig, VsockFleet, VsockServerError,
    VsockServerStats, VsockVmInfo, VsockVmStats, check_vms, group_sets,
};

use super::changes::{CaptureChange, JoinRefusal};
use super::group::{GroupCommon, VsockGroup};
pub(super) use super::roster::VsockRoster;
use super::roster::{ServedVsock, VmSet};
use super::vm::{KeptVsock, OpenVsock};
use crate::sandbox::capture::{CaptureRelay, PATIENCE};
use crate::sandbox::cpu::CpuSum;
use crate::sandbox::keeper::Keeper;
use crate::sandbox::link::{ANSWER_PATIENCE, settled};
use crate::sandbox::roster::stopping;
use crate::sandbox::{lock, refused};

/// A process that serves each set of VMs by a confined child.
pub(in crate::vsock) struct VsockSupervisor {
    roster: Arc<VsockRoster>,
    common: GroupCommon,
    own: OwnSockets,
    start: Instant,
}

impl VsockSupervisor {
    /// Opens all sockets and starts the children, which log at level `log`. On an error nothing is
    /// left behind. Guests reach none of the `own` sockets.
    pub(in crate::vsock) fn start(
        mut configs: Vec<VsockConfig>,
        owner: Owner,
        log: &str,
        capture: Option<Arc<Capture>>,
        own: OwnSockets,
    ) -> Result<Self, VsockServerError> {
        check_vms(&mut configs)?;
        let inherited = inherit(configs.iter().map(|c| (c.name.as_str(), &c.endpoint)))?;
        // The paths of sockets that were handed over are known by now.
        check_vms(&mut configs)?;
        let roster = Arc::new(VsockRoster::new(capture.clone()));
        let (log, cpu) = (log.to_owned(), CpuSum::default());
        let common = GroupCommon { owner, log, roster: Arc::downgrade(&roster), cpu };
        let supervisor = Self { roster, common, own, start: Instant::now() };
        let sets = group_sets(configs.iter());
        let opened = configs.into_iter().zip(inherited).zip(1..).map(|((config, inherited), number)| {
            let open = supervisor.open(&config, inherited)?;
            supervisor.keep(number, config, open, capture.as_deref())
        });
        let vms = opened.collect::<Result<Vec<_>, VsockServerError>>()?;
        for set in sets {
            let vms: Vec<_> = set.into_iter().map(|i| vms[i].clone()).collect();
            let keeper = supervisor.begin(vms.clone())?;
            supervisor.roster.started(&vms, &keeper);
        }
        Ok(supervisor)
    }

    /// Opens the sockets of a VM, but for one that was `inherited`.
    fn open(&self, config: &VsockConfig, inherited: Option<Listener>) -> Result<OpenVsock, VsockServerError> {
        let vm = || config.name.clone();
        let failed = |cause: ListenError| StartError::Listen { vm: vm(), cause };
        if matches!(inherited, Some(Listener::Connected(_))) {
            let text = refused(&super::connected(config));
            return Err(StartError::Limit { vm: vm(), text }.into());
        }
        let sockets = HostSockets::bind(&config.uds, &config.uds_access).map_err(failed)?;
        // The front end's socket comes last: who sees it finds everything else in place.
        let listener = match inherited {
            Some(listener) => listener,
            None => Listener::new(&config.endpoint, &config.access).map_err(failed)?,
        };
        Ok(OpenVsock::new(config, listener, sockets, &self.own))
    }

    /// A VM with its `open` sockets, which no child has yet.
    fn keep(
        &self,
        number: usize,
        config: VsockConfig,
        open: OpenVsock,
        capture: Option<&Capture>,
    ) -> Result<Arc<KeptVsock>, VsockServerError> {
        let vm = config.name.clone();
        let kept = KeptVsock::new(number, config, open, &self.own, capture);
        Ok(Arc::new(kept.map_err(|cause| StartError::Resources { vm, cause })?))
    }

    /// Starts a child for VMs.
    fn begin(&self, vms: Vec<Arc<KeptVsock>>) -> Result<Arc<Keeper<VsockGroup>>, VsockServerError> {
        let vm = vms.first().map(|vm| vm.config.name.clone()).unwrap_or_default();
        let started = Keeper::start(VsockGroup::new(vms, self.common.clone()));
        started.map_err(|text| VsockServerError::Process { vm, text })
    }

    /// Has the child of a set serve one more VM.
    fn serve(&self, set: &VmSet, vm: &Arc<KeptVsock>) -> Result<Arc<Keeper<VsockGroup>>, VsockServerError> {
        let mut turn = lock(set);
        if let Some(keeper) = &*turn {
            let name = &vm.config.name;
            match keeper.join(vm) {
                Ok(()) => {
                    tracing::info!(vm = name, "served by the confined process of its groups");
                    return Ok(keeper.clone());
                }
                Err(JoinRefusal::Child(text)) => {
                    return Err(VsockServerError::Process { vm: name.clone(), text });
                }
                Err(JoinRefusal::Over) => {}
            }
        }
        let keeper = self.begin(vec![vm.clone()])?;
        *turn = Some(keeper.clone());
        Ok(keeper)
    }

    /// Opens and serves a VM that was entered.
    fn open_entered(
        &self,
        (number, config, set): (usize, VsockConfig, Arc<VmSet>),
    ) -> Result<(), VsockServerError> {
        let name = config.name.clone();
        let capture = self.capture();
        let open = self.open(&config, None)?;
        let vm = self.keep(number, config, open, capture.as_deref())?;
        let closed = || vm.close(Instant::now() + PATIENCE);
        let keeper = self.serve(&set, &vm).inspect_err(|_| closed())?;
        let served = ServedVsock { vm, keeper };
        if !self.roster.keep(number, &served, capture) {
            served.keeper.leave(&served.vm);
            return Err(stopping(name));
        }
        Ok(())
    }
}

impl VmFleet for VsockSupervisor {
    type Config = VsockConfig;
    type Error = VsockServerError;
    type Stats = VsockVmStats;

    fn vms(&self) -> Vec<VsockVmInfo> {
        self.roster.vms()
    }

    /// Asks all children at once: those that do not answer cost the time of one.
    fn stats(&self) -> VsockServerStats {
        let running = self.roster.running();
        let keepers = distinct(&running);
        let asked: Vec<_> = keepers.iter().map(|keeper| keeper.ask_stats()).collect();
        let deadline = Instant::now() + ANSWER_PATIENCE;
        let answers = keepers.iter().zip(asked);
        let answered: Vec<_> =
            answers.flat_map(|(keeper, asked)| keeper.enter_stats(&asked, deadline)).collect();
        let vms = running.iter().map(|served| served.vm.stats(&answered)).collect();
        let own = VsockServerStats::since(self.start, Vec::new());
        let cpu_seconds = own.cpu_seconds + self.common.cpu.seconds();
        VsockServerStats { cpu_seconds, confined: true, vms, ..own }
    }

    fn add(&self, config: VsockConfig, turn: Option<VmTurn<'_>>) -> Result<(), VsockServerError> {
        StartError::check_late(&config.name, &config.endpoint)?;
        let entered = self.roster.enter(config)?;
        drop(turn);
        let number = entered.0;
        self.open_entered(entered).inspect_err(|_| self.roster.forget(number))
    }

    fn try_open(&self, running: &VsockConfig, wanted: &VsockConfig) -> Result<(), VsockServerError> {
        zerowire_vsock::try_open(running, wanted)
    }

    fn remove(&self, name: &str) -> Result<(), VsockChangeError> {
        let (ServedVsock { vm, keeper }, set) = self.roster.take(name)?;
        let turn = lock(&set);
        let has_left = keeper.leave(&vm);
        drop(turn);
        self.roster.forget(vm.number);
        if has_left {
            tracing::info!("{name}: removed");
        }
        Ok(())
    }

    fn drain(&self, name: &str) -> Result<(), VsockChangeError> {
        let ServedVsock { vm, keeper } = self.roster.served(name)?;
        keeper.drain(&vm);
        Ok(())
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn stop(&self) {
        let running = self.roster.close();
        running.iter().for_each(|served| served.keeper.ask_to_stop());
        let deadline = Instant::now() + PATIENCE;
        running.iter().for_each(|served| served.keeper.stop());
        CaptureRelay::finish(running.iter().filter_map(|served| served.vm.take_relay()), deadline);
        running.iter().for_each(|served| served.vm.close(deadline));
    }
}

impl Captured for VsockSupervisor {
    fn capture(&self) -> Option<Arc<Capture>> {
        self.roster.capture()
    }

    fn set_capture(&self, capture: Option<Arc<Capture>>) -> Option<Arc<Capture>> {
        let (before, changes) = self.roster.set_capture(capture);
        let deadline = Instant::now() + PATIENCE;
        CaptureChange::finish(changes, deadline);
        before
    }
}

impl VsockFleet for VsockSupervisor {
    fn members(&self) -> Vec<SetMember> {
        self.roster.members()
    }

    /// Asks all children first: those that do not answer cost the time of one.
    fn set_limits(&self, all: Vec<(String, Limits)>) -> Vec<VsockChangeError> {
        let sent_until = Instant::now() + ANSWER_PATIENCE;
        let ask = |(name, rates): (String, Limits)| {
            let served = self.roster.served(&name);
            let asked = served.map(|ServedVsock { vm, keeper }| keeper.ask_rates(&vm, rates, sent_until));
            (name, asked)
        };
        let asked: Vec<_> = all.into_iter().map(ask).collect();
        let deadline = Instant::now() + ANSWER_PATIENCE;
        let end = |(vm, asked): (String, Result<Result<_, String>, VsockChangeError>)| {
            let done = asked?.and_then(|asked| settled(asked, deadline));
            done.map_err(|text| VsockServerError::Process { vm, text }.into())
        };
        asked.into_iter().filter_map(|asked| end(asked).err()).collect()
    }
}

impl Drop for VsockSupervisor {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The children of these VMs, each once.
fn distinct(running: &[ServedVsock]) -> Vec<&Arc<Keeper<VsockGroup>>> {
    let mut keepers: Vec<&Arc<Keeper<VsockGroup>>> = Vec::new();
    for served in running {
        if !keepers.iter().any(|keeper| Arc::ptr_eq(keeper, &served.keeper)) {
            keepers.push(&served.keeper);
        }
    }
    keepers
}

#[cfg(test)]
mod tests {
    use std::sync::Weak;

    use super::super::changes::tests::given;
    use super::super::group::tests::{group, kept};
    use super::super::message::{GroupOrder, GroupWord, VmChange};
    use super::*;
    use crate::sandbox::channel::Channel;
    use crate::sandbox::keeper::Charge;

    /// One VM is not answered for. The others are as soon as all children have been told.
    #[test]
    fn all_children_are_told_before_an_answer_is_awaited() {
        let dir = tempfile::tempdir().expect("a folder");
        let common = GroupCommon {
            owner: Owner { user: 65534, group: 65534 },
            log: "info".to_owned(),
            roster: Weak::new(),
            cpu: CpuSum::default(),
        };
        let c = kept(dir.path(), &OwnSockets::default(), (2, "c"), 0);
        let groups = [group(dir.path(), 0), VsockGroup::new(vec![c], common)];
        let (owner, own) = (Owner { user: 65534, group: 65534 }, OwnSockets::default());
        let supervisor = VsockSupervisor::start(Vec::new(), owner, "info", None, own);
        let supervisor = supervisor.expect("no VMs");
        let [(first, of_both), (second, of_c)] = groups.map(|group| {
            let (keeper, child) = Keeper::played(group);
            let link = keeper.link().expect("a child");
            keeper.charge.hand(&link).expect("room");
            given(&child);
            supervisor.roster.started(&lock(&keeper.charge.members).vms.clone(), &keeper);
            (link, child)
        });
        let limits = Limits { transmit: Some("1M/s".parse().expect("a limit")), receive: None };
        let configs = || supervisor.vms().into_iter().map(|vm| vm.config);
        let wanted: Vec<_> = configs().map(|config| config.rates(limits)).collect();
        let names = ["a", "b", "c"].map(str::to_owned);
        let next = |child: &Channel| match child.receive() {
            Ok(Some((GroupOrder::Change(VmChange::Rates(number, vm, _)), _))) => (number, vm),
            other => panic!("{other:?}"),
        };
        let reloaded = std::thread::scope(|scope| {
            let fleet: &dyn VsockFleet = &supervisor;
            let reloads = scope.spawn(|| fleet.reload(&names, wanted));
            let told = [&of_both, &of_both, &of_c].map(next);
            assert_eq!(told.map(|(_, vm)| vm), [0, 1, 2]);
            first.take(GroupWord::Changed(told[0].0, None));
            second.take(GroupWord::Changed(told[2].0, None));
            reloads.join().expect("no panic").expect("a good file")
        });
        assert!(configs().all(|config| config.rates == limits), "all have the change");
        let [error] = reloaded.errors.as_slice() else { panic!("{reloaded:?}") };
        assert!(error.contains("VM b") && error.contains("holds when it does"), "{error}");
    }
}
