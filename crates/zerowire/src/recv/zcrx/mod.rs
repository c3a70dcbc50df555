//! io_uring zero-copy receive: the NIC, or the kernel in its place, puts payload into the area.
//!
//! ```text
//!                     RECV_ZC, multishot, one a connection
//!   TCP sockets ───────────────────────────────────────────> completions: offset, length
//!                          area | b0 | b1 | b2 | ...            │ lend
//!   NIC or kernel <── refill ring <── pieces that came back <───┘
//! ```
//! # Who owns which bytes
//! A buffer of the area belongs to the NIC or the kernel until a completion names a piece of it.
//! The piece is then the program's, as a lease, until an entry of the refill ring gives it back.
//! The kernel counts pieces by buffer and writes a buffer again only when all have come back.
//!
//! When the ring goes away the kernel takes all buffers back, and a NIC's queue may fill them once
//! more before it gets other memory. So the ring's descriptor lives in the pool, and goes with the
//! last lease. Until then the queue stays taken, and nobody writes what is lent. All receives are
//! cancelled when the receiver goes, so sockets don't stay.
//!
//! # Without a device
//! The kernel doesn't take entries of the refill ring by itself (io_uring/zcrx.c): the receiver
//! tells it to ([`Flush`]). A receive that finds the area empty ends with ENOMEM and is started
//! again; the bytes stay in the socket meanwhile.

mod areas;
mod dmabuf;
mod engine;
mod export;
mod open;
mod options;
mod refill;
mod refusal;
mod shared;
mod state;
#[cfg(feature = "testing")]
pub(in crate::recv) mod testing;

pub use dmabuf::Dmabuf;
pub use export::SharedArea;
pub use options::{Flush, ZcrxOptions};

use super::RecvError;
use super::core::RecvState;
use areas::Share;
pub(super) use open::new_core;
use refill::is_low;
use shared::{Leftover, SharedIfq};
use state::ZcrxState;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zerowire_sys::uring::wide::{Entry, WideRing};
use zerowire_sys::uring::zcrx::{Event, Zcrx as Registered};

/// Entries a batch.
const SUBMISSIONS: u32 = 256;
/// How long connections that found no buffer wait, where it can't be seen that one is free: the
/// NIC's driver has them.
const RETRY: Duration = Duration::from_millis(1);
/// How long one wait for a cancellation takes at most, and how many such waits there are.
const CANCEL_WAIT: Duration = Duration::from_millis(10);
const CANCEL_TRIES: u32 = 500;
/// Turns between two requests for the event of a copy: its count is read from memory anyway.
const COPIED_EVERY: u32 = 64;

/// See the module.
pub(super) struct Zcrx {
    ring: WideRing,
    zcrx: Registered,
    state: ZcrxState,
    shared: Arc<SharedIfq>,
    /// In the pool, too.
    left: Arc<Leftover>,
    /// The area, if it is one.
    dmabuf: Option<Dmabuf>,
    share: Share,
    flush: Flush,
    /// The kernel has no flush (device queues before Linux 7.0).
    no_flush: bool,
    turns: u32,
    /// Leases of the last turn that brought any: without a device each has a buffer of its own.
    came: u32,
    /// When connections that found no buffer were last started again without a sign that there is
    /// one.
    tried: Option<Instant>,
}

impl Zcrx {
    /// Buffers that the kernel has, if nobody else has any.
    fn free(&self, core: &RecvState, untaken: u32) -> usize {
        let lent = core.holdings.slots() - core.holdings.free();
        self.shared.areas.buffers().saturating_sub(lent + untaken as usize + self.state.waiting.len())
    }

    /// Gives back what came back, and starts connections again that waited for that.
    fn feed(&mut self, core: &mut RecvState) -> Result<(), RecvError> {
        let had = !self.state.waiting.is_empty();
        self.publish();
        let untaken = self.shared.untaken();
        let starved = self.state.is_starved();
        if untaken > 0 && self.is_flush_due(core, untaken, starved) {
            core.called();
            match self.zcrx.flush() {
                Ok(()) => self.publish(),
                Err(e) if self.has_device() && e.raw_os_error() == Some(libc::EINVAL) => self.no_flush = true,
                Err(e) => return Err(RecvError::system("io_uring_register(ZCRX_CTRL_FLUSH_RQ)")(e)),
            }
        }
        if starved {
            let untaken = self.shared.untaken();
            let may_try = match self.sees_all() {
                true => self.free(core, untaken) > 0,
                false => had || self.tried.is_none_or(|t| t.elapsed() >= RETRY),
            };
            if may_try {
                self.state.feed();
                self.tried = (!self.sees_all()).then(Instant::now);
            }
        }
        if had {
            self.arm(core, Event::OutOfBuffers)?;
        }
        if self.turns.is_multiple_of(COPIED_EVERY) {
            self.arm(core, Event::Copied)?;
        }
        Ok(())
    }

    fn publish(&mut self) {
        self.shared.publish(&mut self.state.waiting);
    }

    fn has_device(&self) -> bool {
        self.shared.queue.is_some()
    }

    /// Whether it can be known here that the kernel has a free buffer: no driver and no other
    /// receiver has any.
    fn sees_all(&self) -> bool {
        !self.has_device() && !self.shared.is_exported()
    }

    /// Whether to tell the kernel to take entries.
    fn is_flush_due(&self, core: &RecvState, untaken: u32, starved: bool) -> bool {
        if self.no_flush {
            return false;
        }
        if starved {
            return true;
        }
        if self.has_device() {
            return false;
        }
        let (unlent, free) = (core.holdings.free() as u32, self.free(core, untaken) as u32);
        let free = self.sees_all().then_some(free);
        !self.state.waiting.is_empty() || self.flush.is_due(unlent, untaken, free, self.came)
    }

    fn arm(&mut self, core: &mut RecvState, event: Event) -> Result<(), RecvError> {
        if std::mem::take(&mut self.state.fired[event as usize]) {
            core.called();
            self.zcrx.arm(event).map_err(RecvError::system("io_uring_register(ZCRX_CTRL_ARM_EVENT)"))?;
        }
        Ok(())
    }

    /// Puts entries into the batch: cancellations first, since they make room.
    fn queue_entries(&mut self, core: &mut RecvState) -> Result<(), RecvError> {
        while let Some(place) = self.state.to_cancel.pop_front() {
            self.push(core, Entry::cancel(state::recv_data(place), state::cancel_data(place)))?;
        }
        while let Some((place, bound)) = self.state.next_arm(core) {
            let Some(fd) = core.fd(place).map(|socket| socket.as_raw_fd()) else {
                self.state.requests.put_back(place);
                self.state.unwant(place);
                continue;
            };
            let entry = Entry::recv_zc(fd, self.zcrx.id(), bound, state::recv_data(place));
            if let Err(e) = self.push(core, entry) {
                self.state.requests.put_back(place);
                return Err(e);
            }
            core.events.armed += 1;
        }
        Ok(())
    }

    /// Starts and ends accepts.
    fn queue_accepts(&mut self, core: &mut RecvState) -> Result<(), RecvError> {
        while let Some(step) = core.listeners.step() {
            if let Err(e) = self.push(core, step.entry(|_| state::CANCEL_ALL)) {
                core.listeners.undo(step);
                return Err(e);
            }
        }
        Ok(())
    }

    fn push(&mut self, core: &mut RecvState, entry: Entry) -> Result<(), RecvError> {
        if self.ring.push(entry) {
            return Ok(());
        }
        self.enter(core, 0, None)?;
        if self.ring.push(entry) {
            return Ok(());
        }
        Err(RecvError::system("io_uring_enter")(std::io::Error::other("the kernel takes no more entries")))
    }

    fn enter(&mut self, core: &mut RecvState, want: u32, timeout: Option<Duration>) -> Result<(), RecvError> {
        core.called();
        let result = self.ring.enter(want, timeout);
        core.events.overflows += u64::from(self.ring.has_overflowed());
        RecvError::entered(result.map(|()| 0))
    }

    /// Takes the completions that are there.
    fn drain(&mut self, core: &mut RecvState) -> bool {
        let copied = self.shared.copied();
        core.events.copied += copied.count;
        self.state.copied(copied.bytes);
        let Self { state, ring, .. } = self;
        state.take_all(core, || ring.pop())
    }

    /// Waits for completions, and for leases where that helps.
    fn wait(&mut self, core: &mut RecvState, timeout: Option<Duration>) -> Result<(), RecvError> {
        let pool = Arc::clone(&core.pool);
        let (starved, blocked) = (self.state.is_starved(), self.state.is_blocked());
        let lent = core.holdings.slots() - core.holdings.free();
        let is_low = is_low(lent, self.shared.areas.buffers(), self.shared.is_exported());
        let sleeps = core.paused > 0 || starved || blocked || is_low;
        // Before the receiver counts as asleep: what rings after this must be heard.
        if std::mem::take(&mut self.state.rung) {
            core.called();
            pool.hush();
        }
        if sleeps && !pool.returns.sleep() {
            return Ok(());
        }
        let result = self.sleep(core, timeout, sleeps, starved);
        if sleeps {
            pool.returns.awake();
        }
        result
    }

    fn sleep(
        &mut self,
        core: &mut RecvState,
        timeout: Option<Duration>,
        sleeps: bool,
        starved: bool,
    ) -> Result<(), RecvError> {
        if sleeps && !self.state.bell_armed {
            let bell = core.pool.bell().as_raw_fd();
            self.push(core, Entry::readable(bell, state::BELL))?;
            self.state.bell_armed = true;
        }
        self.queue_accepts(core)?;
        self.queue_entries(core)?;
        let timeout = match timeout {
            t if starved && !self.sees_all() => Some(t.map_or(RETRY, |t| t.min(RETRY))),
            t => t,
        };
        let want = u32::from(timeout != Some(Duration::ZERO));
        self.enter(core, want, timeout)
    }
}
