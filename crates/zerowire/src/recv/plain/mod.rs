//! `epoll_wait` and `recvmsg`, for kernels and containers without io_uring.
//!
//! One `recvmsg` fills up to [`PIECES`] buffers. If a connection filled them all, the next turn
//! reads it again without `epoll_wait`. Otherwise, after a turn that brought much, the thread naps
//! before it looks again ([`RecvOptions::gather`]). A sender that goes on fills the socket
//! meanwhile, and neither side pays for waking the other for each segment.
//!
//! Memory: buffers are taken from the book before the call and lent or put back after it; between
//! two calls the kernel has none.

mod calls;

use super::backend::Engine;
use super::core::{RecvState, SocketShape};
use super::listen::ACCEPT;
use super::{RecvError, RecvOptions};
use calls::{PIECES, accept, receive};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use zerowire_sys::syscall;

/// Bytes of these at most, if they are more than one: half of a second-level cache of 1 MiB.
const HOT_BYTES: usize = 512 << 10;
/// A turn that brings this many bytes is one of many.
const BUSY_BYTES: usize = 64 << 10;
/// Listening sockets that are watched while no buffer is free.
const LISTENERS: usize = 8;
/// Events an `epoll_wait`.
const EVENTS: usize = 256;
/// While connections are busy, one turn in this many calls `epoll_wait` for the others.
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
    /// True: epoll reports each change once, so read until nothing is left.
    edges: bool,
}

/// A listening socket.
#[derive(Debug)]
struct Listening {
    index: u32,
    /// In the epoll set.
    watched: bool,
}

/// See the module.
pub(crate) struct Plain {
    epoll: OwnedFd,
    marks: Vec<Mark>,
    listeners: Vec<Listening>,
    /// Connections that may have data, by place.
    ready: VecDeque<u32>,
    events: Vec<Event>,
    turns: u32,
    /// Zero: it never naps.
    gather: Duration,
    /// Bytes of the last turn, and whose they were if they were one connection's.
    came: usize,
    only: Option<u32>,
}

impl Plain {
    pub(crate) fn new(core: &mut RecvState, options: &RecvOptions) -> Result<Self, RecvError> {
        let epoll =
            epoll::create(CreateFlags::CLOEXEC).map_err(|e| RecvError::system("epoll_create1")(e.into()))?;
        epoll::add(&epoll, core.pool.bell(), EventData::new_u64(BELL), EventFlags::IN)
            .map_err(|e| RecvError::system("epoll_ctl")(e.into()))?;
        Ok(Self {
            epoll,
            marks: Vec::new(),
            listeners: Vec::new(),
            ready: VecDeque::new(),
            events: Vec::with_capacity(EVENTS),
            turns: 0,
            gather: options.gather,
            came: 0,
            only: None,
        })
    }

    fn watch(&mut self, place: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let Some(mark) = self.marks.get_mut(place as usize) else { return Ok(()) };
        let flags = EventFlags::IN | EventFlags::RDHUP;
        let added = epoll::add(&self.epoll, socket, EventData::new_u64(place.into()), flags);
        (mark.watched, mark.edges) = (added.is_ok(), false);
        Ok(added?)
    }

    /// From now on epoll reports each change of `place` once.
    fn watch_edges(&mut self, core: &mut RecvState, place: u32) {
        let (Some(mark), Some(fd)) = (self.marks.get_mut(place as usize), core.fd(place)) else { return };
        if std::mem::replace(&mut mark.edges, true) {
            // A second request would report the same change again.
            return;
        }
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        let _ = epoll::modify(&self.epoll, fd, EventData::new_u64(place.into()), flags);
        core.called();
    }

    /// A connection that is not read from must leave the set: epoll reports hang-ups whatever the
    /// events asked for.
    fn unwatch(&mut self, core: &mut RecvState, place: u32) {
        let (Some(mark), Some(fd)) = (self.marks.get_mut(place as usize), core.fd(place)) else { return };
        if std::mem::take(&mut mark.watched) {
            let _ = epoll::delete(&self.epoll, fd);
            core.called();
        }
    }

    /// Listening sockets are in the set while connections are wanted.
    fn watch_listeners(&mut self, core: &mut RecvState) -> Result<(), RecvError> {
        for listening in &mut self.listeners {
            let wanted = core.listeners.may_accept(listening.index);
            let Some(fd) = core.listeners.fd(listening.index).filter(|_| wanted != listening.watched) else {
                continue;
            };
            let data = EventData::new_u64(ACCEPT | u64::from(listening.index));
            let done = match wanted {
                true => epoll::add(&self.epoll, fd, data, EventFlags::IN),
                false => epoll::delete(&self.epoll, fd),
            };
            core.called();
            done.map_err(|e| RecvError::system("epoll_ctl")(e.into()))?;
            listening.watched = wanted;
        }
        Ok(())
    }

    /// Whether a free buffer is there, or waiting until one comes back.
    fn wait_for_buffers(
        &mut self,
        core: &mut RecvState,
        timeout: Option<Duration>,
    ) -> Result<bool, RecvError> {
        if core.holdings.free() > 0 {
            return Ok(true);
        }
        core.events.out_of_buffers += 1;
        if core.pool.returns.sleep() {
            core.called();
            let pool = std::sync::Arc::clone(&core.pool);
            // Connections are accepted meanwhile; those that have data wait.
            let mut indices = [0; LISTENERS];
            let mut fds: [_; LISTENERS + 1] =
                std::array::from_fn(|_| PollFd::from_borrowed_fd(pool.bell(), PollFlags::IN));
            let mut count = 0;
            for index in self.listeners.iter().filter(|l| l.watched).map(|l| l.index).take(LISTENERS) {
                let Some(fd) = core.listeners.fd(index) else { continue };
                indices[count] = index;
                count += 1;
                fds[count] = PollFd::from_borrowed_fd(fd, PollFlags::IN);
            }
            let limit = timeout.and_then(|t| Timespec::try_from(t).ok());
            let result = poll(&mut fds[..=count], limit.as_ref());
            let ready = fds.map(|fd| !fd.revents().is_empty());
            pool.returns.awake();
            pool.hush();
            match result {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(RecvError::system("poll")(e.into())),
            }
            for (index, ready) in indices[..count].iter().zip(&ready[1..]) {
                if *ready {
                    accept(core, *index);
                }
            }
        }
        Ok(false)
    }

    fn wait_for_data(&mut self, core: &mut RecvState, timeout: Option<Duration>) -> Result<(), RecvError> {
        let sleeps = core.paused > 0;
        if sleeps && !core.pool.returns.sleep() {
            return Ok(());
        }
        core.called();
        let result = syscall::epoll_wait(self.epoll.as_fd(), &mut self.events, timeout);
        if sleeps {
            core.pool.returns.awake();
        }
        match result {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(RecvError::system("epoll_wait")(e)),
        }
        for i in 0..self.events.len() {
            let Event { flags, data } = self.events[i];
            let data = data.u64();
            if data == BELL {
                core.pool.hush();
            } else if data & ACCEPT != 0 {
                accept(core, data as u32);
            } else {
                // epoll would report an error queue that the program doesn't read again and again,
                // whatever recvmsg says.
                if flags == EventFlags::ERR {
                    self.watch_edges(core, data as u32);
                }
                self.queue(data as u32);
            }
        }
        Ok(())
    }

    /// After a turn that brought much and left nothing: lets more come. If the receiver has nothing
    /// else, it reads the connection that brought it next.
    fn nap(&mut self, core: &mut RecvState, timeout: Option<Duration>) {
        let is_busy = std::mem::take(&mut self.came) >= BUSY_BYTES;
        let only = self.only.take();
        if !is_busy
            || !core.messengers.none()
            || self.gather.is_zero()
            || timeout.is_some_and(|t| t < self.gather)
        {
            return;
        }
        core.called();
        core.events.gathered += 1;
        std::thread::sleep(self.gather);
        let is_alone = core.connections.len() == 1 && self.listeners.is_empty();
        if let Some(place) = only.filter(|place| is_alone && core.may_receive(*place)) {
            self.queue(place);
        }
    }

    /// `place` may have data.
    fn queue(&mut self, place: u32) {
        if let Some(mark) = self.marks.get_mut(place as usize)
            && !mark.queued
        {
            mark.queued = true;
            self.ready.push_back(place);
        }
    }

    /// One receive. True: there may be more at once.
    fn receive(&mut self, core: &mut RecvState, place: u32) -> bool {
        let connection = core.connections.get(place as usize);
        let Some(connection) = connection.filter(|c| c.socket.is_some()) else { return false };
        let limit = connection.limit.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
        let buffer_bytes = core.buffer_bytes;
        let most_pieces = (HOT_BYTES / buffer_bytes).clamp(1, PIECES);
        let is_message = connection.kind != SocketShape::Stream;
        let pieces = if is_message { 1 } else { most_pieces };
        let wanted = pieces.min(core.holdings.room(place).max(1) as usize).min(limit.div_ceil(buffer_bytes));
        let Some((result, asked)) = receive(core, place, wanted, limit) else { return false };
        self.came = self.came.saturating_add(*result.as_ref().unwrap_or(&0));
        match result {
            Ok(0) => core.nothing(place),
            // A TCP stream that gave less had no more; epoll reports the others again.
            Ok(got) => got == asked || is_message || self.marks.get(place as usize).is_some_and(|m| m.edges),
            Err(libc::EAGAIN) => false,
            Err(libc::EINTR) => true,
            // No memory for a moment.
            Err(libc::ENOMEM | libc::ENOBUFS) => true,
            Err(errno) => core.failed(place, errno),
        }
    }
}

impl Engine for Plain {
    fn path(&self) -> String {
        "plain: epoll_wait and recvmsg".to_owned()
    }

    fn add(&mut self, core: &mut RecvState, place: u32, socket: BorrowedFd<'_>) -> Result<(), RecvError> {
        if self.marks.len() <= place as usize {
            self.marks.resize(place as usize + 1, Mark::default());
        }
        core.called();
        self.watch(place, socket).map_err(|e| match e.raw_os_error() {
            Some(libc::ENOSPC) => {
                RecvError::system("epoll_ctl (the limit is sysctl fs.epoll.max_user_watches)")(e)
            }
            _ => RecvError::system("epoll_ctl")(e),
        })
    }

    fn stop(&mut self, core: &mut RecvState, place: u32) -> Result<(), RecvError> {
        self.unwatch(core, place);
        Ok(())
    }

    fn resume(&mut self, core: &mut RecvState, place: u32) {
        let is_watched = self.marks.get(place as usize).is_none_or(|mark| mark.watched);
        let Some(fd) = core.fd(place).filter(|_| !is_watched) else { return };
        let watched = self.watch(place, fd);
        core.called();
        if let Err(e) = watched {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            core.failed(place, errno);
        }
    }

    fn listen(&mut self, index: u32, socket: BorrowedFd<'_>) -> Result<(), RecvError> {
        // It stays so: a receiver that shares the open file description would wait in accept.
        rustix::io::ioctl_fionbio(socket, true).map_err(|e| RecvError::system("ioctl(FIONBIO)")(e.into()))?;
        self.listeners.push(Listening { index, watched: false });
        Ok(())
    }

    fn unlisten(&mut self, core: &mut RecvState, index: u32) -> Result<(), RecvError> {
        self.watch_listeners(core)?;
        self.listeners.retain(|l| l.index != index);
        Ok(())
    }

    fn turn(&mut self, core: &mut RecvState, timeout: Option<Duration>) -> Result<(), RecvError> {
        self.turns = self.turns.wrapping_add(1);
        self.watch_listeners(core)?;
        if self.ready.is_empty() {
            self.nap(core, timeout);
        }
        if self.ready.is_empty() {
            self.wait_for_data(core, timeout)?;
            if core.holdings.free() == 0 {
                // What is left of the time is known to the caller.
                return Ok(());
            }
        } else if self.turns.is_multiple_of(LOOK_EVERY)
            && (core.connections.len() > self.ready.len() || !self.listeners.is_empty())
        {
            self.wait_for_data(core, Some(Duration::ZERO))?;
        }
        if core.listeners.is_due() || self.ready.is_empty() || !self.wait_for_buffers(core, timeout)? {
            return Ok(());
        }
        (self.came, self.only) = (0, self.ready.front().copied().filter(|_| self.ready.len() == 1));
        for _ in 0..self.ready.len() {
            if core.holdings.free() == 0 {
                break;
            }
            let Some(place) = self.ready.pop_front() else { break };
            let again = core.may_receive(place) && self.receive(core, place);
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
