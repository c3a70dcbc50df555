//! The socket of one queue pair: bound, told to send, taken back from.
//!
//! **Who owns what.** The link owns the socket, its part of the slab, and the loans. A closed
//! socket ends all loans: the kernel has copied what it took, or reads it a last time. In copy mode
//! it writes to the memory no more when `close` returns (net/xdp/xsk.c, `xsk_unbind_dev` waits for
//! the driver). In zero-copy mode it writes no more when the queue can be bound again.

mod bind;
mod care;
mod facts;
mod missed;
mod outgoing;
mod state;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::poll;
use rustix::io::Errno;
use zerowire_sys::xdp::{Descriptor, Socket, XdpError};
use zerowire_vhost::memory::GuestMemory;

use super::handed::XdpVerb;
use super::umem::{Slab, VmUmem};
use super::{XdpInlet, XdpOutlet};
use crate::port::PortPath;
use crate::receive::ReceiveSetup;
pub use bind::LinkOptions;
use care::Care;
use missed::Missed;
use outgoing::{NAPS, Outgoing};
use state::{Binding, BoundSocket, Registered, Wanted};

/// How long frames that are under way may take to be sent when a ring stops.
const DRAIN: Duration = Duration::from_millis(200);

/// How long to wait before another attempt to bind a socket.
const RETRY: Duration = Duration::from_millis(500);

/// The socket, or the lack of one.
pub struct Link {
    // Goes before the memory that it is in.
    bound: Option<BoundSocket>,
    options: LinkOptions,
    /// The guest's memory.
    pub(super) registered: Registered,
    /// Frames from the guest.
    pub(super) outgoing: Outgoing,
    /// Frames to the guest that nobody here saw.
    pub(super) missed: Missed,
    /// Counts sockets: what was posted to one with another number is lost.
    pub(super) generation: u64,
    /// True: there is another socket than when this was asked last.
    renewed: bool,
    wanted: Wanted,
    binding: Binding,
    care: Care,
    /// Places of the slab that the socket had in its fill ring from the start: from the first one
    /// on.
    pub(super) first_places: usize,
}

impl Link {
    /// No socket yet.
    pub fn new(options: LinkOptions) -> Self {
        Self {
            bound: None,
            registered: Registered::default(),
            outgoing: Outgoing::new(),
            missed: Missed::default(),
            generation: 0,
            renewed: false,
            wanted: Wanted::Nothing,
            binding: Binding::default(),
            care: Care::new(options.registrar.clone()),
            options,
            first_places: 0,
        }
    }

    /// The socket, while there is one.
    #[inline]
    fn socket(&self) -> Option<&Socket> {
        self.bound.as_ref().map(|b| &b.socket)
    }

    #[inline]
    fn socket_mut(&mut self) -> Option<&mut Socket> {
        self.bound.as_mut().map(|b| &mut b.socket)
    }

    /// The socket's descriptor, while there is one.
    pub fn port(&self) -> Option<BorrowedFd<'_>> {
        self.socket().map(AsFd::as_fd)
    }

    /// Whether frames can pass.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.bound.is_some()
    }

    /// Lets the queue's frames come to the socket, where that is not so yet.
    ///
    /// # Errors
    /// Those of the map of sockets.
    pub fn steer(&mut self) -> Result<(), XdpError> {
        if let Some(bound) = &mut self.bound
            && !std::mem::replace(&mut bound.steered, true)
        {
            let umem = &self.registered.umem;
            let longest_bytes = umem.as_ref().map_or(u32::MAX, |u| u.geometry.frame_bytes);
            let LinkOptions { access, pair, .. } = &self.options;
            self.missed.begin(access.steer(*pair, &bound.socket, longest_bytes)?);
        }
        Ok(())
    }

    /// Whether this process ends. What it can't get does no harm then.
    pub(super) fn is_over(&self) -> bool {
        self.options.access.is_over()
    }

    /// Leaves the queue's frames to the host from now on. Some may still be on their way.
    pub fn unsteer(&mut self) {
        if let Some(bound) = &mut self.bound
            && std::mem::take(&mut bound.steered)
            && let Err(e) = self.options.access.ask(XdpVerb::Unsteer(self.options.pair), &[])
            && !self.is_over()
        {
            tracing::warn!("{e}");
        }
    }

    /// The same, and waits until no frame is on its way any more that the program has seen before.
    /// What came has been written then, and lies in the ring. In zero-copy mode the device may
    /// still write frames that the host gets.
    pub fn unsteer_for_good(&mut self) {
        self.unsteer();
        // Otherwise frames get time to come in.
        if self.options.access.ask(XdpVerb::AwaitSteered, &[]).is_err() {
            let _ = poll(&mut [], NAPS.1.try_into().ok().as_ref());
        }
    }

    /// Waits, within bounds, until all that is under way has been sent.
    pub fn drain(&mut self) {
        let start = Instant::now();
        while self.bound.is_some() && start.elapsed() < DRAIN {
            self.kick();
            self.reap();
            if self.outgoing.loans.is_empty() || self.outgoing.down {
                return;
            }
            std::thread::park_timeout(NAPS.0);
        }
    }

    /// How long the worker may sleep: while frames are under way not long, since nothing tells of
    /// their completion. If a socket could not be bound, this tries again when the time has come.
    pub fn sleep_at_most(&mut self) -> Option<Duration> {
        if self.bound.is_some() {
            let due = self.look();
            return [due, self.outgoing.nap()].into_iter().flatten().min();
        }
        if self.wanted != Wanted::ToReceive {
            return None;
        }
        self.try_again();
        let now = Instant::now();
        Some(self.binding.retry_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now)))
    }

    /// The interface has this MTU now.
    fn limit(&mut self, mtu: usize) {
        if let Some(allows) = self.registered.limit(mtu) {
            tracing::info!(
                "interface {}, queue {}: MTU {mtu} now: frames from the guest may have {allows} bytes",
                self.options.interface,
                self.options.queue
            );
        }
    }

    /// Frames passed in this turn.
    #[inline]
    pub(super) fn moved(&mut self) {
        if self.care.moved() {
            self.look();
        }
    }

    /// Looks at what is due. Returns how long it is until something is again, where frames need not
    /// pass for that.
    fn look(&mut self) -> Option<Duration> {
        let socket = &self.bound.as_ref()?.socket;
        let now = Instant::now();
        if self.care.look_at_memory(now) {
            self.missed.ask(socket, self.options.access.too_long(self.options.pair));
        }
        self.care.check(socket, self.outgoing.is_idle(), now)
    }

    /// Takes completions.
    #[inline]
    pub(super) fn reap(&mut self) {
        if let Some(bound) = &mut self.bound {
            self.outgoing.reap(&mut bound.socket);
        }
    }

    /// Pieces that can be queued.
    #[inline]
    pub(super) fn room(&mut self, wanted: u32) -> u32 {
        self.socket_mut().and_then(|s| s.transmit()).map_or(0, |ring| ring.room(wanted))
    }

    /// Queues a piece; its address carries the number of its loan.
    #[inline]
    pub(super) fn push(&mut self, piece: Descriptor) {
        if let Some(bound) = &mut self.bound {
            self.outgoing.push(&mut bound.socket, piece);
        }
    }

    /// Has the kernel send what was queued.
    pub(super) fn kick(&mut self) {
        if let Some(bound) = &mut self.bound
            && let Err(e) = self.outgoing.kick(&mut bound.socket)
        {
            self.lost(e);
        }
    }

    /// Chains were given back before others that the guest had made available before them.
    #[cold]
    pub(super) fn count_passed(&self, chains: u64) {
        self.options.out_of_order.fetch_add(chains, Ordering::Relaxed);
    }

    /// The interface is gone, and the kernel has let go of the queue and its memory with it
    /// (net/xdp/xsk.c, `xsk_notifier`). The link tries for another socket, on the interface that
    /// has the name then, with a registration for its frames.
    #[cold]
    fn lost(&mut self, error: Errno) {
        let problem = format!("interface {} is gone ({error})", self.options.interface);
        tracing::error!("{problem}; tried again");
        self.binding.problem = Some(problem);
        self.binding.retry_at = Some(Instant::now() + RETRY);
        self.outgoing.down = true;
        self.drop_socket();
        self.registered.umem = None;
        self.renewed = true;
    }

    /// The next received piece.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Descriptor> {
        self.socket_mut()?.receive()?.pop()
    }

    /// Whether no frame has come, after the places of those that were taken went back.
    #[inline]
    pub(super) fn release(&mut self) -> bool {
        let Some(ring) = self.socket_mut().and_then(|s| s.receive()) else { return true };
        ring.release();
        ring.available() == 0
    }

    /// Chunks that can be posted.
    #[inline]
    pub(super) fn fill_room(&mut self) -> u32 {
        self.socket_mut().map_or(0, |s| s.fill().room(1))
    }

    /// Posts a chunk.
    #[inline]
    pub(super) fn fill(&mut self, chunk: u64) -> bool {
        let Some(bound) = &mut self.bound else { return false };
        bound.posted = true;
        bound.socket.fill().push(chunk)
    }

    /// Gives the kernel the chunks that were posted. Returns whether that took a system call.
    #[inline]
    pub(super) fn publish_fill(&mut self) -> bool {
        let Some(socket) = self.socket_mut() else { return false };
        let ring = socket.fill();
        if ring.publish() == 0 || !ring.needs_wakeup() {
            return false;
        }
        match socket.wake_receive().map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)) {
            Err(e @ (Errno::NXIO | Errno::NODEV)) => self.lost(e),
            Err(e) => tracing::debug!("interface {}: {e}", self.options.interface),
            Ok(()) => {}
        }
        true
    }

    /// The slab and the registration, while there is a socket.
    #[inline]
    pub(super) fn memory(&mut self) -> Option<(&mut Slab, &VmUmem)> {
        Some((&mut self.bound.as_mut()?.slab, self.registered.umem.as_deref()?))
    }

    /// Pieces that a frame may have.
    #[inline]
    pub(super) fn max_pieces(&self) -> usize {
        if self.zero_copy() { 1 } else { zerowire_sys::xdp::SAFE_PIECES }
    }

    /// Whether the driver reads and writes the memory itself.
    #[inline]
    pub fn zero_copy(&self) -> bool {
        self.socket().is_some_and(Socket::zero_copy)
    }

    /// Whether a device reaches all of these bytes.
    #[inline]
    pub(super) fn reaches(&self, address: u64, len: u32) -> bool {
        !self.zero_copy() || self.registered.umem.as_ref().is_some_and(|u| u.in_one_page(address, len))
    }
}

/// The path of a worker: frames go to one queue of an interface; chains and buffers are with the
/// kernel between turns.
impl PortPath for Link {
    type Queue = Self;
    type Outlet = XdpOutlet;
    type Inlet = XdpInlet;

    fn outlet(&self, ring_size: u16) -> io::Result<XdpOutlet> {
        Ok(XdpOutlet::new(self.options.policy, ring_size))
    }

    fn inlet(&self, _setup: ReceiveSetup, ring_size: u16) -> io::Result<XdpInlet> {
        Ok(XdpInlet::new(self.options.policy, ring_size, self.options.reserve))
    }

    #[inline]
    fn queue(&mut self) -> &mut Self {
        self
    }

    fn describe(&self) -> String {
        let at = format!("interface {}, queue {}", self.options.interface, self.options.queue);
        let part =
            self.registered.umem.as_ref().and_then(|u| u.part()).map_or(String::new(), |(bytes, all)| {
                format!(
                    "; {} of {} MiB of the guest's memory are pinned, frames elsewhere are copied",
                    bytes >> 20,
                    all >> 20
                )
            });
        let deaf = if self.binding.is_deaf { "; not promiscuous: no packet socket" } else { "" };
        match (self.socket(), &self.binding.problem) {
            (Some(s), _) if s.zero_copy() => format!("AF_XDP, {at}, zero copy{part}{deaf}"),
            (Some(_), _) => {
                let why =
                    self.binding.why_copy.as_ref().map_or(String::new(), |w| format!("; no zero copy: {w}"));
                format!("AF_XDP, {at}, copy mode (one copy each way, by the kernel){why}{part}{deaf}")
            }
            (None, Some(problem)) => format!("AF_XDP, {at}, not bound: {problem}"),
            (None, None) => format!("AF_XDP, {at}, not bound yet"),
        }
    }

    fn port(&self) -> Option<BorrowedFd<'_>> {
        self.port()
    }

    fn renewed(&mut self) -> bool {
        std::mem::take(&mut self.renewed)
    }

    /// When the interface goes or changes.
    fn events(&self) -> Option<BorrowedFd<'_>> {
        self.bound.as_ref().map(|b| b.watch.as_fd())
    }

    /// Where the interface is gone, so is the socket. With a larger MTU than the memory was
    /// registered for, the memory is registered anew. With a smaller one, longer frames from the
    /// guest are dropped here. The kernel doesn't check: it would send them.
    #[cold]
    fn notice(&mut self) {
        let Some(BoundSocket { watch, interface, .. }) = &self.bound else { return };
        watch.drain();
        let Ok(mtu) = interface.mtu() else { return self.lost(Errno::NODEV) };
        if let Some(umem) = &self.registered.umem {
            self.care.check_mtu(umem, mtu);
        }
        self.limit(mtu);
    }

    fn set_memory(&mut self, memory: &Arc<GuestMemory>) {
        self.set_memory(memory);
    }

    /// Closes the socket and lets go of the memory's registration, which ends with the last queue
    /// pair that does so.
    fn let_go(&mut self) {
        self.close();
        self.drop_socket();
        self.registered.umem = None;
    }

    fn attention(&mut self) -> bool {
        self.care.attention()
    }

    fn sleep_at_most(&mut self) -> Option<Duration> {
        self.sleep_at_most()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.drop_socket();
    }
}
