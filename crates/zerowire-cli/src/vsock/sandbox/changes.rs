//! VMs of a group that come, go and change while its child runs.
//!
//! A VM comes with its sockets, as at the start. A child that does not let one go in time is ended:
//! the next one does not get that VM, and goes on with the others.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use zerowire_capture::Capture;
use zerowire_vsock::Limits;

use super::group::{GroupMembers, VsockGroup};
use super::message::{GroupOrder, GroupWord, VmChange};
use super::vm::KeptVsock;
use crate::sandbox::capture::{CaptureRelay, PATIENCE};
use crate::sandbox::keeper::{Charge, Keeper};
use crate::sandbox::link::{ChildLink, Question};
use crate::sandbox::lock;
use crate::sandbox::message::{Rates, short};

/// How long a child may take for a change. Its threads have 5 s.
const CHANGE_PATIENCE: Duration = Duration::from_secs(6);

/// Why a VM can't join.
pub(super) enum JoinRefusal {
    /// The child says so, or does not answer.
    Child(String),
    /// The last VM has just left: another group has to begin.
    Over,
}

/// The capture of a VM becomes another one.
pub(super) struct CaptureChange {
    vm: String,
    /// What takes the packets that are under way to the one before.
    before: Option<CaptureRelay>,
    /// The child is asked to begin.
    begun: Option<Question<GroupWord>>,
}

impl CaptureChange {
    /// Waits until the one before has its packets and the child captures, or until `deadline`.
    pub(super) fn finish(self, deadline: Instant) {
        if let Some(before) = self.before {
            before.finish(deadline);
        }
        let answer = self.begun.and_then(|question| question.answer(deadline));
        if let Some(GroupWord::Changed(_, Some(why))) = answer {
            tracing::error!("{}: nothing of it is captured: {}", self.vm, short(&why));
        }
    }
}

impl Keeper<VsockGroup> {
    /// The child that has its VMs.
    pub(super) fn handed(&self, members: &GroupMembers) -> Option<Arc<ChildLink<GroupWord>>> {
        self.link().filter(|_| members.handed)
    }

    /// Has the child serve one more VM. Without a child the next one gets it.
    pub(super) fn join(&self, vm: &Arc<KeptVsock>) -> Result<(), JoinRefusal> {
        let asked = {
            let mut members = lock(&self.charge.members);
            if members.over {
                return Err(JoinRefusal::Over);
            }
            members.vms.push(vm.clone());
            self.charge.rename(&members);
            let Some(link) = self.handed(&members) else { return Ok(()) };
            let mut question = None;
            let handed = vm.hand(|setup, fds| {
                question = link.ask(|number| GroupOrder::Change(VmChange::Add(number, setup)), fds);
                question.as_ref().map(|_| ()).ok_or_else(|| std::io::ErrorKind::WouldBlock.into())
            });
            handed.map(|()| question)
        };
        let answer = asked.map(|question| question?.answer(Instant::now() + CHANGE_PATIENCE));
        let why = match answer {
            Ok(Some(GroupWord::Changed(_, None))) => return Ok(()),
            Ok(Some(GroupWord::Changed(_, Some(why)))) => short(&why),
            Ok(_) => "it has ended, or does not answer".to_owned(),
            Err(why) => why,
        };
        self.charge.take_out(|other| other.number == vm.number);
        // One that is late, or the next child, may serve it by now.
        if let Some(link) = self.handed(&lock(&self.charge.members)) {
            let _ = link.ask(|number| GroupOrder::Change(VmChange::Remove(number, vm.number)), &[]);
        }
        if self.charge.is_over() {
            self.stop();
        }
        Err(JoinRefusal::Child(why))
    }

    /// Has the child let a VM go, or end behind the last one. Its sockets are closed then.
    pub(super) fn leave(&self, vm: &KeptVsock) {
        let name = &vm.config.name;
        let asked = {
            let mut members = lock(&self.charge.members);
            lock(&vm.state).leaves = true;
            members.over |= members.vms.iter().all(|other| other.number == vm.number);
            let link = self.handed(&members).filter(|_| !members.over);
            link.map(|link| {
                let order = |number| GroupOrder::Change(VmChange::Remove(number, vm.number));
                (link.ask(order, &[]), link)
            })
        };
        if let Some((question, link)) = asked {
            let answer = question.and_then(|q| q.answer(Instant::now() + CHANGE_PATIENCE));
            let runs = self.link().is_some_and(|now| Arc::ptr_eq(&now, &link));
            if runs && !matches!(answer, Some(GroupWord::Changed(_, None))) {
                tracing::error!("{name}: its process does not let it go, and is ended");
                link.close();
            }
        }
        self.charge.take_out(|other| other.number == vm.number);
        if self.charge.is_over() {
            self.stop();
        }
        vm.close(Instant::now() + PATIENCE);
    }

    /// The present front end of a VM is the last one.
    pub(super) fn drain(&self, vm: &KeptVsock) {
        let members = lock(&self.charge.members);
        lock(&vm.state).drains = true;
        self.order(&members, VmChange::Drain(vm.number));
    }

    /// Gives a VM other limits. A child that starts later has them from the start.
    pub(super) fn set_rates(&self, vm: &KeptVsock, rates: Limits) {
        let members = lock(&self.charge.members);
        lock(&vm.state).rates = rates;
        self.order(&members, VmChange::Rates(vm.number, Rates::of(rates)));
    }

    /// Has a VM's packets go to another capture, or to none.
    pub(super) fn set_capture(&self, vm: &KeptVsock, capture: Option<&Capture>) -> CaptureChange {
        let members = lock(&self.charge.members);
        let before = vm.set_capture(capture);
        if before.is_some() {
            self.order(&members, VmChange::EndCapture(vm.number));
        }
        let mut begun = None;
        if let Some((link, capture)) = self.handed(&members).zip(lock(&vm.state).capture.as_mut()) {
            let (snaplen, to) = (capture.snaplen, capture.begin(&vm.config.name));
            let order = |number| GroupOrder::Change(VmChange::Capture(number, vm.number, snaplen));
            begun = to.ok().and_then(|to| link.ask(order, &[to.as_fd()]));
            if begun.is_none() {
                tracing::error!("{}: nothing of it is captured: no way to its process", vm.config.name);
            }
        }
        CaptureChange { vm: vm.config.name.clone(), before, begun }
    }

    /// Tells the child that runs, if one does. The next one learns it from its setup.
    fn order(&self, members: &GroupMembers, change: VmChange) {
        if let Some(link) = self.handed(members) {
            // One that takes no orders ends. The next one learns it from its setup.
            if link.channel.send(&GroupOrder::Change(change), &[]).is_err() {
                link.close();
            }
        }
    }
}
