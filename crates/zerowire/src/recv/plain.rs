//! `epoll_wait` and `recvmsg`, for kernels and containers without io_uring.
//!
//! One `recvmsg` fills up to [`PIECES`] buffers. A connection that filled a good part of them is asked again in the next
//! turn without `epoll_wait`, so that a busy connection costs one system call a receive.
//!
//! Memory: buffers are taken from the book before the call and lent or put back after it; between two calls the kernel
//! has none.

use super::backend::Engine;
use super::core::{Core, Kind};
use super::listen::ACCEPT;
use super::tcp_mapped::Windows;
use super::{Arrival, RecvError};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

/// Buffers a `recvmsg` at most: 512 KiB of 64 KiB each, which is half of a usual second-level cache.
const PIECES: usize = 8;
/// A receive of so many bytes is worth asking the same connection again at once.
const BUSY_BYTES: usize = 256 << 10;
/// Connections that are accepted from one socket at a time.
const ACCEPTS: usize = 64;
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

/// A listening socket.
#[derive(Debug)]
struct Listening {
    index: u32,
    /// In the epoll set.
    watched: bool,
    /// It was blocking.
    was_blocking: bool,
}

/// See the module.
pub(crate) struct Plain {
    epoll: OwnedFd,
    marks: Vec<Mark>,
    listeners: Vec<Listening>,
    /// For [`Backend::TcpMapped`](super::Backend::TcpMapped).
    windows: Option<Windows>,
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
            listeners: Vec::new(),
            windows: None,
            ready: VecDeque::new(),
            events: Vec::with_capacity(EVENTS),
            turns: 0,
        })
    }

    /// The same with `TCP_ZEROCOPY_RECEIVE`.
    pub(crate) fn mapped(core: &mut Core) -> Result<Self, RecvError> {
        let windows = Some(Windows::new(core)?);
        Ok(Self { windows, ..Self::new(core)? })
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

    /// Listening sockets are in the set while connections are wanted.
    fn watch_listeners(&mut self, core: &mut Core) -> Result<(), RecvError> {
        for listening in &mut self.listeners {
            let wanted = core.listeners.may_accept(listening.index);
            let Some(fd) = core.listeners.fd(listening.index).filter(|_| wanted != listening.watched) else {
                continue;
            };
            core.called();
            let data = EventData::new_u64(ACCEPT | u64::from(listening.index));
            match wanted {
                true => epoll::add(&self.epoll, borrow(fd), data, EventFlags::IN),
                false => epoll::delete(&self.epoll, borrow(fd)),
            }
            .map_err(|e| RecvError::system("epoll_ctl")(e.into()))?;
            listening.watched = wanted;
        }
        Ok(())
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
            } else if data & ACCEPT != 0 {
                accept(core, data as u32);
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
        let Some(windows) = &mut self.windows else { return self.copy(core, out, place, usize::MAX) };
        let mapped = windows.receive(core, out, place, limit_of(core, place));
        if mapped.bytes > 0 && (mapped.to_copy == 0 || !core.may_receive(place) || core.holdings.free() == 0)
        {
            return true;
        }
        // What can be mapped behind it is not to be copied.
        let most = if mapped.to_copy > 0 { mapped.to_copy } else { usize::MAX };
        self.copy(core, out, place, most) || mapped.to_copy > 0
    }

    /// Receives `most` bytes at most by copying. True: there may be more at once.
    fn copy(&mut self, core: &mut Core, out: &mut Vec<Arrival>, place: u32, most: usize) -> bool {
        let Some(fd) = core.fd(place) else { return false };
        let limit = limit_of(core, place).min(most);
        let connection = &core.connections[place as usize];
        let pieces = if connection.kind == Kind::Stream { PIECES } else { 1 };
        let buffer_bytes = core.buffer_bytes;
        let wanted = pieces.min(core.holdings.room(place).max(1) as usize).min(limit.div_ceil(buffer_bytes));
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
        if count == 0 {
            return false;
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
            Ok(got) => got == asked || got >= BUSY_BYTES || pieces == 1,
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
        match &self.windows {
            None => "plain: epoll_wait and recvmsg".to_owned(),
            Some(_) => "tcp-mapped: epoll_wait, TCP_ZEROCOPY_RECEIVE, and recvmsg for what can't be mapped"
                .to_owned(),
        }
    }

    fn add(&mut self, core: &mut Core, place: u32) -> Result<(), RecvError> {
        if self.marks.len() <= place as usize {
            self.marks.resize(place as usize + 1, Mark::default());
        }
        self.marks[place as usize].watched = false;
        if let Some(windows) = &mut self.windows {
            windows.add(place);
        }
        self.watch(core, place).map_err(RecvError::system("epoll_ctl"))
    }

    fn remove(&mut self, core: &mut Core, place: u32) -> Result<(), RecvError> {
        self.unwatch(core, place);
        if let (Some(windows), Some(connection)) = (&mut self.windows, core.connections.get(place as usize)) {
            windows.remove(core, connection.id);
        }
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

    fn listen(&mut self, core: &mut Core, index: u32) -> Result<(), RecvError> {
        let Some(fd) = core.listeners.fd(index) else { return Ok(()) };
        let was_blocking = set_blocking(fd, false).map_err(RecvError::system("fcntl(F_SETFL)"))?;
        self.listeners.push(Listening { index, watched: false, was_blocking });
        Ok(())
    }

    fn unlisten(&mut self, core: &mut Core, index: u32) -> Result<(), RecvError> {
        self.watch_listeners(core)?;
        let Some(at) = self.listeners.iter().position(|l| l.index == index) else { return Ok(()) };
        let listening = self.listeners.swap_remove(at);
        if listening.was_blocking
            && let Some(fd) = core.listeners.fd(index)
        {
            let _ = set_blocking(fd, true);
        }
        Ok(())
    }

    fn returned(&mut self, slot: u32) {
        if let Some(windows) = &mut self.windows {
            windows.returned(slot);
        }
    }

    fn close(&mut self, core: &mut Core) {
        if let Some(windows) = &mut self.windows {
            windows.close(core);
        }
    }

    fn turn(
        &mut self,
        core: &mut Core,
        out: &mut Vec<Arrival>,
        timeout: Option<Duration>,
    ) -> Result<(), RecvError> {
        self.turns = self.turns.wrapping_add(1);
        self.watch_listeners(core)?;
        if self.ready.is_empty() {
            self.wait_for_data(core, timeout)?;
        } else if self.turns.is_multiple_of(LOOK_EVERY)
            && (core.connections.len() > self.ready.len() || !self.listeners.is_empty())
        {
            self.wait_for_data(core, Some(Duration::ZERO))?;
        }
        if core.listeners.is_due() || self.ready.is_empty() || !self.wait_for_buffers(core, timeout)? {
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

/// Bytes that may still be taken from the connection at `place`.
fn limit_of(core: &Core, place: u32) -> usize {
    let limit = core.connections.get(place as usize).and_then(|c| c.limit);
    limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX))
}

/// Accepts what waits at the listening socket `index`.
fn accept(core: &mut Core, index: u32) {
    for _ in 0..ACCEPTS {
        let Some(fd) = core.listeners.fd(index).filter(|_| core.listeners.may_accept(index)) else { return };
        core.called();
        match rustix::net::accept_with(borrow(fd), SocketFlags::CLOEXEC) {
            Ok(socket) => core.listeners.accept(index, socket),
            Err(Errno::AGAIN) => return,
            Err(e) => core.listeners.refused(index, e.raw_os_error()),
        }
    }
}

/// Makes a descriptor blocking or not; returns whether it was.
fn set_blocking(fd: RawFd, blocking: bool) -> io::Result<bool> {
    let fd = borrow(fd);
    let flags = rustix::fs::fcntl_getfl(fd)?;
    let mut new = flags;
    new.set(OFlags::NONBLOCK, !blocking);
    if new != flags {
        rustix::fs::fcntl_setfl(fd, new)?;
    }
    Ok(!flags.contains(OFlags::NONBLOCK))
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
