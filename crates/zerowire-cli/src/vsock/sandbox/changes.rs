//! VMs of a group that come, go and change while its child runs.
//!
//! A VM comes with its sockets, as at the start. A child that does not let one go in time is ended:
//! the next one does not get that VM, and goes on with the others.
//!
//! A change with descriptors waits while the kernel takes none, so it is sent without a lock. Each
//! VM has one such change at a time: captures begin and end in turns, and a VM that comes is in no
//! capture's list before it is kept.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Instant;

use zerowire_capture::Capture;
use zerowire_vsock::Limits;

use super::group::VsockGroup;
use super::members::{GroupMembers, SentChange};
use super::message::{GroupOrder, GroupWord, VmChange};
use super::vm::KeptVsock;
use crate::sandbox::capture::{CaptureRelay, PATIENCE};
use crate::sandbox::channel::SEND_PATIENCE;
use crate::sandbox::keeper::{Charge, Keeper};
use crate::sandbox::link::{ChildLink, Question};
use crate::sandbox::lock;
use crate::sandbox::message::short;

/// Why a VM can't join.
pub(super) enum JoinRefusal {
    /// The child says so, or does not answer.
    Child(String),
    /// The last VM has just left: another group has to begin.
    Over,
}

/// A change that the child carries out.
struct AskedChange {
    question: Question<GroupWord>,
    /// None: it comes behind the child's VMs.
    unsent: Option<SentChange>,
}

impl AskedChange {
    /// Sends it, and waits until `deadline` for room in the socket and for descriptors that are
    /// under way. None: the child has ended.
    fn send(self, deadline: Instant) -> io::Result<Option<Question<GroupWord>>> {
        let Self { question, unsent } = self;
        let Some((change, fds)) = unsent else { return Ok(Some(question)) };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        match question.send_until(&GroupOrder::Change(change), &fds, deadline) {
            Ok(()) => Ok(Some(question)),
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The capture of a VM becomes another one.
#[must_use = "the other capture begins when this is finished"]
pub(super) struct CaptureChange {
    vm: String,
    /// What takes the packets that are under way to the one before.
    before: Option<CaptureRelay>,
    /// Has the child begin.
    begin: Option<AskedChange>,
}

impl CaptureChange {
    /// Has the children begin. Waits until the captures before have their packets and the children
    /// capture, or until `deadline`.
    pub(super) fn finish(changes: Vec<Self>, deadline: Instant) {
        let (mut relays, mut begun) = (Vec::new(), Vec::new());
        for Self { vm, before, begin } in changes {
            relays.extend(before);
            match begin.map_or(Ok(None), |begin| begin.send(deadline)) {
                Ok(question) => begun.extend(question.map(|question| (vm, question))),
                Err(e) => tracing::error!("{vm}: nothing of it is captured: no way to its process: {e}"),
            }
        }
        CaptureRelay::finish(relays, deadline);
        for (vm, question) in begun {
            if let Some(GroupWord::Changed(_, Some(why))) = question.answer(deadline) {
                tracing::error!("{vm}: nothing of it is captured: {}", short(&why));
            }
        }
    }
}

impl Keeper<VsockGroup> {
    /// Has the child serve one more VM. The next one gets it where none is there, or where it dies
    /// meanwhile.
    pub(super) fn join(&self, vm: &Arc<KeptVsock>) -> Result<(), JoinRefusal> {
        let (asked, patience) = {
            let mut members = lock(&self.charge.members);
            if members.over {
                return Err(JoinRefusal::Over);
            }
            members.add(vm);
            self.charge.rename(&members);
            (self.ask_to_add(&mut members, vm), members.patience())
        };
        let asked = asked.and_then(|asked| match asked.map(|add| add.send(Instant::now() + SEND_PATIENCE)) {
            Some(Err(e)) if e.kind() == ErrorKind::WouldBlock => Err("it reads nothing".to_owned()),
            sent => sent.transpose().map(Option::flatten).map_err(|e| e.to_string()),
        });
        let was_asked = asked.is_ok();
        let why = match asked {
            Ok(None) => return Ok(()),
            Ok(Some(question)) => match question.answer(Instant::now() + patience) {
                Some(GroupWord::Changed(_, None)) => {
                    let mut members = lock(&self.charge.members);
                    if self.link().is_some_and(|now| question.was_asked(&now)) {
                        members.taken(vm.number);
                    }
                    return Ok(());
                }
                Some(GroupWord::Changed(_, Some(why))) => short(&why),
                _ if question.is_closed() => return Ok(()),
                _ => "it does not answer".to_owned(),
            },
            Err(why) => why,
        };
        self.charge.take_out(|other| other.number == vm.number);
        // One that is late, or the next child, may serve it by now.
        let remove = |number| VmChange::Remove(number, vm.number);
        let removed = self.ask(&mut lock(&self.charge.members), remove, Vec::new());
        let removed = removed.map(|removed| removed.send(Instant::now()));
        // A child that reads nothing would take the VM when it goes on.
        if let Some(link) = self.link().filter(|_| was_asked && matches!(removed, Some(Err(_)))) {
            link.close();
        }
        if self.charge.is_over() {
            self.stop();
        }
        Err(JoinRefusal::Child(why))
    }

    /// None without a child.
    fn ask_to_add(&self, members: &mut GroupMembers, vm: &KeptVsock) -> Result<Option<AskedChange>, String> {
        if self.taking(members).is_none() {
            return Ok(None);
        }
        let (setup, fds) = vm.setup()?;
        Ok(self.ask(members, |number| VmChange::Add(number, setup), fds))
    }

    /// Has the child let a VM go, or end behind the last one. Its sockets are closed then. False:
    /// it was drained, and has left by itself just before.
    pub(super) fn leave(&self, vm: &KeptVsock) -> bool {
        let name = &vm.config.name;
        let asked = {
            let mut members = lock(&self.charge.members);
            lock(&vm.state).leaves = true;
            members.over |= members.vms.iter().all(|other| other.number == vm.number);
            let link = self.taking(&members).filter(|_| !members.over && members.has(vm.number));
            let (patience, remove) = (members.patience(), |number| VmChange::Remove(number, vm.number));
            link.map(|link| (self.ask(&mut members, remove, Vec::new()), link, patience))
        };
        if let Some((asked, link, patience)) = asked {
            let asked = asked.and_then(|remove| remove.send(Instant::now()).ok().flatten());
            let answer = asked.and_then(|question| question.answer(Instant::now() + patience));
            let goes = matches!(answer, Some(GroupWord::Changed(_, None)));
            let runs = self.link().is_some_and(|now| Arc::ptr_eq(&now, &link));
            if runs && !goes {
                tracing::error!("{name}: its process does not let it go, and is ended");
                link.close();
            }
        }
        let taken_out = self.charge.take_out(|other| other.number == vm.number);
        if self.charge.is_over() {
            self.stop();
        }
        vm.close(Instant::now() + PATIENCE);
        !taken_out.is_empty()
    }

    /// The present front end of a VM is the last one.
    pub(super) fn drain(&self, vm: &KeptVsock) {
        let mut members = lock(&self.charge.members);
        vm.drain();
        self.order(&mut members, vm.number, VmChange::Drain(vm.number));
    }

    /// Gives a VM other limits. Waits until `deadline` for room in the child's socket, and not for
    /// the answer: the limits hold when that has [come](crate::sandbox::link::settled). A child
    /// that starts later has them from the start.
    ///
    /// # Errors
    /// The child takes no order: they are as before.
    pub(super) fn ask_rates(
        &self,
        vm: &KeptVsock,
        rates: Limits,
        deadline: Instant,
    ) -> Result<Option<Question<GroupWord>>, String> {
        let mut members = lock(&self.charge.members);
        let change = |number| VmChange::Rates(number, vm.number, rates);
        let asked = members.has(vm.number).then(|| self.ask(&mut members, change, Vec::new())).flatten();
        // The child gets the changes of several callers in the order in which they are kept.
        let sent = asked.map_or(Ok(None), |change| change.send(deadline));
        let question = sent.map_err(|e| format!("it takes no order now: {e}: try again"))?;
        lock(&vm.state).rates = rates;
        Ok(question)
    }

    /// Ends the capture of a VM's packets. The other one, if any, begins when the change is
    /// [finished](CaptureChange::finish).
    pub(super) fn set_capture(&self, vm: &KeptVsock, capture: Option<&Capture>) -> CaptureChange {
        let (mut members, name) = (lock(&self.charge.members), &vm.config.name);
        let before = vm.set_capture(capture);
        if before.is_some() {
            self.order(&mut members, vm.number, VmChange::EndCapture(vm.number));
        }
        let mut begin = None;
        let is_told = members.has(vm.number) && self.taking(&members).is_some();
        if let Some(capture) = lock(&vm.state).capture.as_mut().filter(|_| is_told) {
            let snaplen = capture.snaplen;
            let change = |number| VmChange::Capture(number, vm.number, snaplen);
            match capture.begin(name) {
                Ok(to) => begin = self.ask(&mut members, change, vec![to]),
                Err(e) => tracing::error!("{name}: nothing of it is captured: no way to its process: {e}"),
            }
        }
        CaptureChange { vm: name.clone(), before, begin }
    }

    /// The child that takes changes. It gets them at once, or as soon as it has its VMs.
    fn taking(&self, members: &GroupMembers) -> Option<Arc<ChildLink<GroupWord>>> {
        self.link().filter(|_| members.has_child())
    }

    /// A change for the child. None without a child.
    fn ask(
        &self,
        members: &mut GroupMembers,
        change: impl FnOnce(u64) -> VmChange,
        fds: Vec<OwnedFd>,
    ) -> Option<AskedChange> {
        let question = self.taking(members)?.expect();
        let unsent = members.defer(change(question.number()), fds);
        Some(AskedChange { question, unsent })
    }

    /// Tells the child of a change of this VM. A child that does not have it learns of it by the
    /// VM's setup, and so does the one that follows on a child that takes no orders: that ends.
    fn order(&self, members: &mut GroupMembers, vm: usize, change: VmChange) {
        if let Some(link) = self.taking(members).filter(|_| members.has(vm))
            && let Some((change, _)) = members.defer(change, Vec::new())
            && link.channel.send(&GroupOrder::Change(change), &[]).is_err()
        {
            link.close();
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
