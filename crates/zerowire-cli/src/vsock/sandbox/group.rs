//! VMs that may reach each other: what is open for them, and what their child may ask.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::Instant;

use zerowire_confine::Owner;
use zerowire_vhost::serve::Listener;
use zerowire_vsock::packet::Kind;
use zerowire_vsock::{
    HostSockets, OwnSockets, PathConnector, RequestRate, VsockConfig, VsockVmStats, names_file,
};

use super::message::{GroupOrder, GroupSetup, GroupWord, VMS, VmSetup};
use super::sums::VmSums;
use crate::sandbox::channel::Channel;
use crate::sandbox::keeper::{Charge, Heard, Keeper, START_PATIENCE};
use crate::sandbox::link::ChildLink;
use crate::sandbox::lock;
use crate::sandbox::message::{bounded_report, short};
use crate::sandbox::sessions::KeptSession;

/// A VM, and what is open for it.
pub(super) struct KeptVsock {
    pub config: VsockConfig,
    listener: Listener,
    sockets: HostSockets,
    /// Memory for the names of its connections.
    names: OwnedFd,
    /// How its guest reaches host programs, and how often.
    connector: PathConnector,
    rate: Mutex<RequestRate>,
    /// That of its front end.
    session: Mutex<KeptSession>,
}

impl KeptVsock {
    pub(super) fn new(
        config: VsockConfig,
        listener: Listener,
        sockets: HostSockets,
        own: OwnSockets,
    ) -> io::Result<Self> {
        let names = names_file(config.limits.max_connections)?;
        let connector = PathConnector::new(&config.uds, own);
        let rate = Mutex::new(RequestRate::new(config.limits.request_rate));
        Ok(Self { config, listener, sockets, names, connector, rate, session: Mutex::default() })
    }
}

/// VMs that may reach each other.
pub(super) struct VsockGroup {
    vms: Vec<KeptVsock>,
    owner: Owner,
    log: String,
    sums: Mutex<GroupSums>,
}

/// What its children have told.
struct GroupSums {
    vms: Vec<VmSums>,
    /// CPU time of those that have ended, and of the one that runs, seconds.
    cpu_seconds: (f64, f64),
}

impl VsockGroup {
    pub(super) fn new(vms: Vec<KeptVsock>, owner: Owner, log: &str) -> Self {
        let sums = vms.iter().map(|_| VmSums::default()).collect();
        let sums = Mutex::new(GroupSums { vms: sums, cpu_seconds: (0.0, 0.0) });
        Self { vms, owner, log: log.to_owned(), sums }
    }

    /// Connects a guest to a program of the host's, without waiting. The path is that of the VM
    /// itself, so a child reaches no other one.
    fn connect(&self, vm: usize, port: u32, kind: u16) -> io::Result<OwnedFd> {
        let wrong = || io::Error::from_raw_os_error(libc::EINVAL);
        let kind = Kind::new(kind).ok_or_else(wrong)?;
        let vm = self.vms.get(vm).ok_or_else(wrong)?;
        // A child keeps to the rate by itself, but for those that it tries again.
        if !lock(&vm.rate).take(Instant::now()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        vm.connector.connect(port, kind)
    }

    fn answer(&self, channel: &Channel, vm: usize, number: u64, outcome: io::Result<OwnedFd>) -> Heard {
        let errno = outcome.as_ref().err().map(errno_of);
        let fds: Vec<_> = outcome.iter().map(AsFd::as_fd).collect();
        match channel.send(&GroupOrder::Connected { vm, number, errno }, &fds) {
            Ok(()) => Heard::GoOn,
            Err(e) => Heard::Failed(format!("it does not take its answers: {e}")),
        }
    }
}

impl Charge for VsockGroup {
    type Word = GroupWord;

    const ARGUMENT: &str = super::CHILD;

    fn vms(&self) -> Vec<String> {
        self.vms.iter().map(|vm| vm.config.name.clone()).collect()
    }

    fn hand(&self, channel: &Channel) -> Result<(), String> {
        let Owner { user, group } = self.owner;
        let text = |e: io::Error| e.to_string();
        let deadline = Instant::now() + START_PATIENCE;
        let setup = GroupSetup { vms: self.vms.len(), user, group, log: self.log.clone() };
        channel.send_until(&GroupOrder::Start(setup), &[], deadline).map_err(text)?;
        for KeptVsock { config, listener, sockets, names, session, .. } in &self.vms {
            let listener = listener.socket().ok_or("nobody listens")?;
            let [streams, messages, mapped] = sockets.fds();
            let setup = GroupOrder::Vm(Box::new(VmSetup::of(config)));
            let fds = [listener, streams, messages, mapped, names.as_fd()];
            channel.send_until(&setup, &fds, deadline).map_err(text)?;
            let mut session = lock(session);
            let (image, files) = session.give();
            channel.send_until(&GroupOrder::Session(image), &files, deadline).map_err(text)?;
        }
        Ok(())
    }

    fn hear(&self, word: GroupWord, fds: Vec<OwnedFd>, link: &ChildLink<GroupWord>) -> Heard {
        match word {
            GroupWord::Ready(report) => {
                self.vms.iter().for_each(|vm| lock(&vm.session).begin());
                Heard::Ready(bounded_report(&report))
            }
            GroupWord::Session { vm, word } => {
                if let Some(vm) = self.vms.get(vm) {
                    lock(&vm.session).hear(word, fds);
                }
                Heard::GoOn
            }
            GroupWord::Failed(why) => Heard::Failed(short(&why)),
            GroupWord::Connect { vm, number, port, kind } => {
                self.answer(&link.channel, vm, number, self.connect(vm, port, kind))
            }
            GroupWord::Statistics(..) => {
                link.take(word);
                Heard::GoOn
            }
        }
    }

    fn garbled(&self) {
        self.vms.iter().for_each(|vm| lock(&vm.session).forget());
    }

    fn died(&self, why: &str) -> Vec<String> {
        let mut sums = lock(&self.sums);
        sums.cpu_seconds.0 += std::mem::take(&mut sums.cpu_seconds.1);
        sums.vms.iter_mut().for_each(|vm| vm.died(why));
        self.vms.iter().map(|vm| lock(&vm.session).died()).collect()
    }
}

fn errno_of(e: &io::Error) -> i32 {
    let known = (e.kind() == io::ErrorKind::WouldBlock).then_some(libc::EAGAIN);
    e.raw_os_error().or(known).unwrap_or(libc::EIO)
}

/// Asks the child for statistics, and enters them. One that does not answer until `deadline` is
/// shown as it was.
pub(super) fn refresh(keeper: &Keeper<VsockGroup>, deadline: Instant) {
    let VsockGroup { vms, sums, .. } = &keeper.charge;
    let Some(link) = keeper.link() else { return };
    for first in (0..vms.len()).step_by(VMS) {
        let question = link.ask(|number| GroupOrder::Statistics { number, first }, &[]);
        let Some(question) = question else { return };
        let Some(GroupWord::Statistics(_, told)) = question.answer(deadline) else { return };
        let (cpu_seconds, vms) = told.told();
        let mut sums = lock(sums);
        // What a child has told that has ended is counted already.
        if !keeper.link().is_some_and(|now| question.was_asked(&now)) {
            return;
        }
        sums.cpu_seconds.1 = cpu_seconds;
        for (sums, told) in sums.vms.iter_mut().skip(first).zip(vms) {
            sums.told(told);
        }
    }
}

/// What the VMs of a group have moved so far, and the CPU time of their children, seconds.
pub(super) fn stats(keeper: &Keeper<VsockGroup>) -> (Vec<VsockVmStats>, f64) {
    let VsockGroup { vms, sums, .. } = &keeper.charge;
    let sums = lock(sums);
    let stats = sums.vms.iter().zip(vms).map(|(sums, vm)| sums.stats(&vm.config)).collect();
    (stats, sums.cpu_seconds.0 + sums.cpu_seconds.1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    use zerowire_vhost::serve::{Endpoint, SocketAccess};

    use super::*;

    const STREAM: u16 = Kind::Stream as u16;

    /// A group of two VMs, `a` and `b`.
    fn group(dir: &Path, request_rate: u32) -> VsockGroup {
        let config = |name: &str, cid| {
            let mut config = VsockConfig {
                name: name.to_owned(),
                endpoint: Endpoint::Path(dir.join(format!("{name}.s"))),
                access: SocketAccess::default(),
                cid,
                uds: dir.join(name),
                uds_access: SocketAccess::default(),
                groups: Vec::new(),
                limits: Default::default(),
                rates: Default::default(),
                map: Default::default(),
            };
            config.limits.request_rate = request_rate;
            config
        };
        let configs = [config("a", 3), config("b", 4)];
        let opened = configs.map(|config| {
            let sockets = HostSockets::bind(&config.uds, &config.uds_access).expect("sockets");
            let listener = Listener::new(&config.endpoint, &config.access).expect("a socket");
            (config, listener, sockets)
        });
        let own = OwnSockets::at(opened.iter().flat_map(|(config, ..)| config.paths()));
        let vms = opened.map(|(config, listener, sockets)| {
            KeptVsock::new(config, listener, sockets, own.clone()).expect("memory")
        });
        VsockGroup::new(vms.into(), Owner { user: 65534, group: 65534 }, "info")
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
