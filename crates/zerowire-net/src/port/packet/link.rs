//! The sockets of one queue pair, and the interface behind them.
//!
//! **Who owns what.** The link owns both sockets; the batches of untagged frames have a descriptor
//! of their own of the same socket. Nothing is lent to the kernel between calls. An interface that
//! is deleted leaves the sockets bound to nothing. When an interface of its name is back, they are
//! bound to it again, so that all descriptors stay.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::net::sockopt::socket_error;
use zerowire_sys::syscall::epoll_wait;

use super::handed::{HEADER_BYTES, PacketSockets, PacketVerb};
use super::inbound::Inbound;
use crate::ETH_HEADER_BYTES;
use crate::io::PortIo;
use crate::port::packet::{InterfaceState, PacketError, PacketReceive, PacketSocket, Slots};

/// How often to look for an interface that is down or gone, and to read the kernel's counters.
const LOOK: Duration = Duration::from_millis(500);

/// How often to check for a receive ring that stands still, until it has been empty for this long.
const RING_LOOK: Duration = Duration::from_secs(1);

/// Two sockets on one interface.
pub struct Link {
    untagged: PacketSocket,
    pub(super) tagged: PacketSocket,
    inbound: Inbound,
    /// Readable when one of them is; the same as long as they live, so that who watches it misses
    /// nothing.
    watch: OwnedFd,
    interface: String,
    header_bytes: usize,
    state: InterfaceState,
    /// Why it could not be bound again, for the log.
    problem: Option<String>,
    looked_at: Instant,
    /// The ring is idle, and a frame that the kernel drops wakes this thread ([`Self::rest`]).
    resting: bool,
    /// True: the description is another one.
    pub(super) changed: bool,
    /// Frames that the kernel dropped, or that were lost in a ring that was closed, and that are
    /// not counted yet.
    pub(super) missed: u64,
    segment_bytes: usize,
}

impl Link {
    /// Opens both sockets in this thread's network namespace, or goes on with those that another
    /// process has opened, and makes the batches of untagged frames. An interface that is down or
    /// gone is waited for. `no_ring` is a reason to open no receive ring, whatever `receive` asks
    /// for.
    ///
    /// # Errors
    /// Those of opening sockets, or what the other process says.
    pub(super) fn open(
        interface: &str,
        handed: Option<&PacketSockets>,
        receive: PacketReceive,
        no_ring: Option<&str>,
    ) -> Result<(Self, PortIo), PacketError> {
        let (untagged, tagged) = match handed {
            None => PacketSocket::open_both(interface)?,
            Some(sockets) => {
                sockets.ask(PacketVerb::Begin)?;
                (sockets.untagged.clone(), sockets.tagged.clone())
            }
        };
        let watch = watch(&untagged, &tagged).map_err(|e| PacketError::System {
            interface: interface.to_owned(),
            call: "epoll",
            cause: e.into(),
        })?;
        let io = PortIo::new(untagged.file());
        let io = if untagged.handed.is_some() { io.for_bound_socket() } else { io.to_socket() };
        let mut this = Self {
            untagged,
            tagged,
            inbound: Inbound::new(receive, no_ring),
            watch,
            interface: interface.to_owned(),
            header_bytes: HEADER_BYTES,
            state: InterfaceState::Gone,
            problem: None,
            looked_at: Instant::now(),
            resting: false,
            changed: false,
            missed: 0,
            segment_bytes: usize::MAX,
        };
        // Before the socket is bound: none of its frames are lost with what is purged then.
        this.open_ring();
        this.look();
        Ok((this, io))
    }

    fn open_ring(&mut self) {
        self.changed |= self.inbound.open(&self.untagged, &self.interface, self.header_bytes);
    }

    /// In words, for the log and the statistics.
    pub fn describe(&self, io: &PortIo) -> String {
        let at = &self.interface;
        match (self.state, &self.problem) {
            (InterfaceState::Up, _) => {
                format!("AF_PACKET, interface {at}, {}; {}", io.describe(), self.inbound.describe())
            }
            (InterfaceState::Down, _) => {
                format!("AF_PACKET, interface {at}, which is down: 'ip link set {at} up'")
            }
            (InterfaceState::Gone, None) => format!("AF_PACKET, interface {at}, which is gone; tried again"),
            (InterfaceState::Gone, Some(problem)) => format!("AF_PACKET, not bound: {problem}"),
        }
    }

    /// What the interface is called now that frames pass by: another name than it was asked for by,
    /// if it was renamed since.
    pub fn name(&self) -> String {
        self.untagged.name().unwrap_or_else(|| self.interface.clone())
    }

    /// Whether frames can pass.
    #[inline]
    pub fn is_up(&self) -> bool {
        self.state == InterfaceState::Up
    }

    /// What becomes readable when frames have come, or the interface goes.
    pub fn port(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Whether the description is another one than when this was asked last.
    pub fn changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Another length of the virtio-net header.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_header_bytes(&mut self, header_bytes: usize) -> Result<(), PacketError> {
        if self.header_bytes != header_bytes {
            self.end_rest();
            // A socket with a ring keeps its headers.
            self.missed += self.inbound.close(&self.untagged, &self.interface);
            self.untagged.set_header_bytes(header_bytes)?;
            self.tagged.set_header_bytes(header_bytes)?;
            self.header_bytes = header_bytes;
            self.open_ring();
        }
        Ok(())
    }

    /// How long a segment of a frame may be: the MTU that the interface had lately, and an Ethernet
    /// header, bytes.
    #[inline]
    pub fn segment_bytes(&mut self) -> usize {
        // Nothing woke this thread to read the MTU.
        if self.resting {
            self.look_now_and_then();
        }
        self.segment_bytes
    }

    fn read_mtu(&mut self) {
        self.segment_bytes = self.untagged.mtu().map_or(usize::MAX, |mtu| mtu + ETH_HEADER_BYTES);
    }

    /// Looks at where the interface stands, and binds the sockets to one that is there anew.
    #[cold]
    pub fn look(&mut self) {
        self.looked_at = Instant::now();
        // Who has opened them knows whether they are bound.
        let mut state =
            if self.untagged.handed.is_some() { InterfaceState::Gone } else { self.untagged.state() };
        let mut problem = None;
        // Frames pass by both, or by none that could be told from the other's.
        if state == InterfaceState::Gone || self.tagged.state() == InterfaceState::Gone {
            state = InterfaceState::Gone;
            match self.untagged.bind().and_then(|()| self.tagged.bind()) {
                Ok(()) => state = self.untagged.state(),
                Err(e) => problem = Some(e.to_string()),
            }
        }
        self.read_mtu();
        if state == self.state && problem == self.problem {
            return;
        }
        let at = &self.interface;
        match (state, &problem) {
            (InterfaceState::Up, _) => tracing::info!("interface {at} is up: frames pass"),
            (InterfaceState::Down, _) => {
                tracing::warn!(
                    "interface {at} is down: 'ip link set {at} up'; frames are dropped until then"
                );
            }
            (InterfaceState::Gone, Some(problem)) => tracing::error!("{problem}; tried again"),
            (InterfaceState::Gone, None) => tracing::error!("interface {at} is gone; tried again"),
        }
        (self.state, self.problem) = (state, problem);
        self.changed = true;
    }

    /// How long the worker may sleep: it has to look for an interface that is not up, and for a
    /// ring that stands still. Call this before each sleep.
    pub fn sleep_at_most(&mut self) -> Option<Duration> {
        self.look_now_and_then();
        if self.state != InterfaceState::Up {
            return Some(LOOK);
        }
        if !self.resting && self.inbound.is_idle_for(RING_LOOK) {
            self.rest();
        }
        (!self.resting && self.inbound.slots().is_some()).then_some(RING_LOOK)
    }

    fn look_now_and_then(&mut self) {
        if self.looked_at.elapsed() >= LOOK {
            self.looked_at = Instant::now();
            self.read_mtu();
            self.note_missed(self.untagged.missed());
            self.missed += u64::from(self.tagged.missed());
            self.open_ring();
            if self.state != InterfaceState::Up {
                self.look();
            }
        }
    }

    /// Notes what the kernel dropped, and whether the ring stands still.
    fn note_missed(&mut self, dropped: u32) {
        self.missed += u64::from(dropped);
        if self.inbound.check(&self.untagged, &self.interface, dropped) {
            self.end_rest();
            self.changed = true;
        }
    }

    /// Has every frame that comes or is dropped wake this thread, so that nobody has to poll the
    /// ring. When the kernel drops a frame it wakes who waits for the socket, too, but does not
    /// call an empty ring readable.
    #[cold]
    fn rest(&mut self) {
        let Some(slots) = self.inbound.slots() else { return };
        slots.keep_last(true);
        self.resting = true;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        // The first edge is there at once. Then check which frames came or were lost until it was
        // taken.
        let taken = epoll::modify(&self.watch, &self.untagged, epoll::EventData::new_u64(0), flags)
            .map_err(std::io::Error::from)
            .and_then(|()| epoll_wait(self.watch.as_fd(), &mut Vec::with_capacity(2), Some(Duration::ZERO)));
        let dropped = self.untagged.missed();
        if dropped > 0 {
            self.note_missed(dropped);
        }
        if taken.is_err() || self.inbound.slots().is_some_and(|s| s.arrived(0).is_some()) {
            self.end_rest();
        }
    }

    #[cold]
    fn end_rest(&mut self) {
        if !std::mem::take(&mut self.resting) {
            return;
        }
        if let Some(slots) = self.inbound.slots() {
            slots.keep_last(false);
        }
        let again =
            epoll::modify(&self.watch, &self.untagged, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
        if let Err(e) = again {
            // Edges are reported on. A frame that is left after one is found with the next.
            tracing::error!("interface {}: the socket can't be watched as before: {e}", self.interface);
        }
    }

    /// Frames to the guest are wanted: the ring does not rest any more.
    #[inline]
    pub(super) fn wake(&mut self) {
        if self.resting {
            self.end_rest();
        }
    }

    /// The ring that frames to the guest come by, if there is one.
    #[inline]
    pub(super) fn slots(&mut self) -> Option<&mut Slots> {
        self.inbound.slots()
    }

    /// Checks for an error of the socket that a read of its empty ring does not tell.
    #[cold]
    pub(super) fn look_behind_ring(&mut self) {
        self.note_missed(self.untagged.missed());
        if socket_error(&self.untagged) != Ok(Ok(())) {
            self.look();
        }
    }
}

/// What is readable when one of the sockets is.
fn watch(untagged: &PacketSocket, tagged: &PacketSocket) -> rustix::io::Result<OwnedFd> {
    let watch = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for socket in [untagged, tagged] {
        epoll::add(&watch, socket, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(watch)
}

#[cfg(test)]
mod tests;
