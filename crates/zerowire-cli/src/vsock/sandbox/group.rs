//! VMs that may reach each other: what is open for them, and what their child may ask.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::Instant;

use zerowire_confine::Owner;
use zerowire_vhost::serve::Listener;
use zerowire_vsock::packet::Kind;
use zerowire_vsock::{HostSockets, OwnSockets, PathConnector, RequestRate, VsockConfig, VsockVmStats};

use super::message::{GroupOrder, GroupSetup, GroupWord, VMS, VmSetup};
use super::sums::VmSums;
use crate::sandbox::channel::Channel;
use crate::sandbox::keeper::{Charge, Heard, Keeper, START_PATIENCE};
use crate::sandbox::link::ChildLink;
use crate::sandbox::lock;
use crate::sandbox::message::{bounded_report, short};

/// A VM, and what is open for it.
pub(super) struct KeptVsock {
    pub config: VsockConfig,
    listener: Listener,
    sockets: HostSockets,
    /// How its guest reaches host programs, and how often.
    connector: PathConnector,
    rate: Mutex<RequestRate>,
}

impl KeptVsock {
    pub(super) fn new(
        config: VsockConfig,
        listener: Listener,
        sockets: HostSockets,
        own: OwnSockets,
    ) -> Self {
        let connector = PathConnector::new(&config.uds, own);
        let rate = Mutex::new(RequestRate::new(config.limits.request_rate));
        Self { config, listener, sockets, connector, rate }
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

    /// Connects a guest to a program of the host's, without waiting. The path is that of the VM itself, so a child
    /// reaches no other one.
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
        for KeptVsock { config, listener, sockets, .. } in &self.vms {
            let listener = listener.socket().ok_or("nobody listens")?;
            let [streams, messages, mapped] = sockets.fds();
            let setup = GroupOrder::Vm(Box::new(VmSetup::of(config)));
            let fds = [listener, streams, messages, mapped];
            channel.send_until(&setup, &fds, deadline).map_err(text)?;
        }
        Ok(())
    }

    fn hear(&self, word: GroupWord, link: &ChildLink<GroupWord>) -> Heard {
        match word {
            GroupWord::Ready(report) => Heard::Ready(bounded_report(&report)),
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

    fn died(&self, why: String) {
        let mut sums = lock(&self.sums);
        sums.cpu_seconds.0 += std::mem::take(&mut sums.cpu_seconds.1);
        sums.vms.iter_mut().for_each(|vm| vm.died(&why));
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
        let told = told.bounded();
        let mut sums = lock(sums);
        // What a child has told that has ended is counted already.
        if !keeper.link().is_some_and(|now| question.was_asked(&now)) {
            return;
        }
        sums.cpu_seconds.1 = told.cpu_seconds;
        for (sums, told) in sums.vms.iter_mut().skip(first).zip(told.vms) {
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
