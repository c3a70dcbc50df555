//! The receiver: many connections, one thread.

#[cfg(feature = "zcrx")]
use super::SharedArea;
use super::backend::Engine;
use super::core::{ConnectionState, RecvConnection, RecvState, SocketShape};
use super::holdings::SlotBook;
use super::lease::Pool;
use super::listen::Listeners;
use super::open;
use super::pace::Messengers;
#[cfg(feature = "zcrx")]
use super::zcrx::{self, Zcrx};
use super::{ConnectionId, Events, Lease, ListenerId, RecvError, RecvOptions, SocketError, ZeroCopied};
use crate::area::{Area, AreaOptions};
use crate::ledger::Counters;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What came of a connection.
#[derive(Debug)]
pub enum What {
    /// The connection is new: it was accepted from this listening socket ([`Receiver::listen`]).
    /// Comes before all else.
    Accepted(ListenerId),
    /// Bytes: on a stream the next ones, on a datagram socket one datagram. Dropping the lease
    /// gives the buffer back.
    Data(Lease),
    /// The peer sends no more. Nothing more comes of this connection; sending on it still works.
    End,
    /// Receiving failed, by a reset for example. Nothing more comes of this connection.
    ///
    /// A datagram socket goes on after an ICMP answer to a datagram that was sent earlier:
    /// ECONNREFUSED, EMSGSIZE (path MTU discovery), EHOSTUNREACH, ENETUNREACH, EHOSTDOWN, ENONET,
    /// ENOPROTOOPT, EPROTO, EACCES.
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

/// Receives from many sockets into one area, or several ([`Receiver::add_area`]). One thread makes
/// and uses it; leases may go anywhere.
///
/// Nothing is lost when the program is slow. Connections wait (a TCP window closes) while no buffer
/// is free. The receiver also stops receiving on a connection whose leases hold its share
/// ([`RecvOptions::share`]), so the others are unaffected.
pub struct Receiver {
    // Before the core: the kernel lets go of sockets and memory first.
    engine: Box<dyn Engine>,
    core: RecvState,
    max_connections: usize,
    open: usize,
    generation: u32,
    /// Met behind arrivals that were given: the next call tells it.
    late: Option<RecvError>,
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
    /// Options out of range, no memory, or the back end that was asked for is impossible here: the
    /// error says why. [`RecvBackend::Auto`](super::RecvBackend) falls back to plain receiving, and
    /// [`Receiver::path`] says why.
    pub fn new(options: RecvOptions) -> Result<Self, RecvError> {
        let mut core = new_core(&options)?;
        let (engine, note) = open::engine(&mut core, &options)?;
        Ok(Self::of(engine, core, options.max_connections, note))
    }

    /// A receiver on the area of another one, for another thread (Linux 7.0). It receives from its
    /// own sockets, by a ring of its own. The buffers are those of the area, so a receiver that
    /// holds many leases leaves fewer to the others.
    ///
    /// Of the options, `buffers * buffer_bytes` is how much of the area its leases may hold. The
    /// kind of memory and the back end are those of the area.
    ///
    /// # Errors
    /// CAP_NET_ADMIN is missing, no memory, no io_uring.
    #[cfg(feature = "zcrx")]
    pub fn import(area: &SharedArea, options: RecvOptions) -> Result<Self, RecvError> {
        let mut core = area.core(&options)?;
        let engine = Box::new(Zcrx::sharing(&mut core, area, &options)?);
        Ok(Self::of(engine, core, options.max_connections, None))
    }

    /// Lets other receivers use this one's area: [`Receiver::import`]. The counters of each say
    /// what it has lent. When the kernel copies a piece, any of them may count it
    /// ([`Events::copied`], and on a device queue the ledger's reason); the sums are right.
    ///
    /// # Errors
    /// The back end is not zero-copy receive, the kernel is older than Linux 7.0, no descriptor is
    /// free.
    #[cfg(feature = "zcrx")]
    pub fn export(&mut self) -> Result<SharedArea, RecvError> {
        self.engine.export(&mut self.core)
    }

    /// Gives a receiver of zero-copy receive ([`RecvBackend::Queue`](super::RecvBackend),
    /// `NoDevice`) one more area, at any time (Linux 7.3, `ZCRX_CTRL_ADD_AREA`). The program may
    /// hold its buffers and the kernel can fill them, beside those of the other areas. Connections,
    /// leases and receivers that share the area ([`Receiver::export`]) go on. This receiver may
    /// hold more of it than before.
    ///
    /// As at the start, `buffers * buffer_bytes` counts. The kernel cuts it into buffers of the
    /// length that the first area has; there must be two such buffers or more. A connection's share
    /// ([`RecvOptions::share`]) is a quarter of all buffers then, or what was asked for. The refill
    /// ring stays as long as the first area needs: a receiver that starts with very few buffers
    /// calls the kernel more often. An area stays until the receiver and all of its leases have
    /// gone; there can be 1024.
    ///
    /// # Errors
    /// Out of range, no memory, another back end, the area is a DMA buffer
    /// ([`ZcrxOptions::dmabuf`](super::ZcrxOptions)), an older kernel. The text says what is
    /// needed. The receiver is as it was before.
    #[cfg(feature = "zcrx")]
    pub fn add_area(&mut self, area: AreaOptions) -> Result<(), RecvError> {
        check_cut(area.buffer_bytes, area.buffers)?;
        self.engine.add_area(&mut self.core, area)
    }

    fn of(engine: Box<dyn Engine>, core: RecvState, max_connections: usize, note: Option<String>) -> Self {
        Self { engine, core, max_connections, open: 0, generation: 0, late: None, note }
    }

    /// Takes a socket: a connected stream, a datagram socket, or one of SOCK_SEQPACKET. It may be
    /// blocking or not; no setting of it is changed. An empty message of SOCK_SEQPACKET is data on
    /// a unix socket, unless the end is right behind it. On others it counts as the end.
    ///
    /// # Errors
    /// Not a socket, one that listens, too many connections, or the system's refusal. With each the
    /// socket comes back.
    pub fn add(&mut self, socket: OwnedFd) -> Result<ConnectionId, SocketError<RecvError>> {
        if self.open >= self.max_connections {
            return Err(SocketError { socket, error: RecvError::TooManyConnections(self.open) });
        }
        match kind_of(&socket) {
            Ok(kind) => self.add_kind(socket, kind),
            Err(error) => Err(SocketError { socket, error }),
        }
    }

    fn add_kind(
        &mut self,
        socket: OwnedFd,
        kind: SocketShape,
    ) -> Result<ConnectionId, SocketError<RecvError>> {
        let place = self.core.vacant.pop().unwrap_or(self.core.connections.len() as u32);
        self.generation = self.generation.wrapping_add(1);
        let id = ConnectionId { place, generation: self.generation };
        let connection = RecvConnection::new(id, kind);
        match self.core.connections.get_mut(place as usize) {
            Some(old) => *old = connection,
            None => self.core.connections.push(connection),
        }
        self.core.holdings.grow(self.core.connections.len());
        if let Err(error) = self.engine.add(&mut self.core, place, socket.as_fd()) {
            self.vacate(place);
            return Err(SocketError { socket, error });
        }
        self.core.connections[place as usize].socket = Some(socket);
        self.open += 1;
        Ok(id)
    }

    /// Takes a listening socket. Connections are accepted and added by themselves
    /// ([`What::Accepted`]), as blocking sockets that are closed on exec. With
    /// [`RecvOptions::max_connections`] accepting stops, connections wait in the socket's backlog,
    /// and it goes on when one is removed ([`Events::accept_pauses`]). Without descriptors, memory
    /// or places for epoll (sysctl fs.epoll.max_user_watches) the receiver tries again a tenth of a
    /// second later.
    ///
    /// The plain way makes the socket non-blocking, and leaves it so: others may share the open
    /// file description (dup, fork). Make it blocking only when no receiver has it.
    ///
    /// # Errors
    /// Not a listening socket, or not one of TCP for zero-copy receive; the system's refusal. With
    /// each the socket comes back.
    pub fn listen(&mut self, socket: OwnedFd) -> Result<ListenerId, SocketError<RecvError>> {
        let index = self.core.listeners.vacant();
        match self.listen_at(index, socket.as_fd()) {
            Ok(kind) => Ok(self.core.listeners.put(index, socket, kind)),
            Err(error) => Err(SocketError { socket, error }),
        }
    }

    /// What kind of connections `socket` gives. The engine accepts from it at `index` from now on.
    fn listen_at(&mut self, index: u32, socket: BorrowedFd<'_>) -> Result<SocketShape, RecvError> {
        if !rustix::net::sockopt::socket_acceptconn(socket).is_ok_and(|listens| listens) {
            return Err(RecvError::NotListening);
        }
        let kind = type_of(socket)?;
        self.engine.listen(index, socket)?;
        Ok(kind)
    }

    /// Gives a listening socket back. Connections that were accepted before stay, or still come.
    /// The plain way gives it back non-blocking ([`Receiver::listen`]).
    ///
    /// # Errors
    /// Unknown listener, wrong thread; it stays.
    pub fn unlisten(&mut self, id: ListenerId) -> Result<OwnedFd, RecvError> {
        let index = self.core.listeners.find(id).ok_or(RecvError::UnknownListener(id))?;
        self.core.listeners.want(index, false);
        if let Err(e) = self.engine.unlisten(&mut self.core, index) {
            self.core.listeners.want(index, true);
            return Err(e);
        }
        self.core.listeners.take(index).ok_or(RecvError::UnknownListener(id))
    }

    /// Adds what was accepted, as far as there is room.
    fn adopt(&mut self) -> Result<(), RecvError> {
        while self.core.listeners.is_due()
            && let Some((listener, kind, socket)) = self.core.listeners.next_accepted()
        {
            let connection = match self.add_kind(socket, kind) {
                Ok(connection) => connection,
                // The others go on; this one waits.
                Err(SocketError { socket, error }) if error.is_want() => {
                    self.core.listeners.put_back(listener, kind, socket);
                    break;
                }
                Err(refused) => return Err(refused.into()),
            };
            self.core.events.accepted += 1;
            self.make_room();
            self.core.arrivals.push(Arrival { connection, what: What::Accepted(listener) });
        }
        Ok(())
    }

    fn make_room(&mut self) {
        let is_full = self.core.listeners.set_room(self.max_connections.saturating_sub(self.open));
        self.core.events.accept_pauses += u64::from(is_full);
    }

    /// Waits for data and adds what has come to `out`; returns how many arrivals were added: 0 only
    /// after `timeout` (`None`: waits for ever). Allocates nothing once `out` has grown to the
    /// length of a usual batch.
    ///
    /// # Errors
    /// Of the receiver as a whole, or of a listening socket ([`RecvError::Accept`]). What happens
    /// to one connection is an arrival. With an error nothing was added to `out`: the next call
    /// returns an error that is met behind arrivals. A connection that was accepted and that the
    /// system refuses to watch is closed, with the error [`RecvError::System`].
    pub fn recv(&mut self, out: &mut Vec<Arrival>, timeout: Option<Duration>) -> Result<usize, RecvError> {
        if let Some(late) = self.late.take() {
            return Err(late);
        }
        let mut end = None;
        loop {
            let Self { core, engine, .. } = self;
            core.collect(|slot| engine.returned(slot));
            while let Some(place) = core.eased.pop() {
                if core.may_receive(place) {
                    engine.resume(core, place);
                }
            }
            if !core.arrivals.is_empty() {
                return Ok(core.take_arrivals(out));
            }
            if let Some((listener, cause)) = core.listeners.failure() {
                return Err(RecvError::Accept { listener, cause });
            }
            self.make_room();
            // The clock is read once before the first turn, where there is a time to wait, and
            // before each further one.
            let left = match (timeout, end) {
                (None, _) => None,
                (Some(timeout), None) => Some(timeout),
                (Some(_), Some(end)) => Some(Instant::saturating_duration_since(&end, Instant::now())),
            };
            let begin = timeout.filter(|t| end.is_none() && !t.is_zero()).map(|_| Instant::now());
            let capped = self.core.listeners.cap(left);
            let turned = self.engine.turn(&mut self.core, capped).and_then(|()| self.adopt());
            let has_come = !self.core.arrivals.is_empty();
            match turned {
                Ok(()) => {}
                Err(e) if has_come => self.late = Some(e),
                Err(e) => return Err(e),
            }
            if has_come || left.is_some_and(|l| l.is_zero()) {
                return Ok(self.core.take_arrivals(out));
            }
            if let (Some(begin), Some(timeout)) = (begin, timeout) {
                end = begin.checked_add(timeout);
            }
        }
    }

    /// Receives at most `bytes` more on a connection, and not a byte beyond; `None`: no limit. What
    /// was received already and not given yet counts as received before. Set right after
    /// [`Receiver::add`], it holds from the first byte. When the limit is reached nothing tells:
    /// the leases' lengths add up to it. On a datagram socket the limit can end in the middle of a
    /// datagram, whose rest is lost.
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

    /// Gives the socket back. What had been taken from it before is given by the next
    /// [`Receiver::recv`]; the rest is still in it. Leases stay valid.
    ///
    /// # Errors
    /// Unknown connection, wrong thread; the connection stays.
    pub fn remove(&mut self, id: ConnectionId) -> Result<OwnedFd, RecvError> {
        let place = self.place(id)?;
        self.engine.stop(&mut self.core, place)?;
        self.open -= 1;
        self.vacate(place).ok_or(RecvError::Unknown(id))
    }

    /// The socket of a connection, to send on it or to set options.
    pub fn socket(&self, id: ConnectionId) -> Option<BorrowedFd<'_>> {
        self.core.fd(self.place(id).ok()?)
    }

    /// Connections that were added and not removed.
    pub fn connections(&self) -> usize {
        self.open
    }

    /// The ledger. `zero_copied_bytes`: placed by the NIC; copied with the reason "kernel": copied
    /// by the kernel into the area. On a NIC's queue the first is too high where the kernel didn't
    /// tell that it copied: [`Receiver::zero_copied`].
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.core.counters)
    }

    /// How far the ledger's `zero_copied_bytes` can be believed. It stays the same for the
    /// receiver's life.
    pub fn zero_copied(&self) -> ZeroCopied {
        self.engine.zero_copied()
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
            Some(c) if c.id == id && c.state != ConnectionState::Gone => Ok(id.place),
            _ => Err(RecvError::Unknown(id)),
        }
    }

    /// Frees a place, at once or when its leases are back.
    fn vacate(&mut self, place: u32) -> Option<OwnedFd> {
        let connection = &mut self.core.connections[place as usize];
        connection.state = ConnectionState::Gone;
        self.core.messengers.ended(&mut connection.pace);
        if std::mem::take(&mut connection.paused) {
            self.core.paused -= 1;
        }
        if self.core.holdings.held(place) == 0 {
            self.core.vacant.push(place);
        }
        connection.socket.take()
    }
}

impl Drop for Receiver {
    /// What the kernel has accepted for us is in the completions: it must not stay open.
    fn drop(&mut self) {
        for index in self.core.listeners.indices() {
            self.core.listeners.want(index, false);
            let _ = self.engine.unlisten(&mut self.core, index);
        }
        self.engine.close(&mut self.core);
    }
}

/// Checks the options and makes the memory.
pub(super) fn new_core(options: &RecvOptions) -> Result<RecvState, RecvError> {
    let RecvOptions { buffer_bytes, buffers, pages, .. } = *options;
    check_cut(buffer_bytes, buffers)?;
    #[cfg(feature = "zcrx")]
    if let Some(core) = zcrx::new_core(options)? {
        return Ok(core);
    }
    let area = Area::new(AreaOptions { buffer_bytes, buffers, pages })?;
    core_on(area, buffer_bytes, buffers, options.share.unwrap_or(buffers / 4))
}

fn check_cut(buffer_bytes: usize, buffers: usize) -> Result<(), RecvError> {
    if !(64..=1 << 30).contains(&buffer_bytes) || !buffer_bytes.is_multiple_of(64) {
        return Err(RecvError::BufferBytes(buffer_bytes));
    }
    if !(2..=32768).contains(&buffers) {
        return Err(RecvError::Buffers(buffers));
    }
    Ok(())
}

/// With `slots` leases at a time on memory that is there, `share` of them for one connection.
pub(super) fn core_on(
    area: Area,
    buffer_bytes: usize,
    slots: usize,
    share: usize,
) -> Result<RecvState, RecvError> {
    let pool = Pool::new(area, slots).map_err(RecvError::system("eventfd"))?;
    Ok(RecvState {
        pool: Arc::new(pool),
        holdings: SlotBook::new(slots, share),
        connections: Vec::new(),
        listeners: Listeners::default(),
        counters: Arc::default(),
        events: Events::default(),
        arrivals: Vec::new(),
        paused: 0,
        messengers: Messengers::default(),
        eased: Vec::with_capacity(16),
        vacant: Vec::new(),
        buffer_bytes,
    })
}

fn kind_of(socket: &OwnedFd) -> Result<SocketShape, RecvError> {
    let kind = type_of(socket)?;
    match rustix::net::sockopt::socket_acceptconn(socket) {
        Ok(true) => Err(RecvError::Listening),
        _ => Ok(kind),
    }
}

fn type_of(socket: impl AsFd) -> Result<SocketShape, RecvError> {
    use rustix::net::SocketType;
    let kind = rustix::net::sockopt::socket_type(socket).map_err(|e| RecvError::NotASocket(e.into()))?;
    Ok(match kind {
        SocketType::STREAM => SocketShape::Stream,
        SocketType::SEQPACKET => SocketShape::Packets,
        _ => SocketShape::Datagram,
    })
}

#[cfg(test)]
mod tests;
