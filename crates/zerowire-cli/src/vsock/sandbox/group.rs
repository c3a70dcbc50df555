//! VMs that may reach each other: what is open for them, and what their child may ask.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use rustix::net::{SendFlags, send};
use zerowire_confine::{Owner, can_map_users, map_users, user_namespace};
use zerowire_vsock::packet::Kind;

use super::members::GroupMembers;
use super::message::{GroupOrder, GroupSetup, GroupWord, VMS};
use super::supervisor::VsockRoster;
use super::vm::{KeptVsock, VsockState};
use crate::sandbox::capture::{CaptureRelay, PATIENCE};
use crate::sandbox::channel::{CROWD_PATIENCE, Channel, is_crowded};
use crate::sandbox::cpu::{CpuShare, CpuSum};
use crate::sandbox::keeper::{Charge, ChildEnd, Heard, Keeper, START_PATIENCE};
use crate::sandbox::lines::VmNames;
use crate::sandbox::link::{ChildLink, Question};
use crate::sandbox::lock;
use crate::sandbox::message::{bounded_report, short};

/// What all children have in common.
#[derive(Clone)]
pub(super) struct GroupCommon {
    /// Whom they belong to.
    pub owner: Owner,
    /// What they log.
    pub log: String,
    /// Who hears that a VM has left.
    pub roster: Weak<VsockRoster>,
    /// CPU time of all of them.
    pub cpu: CpuSum,
}

/// VMs that one child serves: those that may reach each other.
pub(super) struct VsockGroup {
    pub(super) members: Mutex<GroupMembers>,
    common: GroupCommon,
    names: VmNames,
    cpu: Mutex<CpuShare>,
}

impl VsockGroup {
    pub(super) fn new(vms: Vec<Arc<KeptVsock>>, common: GroupCommon) -> Self {
        let (members, cpu) = (GroupMembers::new(vms), Mutex::new(common.cpu.share()));
        let group = Self { members: Mutex::new(members), common, names: VmNames::default(), cpu };
        group.rename(&lock(&group.members));
        group
    }

    /// The VMs are others than before.
    pub(super) fn rename(&self, members: &GroupMembers) {
        self.names.set(members.vms.iter().map(|vm| vm.config.name.clone()), Instant::now());
    }

    fn all(&self) -> Vec<Arc<KeptVsock>> {
        lock(&self.members).vms.clone()
    }

    fn vm(&self, number: usize) -> Option<Arc<KeptVsock>> {
        lock(&self.members).vms.iter().find(|vm| vm.number == number).cloned()
    }

    /// Takes VMs out. The group is over behind the last one.
    pub(super) fn take_out(&self, goes: impl Fn(&KeptVsock) -> bool) -> Vec<Arc<KeptVsock>> {
        let mut members = lock(&self.members);
        let gone = members.take_out(goes);
        self.rename(&members);
        gone
    }

    /// Connects a guest to a program of the host's, without waiting.
    fn connect(&self, vm: usize, port: u32, kind: u16) -> io::Result<OwnedFd> {
        let wrong = || io::Error::from_raw_os_error(libc::EINVAL);
        let kind = Kind::new(kind).ok_or_else(wrong)?;
        self.vm(vm).ok_or_else(wrong)?.connect(port, kind)
    }

    /// A VM that was drained has left. One that is being removed is not taken out here.
    fn gone(&self, number: usize) {
        let goes = |state: &VsockState| state.drains && !state.leaves;
        for vm in self.take_out(|vm| vm.number == number && goes(&lock(&vm.state))) {
            vm.close(Instant::now() + PATIENCE);
            tracing::info!("{}: drained and removed", vm.config.name);
            if let Some(roster) = self.common.roster.upgrade() {
                roster.forget(number);
            }
        }
    }

    fn answer(&self, channel: &Channel, vm: usize, number: u64, outcome: io::Result<OwnedFd>) -> Heard {
        let errno = outcome.as_ref().err().map(errno_of);
        let fds: Vec<_> = outcome.iter().map(AsFd::as_fd).collect();
        let deadline = Instant::now() + CROWD_PATIENCE;
        let order = GroupOrder::Connected { vm, number, errno };
        let sent = match channel.send_when_few(&order, &fds, deadline) {
            Err(e) if is_crowded(&e) => {
                if let Some(vm) = self.vm(vm) {
                    let name = &vm.config.name;
                    tracing::warn!("{name}: a connection to a host program is tried again: {e}");
                }
                // As for a backlog that is full.
                let errno = Some(libc::EAGAIN);
                channel.send(&GroupOrder::Connected { vm, number, errno }, &[])
            }
            sent => sent,
        };
        match sent {
            Ok(()) => Heard::GoOn,
            Err(e) => Heard::Failed(format!("it does not take its answers: {e}")),
        }
    }
}

impl Charge for VsockGroup {
    type Word = GroupWord;

    const ARGUMENT: &str = super::CHILD;

    fn vms(&self) -> VmNames {
        self.names.clone()
    }

    fn is_over(&self) -> bool {
        lock(&self.members).over
    }

    fn hand(&self, link: &Arc<ChildLink<GroupWord>>) -> Result<(), String> {
        let channel = &link.channel;
        let GroupCommon { owner, log, .. } = &self.common;
        let text = |e: io::Error| e.to_string();
        let deadline = Instant::now() + START_PATIENCE;
        let send = |order: GroupOrder, fds: &[OwnedFd]| {
            let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            channel.send_until(&order, &fds, deadline).map_err(text)
        };
        // The lock is not held while something is sent: the child may not read.
        let vms = lock(&self.members).begin();
        send(
            GroupOrder::Start(GroupSetup {
                owner: *owner,
                log: log.clone(),
                maps_users: can_map_users(),
                user_namespace: user_namespace(),
            }),
            &[],
        )?;
        for vm in vms {
            let given = lock(&self.members).give(&vm)?;
            let Some((setup, fds)) = given else { continue };
            send(GroupOrder::Vm(setup), &fds)?;
            let mut session = lock(&vm.session);
            let (image, files) = session.give();
            let sent = channel.send_until(&GroupOrder::Session(image), &files, deadline);
            sent.map_err(|e| {
                session.not_given();
                text(e)
            })?;
        }
        send(GroupOrder::Serve, &[])?;
        loop {
            let late = lock(&self.members).late_changes();
            if late.is_empty() {
                return Ok(());
            }
            late.into_iter().try_for_each(|(change, fds)| send(GroupOrder::Change(change), &fds))?;
        }
    }

    fn hear(&self, word: GroupWord, fds: Vec<OwnedFd>, link: &ChildLink<GroupWord>) -> Heard {
        match word {
            GroupWord::Ready(report) => {
                self.all().iter().for_each(|vm| lock(&vm.session).begin());
                return Heard::Ready(bounded_report(&report));
            }
            GroupWord::Session { vm, word } => {
                if let Some(vm) = self.vm(vm) {
                    lock(&vm.session).hear(word, fds);
                }
            }
            GroupWord::MapUsers => return show_users(link, &fds),
            GroupWord::Failed(why) => return Heard::Failed(short(&why)),
            GroupWord::Connect { vm, number, port, kind } => {
                return self.answer(&link.channel, vm, number, self.connect(vm, port, kind));
            }
            GroupWord::Statistics(..) | GroupWord::Changed(..) => link.take(word),
            GroupWord::FrontEnd(vm, now) => {
                if let Some(vm) = self.vm(vm) {
                    lock(&vm.sums).connected = now;
                }
            }
            GroupWord::Gone(vm) => self.gone(vm),
        }
        Heard::GoOn
    }

    fn garbled(&self) {
        self.all().iter().for_each(|vm| lock(&vm.session).forget());
    }

    fn died(&self, end: &ChildEnd) -> Option<Vec<(String, String)>> {
        let deadline = Instant::now() + PATIENCE;
        let vms = lock(&self.members).end();
        lock(&self.cpu).restart();
        vms.iter().for_each(|(vm, was_its)| lock(&vm.sums).died(was_its.then_some(&end.why)));
        // What it has captured is read to its end before another one begins.
        CaptureRelay::finish(vms.iter().filter_map(|(vm, _)| vm.take_relay()), deadline);
        let mut stay = Vec::new();
        for (vm, was_its) in vms {
            if vm.leaves() {
                lock(&vm.session).forget();
            } else {
                let (then, is_kept) = {
                    let mut session = lock(&vm.session);
                    (session.died(), session.is_kept())
                };
                let drains = lock(&vm.state).drains;
                match drains && !is_kept {
                    true => {
                        let (name, why) = (&vm.config.name, &end.why);
                        tracing::error!("{name}: its process ended, and its last front end is gone: {why}");
                        self.gone(vm.number);
                    }
                    false if was_its => {
                        lock(&vm.sums).restarts += 1;
                        stay.push((vm.config.name.clone(), then));
                    }
                    // The next one is its first.
                    false => {}
                }
            }
        }
        (!self.is_over()).then_some(stay)
    }
}

/// Maps users into the user namespace of a child, which waits for a byte by the socket. One that
/// asks twice ends.
fn show_users(link: &ChildLink<GroupWord>, fds: &[OwnedFd]) -> Heard {
    let (Some(child), Some(socket)) = (link.channel.child_id(), fds.first()) else { return Heard::GoOn };
    match map_users(child) {
        Ok(()) => {
            let _ = send(socket, b"m", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            Heard::GoOn
        }
        Err(e) => Heard::Failed(format!("the users of programs can't be mapped for it: {e}")),
    }
}

fn errno_of(e: &io::Error) -> i32 {
    let known = (e.kind() == io::ErrorKind::WouldBlock).then_some(libc::EAGAIN);
    e.raw_os_error().or(known).unwrap_or(libc::EIO)
}

impl Keeper<VsockGroup> {
    /// Asks the child for statistics, without waiting.
    pub(super) fn ask_stats(&self) -> Vec<Question<GroupWord>> {
        // A child that has not got all of its VMs yet takes no question.
        let members = lock(&self.charge.members);
        let Some(link) = self.link().filter(|_| members.is_serving()) else { return Vec::new() };
        let numbers: Vec<_> = members.vms.iter().map(|vm| vm.number).collect();
        let ask =
            |vms: &[usize]| link.ask(|number| GroupOrder::Statistics { number, vms: vms.to_vec() }, &[]);
        numbers.chunks(VMS).map_while(|vms| ask(vms).ok()).collect()
    }

    /// Enters the answers. Returns the numbers of the VMs that don't hang. A child that does not
    /// answer until `deadline` is shown as it was.
    pub(super) fn enter_stats(&self, asked: &[Question<GroupWord>], deadline: Instant) -> Vec<usize> {
        let mut answered = Vec::new();
        for question in asked {
            let Some(GroupWord::Statistics(_, told)) = question.answer(deadline) else { return answered };
            // What a child has told that has ended is counted already.
            let runs = || self.link().is_some_and(|now| question.was_asked(&now));
            let (seconds, vms) = told.told();
            let mut cpu = lock(&self.charge.cpu);
            if runs() {
                cpu.tell(seconds);
            }
            drop(cpu);
            for (number, told) in vms {
                let Some(vm) = self.charge.vm(number) else { continue };
                let mut sums = lock(&vm.sums);
                if runs() {
                    answered.extend((!told.hangs).then_some(number));
                    sums.told(told);
                }
            }
        }
        answered
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::Path;
    use std::process::Command;

    use zerowire_confine::ChildProcess;
    use zerowire_testkit::own_process;
    use zerowire_testkit::process::{become_ordinary, limit};
    use zerowire_vhost::serve::{Endpoint, Listener};
    use zerowire_vsock::{HostSockets, OwnSockets, VsockConfig, check_vms};

    use super::super::vm::OpenVsock;
    use super::*;

    const STREAM: u16 = Kind::Stream as u16;

    /// A VM with its sockets in this folder. Its CID is its number and 3.
    pub fn kept(
        dir: &Path,
        own: &OwnSockets,
        (number, name): (usize, &str),
        request_rate: u32,
    ) -> Arc<KeptVsock> {
        let mut config = VsockConfig::new(
            name,
            Endpoint::Path(dir.join(format!("{name}.s"))),
            number as u64 + 3,
            dir.join(name),
        );
        config.limits.request_rate = request_rate;
        check_vms(std::slice::from_mut(&mut config)).expect("a VM");
        let sockets = HostSockets::bind(&config.uds, &config.uds_access).expect("sockets");
        let listener = Listener::new(&config.endpoint, &config.access).expect("a socket");
        let open = OpenVsock::new(&config, listener, sockets, own);
        Arc::new(KeptVsock::new(number, config, open, own, None).expect("memory"))
    }

    /// A group of two VMs, `a` and `b`.
    pub fn group(dir: &Path, request_rate: u32) -> VsockGroup {
        let own = OwnSockets::default();
        let vms = [(0, "a"), (1, "b")].map(|vm| kept(dir, &own, vm, request_rate));
        let owner = Owner { user: 65534, group: 65534 };
        let common =
            GroupCommon { owner, log: "info".to_owned(), roster: Weak::new(), cpu: CpuSum::default() };
        VsockGroup::new(vms.to_vec(), common)
    }

    fn errno(outcome: io::Result<OwnedFd>) -> i32 {
        errno_of(&outcome.expect_err("it is refused"))
    }

    #[test]
    fn a_child_names_a_vm_and_a_port_and_reaches_no_other_path() {
        let dir = tempfile::tempdir().expect("a folder");
        let group = group(dir.path(), 0);
        let _program = UnixListener::bind(dir.path().join("b_5000")).expect("a socket");
        assert!(group.connect(1, 5000, STREAM).is_ok());
        assert_eq!(errno(group.connect(0, 5000, STREAM)), libc::ENOENT, "that is another VM's");
        assert_eq!(errno(group.connect(1, 5000, Kind::SeqPacket as u16)), libc::EPROTOTYPE);
        for (vm, kind) in [(2, STREAM), (usize::MAX, STREAM), (0, 0), (0, 3)] {
            assert_eq!(errno(group.connect(vm, 5000, kind)), libc::EINVAL);
        }
        for (port, own) in [(6000, "a"), (6001, "b.map"), (6002, "b.s")] {
            let link = dir.path().join(format!("a_{port}"));
            std::os::unix::fs::symlink(dir.path().join(own), link).expect("a link");
            assert_eq!(errno(group.connect(0, port, STREAM)), libc::EACCES, "{own} is the supervisor's");
        }
    }

    #[test]
    fn a_child_connects_no_more_often_than_its_guest_may() {
        let dir = tempfile::tempdir().expect("a folder");
        let group = group(dir.path(), 2);
        let asked: Vec<_> = (0..4).map(|_| errno(group.connect(0, 5000, STREAM))).collect();
        assert_eq!(asked, [libc::ENOENT, libc::ENOENT, libc::EAGAIN, libc::EAGAIN]);
        assert_eq!(errno(group.connect(1, 5000, STREAM)), libc::ENOENT, "the other VM has its own rate");
    }

    #[test]
    fn a_vm_goes_by_the_word_of_its_child_if_it_is_drained() {
        let dir = tempfile::tempdir().expect("a folder");
        let group = group(dir.path(), 0);
        let (ours, _child) = Channel::pair().expect("a pair");
        let link = ChildLink::new(ours);
        let gone = |vm| {
            assert!(matches!(group.hear(GroupWord::Gone(vm), Vec::new(), &link), Heard::GoOn));
            group.names.all()
        };
        assert_eq!(gone(0), ["a", "b"], "it is not drained");
        for vm in &lock(&group.members).vms {
            lock(&vm.state).drains = true;
        }
        assert_eq!(gone(7), ["a", "b"], "no VM has this number");
        assert_eq!(gone(0), ["b"]);
        assert!(!dir.path().join("a.s").exists() && dir.path().join("b.s").exists() && !group.is_over());
        assert!(gone(1).is_empty() && group.is_over(), "nothing is left to serve");
    }

    /// As one that asks twice.
    #[test]
    fn a_child_in_no_user_namespace_of_its_own_ends_if_it_asks_for_users() {
        let dir = tempfile::tempdir().expect("a folder");
        let (ours, _child) = Channel::pair().expect("a pair");
        let process = Command::new("sleep").arg("100").spawn().expect("a process");
        let mut process = ChildProcess::from(process);
        ours.hear_until_death(&process).expect("watched");
        let (socket, mut told) = UnixStream::pair().expect("a pair");
        let heard =
            group(dir.path(), 0).hear(GroupWord::MapUsers, vec![socket.into()], &ChildLink::new(ours));
        assert!(matches!(heard, Heard::Failed(why) if why.contains("can't be mapped")));
        assert!(told.read_exact(&mut [0]).is_err(), "no byte comes");
        process.kill().and_then(|()| process.wait()).expect("killed");
    }

    /// As where the program's backlog is full: the child asks again.
    #[test]
    fn a_connection_that_can_not_be_sent_yet_is_tried_again() {
        own_process!();
        let dir = tempfile::tempdir().expect("a folder");
        let group = group(dir.path(), 0);
        let program = dir.path().join("a_5000");
        let listener = UnixListener::bind(&program).expect("a socket");
        for path in [dir.path(), &program] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).expect("for all");
        }
        limit(libc::RLIMIT_NOFILE, 100, 100).expect("a lower limit");
        become_ordinary(60_000 + std::process::id() % 5000, 0);
        let (other, unread) = Channel::pair().expect("a pair");
        while other.send(&"", &[listener.as_fd(); 60]).is_ok() {}
        let (ours, child) = Channel::pair().expect("a pair");
        let (link, child) = (ChildLink::new(ours), Channel::of(child));
        let answer = |number| {
            let word = GroupWord::Connect { vm: 0, number, port: 5000, kind: STREAM };
            assert!(matches!(group.hear(word, Vec::new(), &link), Heard::GoOn));
            match child.receive().expect("an answer").expect("not the end") {
                (GroupOrder::Connected { errno, .. }, fds) => (errno, fds.len()),
                _ => panic!("another order"),
            }
        };
        assert_eq!(answer(1), (Some(libc::EAGAIN), 0));
        drop(unread);
        assert_eq!(answer(2), (None, 1));
    }

    /// A child that reads no answers is ended.
    #[test]
    fn answers_wait_for_nobody() {
        let dir = tempfile::tempdir().expect("a folder");
        let group = group(dir.path(), 0);
        let (ours, _child) = Channel::pair().expect("a pair");
        let link = ChildLink::new(ours);
        let word = |number| GroupWord::Connect { vm: 0, number, port: 5000, kind: STREAM };
        let ask = |number| group.hear(word(number), Vec::new(), &link);
        let end = (0..10_000).map(ask).find(|heard| !matches!(heard, Heard::GoOn));
        assert!(matches!(end, Some(Heard::Failed(why)) if why.contains("answers")));
    }
}
