//! The service of one guest: frames, the TCP stack and the connections.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use smoltcp::iface::{self, Interface, PollResult, SocketSet};
use smoltcp::socket::tcp::{Socket, State};
use smoltcp::time::Instant;
use smoltcp::wire::{HardwareAddress, IpCidr, Ipv4Address};

use crate::config::{Config, MAX_MTU_BYTES, MIN_MTU_BYTES, MetadataError, TokenPolicy};
use crate::connection::{HttpConnection, listening_socket};
use crate::http::Context;
use crate::stack::{MAX_QUEUED_FRAMES, Queues, connection_request, is_unicast};
use crate::stats::Stats;
use crate::token::TokenStore;
use crate::tree::MetadataTree;
use crate::wants::{SERVICE_ADDRESS, SERVICE_ADDRESS_V6, SERVICE_PORT};

/// The most connections at once. One costs about 21 KiB while it exists, up
/// to 40 KiB while a long request is read.
pub const MAX_CONNECTIONS: usize = 32;

/// The shortest wait that the stack's own timers can ask for; keeps a timer
/// that is due at once from becoming a busy loop.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// The metadata service of one guest.
///
/// It has no clock: `now` is the time since any fixed moment, the same for all
/// calls, and counts as never going back. The loop around it:
///
/// 1. [`Self::ingest`] each frame that [`crate::wants`] took;
/// 2. [`Self::poll`] once after a batch, and when [`Self::next_deadline`] comes;
/// 3. [`Self::pop_frame`] as long as the guest has room for frames; frames may
///    wait here as long as they must;
/// 4. [`Self::next_deadline`] says when to go to 2 without new frames. It must
///    be asked after the frames were popped: popping may let more be made.
pub struct MetadataService {
    interface: Interface,
    sockets: SocketSet<'static>,
    queues: Queues,
    connections: Vec<HttpConnection>,
    tree: Arc<MetadataTree>,
    token_policy: TokenPolicy,
    tokens: TokenStore,
    stats: Stats,
    now: Duration,
    /// Whether the last poll left work because the queue of frames was full.
    stalled: bool,
}

/// What became of the wish for a listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenResult {
    /// The packet asks for no connection, or its connection exists.
    NotNeeded,
    /// It is the last of the connections.
    Made,
    /// All connections are busy.
    NoSlot,
}

impl std::fmt::Debug for MetadataService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MetadataService")
            .field("connections", &self.connections.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl MetadataService {
    /// Makes a service. It allocates next to nothing before a guest connects.
    ///
    /// # Errors
    /// [`MetadataError::Mac`] for a MAC address that isn't unicast.
    pub fn new(config: Config) -> Result<Self, MetadataError> {
        if !is_unicast(&config.mac) {
            return Err(MetadataError::Mac { mac: config.mac });
        }
        let mtu = config.mtu.clamp(MIN_MTU_BYTES, MAX_MTU_BYTES);
        let mut queues = Queues::new(config.mac, mtu);
        let mut interface_config = iface::Config::new(HardwareAddress::Ip);
        // For initial sequence numbers; the standard library's hasher keys are
        // random in each process.
        interface_config.random_seed = RandomState::new().build_hasher().finish();
        let mut interface = Interface::new(interface_config, &mut queues, Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            let v4 = IpCidr::new(Ipv4Address::from(SERVICE_ADDRESS).into(), 32);
            // The list is empty and has room for two.
            let _ = addresses.push(v4);
            let _ = addresses.push(IpCidr::new(SERVICE_ADDRESS_V6.into(), 128));
        });
        Ok(Self {
            interface,
            sockets: SocketSet::new(Vec::new()),
            queues,
            connections: Vec::new(),
            tree: config.tree,
            token_policy: config.token_policy,
            tokens: TokenStore::default(),
            stats: Stats::default(),
            now: Duration::ZERO,
            stalled: false,
        })
    }

    /// Replaces the metadata. Tokens stay valid; an answer that is being sent
    /// is finished from the old tree, which lives until then.
    pub fn set_tree(&mut self, tree: Arc<MetadataTree>) {
        self.tree = tree;
    }

    /// Takes a frame from the guest: Ethernet, no virtio-net header, segments
    /// that the guest left whole for offloads included. `frame` is the caller's
    /// private memory, which the guest can't change; the bytes are copied. ARP and neighbour
    /// solicitations are answered at once, IP waits for [`Self::poll`]. A frame that is malformed
    /// or finds the queue full is dropped and counted. TCP checksums aren't verified, since a
    /// guest's driver may leave them to the device.
    pub fn ingest(&mut self, frame: &[u8], now: Duration) {
        self.now = self.now.max(now);
        self.queues.ingest(frame);
    }

    /// Handles the frames taken, timers and connections. Its work is bounded
    /// by the queue of frames and by [`MAX_CONNECTIONS`].
    pub fn poll(&mut self, now: Duration) {
        self.now = self.now.max(now);
        self.receive();
        self.advance();
        self.transmit();
        self.reap();
        self.stalled = self.queues.take_stalled();
    }

    /// The next frame for the guest: Ethernet, no virtio-net header, all
    /// checksums complete, at most the MTU plus 14 bytes.
    pub fn pop_frame(&mut self) -> Option<Vec<u8>> {
        self.queues.pop()
    }

    /// When to call [`Self::poll`] next if no frame comes before, on the clock of `now`; at most
    /// `now` means at once. `None` while nothing is under way: an idle guest costs nothing. While
    /// the queue of frames for the guest is full, only time limits count.
    pub fn next_deadline(&mut self, now: Duration) -> Option<Duration> {
        self.now = self.now.max(now);
        let limits = self.connections.iter().map(|connection| connection.deadline).min();
        if !self.queues.has_room() {
            return limits;
        }
        if self.stalled || self.queues.front().is_some() {
            return Some(self.now);
        }
        if self.connections.is_empty() {
            return None;
        }
        let timers = self.interface.poll_at(instant(self.now), &self.sockets).map(|at| {
            let micros = u64::try_from(at.total_micros()).unwrap_or(0);
            Duration::from_micros(micros).max(self.now.saturating_add(SHORTEST_WAIT))
        });
        limits.into_iter().chain(timers).min()
    }

    /// Whether there are connections, or frames that wait in either direction.
    #[must_use]
    pub fn is_active(&self) -> bool {
        !self.connections.is_empty() || !self.queues.is_empty()
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let of_connections: usize = self.connections.iter().map(HttpConnection::buffered_bytes).sum();
        Stats {
            traffic: self.queues.traffic(),
            connections: self.connections.len(),
            buffered_bytes: of_connections
                + self.connections.capacity() * size_of::<HttpConnection>()
                + self.queues.buffered_bytes()
                + self.tokens.buffered_bytes(),
            ..self.stats
        }
    }

    /// Feeds the queued packets to the stack, with a listening socket ready for
    /// each that asks for a connection.
    fn receive(&mut self) {
        // Frames are only added by `ingest`, so this bound is for clarity.
        for _ in 0..MAX_QUEUED_FRAMES {
            let Some(packet) = self.queues.front() else { return };
            let request = connection_request(packet);
            // Without room for an answer the packet waits; the stack would say
            // so, too, but a listener would have been made by then.
            if !self.queues.has_room() {
                return;
            }
            let listener = match request {
                Some((address, port)) => self.make_listener(address, port),
                None => ListenResult::NotNeeded,
            };
            if listener == ListenResult::NoSlot {
                self.stats.connections_refused += 1;
                self.queues.drop_front();
                continue;
            }
            let now = instant(self.now);
            let result = self.interface.poll_ingress_single(now, &mut self.queues, &mut self.sockets);
            if listener == ListenResult::Made {
                self.settle_listener();
            }
            if result == iface::PollIngressSingleResult::None {
                return;
            }
        }
    }

    /// Makes a listening socket unless the connection exists.
    fn make_listener(&mut self, address: IpAddr, port: u16) -> ListenResult {
        let existing = self.connections.iter().position(|connection| {
            let socket = self.sockets.get::<Socket<'_>>(connection.handle);
            socket
                .remote_endpoint()
                .is_some_and(|remote| remote.addr == address.into() && remote.port == port)
        });
        if let Some(index) = existing {
            let handle = self.connections[index].handle;
            if self.sockets.get::<Socket<'_>>(handle).state() != State::TimeWait {
                // A repeated request; the connection answers it.
                return ListenResult::NotNeeded;
            }
            self.remove(index);
        }
        if self.connections.len() >= MAX_CONNECTIONS && !self.evict() {
            return ListenResult::NoSlot;
        }
        let Some(socket) = listening_socket() else { return ListenResult::NoSlot };
        let handle = self.sockets.add(socket);
        self.connections.push(HttpConnection::new(handle, self.now));
        ListenResult::Made
    }

    /// Removes the listening socket again if no connection came of it, so that
    /// an idle service holds no buffers.
    fn settle_listener(&mut self) {
        let Some(last) = self.connections.last() else { return };
        let socket = self.sockets.get::<Socket<'_>>(last.handle);
        if socket.state() == State::Listen {
            self.remove(self.connections.len() - 1);
        } else {
            self.stats.connections_opened += 1;
        }
    }

    /// Frees a slot: of a connection in TIME-WAIT, else of the longest idle
    /// one, which gets a reset. False if all are busy.
    fn evict(&mut self) -> bool {
        let socket = |connection: &HttpConnection| self.sockets.get::<Socket<'_>>(connection.handle);
        let earliest = |may_go: &dyn Fn(&HttpConnection) -> bool| {
            let some = self.connections.iter().enumerate().filter(|(_, connection)| may_go(connection));
            some.min_by_key(|(_, connection)| connection.deadline).map(|(index, _)| index)
        };
        let finished = earliest(&|connection| socket(connection).state() == State::TimeWait);
        // What an earlier frame of this batch has brought is acknowledged, and not read yet.
        let idle = || earliest(&|c| c.is_idle(self.now) && !socket(c).can_recv());
        let Some(index) = finished.or_else(idle) else { return false };
        let handle = self.connections[index].handle;
        let socket = self.sockets.get_mut::<Socket<'_>>(handle);
        if socket.state() != State::TimeWait {
            self.stats.connections_evicted += 1;
            socket.abort();
            self.transmit();
        }
        self.remove(index);
        true
    }

    fn remove(&mut self, index: usize) {
        let connection = self.connections.swap_remove(index);
        self.sockets.remove(connection.handle);
    }

    fn advance(&mut self) {
        let mut context = Context {
            tree: &self.tree,
            tokens: &mut self.tokens,
            policy: self.token_policy,
            stats: &mut self.stats,
            now: self.now,
        };
        for connection in &mut self.connections {
            let socket = self.sockets.get_mut::<Socket<'_>>(connection.handle);
            connection.advance(socket, &mut context);
        }
    }

    fn transmit(&mut self) {
        let now = instant(self.now);
        // Each turn makes a frame or ends the loop, and the queue is bounded.
        for _ in 0..=MAX_QUEUED_FRAMES {
            let result = self.interface.poll_egress(now, &mut self.queues, &mut self.sockets);
            if result == PollResult::None {
                return;
            }
        }
    }

    /// Removes connections that have ended; a reset was sent by then. With the
    /// last one the room for connections goes, too.
    fn reap(&mut self) {
        let mut index = 0;
        while let Some(connection) = self.connections.get(index) {
            let socket = self.sockets.get::<Socket<'_>>(connection.handle);
            if socket.state() == State::Closed {
                self.remove(index);
            } else {
                index += 1;
            }
        }
        if self.connections.is_empty() && self.connections.capacity() > 0 {
            self.connections = Vec::new();
            self.sockets = SocketSet::new(Vec::new());
        }
    }
}

/// The stack's time; far beyond any uptime it stands still instead of
/// overflowing.
fn instant(now: Duration) -> Instant {
    Instant::from_micros(i64::try_from(now.as_micros()).map_or(i64::MAX / 4, |at| at.min(i64::MAX / 4)))
}

const _: () = assert!(SERVICE_PORT != 0, "a socket can't listen on port 0");
