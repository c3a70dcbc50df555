//! The receiver: many connections, one thread.

use super::backend::Engine;
use super::core::{Connection, Core, Kind, State};
use super::holdings::Holdings;
use super::lease::Pool;
use super::multishot::Multishot;
use super::plain::Plain;
use super::zcrx::{self, Zcrx};
use super::{Backend, Events, Lease, Options, RecvError};
use crate::area::{Area, AreaOptions};
use crate::ledger::Counters;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A connection of a receiver. Never given out twice by the same receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    pub(super) place: u32,
    pub(super) generation: u32,
}

impl std::fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.place, self.generation)
    }
}

impl From<ConnectionId> for u64 {
    fn from(id: ConnectionId) -> Self {
        u64::from(id.generation) << 32 | u64::from(id.place)
    }
}

/// What came of a connection.
#[derive(Debug)]
pub enum What {
    /// Bytes: on a stream the next ones, on a datagram socket one datagram. Dropping the lease gives the buffer back.
    Data(Lease),
    /// The peer sends no more. Nothing more comes of this connection; sending on it still works.
    End,
    /// Receiving failed, by a reset for example. Nothing more comes of this connection (except on a datagram socket after
    /// ECONNREFUSED, which is about a datagram that was sent earlier).
    Failed(io::Error),
}

/// One piece of a batch.
#[derive(Debug)]
pub struct Arrival {
    /// Of which connection.
    pub connection: ConnectionId,
    /// What.
    pub what: What,
}

/// Receives from many sockets into one area. One thread makes and uses it; leases may go anywhere.
///
/// Nothing is lost when the program is slow: connections wait (a TCP window closes) while no buffer is free, and a
/// connection whose leases hold its share ([`Options::share`]) is not received on, so that the others are unaffected.
pub struct Receiver {
    // Before the core: the kernel lets go of sockets and memory first.
    engine: Box<dyn Engine>,
    core: Core,
    max_connections: usize,
    open: usize,
    generation: u32,
    note: Option<String>,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("path", &self.path()).field("connections", &self.open).finish()
    }
}

impl Receiver {
    /// Makes the area and sets the back end up.
    ///
    /// # Errors
    /// Options out of range, no memory, or the back end that was asked for is impossible here: the error says why.
    /// [`Backend::Auto`] falls back to plain receiving, and [`Receiver::path`] says why.
    pub fn new(options: Options) -> Result<Self, RecvError> {
        let mut core = new_core(&options)?;
        let mut note = None;
        let engine: Box<dyn Engine> = match &options.backend {
            Backend::Queue { .. } | Backend::NoDevice => Box::new(Zcrx::new(&mut core, &options)?),
            Backend::TcpMapped => return Err(RecvError::NotAvailable("tcp-mapped")),
            Backend::Multishot => Box::new(Multishot::new(&mut core, &options)?),
            Backend::Plain => Box::new(Plain::new(&mut core)?),
            Backend::Auto => match Multishot::new(&mut core, &options) {
                Ok(engine) => Box::new(engine),
                Err(e) => {
                    note = Some(e.to_string());
                    Box::new(Plain::new(&mut core)?)
                }
            },
        };
        Ok(Self { engine, core, max_connections: options.max_connections, open: 0, generation: 0, note })
    }

    /// Takes a socket: a connected stream, or a datagram socket. It may be blocking or not; no setting of it is changed.
    ///
    /// # Errors
    /// Not a socket, too many connections, or the system's refusal. The socket is closed then.
    pub fn add(&mut self, socket: OwnedFd) -> Result<ConnectionId, RecvError> {
        if self.open >= self.max_connections {
            return Err(RecvError::TooManyConnections(self.open));
        }
        let kind = kind_of(&socket).map_err(RecvError::NotASocket)?;
        let place = self.core.vacant.pop().unwrap_or(self.core.connections.len() as u32);
        self.generation = self.generation.wrapping_add(1);
        let id = ConnectionId { place, generation: self.generation };
        let connection =
            Connection { id, socket: Some(socket), kind, state: State::Open, limit: None, paused: false };
        match self.core.connections.get_mut(place as usize) {
            Some(old) => *old = connection,
            None => self.core.connections.push(connection),
        }
        self.core.holdings.grow(self.core.connections.len());
        if let Err(e) = self.engine.add(&mut self.core, place) {
            self.vacate(place);
            return Err(e);
        }
        self.open += 1;
        Ok(id)
    }

    /// Waits for data and adds what has come to `out`; returns how many arrivals were added: 0 only after `timeout` (`None`:
    /// waits for ever). Allocates nothing once `out` has grown to the length of a usual batch.
    ///
    /// # Errors
    /// Of the receiver as a whole. What happens to one connection is an arrival.
    pub fn recv(&mut self, out: &mut Vec<Arrival>, timeout: Option<Duration>) -> Result<usize, RecvError> {
        let before = out.len();
        let mut end = None;
        loop {
            let Self { core, engine, .. } = self;
            core.collect(|slot| engine.returned(slot));
            while let Some(place) = core.eased.pop() {
                if core.may_receive(place) {
                    engine.resume(core, place);
                }
            }
            if !core.backlog.is_empty() {
                out.extend(core.backlog.drain(..));
                return Ok(out.len() - before);
            }
            // The clock is read when the first turn gave nothing, which is not often.
            let left = match (timeout, end) {
                (None, _) => None,
                (Some(timeout), None) => Some(timeout),
                (Some(_), Some(end)) => Some(Instant::saturating_duration_since(&end, Instant::now())),
            };
            let begin = timeout.filter(|t| end.is_none() && !t.is_zero()).map(|_| Instant::now());
            engine.turn(core, out, left)?;
            if out.len() > before || left.is_some_and(|l| l.is_zero()) {
                return Ok(out.len() - before);
            }
            if let (Some(begin), Some(timeout)) = (begin, timeout) {
                end = begin.checked_add(timeout);
            }
        }
    }

    /// Receives at most `bytes` more on a connection, and not a byte beyond; `None`: no limit. What was received already and
    /// not given yet counts as received before. Set right after [`Receiver::add`], it holds from the first byte. When the
    /// limit is reached nothing tells: the leases' lengths add up to it. On a datagram socket the limit can end in the
    /// middle of a datagram, whose rest is lost.
    ///
    /// # Errors
    /// Unknown connection, wrong thread.
    pub fn limit(&mut self, id: ConnectionId, bytes: Option<u64>) -> Result<(), RecvError> {
        let place = self.place(id)?;
        self.engine.stop(&mut self.core, place)?;
        self.core.connections[place as usize].limit = bytes;
        if self.core.may_receive(place) {
            self.engine.resume(&mut self.core, place);
        }
        Ok(())
    }

    /// Gives the socket back. What had been taken from it before is given by the next [`Receiver::recv`]; the rest is still
    /// in it. Leases stay valid.
    ///
    /// # Errors
    /// Unknown connection, wrong thread; the connection stays.
    pub fn remove(&mut self, id: ConnectionId) -> Result<OwnedFd, RecvError> {
        let place = self.place(id)?;
        self.engine.remove(&mut self.core, place)?;
        self.open -= 1;
        self.vacate(place).ok_or(RecvError::Unknown(id))
    }

    /// The socket of a connection, to send on it or to set options.
    pub fn socket(&self, id: ConnectionId) -> Option<BorrowedFd<'_>> {
        let place = self.place(id).ok()?;
        self.core.connections[place as usize].socket.as_ref().map(AsFd::as_fd)
    }

    /// Connections that were added and not removed.
    pub fn connections(&self) -> usize {
        self.open
    }

    /// The ledger. `zero_copied_bytes`: placed by the NIC; copied with the reason "kernel": copied by the kernel into the
    /// area.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.core.counters)
    }

    /// What happened besides bytes.
    pub fn events(&self) -> Events {
        self.core.events
    }

    /// Which way receives, and why not a better one.
    pub fn path(&self) -> String {
        match &self.note {
            None => self.engine.path(),
            Some(note) => format!("{} ({note})", self.engine.path()),
        }
    }

    fn place(&self, id: ConnectionId) -> Result<u32, RecvError> {
        match self.core.connections.get(id.place as usize) {
            Some(c) if c.id == id && c.state != State::Gone => Ok(id.place),
            _ => Err(RecvError::Unknown(id)),
        }
    }

    /// Frees a place, at once or when its leases are back.
    fn vacate(&mut self, place: u32) -> Option<OwnedFd> {
        let connection = &mut self.core.connections[place as usize];
        connection.state = State::Gone;
        if std::mem::take(&mut connection.paused) {
            self.core.paused -= 1;
        }
        if self.core.holdings.held(place) == 0 {
            self.core.vacant.push(place);
        }
        connection.socket.take()
    }
}

/// Checks the options and makes the memory.
pub(super) fn new_core(options: &Options) -> Result<Core, RecvError> {
    let Options { buffer_bytes, buffers, pages, .. } = *options;
    if !(64..=1 << 30).contains(&buffer_bytes) || !buffer_bytes.is_multiple_of(64) {
        return Err(RecvError::BufferBytes(buffer_bytes));
    }
    if !(2..=32768).contains(&buffers) {
        return Err(RecvError::Buffers(buffers));
    }
    // Zero-copy receive lends pieces, not whole buffers.
    let plan = zcrx::Plan::of(options)?;
    let (slots, share) = plan.map_or((buffers, options.share.unwrap_or(buffers / 4)), |p| (p.slots, p.share));
    let area = Area::new(AreaOptions { buffer_bytes, buffers, pages })?;
    let pool = Pool::new([area].into(), slots).map_err(RecvError::system("eventfd"))?;
    Ok(Core {
        pool: Arc::new(pool),
        holdings: Holdings::new(slots, share),
        connections: Vec::new(),
        counters: Arc::default(),
        events: Events::default(),
        backlog: VecDeque::new(),
        paused: 0,
        eased: Vec::with_capacity(16),
        vacant: Vec::new(),
        buffer_bytes,
    })
}

fn kind_of(socket: &OwnedFd) -> io::Result<Kind> {
    use rustix::net::{SocketType, sockopt};
    if sockopt::socket_acceptconn(socket)? {
        return Err(io::Error::other("it listens"));
    }
    Ok(match sockopt::socket_type(socket)? {
        SocketType::STREAM => Kind::Stream,
        SocketType::SEQPACKET => Kind::Packets,
        _ => Kind::Datagram,
    })
}
