//! Has a guest see whether its port's interface can carry frames (`link=follow`).
//!
//! vhost-user has no message for a link's state that QEMU acts on. But QEMU takes a back end that
//! is gone for a link that is down. It sets the network client down when its connection closes, and
//! up when there is one again (net/vhost-user.c). So the front end is disconnected while the
//! interface is down or gone. Its attempts to connect are refused, by a socket on which nobody
//! listens. One that accepts and says nothing would stop QEMU's main loop, which waits for answers.
//!
//! **Front ends that start meanwhile.** QEMU waits, and does nothing else, until the first
//! connection of a device is there. A VM can start with its cable unplugged nevertheless. A front
//! end that has not been turned away yet is let in, and turned away [`LET_IN`] later. A front end
//! is known by its process.

mod eyes;
mod steady;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};
use zerowire_sys::netdevice;
use zerowire_sys::xdp::Interface;
use zerowire_vhost::serve::Admission;

pub(super) use eyes::LinkEyes;
pub use eyes::{LinkObserver, ToldLink};
use steady::Steady;

/// How long a front end stays that comes while the link is down: until it has set up what it needs
/// at its start.
const LET_IN: Duration = Duration::from_secs(2);

/// Whether an interface can carry frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkState {
    /// It can.
    Up,
    /// It is down (not IFF_UP).
    Down,
    /// It is up and has no carrier (not IFF_RUNNING).
    NoCarrier,
    /// There is none.
    Gone,
    /// It is there, and can't be asked: it is in another network namespace.
    Unknown,
}

impl LinkState {
    fn of(interface: &Interface) -> Self {
        Self::from_parts(interface.up_and_running())
    }

    fn from_parts(up_and_running: io::Result<(bool, bool)>) -> Self {
        match up_and_running {
            Ok((true, true)) => Self::Up,
            Ok((true, false)) => Self::NoCarrier,
            Ok((false, _)) => Self::Down,
            Err(_) => Self::Gone,
        }
    }

    /// That of the interface with this name in the network namespace of a socket.
    pub(super) fn by(socket: impl AsFd, name: &str) -> Self {
        let flags =
            netdevice::flags(socket, name).map(|f| (f & libc::IFF_UP != 0, f & libc::IFF_RUNNING != 0));
        Self::from_parts(flags)
    }

    /// That of the interface with this name in the thread's network namespace.
    pub fn by_name(name: &str) -> Self {
        netdevice::socket().map_or(Self::Gone, |socket| Self::by(socket, name))
    }

    /// What is wrong with the interface, and what to do.
    pub(super) fn problem(self, name: &str) -> Option<String> {
        match self {
            Self::Up | Self::Unknown => None,
            Self::Down => Some(format!("interface {name} is down ('ip link set {name} up')")),
            Self::NoCarrier => {
                Some(format!("interface {name} has no carrier (a cable, the other end of a veth)"))
            }
            Self::Gone => Some(format!("interface {name} is gone")),
        }
    }
}

/// State of a followed link that its statistics show.
#[derive(Debug, Default)]
pub(crate) struct LinkShared {
    down: AtomicBool,
    disconnects: AtomicU64,
}

/// A link that is followed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkStats {
    /// Whether the interface counts as up, so that front ends are let in.
    pub up: bool,
    /// Connections that were ended since it was not.
    pub disconnects: u64,
}

impl LinkShared {
    pub(super) fn stats(&self) -> LinkStats {
        LinkStats {
            up: !self.down.load(Ordering::Relaxed),
            disconnects: self.disconnects.load(Ordering::Relaxed),
        }
    }
}

/// Who was turned away.
#[derive(Debug)]
enum Away {
    /// Nobody since the link went down.
    Nobody,
    /// A front end, whose process ([SO_PEERPIDFD](zerowire_sys::socket::peer_process)) is readable
    /// when it has ended. None where the kernel does not tell (before Linux 6.5).
    Somebody(Option<OwnedFd>),
}

/// Follows one interface; belongs to a control thread.
pub(super) struct Follower {
    vm: String,
    interface: String,
    eyes: LinkEyes,
    steady: Steady,
    away: Away,
    /// When the connection that is served began.
    since: Instant,
    shared: Arc<LinkShared>,
}

impl Follower {
    /// Follows `interface`, at which `eyes` look.
    pub(super) fn new(vm: &str, interface: &str, mut eyes: LinkEyes, shared: Arc<LinkShared>) -> Self {
        let (now, problem) = (Instant::now(), eyes.look().problem(interface));
        let steady = Steady::new(problem.is_none(), now);
        shared.down.store(problem.is_some(), Ordering::Relaxed);
        if let Some(why) = problem {
            tracing::warn!("{vm}: {why}: a front end is let in, and disconnected after {LET_IN:?}");
        }
        let (vm, interface) = (vm.to_owned(), interface.to_owned());
        Self { vm, interface, eyes, steady, away: Away::Nobody, since: now, shared }
    }
}

impl Admission for Follower {
    /// Looks at the interface, and says so where another state counts from now on.
    fn look(&mut self) {
        let problem = self.eyes.look().problem(&self.interface);
        if self.steady.update(problem.is_none(), Instant::now()) {
            self.shared.down.store(problem.is_some(), Ordering::Relaxed);
            match problem {
                Some(why) => tracing::warn!("{}: {why}: the guest's link goes down", self.vm),
                None => tracing::info!(
                    "{}: interface {} is up: the front end may connect",
                    self.vm,
                    self.interface
                ),
            }
        }
        let ended = match &self.away {
            Away::Somebody(Some(process)) => is_readable(process),
            _ => false,
        };
        if ended || self.steady.up {
            self.away = Away::Nobody;
        }
    }

    fn admits(&self) -> bool {
        self.steady.up || matches!(self.away, Away::Nobody)
    }

    fn connected(&mut self) {
        self.since = Instant::now();
    }

    fn ends(&self) -> bool {
        !self.steady.up && self.since.elapsed() >= LET_IN
    }

    fn turn_away(&mut self, stream: &UnixStream) -> &'static str {
        self.away = Away::Somebody(zerowire_sys::socket::peer_process(stream).ok());
        self.shared.disconnects.fetch_add(1, Ordering::Relaxed);
        "the port's interface can't carry frames (link=follow)"
    }

    fn wakers(&self) -> Vec<BorrowedFd<'_>> {
        let process = match &self.away {
            Away::Somebody(Some(process)) => Some(process.as_fd()),
            _ => None,
        };
        [Some(self.eyes.as_fd()), process].into_iter().flatten().collect()
    }

    fn due(&self, connected: bool) -> Option<Duration> {
        let ends = (connected && !self.steady.up).then(|| LET_IN.saturating_sub(self.since.elapsed()));
        [self.steady.due(Instant::now()), ends].into_iter().flatten().min()
    }
}

fn is_readable(fd: &OwnedFd) -> bool {
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).is_ok_and(|n| n > 0)
}
