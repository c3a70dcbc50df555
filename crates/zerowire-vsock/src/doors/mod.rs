//! Where host programs connect to a VM's device, and those that have not said what they want.

mod line;
mod map_clients;

use std::cmp::Reverse;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::net::SocketType;
use zerowire_vhost::serve::{ListenError, SocketAccess, bind_unix};

use super::connector::{HostConnector, OwnSockets, PathConnector, with_suffix};
use super::mapped::{MapClient, MapPolicy};
use super::news::News;
use super::packet::Kind;
pub(super) use line::{HostLine, read_line};
pub(super) use map_clients::MAX_CLIENTS;

/// Host programs that have connected and not said where to; the oldest one gives way.
pub(super) const MAX_HANDSHAKES: usize = 128;

/// A listening socket of the host side.
#[derive(Debug)]
pub(super) struct Listening {
    pub socket: OwnedFd,
    pub kind: Kind,
    /// True: programs may wait to be accepted.
    pub called: bool,
    /// Its file, which is removed on drop, if the socket was made here.
    made: Option<PathBuf>,
}

impl Listening {
    fn bind(path: PathBuf, kind: Kind, access: &SocketAccess) -> Result<Self, ListenError> {
        let socket_type = match kind {
            Kind::Stream => SocketType::STREAM,
            Kind::SeqPacket => SocketType::SEQPACKET,
        };
        let socket = bind_unix(&path, socket_type, access)?.socket;
        Ok(Self { socket, kind, called: false, made: Some(path) })
    }

    fn handed(socket: OwnedFd, kind: Kind) -> Self {
        Self { socket, kind, called: false, made: None }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The listening sockets of a VM's end on the host. Dropping it removes the files that were made
/// here.
#[derive(Debug)]
pub struct HostSockets {
    streams: Listening,
    messages: Listening,
    mapped: Listening,
}

impl HostSockets {
    /// Binds them, with these rights: `uds` for streams, `uds.seqpacket` for messages, `uds.map`
    /// for mapped connections.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(uds: &Path, access: &SocketAccess) -> Result<Self, ListenError> {
        Ok(Self {
            streams: Listening::bind(uds.to_owned(), Kind::Stream, access)?,
            messages: Listening::bind(with_suffix(uds, ".seqpacket"), Kind::SeqPacket, access)?,
            mapped: Listening::bind(with_suffix(uds, ".map"), Kind::SeqPacket, access)?,
        })
    }

    /// Those of another process, in the order of [`Self::fds`].
    pub fn handed([streams, messages, mapped]: [OwnedFd; 3]) -> Self {
        Self {
            streams: Listening::handed(streams, Kind::Stream),
            messages: Listening::handed(messages, Kind::SeqPacket),
            mapped: Listening::handed(mapped, Kind::SeqPacket),
        }
    }

    /// For another process: where programs ask for streams, for messages, and for mapped
    /// connections.
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [&self.streams, &self.messages, &self.mapped].map(|listening| listening.socket.as_fd())
    }
}

/// A host program that has connected and not said where to.
#[derive(Debug)]
pub(super) struct Handshake {
    pub socket: OwnedFd,
    pub kind: Kind,
    pub deadline: Instant,
    /// The user that it runs as.
    pub user: u32,
    /// Tells it from others in the same place.
    pub tenant: u32,
}

/// What a VM has on the host's side.
#[derive(Debug)]
pub(crate) struct HostSide {
    /// Where programs connect.
    pub sockets: HostSockets,
    /// How the guest's connections reach programs.
    pub connector: HostConnector,
    /// Rules for mapped connections.
    pub map_policy: MapPolicy,
}

/// A VM's sockets on the host's side.
#[derive(Debug)]
pub(super) struct Doors {
    /// Where programs ask for streams and for messages.
    pub(super) listening: Vec<Listening>,
    /// Where programs ask for mapped connections.
    pub(super) map_listening: Option<Listening>,
    pub(super) map_policy: MapPolicy,
    /// Mapped connections that can't be had, for the log.
    pub(super) map_refusals: News,
    /// When the log last said that one waits for descriptors under way.
    pub(super) map_delays: News,
    /// Programs that have asked for mapped connections, or are about to.
    pub(super) map_clients: Vec<Option<MapClient>>,
    pub(super) handshakes: Vec<Option<Handshake>>,
    /// How the guest's connections reach programs.
    pub(super) connector: HostConnector,
    tenants: u32,
}

impl Doors {
    pub(super) fn new(host: HostSide) -> Self {
        let HostSide { sockets: HostSockets { streams, messages, mapped }, connector, map_policy } = host;
        Self {
            listening: vec![streams, messages],
            map_listening: Some(mapped),
            map_policy,
            map_refusals: News::default(),
            map_delays: News::default(),
            map_clients: Vec::new(),
            handshakes: Vec::new(),
            connector,
            tenants: 0,
        }
    }

    /// Of no VM: without sockets.
    pub(super) fn none() -> Self {
        let connector = HostConnector::Paths(PathConnector::new(Path::new(""), OwnSockets::default()));
        Self {
            listening: Vec::new(),
            map_listening: None,
            map_policy: MapPolicy::default(),
            map_refusals: News::default(),
            map_delays: News::default(),
            map_clients: Vec::new(),
            handshakes: Vec::new(),
            connector,
            tenants: 0,
        }
    }

    /// All sockets at which host programs connect.
    pub(super) fn listeners(&mut self) -> impl Iterator<Item = &mut Listening> {
        self.listening.iter_mut().chain(&mut self.map_listening)
    }

    /// A number for a program that has connected, other than those of the ones before.
    pub(super) fn next_tenant(&mut self) -> u32 {
        self.tenants = (self.tenants + 1) & 0xff_ffff;
        self.tenants
    }

    /// A place for a program that has connected. With too many, one of those that wait gives way,
    /// which the second value says.
    pub(super) fn place_of_handshake(&mut self) -> (usize, bool) {
        if let Some(i) = self.handshakes.iter().position(Option::is_none) {
            return (i, false);
        }
        if self.handshakes.len() < MAX_HANDSHAKES {
            self.handshakes.push(None);
            return (self.handshakes.len() - 1, false);
        }
        let waiting = self.handshakes.iter().map(|h| h.as_ref().map(|h| (h.user, h.deadline)));
        (gives_way(waiting), true)
    }
}

/// Which of the programs that have not said where to gives way to a new one. It is the oldest of
/// the user who has most of them. So idle ones of one user push out no other user's.
fn gives_way(waiting: impl Iterator<Item = Option<(u32, Instant)>> + Clone) -> usize {
    let users = waiting.clone().flatten().map(|(user, _)| user);
    // Mostly all are one user's: they are counted once.
    let mut last = (0, 0);
    let mut of = |user| {
        if last.1 == 0 || last.0 != user {
            last = (user, users.clone().filter(|u| *u == user).count());
        }
        last.1
    };
    let key = |(_, h): &(usize, Option<(u32, Instant)>)| h.map(|(user, at)| (Reverse(of(user)), at));
    waiting.clone().enumerate().min_by_key(key).map_or(0, |(i, _)| i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_programs_of_one_user_push_out_no_other_users() {
        let now = Instant::now();
        let at = |user: u32, ms: u64| Some((user, now + std::time::Duration::from_millis(ms)));
        assert_eq!(gives_way([at(1, 5), at(2, 9), at(2, 8), at(2, 7)].into_iter()), 3);
        assert_eq!(
            gives_way([at(1, 5), at(1, 4), at(2, 1), at(2, 2)].into_iter()),
            2,
            "the oldest of equals"
        );
        assert_eq!(gives_way([at(1, 5), at(1, 4), at(2, 1)].into_iter()), 1);
    }
}
