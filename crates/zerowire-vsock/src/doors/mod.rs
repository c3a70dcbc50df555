//! Where host programs connect to a VM's device, and those that have not said what they want.

mod line;
mod map_clients;

use std::cmp::Reverse;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Instant;

use zerowire_vhost::news::News;
use zerowire_vhost::serve::{Bound, ListenError, SocketAccess, SocketFile, bind_unix};

use super::connector::{HostConnector, OwnSockets, PathConnector, with_suffix};
use super::mapped::{MapClient, MapPolicy};
use super::packet::Kind;
use super::socket::socket_type;
pub(super) use line::{HostLine, read_line};
pub(super) use map_clients::MAX_CLIENTS;

/// Host programs that have connected and not said where to; the oldest one gives way.
pub(super) const MAX_HANDSHAKES: usize = 128;

/// Where host programs ask for something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// Streams.
    Streams,
    /// Messages.
    Messages,
    /// Mapped connections.
    Mapped,
}

impl Door {
    /// All, in the order of [`HostSockets::fds`].
    pub const ALL: [Self; 3] = [Self::Streams, Self::Messages, Self::Mapped];

    /// What its path has behind that of the VM's end on the host.
    pub fn suffix(self) -> &'static str {
        ["", ".seqpacket", ".map"][self as usize]
    }

    /// The type of its socket.
    pub fn kind(self) -> Kind {
        if self == Self::Streams { Kind::Stream } else { Kind::SeqPacket }
    }
}

/// A listening socket of the host side.
#[derive(Debug)]
pub(super) struct Listening {
    /// Its file, if the socket was made here. It is removed before the socket closes: nobody finds
    /// it without a listener.
    _made: Option<SocketFile>,
    pub socket: OwnedFd,
    pub door: Door,
    /// True: programs may wait to be accepted.
    pub called: bool,
}

/// The listening sockets of a VM's end on the host. Dropping it removes the files that were made
/// here.
#[derive(Debug)]
pub struct HostSockets(Vec<Listening>);

impl HostSockets {
    /// Binds them, with these rights: `uds` for streams, `uds.seqpacket` for messages, `uds.map`
    /// for mapped connections.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(uds: &Path, access: &SocketAccess) -> Result<Self, ListenError> {
        let bind = |door: Door| {
            let path = with_suffix(uds, door.suffix());
            let Bound { socket, file } = bind_unix(&path, socket_type(door.kind()), access)?;
            Ok(Listening { _made: Some(file), socket, door, called: false })
        };
        Door::ALL.into_iter().map(bind).collect::<Result<_, _>>().map(Self)
    }

    /// Those of another process, in the order of [`Self::fds`].
    pub fn handed(sockets: [OwnedFd; 3]) -> Self {
        let handed = |(door, socket)| Listening { _made: None, socket, door, called: false };
        Self(Door::ALL.into_iter().zip(sockets).map(handed).collect())
    }

    /// For another process: where programs ask for streams, for messages, and for mapped
    /// connections.
    pub fn fds(&self) -> [BorrowedFd<'_>; 3] {
        Door::ALL.map(|door| self.0[door as usize].socket.as_fd())
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
    /// Where programs ask for what.
    pub(super) listening: Vec<Listening>,
    /// True: programs wait to be accepted until the session of a process before goes on here, or
    /// can't.
    pub(super) await_session: bool,
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
        let HostSide { sockets: HostSockets(listening), connector, map_policy } = host;
        Self {
            listening,
            await_session: false,
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
        Self::new(HostSide { sockets: HostSockets(Vec::new()), connector, map_policy: MapPolicy::default() })
    }

    /// The session of a process before goes on here, or can't: programs that waited for it are
    /// accepted.
    pub(super) fn accept_those_that_wait(&mut self) {
        if std::mem::take(&mut self.await_session) {
            self.listening.iter_mut().for_each(|l| l.called = true);
        }
    }

    /// A number for a program that has connected, other than those of the ones before.
    pub(super) fn next_tenant(&mut self) -> u32 {
        self.tenants = (self.tenants + 1) & 0xff_ffff;
        self.tenants
    }

    /// A place for a program that has connected. With too many, one of those that wait gives way,
    /// which the second value says.
    pub(super) fn place_of_handshake(&mut self) -> (usize, bool) {
        if let Some(i) = free_place(&mut self.handshakes, MAX_HANDSHAKES) {
            return (i, false);
        }
        let waiting = self.handshakes.iter().map(|h| h.as_ref().map(|h| (h.user, h.deadline)));
        (gives_way(waiting), true)
    }
}

/// A free place among `most`; None where all are taken.
fn free_place<T>(places: &mut Vec<Option<T>>, most: usize) -> Option<usize> {
    match places.iter().position(Option::is_none) {
        None if places.len() < most => {
            places.push(None);
            Some(places.len() - 1)
        }
        place => place,
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
    fn what_took_the_place_of_a_socket_stays() {
        let dir = tempfile::tempdir().expect("a folder");
        let uds = dir.path().join("u");
        for taken in Door::ALL {
            let sockets = HostSockets::bind(&uds, &SocketAccess::default()).expect("sockets");
            let path = |door: Door| with_suffix(&uds, door.suffix());
            std::fs::remove_file(path(taken)).expect("it is there");
            std::fs::write(path(taken), "kept").expect("another file");
            drop(sockets);
            let stays = Door::ALL.map(|door| std::fs::read_to_string(path(door)).ok());
            assert_eq!(stays, Door::ALL.map(|door| (door == taken).then(|| "kept".to_owned())));
            std::fs::remove_file(path(taken)).expect("it is there");
        }
    }

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
