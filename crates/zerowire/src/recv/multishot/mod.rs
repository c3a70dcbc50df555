//! io_uring: multishot receive into provided buffers, in bundles where the kernel has them.
//!
//! One request a connection stays in the kernel and fills buffers as data comes. The buffers lie in
//! one ring for all connections (include/uapi/linux/io_uring.h, `IORING_RECV_MULTISHOT`,
//! `IORING_RECVSEND_BUNDLE`). Few buffers are posted, so those that the program gives back are used
//! again while they are in the cache. More are posted while several connections find none. A
//! connection with a limit receives one buffer at a time.
//!
//! Memory: with `IORING_SETUP_DEFER_TASKRUN` the kernel receives only while this thread is inside
//! `io_uring_enter`. So no byte of the area changes between two turns, and none after the ring was
//! closed, whatever is still on its way.

mod machine;
mod posted;
#[cfg(feature = "testing")]
pub(in crate::recv) mod testing;

use super::backend::Engine;
use super::core::{RecvState, SocketShape};
use super::{RecvError, RecvOptions};
use crate::memlock::locked_limit;
use io_uring::{opcode, squeue, types};
use machine::{BELL, BUSY_BUFFERS, CANCEL, CANCEL_ALL, ReceiveMachine};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;
use zerowire_sys::uring::buffer_ring::BufferRing;
use zerowire_sys::uring::ring::{Cqe, Patience, SendRing, Threads};
use zerowire_sys::uring::sqe::Entry;

/// Entries handed over a system call, at most.
const SUBMISSIONS: u32 = 256;
/// Completions of a ring that is made when the usual one is more than may be locked.
const FEW_COMPLETIONS: u32 = 64;
/// Completions read at a time.
const CHUNK: usize = 64;
/// Bytes of the buffers that are posted at first, and again when few connections are busy: half of
/// a second-level cache of 1 MiB.
const HOT_BYTES: usize = 512 << 10;
/// A call to the kernel that brings this many bytes is one of many. The next one gathers: it waits
/// for [`GATHER`] completions.
const BUSY_BYTES: usize = 64 << 10;
const GATHER: usize = 32;
/// With fewer requests than this in the kernel, a call that starts one doesn't gather. The one that
/// it starts found no buffer before, and has more to give at once.
const MANY_REQUESTS: usize = 32;
/// The only group of provided buffers.
const GROUP: u16 = 0;
/// While a request is being cancelled: how long to wait for its end at a time, and how often.
const PATIENCE: Duration = Duration::from_millis(100);
const MAX_WAITS: u32 = 100;

/// See the module.
pub(crate) struct Multishot {
    ring: SendRing,
    // After the ring, which reads it.
    buffers: BufferRing,
    machine: ReceiveMachine,
    bundles: bool,
    /// Zero: not done.
    gather: Duration,
    /// The last call to the kernel brought much.
    is_busy: bool,
}

impl Multishot {
    pub(crate) fn new(core: &mut RecvState, options: &RecvOptions) -> Result<Self, RecvError> {
        let completions = options.completions.max(1);
        let ring = set_up(completions)
            .or_else(|e| if is_memlock(&e) { set_up(FEW_COMPLETIONS.min(completions)) } else { Err(e) })
            .map_err(|e| refused(e, completions))?;
        if !ring.flags().contains("DEFER_TASKRUN") {
            return Err(RecvError::TooOld { what: "DEFER_TASKRUN", since: "Linux 6.1" });
        }
        let slots = core.holdings.slots();
        let depth = (HOT_BYTES / core.buffer_bytes).max(2);
        let machine = ReceiveMachine::new(slots, depth, options.depth.unwrap_or(slots / 4));
        let buffers =
            BufferRing::new(&ring, machine.max_depth, GROUP).map_err(|e| match e.raw_os_error() {
                Some(libc::EINVAL) => RecvError::TooOld { what: "ring of buffers", since: "Linux 5.19" },
                _ => refused(e, completions),
            })?;
        let bundles = ring.has_bundles();
        let gather = if ring.has_gathering() { options.gather } else { Duration::ZERO };
        Ok(Self { ring, buffers, machine, bundles, gather, is_busy: false })
    }

    /// Posts buffers up to the depth.
    fn post(&mut self, core: &mut RecvState) {
        let mut any = false;
        while self.machine.posted.count < self.machine.depth
            && let Some(slot) = core.holdings.take()
        {
            let (at, len) = (core.buffer(slot), core.buffer_bytes as u32);
            // SAFETY: a buffer of the pool's area, which outlives the ring. Its slot was just taken
            // from the book, so that nobody has it until a completion names it. The depth is at
            // most the ring's length.
            let position = unsafe { self.buffers.put(at, len, slot as u16) };
            self.machine.posted.put(slot as u16, position);
            any = true;
        }
        if any {
            self.buffers.publish();
        }
    }

    /// Pushes an entry that names no memory but the ring of buffers.
    fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the entry names no memory; the ring of buffers names the area's, which outlives
        // the ring.
        unsafe { self.ring.push(entry) }
    }

    /// Starts and ends accepts.
    fn submit_accepts(&mut self, core: &mut RecvState) -> Result<(), RecvError> {
        while let Some(step) = core.listeners.step() {
            let entry = step.entry(|accept| CANCEL | accept);
            if self.ring.push_bare(entry) {
                continue;
            }
            let result = self.enter(core, 0, None);
            if result.is_err() || !self.ring.push_bare(entry) {
                core.listeners.undo(step);
                return result;
            }
        }
        Ok(())
    }

    /// Starts requests, and ends those of connections that are paused. True: some were started.
    fn submit(&mut self, core: &mut RecvState) -> bool {
        // Where buffers are scarce, no more are started than may find one: a request that finds
        // none is lost work. Each busy connection takes several.
        let posted = self.machine.posted.count;
        let most = match std::mem::take(&mut self.machine.starved) {
            1.. => posted.div_ceil(BUSY_BUFFERS),
            0 if core.holdings.free() == 0 && posted < self.machine.depth => posted,
            0 => usize::MAX,
        };
        let armed = self.machine.requests.armed;
        for _ in 0..most.min(self.machine.requests.waiting.len()) {
            let Some(place) = self.machine.requests.next(core) else { break };
            let Some(entry) = self.entry(core, place) else { continue };
            let Some(user_data) = self.machine.arm(place) else { continue };
            if !self.push(&entry.user_data(user_data)) {
                self.machine.requests.put_back(place);
                break;
            }
            core.events.armed += 1;
        }
        while let Some(place) = self.machine.to_cancel.pop() {
            if !core.may_receive(place) && !self.cancel(place) {
                self.machine.to_cancel.push(place);
                break;
            }
        }
        self.machine.requests.armed > armed
    }

    /// Ends the request of `place`; false when the batch is full.
    fn cancel(&mut self, place: u32) -> bool {
        let Some(user_data) = self.machine.user_data(place) else { return true };
        let Some(request) = self.machine.requests.armed(place).filter(|r| !r.cancelled) else { return true };
        request.cancelled = true;
        let is_pushed = self.ring.push_bare(Entry::cancel(user_data, CANCEL | u64::from(place)));
        if !is_pushed && let Some(request) = self.machine.requests.armed(place) {
            request.cancelled = false;
        }
        is_pushed
    }

    fn entry(&self, core: &RecvState, place: u32) -> Option<squeue::Entry> {
        let fd = types::Fd(core.fd(place)?.as_raw_fd());
        let connection = core.connections.get(place as usize)?;
        let group = self.buffers.group();
        Some(match (connection.limit, connection.kind) {
            (Some(limit), _) => {
                let len = limit.min(core.buffer_bytes as u64) as u32;
                opcode::Recv::new(fd, std::ptr::null_mut(), len)
                    .buf_group(group)
                    .build()
                    .flags(squeue::Flags::BUFFER_SELECT)
            }
            (None, SocketShape::Stream) if self.bundles => opcode::RecvMultiBundle::new(fd, group).build(),
            (None, _) => opcode::RecvMulti::new(fd, group).build(),
        })
    }

    /// Arms the bell; false when the batch is full.
    fn arm_bell(&mut self, core: &RecvState) -> bool {
        if !self.machine.bell_armed {
            let entry = Entry::readable(core.pool.bell().as_raw_fd(), BELL);
            self.machine.bell_armed = self.ring.push_bare(entry);
        }
        self.machine.bell_armed
    }

    fn enter(
        &mut self,
        core: &mut RecvState,
        want: usize,
        patience: impl Into<Patience>,
    ) -> Result<(), RecvError> {
        core.events.overflows += u64::from(self.ring.has_overflowed());
        core.called();
        RecvError::entered(self.ring.enter(want, patience))
    }

    /// Reads the completions that are in the queue.
    fn drain(&mut self, core: &mut RecvState) {
        let mut chunk = [Cqe::default(); CHUNK];
        loop {
            let count = self.ring.take(&mut chunk);
            for cqe in &chunk[..count] {
                self.machine.complete(core, *cqe, |position| self.buffers.len_at(position));
            }
            if count < CHUNK {
                return;
            }
        }
    }
}

impl Engine for Multishot {
    fn path(&self) -> String {
        let shape = if self.bundles { "with bundles" } else { "without bundles" };
        format!("multishot: io_uring, provided buffers, {shape} ({})", self.ring.flags())
    }

    fn add(&mut self, _core: &mut RecvState, place: u32, _socket: BorrowedFd<'_>) -> Result<(), RecvError> {
        self.machine.requests.add(place);
        Ok(())
    }

    fn stop(&mut self, core: &mut RecvState, place: u32) -> Result<(), RecvError> {
        for _ in 0..MAX_WAITS {
            if self.machine.requests.armed(place).is_none() {
                return Ok(());
            }
            self.cancel(place);
            let entered = self.enter(core, 1, Some(PATIENCE));
            self.drain(core);
            entered?;
        }
        self.machine.requests.armed(place).map_or(Ok(()), |_| Err(never_ended()))
    }

    fn resume(&mut self, _core: &mut RecvState, place: u32) {
        self.machine.requests.queue(place);
    }

    fn listen(&mut self, _index: u32, _socket: BorrowedFd<'_>) -> Result<(), RecvError> {
        Ok(())
    }

    fn unlisten(&mut self, core: &mut RecvState, index: u32) -> Result<(), RecvError> {
        for _ in 0..MAX_WAITS {
            if !core.listeners.is_asked(index) {
                return Ok(());
            }
            let entered = self.submit_accepts(core).and_then(|()| self.enter(core, 1, Some(PATIENCE)));
            self.drain(core);
            if core.listeners.is_asked(index) {
                entered?;
            }
        }
        if core.listeners.is_asked(index) { Err(never_ended()) } else { Ok(()) }
    }

    fn turn(&mut self, core: &mut RecvState, timeout: Option<Duration>) -> Result<(), RecvError> {
        self.machine.turn();
        self.post(core);
        self.drain(core);
        if !core.arrivals.is_empty() || core.listeners.is_due() {
            return Ok(());
        }
        self.submit_accepts(core)?;
        let has_started = self.submit(core);
        let posted = self.machine.posted.count;
        let starves = posted == 0 && !self.machine.requests.waiting.is_empty();
        let may_wait = self.machine.requests.waiting.is_empty() || starves;
        let want = usize::from(may_wait && timeout.is_none_or(|t| !t.is_zero()));
        let sleeps = want == 1 && (starves || core.paused > 0);
        if sleeps && !(self.arm_bell(core) && core.pool.returns.sleep()) {
            // Buffers are back, or the batch is full.
            return if self.ring.held() > 0 { self.enter(core, 0, None) } else { Ok(()) };
        }
        let is_worth_it = self.is_busy && (!has_started || self.machine.requests.armed >= MANY_REQUESTS);
        let gathers = want == 1 && is_worth_it && !sleeps && core.messengers.none() && !self.gather.is_zero();
        self.machine.came = 0;
        core.events.gathered += u64::from(gathers);
        let (want, gather) = if gathers { (GATHER, self.gather) } else { (want, Duration::ZERO) };
        let result = self.enter(core, want, Patience { timeout, gather });
        if sleeps {
            core.pool.returns.awake();
        }
        self.drain(core);
        self.is_busy = self.machine.came >= BUSY_BYTES;
        result
    }
}

impl Drop for Multishot {
    /// Ends all requests, so that the sockets are closed when their descriptors are, and not some
    /// time later.
    fn drop(&mut self) {
        let entry = Entry::cancel_all(CANCEL_ALL);
        if !self.ring.push_bare(entry) {
            let _ = self.ring.enter(0, None);
            let _ = self.ring.push_bare(entry);
        }
        let _ = self.ring.enter(0, None);
    }
}

/// The end of a request that was cancelled has not come.
fn never_ended() -> RecvError {
    RecvError::system("ASYNC_CANCEL")(io::ErrorKind::TimedOut.into())
}

fn set_up(completions: u32) -> io::Result<SendRing> {
    SendRing::new(SUBMISSIONS.min(completions), completions, Threads::One)
}

fn is_memlock(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::ENOMEM)
}

fn refused(e: io::Error, completions: u32) -> RecvError {
    if is_memlock(&e) {
        return RecvError::Memlock { completions, limit: locked_limit() };
    }
    RecvError::Uring(zerowire_sys::uring::refusal(e))
}
