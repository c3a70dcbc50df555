//! `epoll_wait` and `recvmsg`, for kernels and containers without io_uring.
//!
//! One `recvmsg` fills up to [`PIECES`] buffers. A connection that filled a good part of them is asked again in the next
//! turn without `epoll_wait`, so that a busy connection costs one system call a receive.
//!
//! Memory: buffers are taken from the book before the call and lent or put back after it; between two calls the kernel
//! has none.

use super::backend::Engine;
use super::core::{Core, Kind};
use super::{Arrival, RecvError};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Buffers a `recvmsg` at most: 512 KiB of 64 KiB each, which is half of a usual second-level cache.
const PIECES: usize = 8;
/// A receive of so many bytes is worth asking the same connection again at once.
const BUSY_BYTES: usize = 256 << 10;
/// Events an `epoll_wait`.
const EVENTS: usize = 256;
/// While connections are busy, `epoll_wait` is asked for others once in so many turns.
const LOOK_EVERY: u32 = 8;
/// The bell among the events.
const BELL: u64 = u64::MAX;

/// How a connection stands with epoll and the queue.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// In the epoll set.
    watched: bool,
    /// In `ready`.
    queued: bool,
}

/// See the module.
pub(crate) struct Plain {
    epoll: OwnedFd,
    marks: Vec<Mark>,
    /// Connections that may have data, by place.
    ready: VecDeque<u32>,
    events: Vec<Event>,
    turns: u32,
}

impl Plain {
    pub(crate) fn new(core: &mut Core) -> Result<Self, RecvError> {
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).map_err(|e| RecvError::system("epoll_create1")(e.into()))?;
        epoll::add(&epoll, core.pool.bell(), EventData::new_u64(BELL), EventFlags::IN)
            .map_err(|e| RecvError::system("epoll_ctl")(e.into()))?;
        Ok(Self {
            epoll,
            marks: Vec::new(),
            ready: VecDeque::new(),
            events: Vec::with_capacity(EVENTS),
            turns: 0,
        })
    }

    fn watch(&mut self, core: &mut Core, place: u32) -> io::Result<()> {
        let (Some(mark), Some(fd)) = (self.marks.get_mut(place as usize), core.fd(place)) else {
            return Ok(());
        };
        if !mark.watched {
            mark.watched = true;
            core.called();
            let flags = EventFlags::IN | EventFlags::RDHUP;
            epoll::add(&self.epoll, borrow(fd), EventData::new_u64(place.into()), flags)?;
        }
        Ok(())
    }

    /// A connection that is not read from must leave the set: hang-ups are told whatever was asked for.
    fn unwatch(&mut self, core: &mut Core, place: u32) {
        let (Some(mark), Some(fd)) = (self.marks.get_mut(place as usize), core.fd(place)) else { return };
        if std::mem::take(&mut mark.watched) {
            core.called();
            let _ = epoll::delete(&self.epoll, borrow(fd));
        }
    }

    /// Whether a free buffer is there, or waiting until one comes back.
    fn wait_for_buffers(&mut self, core: &mut Core, timeout: Option<Duration>) -> Result<bool, RecvError> {
        if core.holdings.free() > 0 {
            return Ok(true);
        }
        core.events.out_of_buffers += 1;
        if core.pool.returns().sleep() {
            core.called();
            let pool = std::sync::Arc::clone(&core.pool);
            let bell = pool.bell();
            let result = poll(&mut [PollFd::new(&bell, PollFlags::IN)], timespec(timeout).as_ref());
            pool.returns().awake();
            pool.hush();
            match result {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(RecvError::system("poll")(e.into())),
            }
        }
        Ok(false)
    }

    fn wait_for_data(&mut self, core: &mut Core, timeout: Option<Duration>) -> Result<(), RecvError> {
        let sleeps = core.paused > 0;
        if sleeps && !core.pool.returns().sleep() {
            return Ok(());
        }
        core.called();
        self.events.clear();
        let result = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut self.events),
            timespec(timeout).as_ref(),
        );
        if sleeps {
            core.pool.returns().awake();
        }
        match result {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(RecvError::system("epoll_wait")(e.into())),
        }
        for i in 0..self.events.len() {
            let data = self.events[i].data.u64();
            if data == BELL {
                core.pool.hush();
            } else if let Some(mark) = self.marks.get_mut(data as usize)
                && !mark.queued
            {
                mark.queued = true;
                self.ready.push_back(data as u32);
            }
        }
        Ok(())
    }

    /// One receive. True: there may be more at once.
    fn receive(&mut self, core: &mut Core, out: &mut Vec<Arrival>, place: u32) -> bool {
        let Some(fd) = core.fd(place) else { return false };
        let connection = &core.connections[place as usize];
        let limit = connection.limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX));
        let most = if connection.kind == Kind::Stream { PIECES } else { 1 };
        let buffer_bytes = core.buffer_bytes;
        let wanted = most.min(core.holdings.room(place).max(1) as usize).min(limit.div_ceil(buffer_bytes));
        let mut slots = [0; PIECES];
        let mut vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
        let (mut count, mut asked) = (0, 0);
        while count < wanted
            && let Some(slot) = core.holdings.take()
        {
            let len = buffer_bytes.min(limit - asked);
            slots[count] = slot;
            vector[count] = libc::iovec { iov_base: core.buffer(slot).cast(), iov_len: len };
            asked += len;
            count += 1;
        }
        core.called();
        // SAFETY: each piece lies in a buffer that was just taken from the book: nobody else reads or writes it.
        let result = unsafe { receive(fd, &mut vector[..count]) };
        let got = *result.as_ref().unwrap_or(&0);
        let used = got.div_ceil(buffer_bytes).min(count);
        for slot in slots[used..count].iter().rev() {
            core.holdings.untake(*slot);
        }
        for (k, slot) in slots[..used].iter().enumerate() {
            let len = (got - k * buffer_bytes).min(buffer_bytes);
            // SAFETY: the call has returned, so the kernel has let go of the buffer.
            unsafe { core.deliver_buffer(out, place, *slot, len) };
        }
        match result {
            Ok(0) => core.nothing(out, place),
            Ok(got) => got == asked || got >= BUSY_BYTES || most == 1,
            Err(libc::EAGAIN) => false,
            Err(libc::EINTR) => true,
            // No memory for a moment: epoll tells again.
            Err(libc::ENOMEM | libc::ENOBUFS) => false,
            Err(errno) => core.failed(out, place, errno),
        }
    }
}

impl Engine for Plain {
    fn path(&self) -> String {
        "plain: epoll_wait and recvmsg".to_owned()
    }

    fn add(&mut self, core: &mut Core, place: u32) -> Result<(), RecvError> {
        if self.marks.len() <= place as usize {
            self.marks.resize(place as usize + 1, Mark::default());
        }
        self.marks[place as usize].watched = false;
        self.watch(core, place).map_err(RecvError::system("epoll_ctl"))
    }

    fn remove(&mut self, core: &mut Core, place: u32) -> Result<(), RecvError> {
        self.unwatch(core, place);
        Ok(())
    }

    fn stop(&mut self, core: &mut Core, place: u32) -> Result<(), RecvError> {
        self.unwatch(core, place);
        Ok(())
    }

    fn resume(&mut self, core: &mut Core, place: u32) {
        if let Err(e) = self.watch(core, place) {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            let mut backlog = std::mem::take(&mut core.backlog);
            core.failed(&mut backlog, place, errno);
            core.backlog = backlog;
        }
    }

    fn turn(
        &mut self,
        core: &mut Core,
        out: &mut Vec<Arrival>,
        timeout: Option<Duration>,
    ) -> Result<(), RecvError> {
        self.turns = self.turns.wrapping_add(1);
        if self.ready.is_empty() {
            self.wait_for_data(core, timeout)?;
        } else if self.turns.is_multiple_of(LOOK_EVERY) && core.connections.len() > self.ready.len() {
            self.wait_for_data(core, Some(Duration::ZERO))?;
        }
        if self.ready.is_empty() || !self.wait_for_buffers(core, timeout)? {
            return Ok(());
        }
        for _ in 0..self.ready.len() {
            if core.holdings.free() == 0 {
                break;
            }
            let Some(place) = self.ready.pop_front() else { break };
            let again = core.may_receive(place) && self.receive(core, out, place);
            if again && core.may_receive(place) {
                self.ready.push_back(place);
                continue;
            }
            if let Some(mark) = self.marks.get_mut(place as usize) {
                mark.queued = false;
            }
            if !core.may_receive(place) {
                self.unwatch(core, place);
            }
        }
        Ok(())
    }
}

/// One `recvmsg` that doesn't wait: the bytes received, or the errno.
///
/// # Safety
/// The pieces are memory that nobody else reads or writes during the call.
unsafe fn receive(fd: RawFd, pieces: &mut [libc::iovec]) -> Result<usize, i32> {
    // SAFETY: all zeros is a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len() as _;
    // SAFETY: the header and its vector live across the call; the caller vouches for the pieces.
    let got = unsafe { libc::recvmsg(fd, &raw mut message, libc::MSG_DONTWAIT) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// A descriptor of a connection that the core keeps open during the call.
fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: it comes from a connection's own descriptor and is used before that can be closed.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn timespec(timeout: Option<Duration>) -> Option<Timespec> {
    timeout.map(|t| Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    })
}
