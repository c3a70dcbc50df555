//! What all back ends share: the memory, the book of buffers, the connections, the counters.

use super::holdings::SlotBook;
use super::lease::{Filled, Lease, Pool};
use super::listen::Listeners;
use super::pace::{ArrivalPace, Messengers};
use super::{Arrival, ConnectionId, Events, What};
use crate::ledger::{CopyReason, Counters};
use crate::send::is_of_an_earlier;
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use zerowire_sys::socket::has_ended;

/// What kind of socket, as far as receiving goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketShape {
    /// Bytes: a receive of nothing is the end.
    Stream,
    /// Messages with boundaries; a receive of nothing is an empty one.
    Datagram,
    /// Messages with boundaries; a receive of nothing is the end, or on a unix socket perhaps an
    /// empty one (SOCK_SEQPACKET).
    Packets,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// Data may come.
    Open,
    /// The end or a failure was delivered.
    Over,
    /// Removed; the place is kept until its leases are back.
    Gone,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct RecvConnection {
    pub(crate) id: ConnectionId,
    pub(crate) socket: Option<OwnedFd>,
    pub(crate) kind: SocketShape,
    pub(crate) state: ConnectionState,
    /// Bytes that may still be taken from the socket.
    pub(crate) limit: Option<u64>,
    /// Its leases reached its share; no receive until enough are back.
    pub(crate) paused: bool,
    pub(crate) pace: ArrivalPace,
}

impl RecvConnection {
    pub(crate) fn new(id: ConnectionId, kind: SocketShape) -> Self {
        Self {
            id,
            socket: None,
            kind,
            state: ConnectionState::Open,
            limit: None,
            paused: false,
            pace: ArrivalPace::default(),
        }
    }
}

/// Who put the bytes where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placed {
    /// The NIC.
    ByNic,
    /// The kernel, from its own memory.
    ByKernel,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct RecvState {
    pub(crate) pool: Arc<Pool>,
    pub(crate) holdings: SlotBook,
    pub(crate) connections: Vec<RecvConnection>,
    pub(crate) listeners: Listeners,
    pub(crate) counters: Arc<Counters>,
    pub(crate) events: Events,
    /// What has come and was not given yet: of a turn, or while a connection was being stopped.
    pub(crate) arrivals: Vec<Arrival>,
    /// Connections that are paused.
    pub(crate) paused: usize,
    /// Connections whose data must not be kept waiting.
    pub(crate) messengers: Messengers,
    pub(super) eased: Vec<u32>,
    pub(super) vacant: Vec<u32>,
    /// Distance of two buffers in the area.
    pub(crate) buffer_bytes: usize,
}

impl RecvState {
    /// The descriptor of the connection at `place`.
    pub(crate) fn fd(&self, place: u32) -> Option<BorrowedFd<'_>> {
        self.connections.get(place as usize)?.socket.as_ref().map(AsFd::as_fd)
    }

    /// Whether data of this connection is wanted now.
    pub(crate) fn may_receive(&self, place: u32) -> bool {
        self.connections
            .get(place as usize)
            .is_some_and(|c| c.state == ConnectionState::Open && !c.paused && c.limit != Some(0))
    }

    /// Where the buffer of `slot` begins, in back ends in which a slot is a buffer.
    pub(crate) fn buffer(&self, slot: u32) -> *mut u8 {
        match self.pool.area(0) {
            Some(area) => area.base().wrapping_add(slot as usize * self.buffer_bytes),
            None => std::ptr::null_mut(),
        }
    }

    /// Bytes of `place` have come. They are lent and counted.
    pub(crate) fn deliver(&mut self, place: u32, filled: Filled, placed: Placed) {
        let (slot, len) = (filled.slot(), filled.len());
        if !self.holdings.lend(slot, place) {
            return;
        }
        let Some(lease) = Lease::new(&self.pool, filled) else {
            self.holdings.give_back(slot);
            return;
        };
        let Some(connection) = self.connections.get_mut(place as usize) else { return };
        if let Some(limit) = &mut connection.limit {
            *limit = limit.saturating_sub(len as u64);
        }
        if connection.state == ConnectionState::Open {
            self.messengers.arrived(&mut connection.pace, len);
        }
        self.counters.frames.add(1);
        match placed {
            Placed::ByKernel => self.counters.copied(CopyReason::Kernel, len as u64),
            Placed::ByNic => {
                self.counters.zero_copied_bytes.add(len as u64);
                self.counters.zero_copied_frames.add(1);
            }
        }
        self.arrivals.push(Arrival { connection: connection.id, what: What::Data(lease) });
        if !connection.paused && self.holdings.room(place) == 0 {
            connection.paused = true;
            self.paused += 1;
            self.events.paused += 1;
        }
    }

    /// A receive of nothing: the end of a stream, or an empty message (then true: the connection
    /// goes on).
    pub(crate) fn nothing(&mut self, place: u32) -> bool {
        let Some(connection) = self.connections.get_mut(place as usize) else { return false };
        let is_message = match connection.kind {
            SocketShape::Stream => false,
            SocketShape::Datagram => true,
            SocketShape::Packets => connection.socket.as_ref().is_some_and(was_empty_message),
        };
        if is_message {
            let what = What::Data(Lease::empty());
            self.counters.frames.add(1);
            self.arrivals.push(Arrival { connection: connection.id, what });
            return true;
        }
        self.over(place, What::End);
        false
    }

    /// A receive failed with `errno`. True: the connection goes on. A datagram socket does after an
    /// ICMP answer to a datagram that was sent earlier. EMSGSIZE is that of path MTU discovery.
    pub(crate) fn failed(&mut self, place: u32, errno: i32) -> bool {
        let Some(connection) = self.connections.get_mut(place as usize) else { return false };
        let what = What::Failed(io::Error::from_raw_os_error(errno));
        let is_of_an_earlier = errno == libc::EMSGSIZE || is_of_an_earlier(errno);
        if connection.kind == SocketShape::Datagram && is_of_an_earlier {
            self.arrivals.push(Arrival { connection: connection.id, what });
            return true;
        }
        self.over(place, what);
        false
    }

    fn over(&mut self, place: u32, what: What) {
        let Some(connection) = self.connections.get_mut(place as usize) else { return };
        if connection.state == ConnectionState::Open {
            connection.state = ConnectionState::Over;
            self.messengers.ended(&mut connection.pace);
            self.arrivals.push(Arrival { connection: connection.id, what });
        }
    }

    /// Leases for `slots` buffers more; a connection that holds `share` of all is paused from now
    /// on, and one that holds less goes on. Returns how many slots there are.
    pub(crate) fn add_slots(&mut self, slots: usize, share: usize) -> usize {
        let all = self.holdings.add_slots(slots, share);
        self.pool.returns.grow(all);
        for connection in self.connections.iter_mut().filter(|c| c.paused) {
            if self.holdings.may_resume(self.holdings.held(connection.id.place)) {
                connection.paused = false;
                self.paused -= 1;
                self.eased.push(connection.id.place);
            }
        }
        all
    }

    /// Puts what has come into `out`; returns how many arrivals.
    pub(super) fn take_arrivals(&mut self, out: &mut Vec<Arrival>) -> usize {
        let count = self.arrivals.len();
        if out.is_empty() {
            std::mem::swap(out, &mut self.arrivals);
        } else {
            out.append(&mut self.arrivals);
        }
        count
    }

    /// Takes back what the program gave back.
    pub(super) fn collect(&mut self, mut each: impl FnMut(u32)) {
        let pool = Arc::clone(&self.pool);
        let count = pool.returns.take(|slot| {
            let Some((place, held)) = self.holdings.give_back(slot) else { return };
            each(slot);
            let Some(connection) = self.connections.get_mut(place as usize) else { return };
            if connection.paused && self.holdings.may_resume(held) {
                connection.paused = false;
                self.paused -= 1;
                self.eased.push(place);
            }
            if held == 0 && connection.state == ConnectionState::Gone {
                self.vacant.push(place);
            }
        });
        self.events.refills += count as u64;
    }

    /// Counts a system call.
    pub(crate) fn called(&mut self) {
        self.events.system_calls += 1;
        self.counters.system_calls.add(1);
    }
}

impl Drop for RecvState {
    fn drop(&mut self) {
        Pool::close(&self.pool, self.holdings.lent());
    }
}

/// Whether a receive of nothing took an empty message of a SOCK_SEQPACKET socket. Unix sockets
/// tell: no end has come, or there is more in front of it. Others stay at their end without that.
fn was_empty_message(socket: &OwnedFd) -> bool {
    socket_domain(socket) == Ok(AddressFamily::UNIX) && !has_ended(socket)
}
