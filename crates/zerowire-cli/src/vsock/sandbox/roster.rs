//! The VMs of a supervisor by their names.

use std::sync::{Arc, Mutex};

use zerowire_capture::Capture;
use zerowire_vhost::serve::VmState;
use zerowire_vsock::{
    SetMember, VsockChangeError, VsockConfig, VsockServerError, VsockVmInfo, check_vms, joined_set,
};

use super::changes::CaptureChange;
use super::group::VsockGroup;
use super::vm::KeptVsock;
use crate::sandbox::capture::keep_captured;
use crate::sandbox::keeper::Keeper;
use crate::sandbox::lock;
use crate::sandbox::roster::{KeptStage, KeptVm, Roster, stopping};

/// VMs that are served together, and the keeper of their child. Who adds one or removes it holds
/// the lock.
pub(super) type VmSet = Mutex<Option<Arc<Keeper<VsockGroup>>>>;

/// A VM, and the keeper of its child.
#[derive(Clone)]
pub(super) struct ServedVsock {
    pub vm: Arc<KeptVsock>,
    pub keeper: Arc<Keeper<VsockGroup>>,
}

type KeptMember = KeptVm<VsockConfig, ServedVsock, (), Arc<VmSet>>;
type Entries = Roster<VsockConfig, ServedVsock, (), Arc<VmSet>>;

impl KeptMember {
    fn info(&self) -> VsockVmInfo {
        let info = |state| VsockVmInfo { config: self.config.clone(), state, connected: false };
        match &self.stage {
            KeptStage::Opening => info(VmState::Opening),
            KeptStage::Leaving(()) => info(VmState::Leaving),
            KeptStage::Running(ServedVsock { vm, .. }) => {
                let drains = lock(&vm.state).drains;
                let state = if drains { VmState::Draining } else { VmState::Running };
                VsockVmInfo { config: vm.config(), state, connected: lock(&vm.sums).connected }
            }
        }
    }
}

fn members(entries: &Entries) -> Vec<SetMember> {
    let member = |entry: &KeptMember| SetMember {
        vm: entry.config.name.clone(),
        groups: entry.config.groups.clone(),
        set: Arc::as_ptr(&entry.set) as usize,
    };
    entries.all.iter().map(member).collect()
}

/// All VMs of a supervisor.
pub(super) struct VsockRoster(Mutex<Entries>);

impl VsockRoster {
    /// Without VMs yet.
    pub(super) fn new(capture: Option<Arc<Capture>>) -> Self {
        Self(Mutex::new(Roster::new(capture)))
    }

    /// VMs of the start are served together, under numbers that are theirs alone.
    pub(super) fn started(&self, vms: &[Arc<KeptVsock>], keeper: &Arc<Keeper<VsockGroup>>) {
        let set: Arc<VmSet> = Arc::new(Mutex::new(Some(keeper.clone())));
        let mut entries = lock(&self.0);
        for vm in vms {
            let stage = KeptStage::Running(ServedVsock { vm: vm.clone(), keeper: keeper.clone() });
            let (number, config) = (vm.number, vm.config.clone());
            entries.last = entries.last.max(number);
            entries.all.push(KeptVm { number, config, set: set.clone(), stage });
        }
        entries.all.sort_unstable_by_key(|entry| entry.number);
    }

    /// Enters a VM that is being opened. Returns its number, its complete configuration and its
    /// set.
    pub(super) fn enter(
        &self,
        config: VsockConfig,
    ) -> Result<(usize, VsockConfig, Arc<VmSet>), VsockServerError> {
        let mut entries = lock(&self.0);
        if entries.closed {
            return Err(stopping(config.name));
        }
        let mut all: Vec<_> = entries.all.iter().map(|entry| entry.config.clone()).chain([config]).collect();
        check_vms(&mut all)?;
        let config = all.swap_remove(entries.all.len());
        let joined = joined_set(&config.name, &config.groups, &members(&entries))?;
        let set =
            entries.all.iter().map(|entry| &entry.set).find(|set| Some(Arc::as_ptr(set) as usize) == joined);
        let set = set.cloned().unwrap_or_default();
        let number = entries.enter(config.clone(), set.clone());
        Ok((number, config, set))
    }

    /// A VM that was entered, and opened with this capture, is served. False: the supervisor stops.
    pub(super) fn keep(&self, number: usize, served: &ServedVsock, capture: Option<Arc<Capture>>) -> bool {
        let keep = |capture: Option<&Arc<Capture>>| lock(&self.0).keep(number, served, capture);
        keep_captured(capture, keep, |capture, deadline| {
            CaptureChange::finish(vec![served.keeper.set_capture(&served.vm, capture)], deadline);
        })
    }

    /// A VM has gone, or could not be opened.
    pub(super) fn forget(&self, number: usize) {
        lock(&self.0).forget(number);
    }

    /// A VM that runs.
    pub(super) fn served(&self, name: &str) -> Result<ServedVsock, VsockChangeError> {
        lock(&self.0).served(name)
    }

    /// Takes a VM that runs to remove it.
    pub(super) fn take(&self, name: &str) -> Result<(ServedVsock, Arc<VmSet>), VsockChangeError> {
        let mut entries = lock(&self.0);
        let entry = entries.find(name)?;
        let served = entry.running().cloned().ok_or_else(|| VsockChangeError::Busy(name.to_owned()))?;
        entry.stage = KeptStage::Leaving(());
        Ok((served, entry.set.clone()))
    }

    /// All VMs that run.
    pub(super) fn running(&self) -> Vec<ServedVsock> {
        lock(&self.0).running()
    }

    /// Takes out all VMs; no further one is entered. Returns those that run.
    pub(super) fn close(&self) -> Vec<ServedVsock> {
        lock(&self.0).close()
    }

    /// All VMs, in the order in which they were added.
    pub(super) fn vms(&self) -> Vec<VsockVmInfo> {
        lock(&self.0).all.iter().map(KeptMember::info).collect()
    }

    /// The VMs, and which of them are served together.
    pub(super) fn members(&self) -> Vec<SetMember> {
        members(&lock(&self.0))
    }

    /// Where packets go as well.
    pub(super) fn capture(&self) -> Option<Arc<Capture>> {
        lock(&self.0).capture.clone()
    }

    /// Has packets go to another capture from now on, or to none. Returns the one before, and what
    /// has to be waited for.
    pub(super) fn set_capture(
        &self,
        capture: Option<Arc<Capture>>,
    ) -> (Option<Arc<Capture>>, Vec<CaptureChange>) {
        let mut entries = lock(&self.0);
        let running = entries.all.iter().filter_map(KeptVm::running);
        let changes = running.map(|s| s.keeper.set_capture(&s.vm, capture.as_deref())).collect();
        (std::mem::replace(&mut entries.capture, capture), changes)
    }
}

#[cfg(test)]
mod tests {
    use zerowire_vhost::serve::Endpoint;

    use super::super::changes::tests::given;
    use super::super::group::tests::group;
    use super::super::message::{GroupOrder, GroupWord, VmChange};
    use super::*;
    use crate::sandbox::capture::tests::capture;
    use crate::sandbox::keeper::Charge;

    fn config(name: &str, cid: u64, groups: &[&str]) -> VsockConfig {
        VsockConfig::new(name, Endpoint::Path(format!("/run/{name}.s").into()), cid, format!("/run/{name}"))
            .groups(groups.iter().map(|group| (*group).to_owned()).collect())
    }

    #[test]
    fn a_vm_joins_the_set_whose_groups_it_shares() {
        let roster = VsockRoster::new(None);
        let enter = |name, cid, groups: &[&str]| roster.enter(config(name, cid, groups));
        let (_, _, set) = enter("a", 3, &["x"]).expect("the first");
        let (_, b, of_b) = enter("b", 4, &["x", "w"]).expect("it shares a group");
        assert!(Arc::ptr_eq(&set, &of_b) && b.map.max_connections.is_some(), "complete");
        let (c, _, of_c) = enter("c", 5, &["y"]).expect("it shares none");
        assert!(!Arc::ptr_eq(&set, &of_c));
        let apart = enter("both", 6, &["y", "w"]).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(apart.contains("connect VMs a, b with c"), "{apart}");
        assert!(enter("a", 6, &["z"]).is_err(), "the name is taken");
        roster.forget(c);
        let (_, _, of_both) = enter("both", 6, &["y", "w"]).expect("the other set is gone");
        assert!(Arc::ptr_eq(&set, &of_both));
        assert!(roster.close().is_empty() && enter("d", 7, &["d"]).is_err(), "the server stops");
    }

    /// It is in no list of VMs yet that they are changed by.
    #[test]
    fn captures_that_begin_and_end_while_a_vm_comes_are_its_own_as_well() {
        let dir = tempfile::tempdir().expect("a folder");
        let (keeper, child) = Keeper::played(group(dir.path(), 0));
        let link = keeper.link().expect("a child");
        let vm = lock(&keeper.charge.members).vms[1].clone();
        keeper.charge.hand(&link).expect("room");
        assert_eq!(given(&child).len(), 2);
        let roster = VsockRoster::new(None);
        let (number, ..) = roster.enter(vm.config.clone()).expect("the first");
        assert_eq!(number, vm.number);
        let served = ServedVsock { vm, keeper: keeper.clone() };
        let changes = |capture| assert!(roster.set_capture(capture).1.is_empty(), "it is served by nobody");
        let next = || child.receive::<GroupOrder>().expect("an order").expect("not the end");
        let begins = || {
            let (order, fds) = next();
            let GroupOrder::Change(VmChange::Capture(begin, 1, 64)) = order else { panic!("{order:?}") };
            assert_eq!(fds.len(), 1);
            (begin, fds)
        };
        let ends = |fds| {
            let (order, _) = next();
            assert!(matches!(order, GroupOrder::Change(VmChange::EndCapture(1))), "{order:?}");
            // What was captured has all been written.
            drop::<Vec<std::os::fd::OwnedFd>>(fds);
        };
        changes(Some(capture()));
        std::thread::scope(|scope| {
            let comes = scope.spawn(|| {
                let is_kept = roster.keep(number, &served, None);
                link.close();
                is_kept
            });
            let (begin, first) = begins();
            changes(Some(capture()));
            link.take(GroupWord::Changed(begin, None));
            ends(first);
            let (begin, second) = begins();
            assert!(roster.served("b").is_err(), "it is not captured as the others are");
            changes(None);
            link.take(GroupWord::Changed(begin, None));
            ends(second);
            assert!(comes.join().expect("no panic"));
        });
        assert!(roster.served("b").is_ok());
        roster.close();
        assert!(!roster.keep(number, &served, None), "the server stops");
    }
}
