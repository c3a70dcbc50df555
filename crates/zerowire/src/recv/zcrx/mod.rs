//! io_uring zero-copy receive: the NIC, or the kernel in its place, puts payload into the area.
//!
//! ```text
//!                     RECV_ZC, multishot, one a connection
//!   TCP sockets ───────────────────────────────────────────> completions: offset, length
//!                          area | b0 | b1 | b2 | ...            │ lend
//!   NIC or kernel <── refill ring <── pieces that came back <───┘
//! ```
//! # Who owns which bytes
//! A buffer of the area belongs to the NIC or the kernel until a completion names a piece of it; that piece is then the
//! program's, as a lease, until an entry of the refill ring gives it back. The kernel counts pieces by buffer and writes a
//! buffer again only when all have come back.
//!
//! When the ring goes away the kernel takes all buffers back, and a NIC's queue may fill them once more before it is given
//! another memory. So the ring's descriptor lives in the pool, and goes with the last lease: until then the queue stays
//! taken, and nobody writes what is lent. Receives are all cancelled when the receiver goes, so that sockets don't stay.
//!
//! # Without a device
//! The kernel doesn't take entries of the refill ring by itself (io_uring/zcrx.c): it is told to ([`Flush`]). A receive that
//! finds the area empty ends with ENOMEM and is started again; the bytes stay in the socket meanwhile.

mod open;
mod options;
mod refill;
mod state;

pub use options::{Flush, ZcrxOptions};

use super::backend::Engine;
use super::core::Core;
use super::lease::Pool;
use super::{Arrival, RecvError};
use crate::uring::wide::{Completions, Entry, WideRing};
use crate::uring::zcrx::{CopyStats, Event, Zcrx as Registered};
pub(super) use open::Plan;
use rustix::net::{SocketType, ipproto, sockopt};
use state::State;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

/// Entries a batch.
const SUBMISSIONS: u32 = 256;
/// How long connections that found no buffer wait, where it can't be seen that one is free: the NIC's driver has them.
const RETRY: Duration = Duration::from_millis(1);
/// How long one wait for a cancellation takes at most, and how often it is tried.
const CANCEL_WAIT: Duration = Duration::from_millis(10);
const CANCEL_TRIES: u32 = 500;
/// The event of a copy is asked for again after so many turns: its count is read from memory anyway.
const COPIED_EVERY: u32 = 64;

/// See the module.
pub(super) struct Zcrx {
    ring: WideRing,
    zcrx: Registered,
    state: State,
    pool: Arc<Pool>,
    /// Queue and interface; `None`: no device.
    queue: Option<(String, u32)>,
    flush: Flush,
    /// The kernel has no flush (device queues before Linux 7.0).
    no_flush: bool,
    /// Buffers of the area.
    buffers: usize,
    copied: CopyStats,
    turns: u32,
    /// A turn has waited since connections found no buffer.
    waited: bool,
}

impl Zcrx {
    fn buffers_free(&self, core: &Core, untaken: u32) -> bool {
        let lent = core.holdings.slots() - core.holdings.free();
        lent + (untaken as usize) + self.state.refill.waiting() < self.buffers
    }

    /// Gives back what came back, and starts connections again that waited for that.
    fn feed(&mut self, core: &mut Core) -> Result<(), RecvError> {
        let had = self.state.refill.waiting() > 0;
        self.publish();
        let untaken = self.state.refill.untaken(self.zcrx.head());
        let starved = self.state.is_starved();
        if untaken > 0 && self.is_flush_due(core, untaken, starved) {
            core.called();
            match self.zcrx.flush() {
                Ok(()) => self.publish(),
                Err(e) if self.queue.is_some() && e.raw_os_error() == Some(libc::EINVAL) => {
                    self.no_flush = true
                }
                Err(e) => return Err(failed("io_uring_register(ZCRX_CTRL_FLUSH_RQ)")(e)),
            }
        }
        if starved {
            let untaken = self.state.refill.untaken(self.zcrx.head());
            let is_sure = self.queue.is_none();
            if is_sure && self.buffers_free(core, untaken) || !is_sure && (had || self.waited) {
                self.state.feed();
            }
        }
        self.waited = false;
        if had {
            self.arm(core, Event::OutOfBuffers)?;
        }
        if self.turns.is_multiple_of(COPIED_EVERY) {
            self.arm(core, Event::Copied)?;
        }
        Ok(())
    }

    fn publish(&mut self) {
        let Self { state, zcrx, .. } = self;
        let head = zcrx.head();
        if let Some(tail) = state.refill.publish(head, |at, entry| zcrx.write(at, entry)) {
            zcrx.publish(tail);
        }
    }

    /// Whether the kernel is to be told to take entries.
    fn is_flush_due(&self, core: &Core, untaken: u32, starved: bool) -> bool {
        if self.no_flush {
            return false;
        }
        if starved {
            return true;
        }
        if self.queue.is_some() {
            return false;
        }
        let unlent = (core.holdings.free() as u32).max(1);
        self.state.refill.waiting() > 0 || self.flush == Flush::Eager && untaken >= unlent.div_ceil(2)
    }

    fn arm(&mut self, core: &mut Core, event: Event) -> Result<(), RecvError> {
        if std::mem::take(&mut self.state.fired[event as usize]) {
            core.called();
            self.zcrx.arm(event).map_err(failed("io_uring_register(ZCRX_CTRL_ARM_EVENT)"))?;
        }
        Ok(())
    }

    /// Puts entries into the batch: cancellations first, since they make room.
    fn queue_entries(&mut self, core: &mut Core) -> Result<(), RecvError> {
        while let Some(place) = self.state.next_cancel() {
            self.push(core, Entry::cancel(state::recv_data(place), state::cancel_data(place)))?;
        }
        while let Some((place, bound)) = self.state.next_arm(core) {
            let Some(fd) = core.fd(place) else {
                self.state.put_back(place);
                self.state.unwant(place);
                continue;
            };
            let entry = Entry::recv_zc(fd, self.zcrx.id(), bound, state::recv_data(place));
            if let Err(e) = self.push(core, entry) {
                self.state.put_back(place);
                return Err(e);
            }
            core.events.armed += 1;
        }
        Ok(())
    }

    fn push(&mut self, core: &mut Core, entry: Entry) -> Result<(), RecvError> {
        if self.ring.push(entry) {
            return Ok(());
        }
        self.enter(core, 0, None)?;
        if self.ring.push(entry) {
            return Ok(());
        }
        Err(failed("io_uring_enter")(std::io::Error::other("the kernel takes no more entries")))
    }

    fn enter(&mut self, core: &mut Core, want: u32, timeout: Option<Duration>) -> Result<(), RecvError> {
        core.called();
        let result = self.ring.enter(want, timeout);
        core.events.overflows += u64::from(self.ring.has_overflowed());
        match result {
            Err(e) => match e.raw_os_error() {
                Some(libc::EBUSY | libc::EAGAIN) => Ok(()),
                Some(libc::EEXIST) => Err(RecvError::WrongThread),
                _ => Err(failed("io_uring_enter")(e)),
            },
            Ok(()) => Ok(()),
        }
    }

    /// Takes the completions that are there.
    fn drain(&mut self, core: &mut Core, out: &mut impl Extend<Arrival>) -> bool {
        let copied = self.zcrx.copied();
        core.events.copied += copied.count.wrapping_sub(self.copied.count);
        self.state.copied(copied.bytes.wrapping_sub(self.copied.bytes));
        self.copied = copied;
        let Self { state, ring, .. } = self;
        state.take_all(core, out, || ring.pop())
    }

    /// Waits for completions, and for leases where that helps.
    fn wait(&mut self, core: &mut Core, timeout: Option<Duration>) -> Result<(), RecvError> {
        let pool = Arc::clone(&self.pool);
        let (starved, blocked) = (self.state.is_starved(), self.state.is_blocked());
        // With half of the area lent, the NIC or the next receive may soon want what comes back.
        let is_low = core.holdings.free() * 2 <= core.holdings.slots();
        let sleeps = core.paused > 0 || starved || blocked || is_low;
        // Before the receiver is said to sleep: what rings after that must be heard.
        if std::mem::take(&mut self.state.rung) {
            core.called();
            pool.hush();
        }
        if sleeps && !pool.returns().sleep() {
            return Ok(());
        }
        let result = self.sleep(core, timeout, sleeps, starved);
        if sleeps {
            pool.returns().awake();
        }
        result
    }

    fn sleep(
        &mut self,
        core: &mut Core,
        timeout: Option<Duration>,
        sleeps: bool,
        starved: bool,
    ) -> Result<(), RecvError> {
        if sleeps && !self.state.bell_armed {
            let bell = self.pool.bell().as_raw_fd();
            self.push(core, Entry::readable(bell, state::BELL))?;
            self.state.bell_armed = true;
        }
        self.queue_entries(core)?;
        let timeout = match timeout {
            t if starved && self.queue.is_some() => Some(t.map_or(RETRY, |t| t.min(RETRY))),
            t => t,
        };
        let want = u32::from(timeout != Some(Duration::ZERO));
        self.enter(core, want, timeout)?;
        self.waited = true;
        Ok(())
    }

    /// Ends the request of `place`; what it brings until then goes to the backlog.
    fn end(&mut self, core: &mut Core, place: u32) -> Result<(), RecvError> {
        let mut backlog = std::mem::take(&mut core.backlog);
        let mut result = Ok(());
        let mut tries = 0;
        while result.is_ok() && self.state.unwant(place) {
            result = self.queue_entries(core).and_then(|()| self.enter(core, 1, Some(CANCEL_WAIT)));
            let is_blocked = !self.drain(core, &mut backlog);
            tries += 1;
            if result.is_ok() && self.state.is_armed(place) && (is_blocked || tries == CANCEL_TRIES) {
                let why = if is_blocked { "too many leases are out: drop some" } else { "it doesn't end" };
                result = Err(failed("stopping a receive")(std::io::Error::other(why)));
            }
        }
        self.state.unwant(place);
        core.backlog = backlog;
        result
    }

    /// Cancels all requests; sockets and the bell are let go of.
    fn end_all(&mut self) {
        for _ in 0..CANCEL_TRIES {
            if self.state.armed() == 0 && !self.state.bell_armed && self.ring.held() == 0 {
                return;
            }
            self.ring.push(Entry::cancel_all(state::CANCEL_ALL));
            if self.ring.enter(1, Some(CANCEL_WAIT)).is_err_and(|e| e.raw_os_error() == Some(libc::EEXIST)) {
                return;
            }
            while let Some(cqe) = self.ring.pop() {
                self.state.discard(cqe);
            }
        }
    }
}

impl Engine for Zcrx {
    fn path(&self) -> String {
        let from = match &self.queue {
            Some((interface, queue)) => format!("queue {queue} of {interface}"),
            None => "no device, the kernel copies (ZCRX_REG_NODEV)".to_owned(),
        };
        let ring = match self.ring.kind() {
            Completions::Wide => "CQE32",
            Completions::Mixed => "CQE_MIXED",
        };
        let events = match (self.zcrx.has_events(), &self.queue) {
            (false, Some(_)) => {
                "; this kernel doesn't tell what it copies, so that all counts as placed by the NIC"
            }
            _ => "",
        };
        let (buffers, bytes, ring_bytes) = (self.buffers, self.zcrx.buffer_bytes(), self.ring.completions());
        format!(
            "io_uring zero-copy receive, {from}: {buffers} buffers of {bytes} bytes, {ring_bytes} completions ({ring}){events}"
        )
    }

    fn add(&mut self, core: &mut Core, place: u32) -> Result<(), RecvError> {
        let Some(fd) = core.fd(place) else { return Ok(()) };
        // SAFETY: a connection's own descriptor, which nobody closes during this call.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let is_stream = sockopt::socket_type(socket).is_ok_and(|t| t == SocketType::STREAM);
        if !is_stream || sockopt::socket_protocol(socket).ok().flatten() != Some(ipproto::TCP) {
            return Err(RecvError::NotTcp);
        }
        self.state.add(place);
        Ok(())
    }

    fn remove(&mut self, core: &mut Core, place: u32) -> Result<(), RecvError> {
        self.end(core, place)
    }

    fn stop(&mut self, core: &mut Core, place: u32) -> Result<(), RecvError> {
        self.end(core, place)
    }

    fn resume(&mut self, _core: &mut Core, place: u32) {
        self.state.want(place);
    }

    fn returned(&mut self, slot: u32) {
        self.state.returned(slot);
    }

    fn turn(
        &mut self,
        core: &mut Core,
        out: &mut Vec<Arrival>,
        timeout: Option<Duration>,
    ) -> Result<(), RecvError> {
        self.turns = self.turns.wrapping_add(1);
        let before = out.len();
        self.feed(core)?;
        self.drain(core, out);
        if out.len() == before {
            self.wait(core, timeout)?;
            self.drain(core, out);
        }
        Ok(())
    }
}

impl Drop for Zcrx {
    fn drop(&mut self) {
        self.end_all();
    }
}

fn failed(call: &'static str) -> impl FnOnce(std::io::Error) -> RecvError {
    RecvError::system(call)
}
