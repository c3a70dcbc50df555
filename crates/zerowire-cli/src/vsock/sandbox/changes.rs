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
use crate::sandbox::message::{Rates, short};

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
    /// Sends it, and waits until `deadline` while too many descriptors are under way. None: the
    /// child has ended.
    fn send(self, deadline: Instant) -> io::Result<Option<Question<GroupWord>>> {
        let Self { question, unsent } = self;
        let Some((change, fds)) = unsent else { return Ok(Some(question)) };
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        match question.send_when_few(&GroupOrder::Change(change), &fds, deadline) {
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

    /// None: there is no child.
    fn ask_to_add(&self, members: &mut GroupMembers, vm: &KeptVsock) -> Result<Option<AskedChange>, String> {
        if self.taking(members).is_none() {
            return Ok(None);
        }
        let (setup, fds) = vm.setup()?;
        Ok(self.ask(members, |number| VmChange::Add(number, setup), fds))
    }

    /// Has the child let a VM go, or end behind the last one. Its sockets are closed then.
    pub(super) fn leave(&self, vm: &KeptVsock) {
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
        let mut members = lock(&self.charge.members);
        lock(&vm.state).drains = true;
        self.order(&mut members, vm.number, VmChange::Drain(vm.number));
    }

    /// Gives a VM other limits. A child that starts later has them from the start.
    pub(super) fn set_rates(&self, vm: &KeptVsock, rates: Limits) {
        let mut members = lock(&self.charge.members);
        lock(&vm.state).rates = rates;
        self.order(&mut members, vm.number, VmChange::Rates(vm.number, Rates::of(rates)));
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

    /// A change for the child. None: there is no child.
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
pub(super) mod tests {
    use std::time::Duration;

    use zerowire_testkit::own_process;
    use zerowire_testkit::process::{become_ordinary, limit};
    use zerowire_vsock::OwnSockets;

    use super::super::group::tests::{group, kept};
    use super::super::roster::VsockRoster;
    use super::*;
    use crate::sandbox::capture::tests::capture;
    use crate::sandbox::channel::Channel;
    use crate::sandbox::channel::tests::crowd;
    use crate::sandbox::keeper::{Charge, ChildEnd};

    /// The next order that a child gets.
    fn next(child: &Channel) -> GroupOrder {
        child.receive().expect("an order").expect("not the end").0
    }

    /// The VMs that a child is given, with their limits.
    pub fn given(child: &Channel) -> Vec<(String, Limits)> {
        assert!(matches!(next(child), GroupOrder::Start(_)));
        let mut vms = Vec::new();
        loop {
            match next(child) {
                GroupOrder::Vm(setup) => vms.push(setup.config().expect("a VM")),
                GroupOrder::Session(None) => {}
                GroupOrder::Serve => return vms.into_iter().map(|vm| (vm.name, vm.rates)).collect(),
                other => panic!("{other:?}"),
            }
        }
    }

    fn limits() -> Limits {
        Limits { transmit: Some("1M/s".parse().expect("a limit")), receive: None }
    }

    #[test]
    fn a_child_that_does_not_read_while_it_is_given_its_vms_holds_nobody_up() {
        let dir = tempfile::tempdir().expect("a folder");
        let (keeper, child) = Keeper::played(group(dir.path(), 0));
        let link = keeper.link().expect("a child");
        let vms = lock(&keeper.charge.members).vms.clone();
        let roster = VsockRoster::new(None);
        roster.started(&vms, &keeper);
        let text = "x".repeat(20_000);
        let full = (0..).take_while(|_| link.channel.send(&text, &[]).is_ok()).count();
        std::thread::scope(|scope| {
            let handed = scope.spawn(|| keeper.charge.hand(&link));
            while !lock(&keeper.charge.members).has_child() {
                assert!(!handed.is_finished(), "it waits for the child");
                std::thread::yield_now();
            }
            assert!(keeper.ask_stats().is_empty(), "it takes no question yet");
            keeper.set_rates(&vms[0], limits());
            assert_eq!(roster.vms().len(), 2);
            assert!(roster.set_capture(None).1.into_iter().all(|change| change.begin.is_none()));
            assert!(!handed.is_finished(), "it waits for the child");
            (0..full).for_each(|_| drop(child.receive::<String>()));
            let vms = given(&child);
            assert_eq!(vms, [("a".to_owned(), limits()), ("b".to_owned(), Limits::default())]);
            assert_eq!(handed.join().expect("no panic"), Ok(()));
        });
        assert_eq!(keeper.ask_stats().len(), 1);
    }

    /// The VMs that go on, by name, and what that means for their front ends.
    fn died(keeper: &Keeper<VsockGroup>) -> Vec<(String, String)> {
        let end = ChildEnd { why: "killed by signal 9".to_owned(), is_error: true };
        keeper.charge.died(&end).expect("another child follows")
    }

    /// It may have been given another state of them.
    #[test]
    fn changes_of_vms_that_a_starting_child_has_come_behind_all_vms() {
        let dir = tempfile::tempdir().expect("a folder");
        let (keeper, child) = Keeper::played(group(dir.path(), 0));
        let members = || lock(&keeper.charge.members);
        let vms = members().begin();
        let [a, b] = &vms[..] else { panic!("two VMs") };
        keeper.drain(a);
        assert!(members().give(a).expect("open").expect("it stays").0.drains, "its setup says so");
        keeper.set_rates(a, limits());
        keeper.set_rates(b, limits());
        lock(&b.state).leaves = true;
        assert!(members().give(b).expect("open").is_none(), "it has left");
        let late = members().late_changes();
        assert!(matches!(&late[..], [(VmChange::Rates(0, _), _)]), "{late:?}");
        assert!(!members().is_serving());
        assert!(members().late_changes().is_empty() && members().is_serving());
        keeper.drain(a);
        assert!(matches!(next(&child), GroupOrder::Change(VmChange::Drain(0))), "at once, and the first one");
    }

    /// The child has not answered by then, or was not even asked.
    #[test]
    fn a_vm_that_joins_while_the_child_dies_is_the_next_ones() {
        let dir = tempfile::tempdir().expect("a folder");
        let (keeper, child) = Keeper::played(group(dir.path(), 0));
        let (link, own) = (keeper.link().expect("a child"), OwnSockets::default());
        let [c, d] = [(2, "c"), (3, "d")].map(|vm| kept(dir.path(), &own, vm, 0));
        keeper.charge.hand(&link).expect("room");
        assert_eq!(given(&child).len(), 2);
        std::thread::scope(|scope| {
            let joins = scope.spawn(|| keeper.join(&c).is_ok());
            assert!(matches!(next(&child), GroupOrder::Change(VmChange::Add(..))));
            link.close();
            assert!(joins.join().expect("no panic"), "the next child gets it");
        });
        assert!(keeper.join(&d).is_ok());
        let names = |died: Vec<(String, String)>| died.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(died(&keeper)), ["a", "b"]);
        let error = |vm: &KeptVsock| vm.stats(&[]).vm.totals.last_error;
        assert_eq!([error(&c), error(&d)], [None, None], "that child did not have them");
        assert!(lock(&keeper.charge.members).vms.iter().take(2).all(|vm| error(vm).is_some()));
        let (ours, theirs) = Channel::pair().expect("a pair");
        keeper.charge.hand(&Arc::new(ChildLink::new(ours))).expect("room");
        let vms: Vec<_> = given(&Channel::of(theirs)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(vms, ["a", "b", "c", "d"]);
        assert_eq!(names(died(&keeper)), vms);
        assert!(error(&c).is_some() && error(&d).is_some());
    }

    #[test]
    fn a_vm_that_a_child_refuses_does_not_stay() {
        let dir = tempfile::tempdir().expect("a folder");
        let (keeper, child) = Keeper::played(group(dir.path(), 0));
        let link = keeper.link().expect("a child");
        let c = kept(dir.path(), &OwnSockets::default(), (2, "c"), 0);
        keeper.charge.hand(&link).expect("room");
        assert_eq!(given(&child).len(), 2);
        std::thread::scope(|scope| {
            let joins = scope.spawn(|| keeper.join(&c));
            let GroupOrder::Change(VmChange::Add(number, _)) = next(&child) else { panic!("another order") };
            link.take(GroupWord::Changed(number, Some("no room".to_owned())));
            let refused = joins.join().expect("no panic");
            assert!(matches!(refused, Err(JoinRefusal::Child(why)) if why == "no room"));
        });
        assert!(matches!(next(&child), GroupOrder::Change(VmChange::Remove(_, 2))));
        assert_eq!(died(&keeper).len(), 2);
    }

    /// Its descriptors have not left yet.
    #[test]
    fn a_vm_whose_child_dies_while_its_descriptors_wait_is_the_next_ones() {
        own_process!();
        let dir = tempfile::tempdir().expect("a folder");
        let (keeper, child) = Keeper::played(group(dir.path(), 0));
        let link = keeper.link().expect("a child");
        let c = kept(dir.path(), &OwnSockets::default(), (2, "c"), 0);
        keeper.charge.hand(&link).expect("room");
        assert_eq!(given(&child).len(), 2);
        limit(libc::RLIMIT_NOFILE, 100, 100).expect("a lower limit");
        become_ordinary(60_000 + std::process::id() % 5000, 0);
        let unread = crowd();
        std::thread::scope(|scope| {
            let joins = scope.spawn(|| keeper.join(&c).is_ok());
            std::thread::sleep(Duration::from_millis(20));
            assert!(!joins.is_finished(), "it waits");
            drop(child);
            assert!(joins.join().expect("no panic"), "the next child gets it");
        });
        drop(unread);
        let names = |died: Vec<(String, String)>| died.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names(died(&keeper)), ["a", "b"]);
        let (ours, theirs) = Channel::pair().expect("a pair");
        keeper.charge.hand(&Arc::new(ChildLink::new(ours))).expect("room");
        let vms: Vec<_> = given(&Channel::of(theirs)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(vms, ["a", "b", "c"]);
    }

    /// Others go on meanwhile.
    #[test]
    fn a_vm_that_joins_and_captures_wait_until_descriptors_have_arrived() {
        own_process!();
        let dir = tempfile::tempdir().expect("a folder");
        let (keeper, child) = Keeper::played(group(dir.path(), 0));
        let (link, roster) = (keeper.link().expect("a child"), VsockRoster::new(None));
        let vms = lock(&keeper.charge.members).vms.clone();
        roster.started(&vms, &keeper);
        let c = kept(dir.path(), &OwnSockets::default(), (2, "c"), 0);
        keeper.charge.hand(&link).expect("room");
        assert_eq!(given(&child).len(), 2);
        limit(libc::RLIMIT_NOFILE, 100, 100).expect("a lower limit");
        become_ordinary(60_000 + std::process::id() % 5000, 0);
        let others_go_on = || {
            std::thread::sleep(Duration::from_millis(20));
            keeper.set_rates(&vms[0], limits());
            assert!(matches!(next(&child), GroupOrder::Change(VmChange::Rates(0, _))));
            assert_eq!(roster.vms().len(), 2);
        };
        let unread = crowd();
        std::thread::scope(|scope| {
            let joins = scope.spawn(|| keeper.join(&c).is_ok());
            others_go_on();
            assert!(!joins.is_finished(), "it waits");
            drop(unread);
            let GroupOrder::Change(VmChange::Add(number, _)) = next(&child) else { panic!("another order") };
            link.take(GroupWord::Changed(number, None));
            assert!(joins.join().expect("no panic"));
        });
        let unread = crowd();
        let changes = roster.set_capture(Some(capture())).1;
        std::thread::scope(|scope| {
            let deadline = Instant::now() + PATIENCE;
            let captured = scope.spawn(move || CaptureChange::finish(changes, deadline));
            others_go_on();
            assert!(!captured.is_finished(), "it waits");
            drop(unread);
            for vm in 0..2 {
                let begins = next(&child);
                let GroupOrder::Change(VmChange::Capture(number, of, _)) = begins else {
                    panic!("{begins:?}")
                };
                assert_eq!(of, vm);
                link.take(GroupWord::Changed(number, None));
            }
            captured.join().expect("no panic");
        });
    }
}
