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
mod promiscuity;
mod state;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use zerowire_sys::xdp::program::Rule;
use zerowire_sys::xdp::{Descriptor, Socket, XdpError, address};
use zerowire_vhost::memory::Segment;

use super::account::Account;
use super::loans::Loans;
use super::umem::{Slab, VmUmem};
use super::{HOLD, RING_ENTRIES};
pub use bind::{Attach, LinkOptions};
use care::Care;
use missed::Missed;
use promiscuity::Promiscuity;
use state::{Binding, BoundSocket, LetsGo, OnInterface, Registered, Sending, SocketCount, Wanted};

/// How long frames that are under way may take to be sent when a ring stops.
const DRAIN: Duration = Duration::from_millis(200);

/// How long to wait before another attempt to bind a socket.
const RETRY: Duration = Duration::from_millis(500);

/// Sleeps while frames are under way: from the shortest, twice as long each time that nothing has
/// come back, to the longest.
const NAPS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(10));

/// Calls in a row that do nothing before the rest is left to the next turn.
const IDLE_CALLS: u32 = 3;

/// The socket, or the lack of one.
pub struct Link {
    // Goes before the memory that it is in.
    bound: Option<BoundSocket>,
    interface: OnInterface,
    registered: Registered,
    options: LinkOptions,
    /// Frames to send, and what became of them.
    pub(super) account: Account,
    /// Loans of the socket.
    pub(super) loans: Loans,
    /// Chains that came back and go to the guest next.
    pub(super) finished: Vec<u16>,
    /// When a chain that waits for others goes to the guest without them.
    pub(super) give_at: Option<Instant>,
    sockets: SocketCount,
    wanted: Wanted,
    sending: Sending,
    binding: Binding,
    care: Care,
    missed: Missed,
    /// Places of the slab that the socket had in its fill ring from the start: from the first one
    /// on.
    pub(super) first_places: usize,
}

impl Link {
    /// No socket yet.
    pub fn new(options: LinkOptions) -> Self {
        Self {
            bound: None,
            interface: OnInterface { promiscuity: Promiscuity::new(options.promiscuous), steering: None },
            registered: Registered::default(),
            options,
            account: Account::new(),
            loans: Loans::new(),
            finished: Vec::with_capacity(RING_ENTRIES as usize),
            give_at: None,
            sockets: SocketCount::default(),
            wanted: Wanted::Nothing,
            sending: Sending::new(),
            binding: Binding::default(),
            care: Care::default(),
            missed: Missed::default(),
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

    /// In words, for the log and the statistics.
    pub fn describe(&self) -> String {
        let at = format!("interface {}, queue {}", self.options.interface, self.options.queue);
        let part =
            self.registered.umem.as_ref().and_then(|u| u.part()).map_or(String::new(), |(bytes, all)| {
                format!(
                    "; {} of {} MiB of the guest's memory are pinned, frames elsewhere are copied",
                    bytes >> 20,
                    all >> 20
                )
            });
        let deaf = self.interface.promiscuity.problem();
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

    /// The socket's descriptor, while there is one.
    pub fn port(&self) -> Option<BorrowedFd<'_>> {
        self.socket().map(AsFd::as_fd)
    }

    /// What becomes readable when the interface goes or changes.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.bound.as_ref().map(|b| b.watch.as_fd())
    }

    /// Whether it is another one than when this was asked last.
    pub fn renewed(&mut self) -> bool {
        std::mem::take(&mut self.sockets.renewed)
    }

    /// Counts sockets: what was posted to one with another number is lost.
    pub fn generation(&self) -> u64 {
        self.sockets.generation
    }

    /// Whether frames can pass.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.bound.is_some()
    }

    /// Whether the interface is down, so that nothing is sent.
    #[inline]
    pub fn is_down(&self) -> bool {
        self.sending.down
    }

    /// Lets the queue's frames come to the socket, where that is not so yet.
    ///
    /// # Errors
    /// Those of the map of sockets.
    pub fn steer(&mut self) -> Result<(), XdpError> {
        if let (Some(bound), Some(steering)) = (&mut self.bound, &self.interface.steering)
            && !std::mem::replace(&mut bound.steered, true)
        {
            let umem = &self.registered.umem;
            let longest_bytes = umem.as_ref().map_or(u32::MAX, |u| u.geometry().frame_bytes());
            self.missed.begin(steering.dropped(bound.socket.queue()).unwrap_or(0));
            let rule = Rule { address: self.options.address, longest_bytes };
            steering.steer_by(&bound.socket, &rule)?;
        }
        Ok(())
    }

    /// Leaves the queue's frames to the host from now on. Some may still be on their way.
    pub fn unsteer(&mut self) {
        if let Some(bound) = &mut self.bound
            && std::mem::take(&mut bound.steered)
            && let Some(steering) = &self.interface.steering
            && let Err(e) = steering.stop(self.options.queue)
        {
            tracing::warn!("{e}");
        }
    }

    /// The same, and waits until no frame is on its way any more that the program has seen before.
    /// What came has been written then, and lies in the ring. In zero-copy mode the device may
    /// still write frames that the host gets.
    pub fn unsteer_for_good(&mut self) {
        self.unsteer();
        // Programs and their flushes run under RCU. Without the barrier, frames get time to come
        // in.
        if zerowire_sys::syscall::barrier().is_err() {
            std::thread::sleep(NAPS.1);
        }
    }

    /// Waits, within bounds, until all that is under way has been sent.
    pub fn drain(&mut self) {
        let start = Instant::now();
        while self.bound.is_some() && start.elapsed() < DRAIN {
            self.kick();
            self.reap();
            if self.loans.is_empty() || self.sending.down {
                return;
            }
            std::thread::sleep(NAPS.0);
        }
    }

    /// How long the worker may sleep: while frames are under way not long, since nothing tells of
    /// their completion. If a socket could not be bound, this tries again when the time has come.
    pub fn sleep_at_most(&mut self) -> Option<Duration> {
        if self.bound.is_some() {
            let due = self.care();
            if self.loans.is_empty() && !self.sending.unsent {
                return due;
            }
            let nap = self.sending.nap;
            self.sending.nap = (nap * 2).min(NAPS.1);
            let give = self.give_at.map(|at| at.saturating_duration_since(Instant::now()));
            return [due, give].into_iter().flatten().chain([nap]).min();
        }
        if self.wanted != Wanted::ToReceive {
            return None;
        }
        self.try_again();
        let now = Instant::now();
        Some(self.binding.retry_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now)))
    }

    /// Whether chains should come back when the kernel has copied their frames. It matters only
    /// where the kernel copies all of them. It takes them from the ring in the order in which they
    /// were lent.
    #[inline]
    pub(super) fn end_loans_with_copy(&mut self, wanted: bool) {
        self.sending.lets_go = self.sending.lets_go.with_chains(wanted);
    }

    #[inline]
    fn ends_with_copy(&self) -> bool {
        self.sending.lets_go == LetsGo::AtOnceAndChainsCome
    }

    /// Whether chains are back as soon as the kernel takes anything, so that what waits for them
    /// waits for nothing else.
    #[inline]
    pub(super) fn keeps_order(&self) -> bool {
        self.ends_with_copy() && !self.sending.down
    }

    /// Takes completions: chains go to `finished`.
    #[inline]
    pub(super) fn reap(&mut self) {
        let Some(bound) = &mut self.bound else { return };
        let ring = bound.socket.completion();
        while let Some(encoded) = ring.pop() {
            let (_, number) = address::decode(encoded);
            if let Some(head) = self.loans.back(number) {
                self.finished.push(head);
            }
        }
        if ring.release() > 0 {
            self.sending.idle_since = None;
            self.sending.nap = NAPS.0;
        }
    }

    /// Whether lending has to stop for now: `most` chains are lent, or none has come back for
    /// [`HOLD`].
    #[inline]
    pub(super) fn holds_enough(&mut self, most: usize) -> bool {
        if self.loans.chains() >= most {
            return true;
        }
        if self.ends_with_copy() && self.loans.chains() == 0 {
            // What has not come back is the kernel's own copy.
            return false;
        }
        match self.sending.idle_since {
            Some(since) => since.elapsed() > HOLD,
            None => false,
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
        let pushed = self.socket_mut().and_then(|s| s.transmit()).is_some_and(|ring| ring.push(piece));
        debug_assert!(pushed, "room was asked for");
        self.sending.unsent |= pushed;
    }

    /// Has the kernel send what was queued.
    pub(super) fn kick(&mut self) {
        let ends = self.ends_with_copy();
        let Some(BoundSocket { socket, .. }) = &mut self.bound else { return };
        let zero_copy = socket.zero_copy();
        let Some(ring) = socket.transmit() else { return };
        ring.publish();
        let mut waiting = ring.waiting();
        let mut taken = |account: &mut Account, waiting, refused| {
            account.taken(waiting, refused, |number| {
                if ends {
                    self.finished.extend(self.loans.copied(number));
                }
            });
        };
        taken(&mut self.account, waiting, false);
        let mut idle = 0;
        while waiting > 0 && idle < IDLE_CALLS && ring_asks(socket) {
            let answer = socket.wake_transmit();
            self.account.call();
            let mut refused = false;
            match answer.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO)) {
                Ok(()) => self.sending.down = false,
                // In copy mode one call sends a budget of frames; or the kernel has no memory for
                // now.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => {}
                Err(Errno::BUSY) if zero_copy => {}
                // The interface dropped a frame, which is completed all the same.
                Err(Errno::BUSY) => refused = true,
                Err(Errno::NETDOWN) => {
                    self.sending.down = true;
                    break;
                }
                Err(e) => {
                    self.lost(e);
                    return;
                }
            }
            let now = socket.transmit().map_or(0, |ring| ring.waiting());
            idle = if now < waiting { 0 } else { idle + 1 };
            waiting = now;
            taken(&mut self.account, waiting, refused);
        }
        self.sending.unsent = waiting > 0;
        // An interface that is down takes nothing, so frames that were taken show that it is up.
        // That holds even if no call for it succeeded: it has no carrier yet, and refuses each
        // frame. It holds, too, if no call was made here: poll sends in copy mode (net/xdp/xsk.c,
        // `xsk_poll`).
        self.sending.down &= self.sending.unsent;
        if !self.loans.is_empty() {
            self.sending.idle_since.get_or_insert_with(Instant::now);
        }
    }

    /// Chains were given back before others that the guest had made available before them.
    #[cold]
    pub(super) fn count_passed(&self, chains: u64) {
        self.options.out_of_order.fetch_add(chains, Ordering::Relaxed);
    }

    /// Whether pieces were queued that the kernel has not taken.
    #[inline]
    pub(super) fn is_unsent(&self) -> bool {
        self.sending.unsent
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
        self.sending.down = true;
        self.drop_socket();
        self.registered.umem = None;
        self.sockets.renewed = true;
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

    /// Where a segment begins in the UMEM; None where not all of it is part of that.
    #[inline]
    pub(super) fn address(&self, segment: &Segment) -> Option<u64> {
        self.registered.umem.as_ref().and_then(|u| u.address(segment))
    }

    /// Which registration it is; 0 for none.
    pub(super) fn registration(&self) -> u64 {
        self.registered.umem.as_ref().map_or(0, |u| u.id())
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

    /// The longest frame that goes out, bytes; 0 without memory to send from.
    #[inline]
    pub(in crate::port::xdp) fn longest(&self) -> usize {
        if self.registered.umem.is_some() { self.registered.mtu_allows as usize } else { 0 }
    }

    /// The arithmetic of the registration; None without a socket.
    #[inline]
    pub(super) fn geometry(&self) -> Option<super::geometry::Geometry> {
        self.registered.umem.as_ref().map(|u| u.geometry())
    }
}

fn ring_asks(socket: &mut Socket) -> bool {
    socket.transmit().is_some_and(|ring| ring.needs_wakeup())
}
