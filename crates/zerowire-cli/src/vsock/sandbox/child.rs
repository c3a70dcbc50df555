//! A confined process that serves VMs which may reach each other.
//!
//! It gets its VMs from the supervisor, with the sockets that are open for them, by the socket that
//! is its standard input. Then it gives up all rights, and only then it accepts anybody. It ends
//! when the supervisor is gone.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use zerowire_cli::logging::{self, LogFormat};
use zerowire_confine::{ConfinePlan, KnownUsers, confine_threads, user_namespace};
use zerowire_vhost::serve::MAX_VMS;
use zerowire_vsock::system_calls::SYSTEM_CALLS;
use zerowire_vsock::{HostKeeper, HostQuestion, VsockServer};

use super::message::{ChildStats, GroupOrder, GroupSetup, GroupWord};
use super::orders::{Captures, Changes, ComingVm, GivenVm};
use crate::pcap;
use crate::sandbox::channel::Channel;
use crate::sandbox::child;
use crate::sandbox::keeper::START_PATIENCE;
use crate::sandbox::link::ANSWER_PATIENCE;
use crate::serving::{block_signals, raise_descriptor_limit};

/// Questions under way at most: the supervisor's answers always have room in the channel.
const MAX_QUESTIONS: usize = 128;

/// Threads at most: each VM has one for its front end, one for its group, one that closes files and
/// one for its capture.
const THREADS: u64 = 4 * MAX_VMS as u64 + 64;

/// The program as a child.
pub(super) fn main() -> ExitCode {
    child::run(GroupWord::Failed, |channel| {
        serve(&Arc::new(SupervisorLink { channel: channel.clone(), under_way: AtomicUsize::new(0) }))
    })
}

fn serve(supervisor: &Arc<SupervisorLink>) -> Result<(), String> {
    let channel = &supervisor.channel;
    block_signals().map_err(|e| e.to_string())?;
    raise_descriptor_limit();
    let (setup, vms) = receive(channel)?;
    zerowire_vhost::memory::catch_lost_pages();
    let plan = ConfinePlan { owner: setup.owner, calls: SYSTEM_CALLS, without: &[] };
    let map_users = || map_users(channel);
    let users = match (setup.user_namespace, user_namespace()) {
        (Some(supervisors), Some(own)) if supervisors != own => KnownUsers::Alone,
        _ if setup.maps_users => KnownUsers::Mapped(&map_users),
        _ => KnownUsers::All,
    };
    let report = confine_threads(&plan, THREADS, users).map_err(|e| e.to_string())?;
    // From here on there are threads, and nothing else can be opened.
    let log = logging::serve(&setup.log, Some(LogFormat::Text)).map_err(|e| format!("{e:#}"))?;
    let keeper: Arc<dyn HostKeeper> = supervisor.clone();
    let vms = vms.into_iter().map(|vm| ComingVm::new(vm, channel)).collect::<Result<Vec<_>, _>>()?;
    let drained = vms.iter().filter_map(ComingVm::drained).collect();
    let mut captures = Captures::new();
    let vms = vms.into_iter().map(|vm| vm.split(&mut captures)).collect();
    let server = Arc::new(VsockServer::start_handed(vms, &keeper).map_err(|e| e.to_string())?);
    let changes = Changes::start(supervisor, &server, captures, drained).map_err(|e| e.to_string())?;
    // Front ends may have told of their sessions by then.
    let ready = GroupWord::Ready(report);
    channel.send_until(&ready, &[], Instant::now() + START_PATIENCE).map_err(|e| e.to_string())?;
    while let Some((order, fds)) = channel.receive().map_err(|e| e.to_string())? {
        if let Some(word) = supervisor.carry_out(order, fds, &server, &changes) {
            child::answer(channel, &word)?;
        }
    }
    let captures = changes.end();
    drop(server);
    captures.values().for_each(|capture| pcap::finish(Some(capture)));
    drop(log);
    Ok(())
}

/// Has the supervisor map the users of programs, whom this process tells apart. Orders may come
/// meanwhile.
fn map_users(channel: &Channel) -> Result<(), String> {
    let map = || -> io::Result<()> {
        let (mut answer, theirs) = UnixStream::pair()?;
        channel.send_until(&GroupWord::MapUsers, &[theirs.as_fd()], Instant::now() + START_PATIENCE)?;
        drop(theirs);
        answer.read_exact(&mut [0])
    };
    map().map_err(|e| format!("the supervisor has mapped no users: {e}"))
}

/// The VMs, and what is open for them.
fn receive(channel: &Channel) -> Result<(GroupSetup, Vec<GivenVm>), String> {
    let text = |e: io::Error| e.to_string();
    let Some((GroupOrder::Start(setup), _)) = channel.receive().map_err(text)? else {
        return Err("its first message is none".to_owned());
    };
    let mut vms = Vec::new();
    loop {
        let (vm, fds) = match channel.receive().map_err(text)? {
            Some((GroupOrder::Vm(vm), fds)) => (vm, fds),
            Some((GroupOrder::Serve, _)) => return Ok((setup, vms)),
            _ => return Err("a VM is missing".to_owned()),
        };
        let Some((GroupOrder::Session(kept), files)) = channel.receive().map_err(text)? else {
            return Err("what is kept of a session is missing".to_owned());
        };
        vms.push(GivenVm { setup: *vm, fds, kept: kept.map(|image| (image, files)) });
    }
}

/// The supervisor, as the group asks it.
#[derive(Debug)]
pub(super) struct SupervisorLink {
    pub(super) channel: Arc<Channel>,
    /// Questions whose answers have not come.
    under_way: AtomicUsize,
}

impl HostKeeper for SupervisorLink {
    fn ask(&self, question: HostQuestion) -> io::Result<()> {
        let HostQuestion { vm, number, port, kind } = question;
        if self.under_way.fetch_add(1, Ordering::Relaxed) >= MAX_QUESTIONS {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let sent = self.channel.send(&GroupWord::Connect { vm, number, port, kind: kind as u16 }, &[]);
        if sent.is_err() {
            self.under_way.fetch_sub(1, Ordering::Relaxed);
        }
        sent
    }

    fn connected(&self, vm: usize, now: bool) {
        // Without a supervisor there is nobody to tell.
        let word = GroupWord::FrontEnd(vm, now);
        let _ = self.channel.send_until(&word, &[], Instant::now() + ANSWER_PATIENCE);
    }
}

impl SupervisorLink {
    /// Does what it says. Returns what it asked for.
    fn carry_out(
        &self,
        order: GroupOrder,
        fds: Vec<OwnedFd>,
        server: &VsockServer,
        changes: &Changes,
    ) -> Option<GroupWord> {
        match order {
            GroupOrder::Statistics { number, vms } => {
                let told = ChildStats::of(&server.handed_stats(&vms));
                return Some(GroupWord::Statistics(number, Box::new(told)));
            }
            GroupOrder::Change(change) => changes.carry_out(change, fds),
            GroupOrder::Connected { vm, number, errno } => {
                self.under_way.fetch_sub(1, Ordering::Relaxed);
                let errno = errno.unwrap_or(libc::EIO);
                let outcome = fds.into_iter().next().ok_or_else(|| io::Error::from_raw_os_error(errno));
                server.answer(vm, number, outcome);
            }
            GroupOrder::Start(_) | GroupOrder::Vm(_) | GroupOrder::Session(_) | GroupOrder::Serve => {}
        }
        None
    }
}
