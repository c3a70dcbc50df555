//! Waits for the daemon, by sleeping or by an event loop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;

use super::error::{Error, system};

/// Polls until something happens or the deadline passes; false if it passed.
pub(super) fn poll_for(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Result<bool, Error> {
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(fds, left.as_ref()) {
            Ok(n) => return Ok(n > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::System { call: "poll", errno }),
        }
    }
}

/// The two sockets to the daemon, and one descriptor to wait for both.
#[derive(Debug)]
pub(super) struct MapSockets {
    /// The daemon writes to it when it has published for a program that sleeps.
    ready: OwnedFd,
    /// The connection's own: bytes to the guest, and the end of the daemon.
    pub(super) stream: OwnedFd,
    events: OwnedFd,
}

impl MapSockets {
    pub(super) fn new(ready: OwnedFd, stream: OwnedFd) -> Result<Self, Error> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        let add = |fd, flags| {
            epoll::add(&events, fd, epoll::EventData::new_u64(0), flags).map_err(system("epoll_ctl"))
        };
        add(&ready, epoll::EventFlags::IN)?;
        // Hang-up and error are always reported.
        add(&stream, epoll::EventFlags::empty())?;
        Ok(Self { ready, stream, events })
    }

    /// Sleeps until the daemon writes or is gone, or the deadline passes: false if it passed. And
    /// whether the daemon is gone.
    pub(super) fn sleep(&self, deadline: Option<Instant>) -> (Result<bool, Error>, bool) {
        let mut fds =
            [PollFd::new(&self.ready, PollFlags::IN), PollFd::new(&self.stream, PollFlags::empty())];
        let woken = poll_for(&mut fds, deadline);
        (woken, is_end(&fds[1]))
    }

    /// Takes what the daemon wrote to wake the program.
    pub(super) fn clear(&self) -> Result<(), Error> {
        match rustix::io::read(&self.ready, &mut [0u8; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::System { call: "read (the ready socket)", errno }),
        }
    }

    /// Whether the daemon is gone.
    pub(super) fn is_hung_up(&self) -> Result<bool, Error> {
        let mut fds = [PollFd::new(&self.stream, PollFlags::empty())];
        poll_for(&mut fds, Some(Instant::now()))?;
        Ok(is_end(&fds[0]))
    }
}

impl AsFd for MapSockets {
    /// Readable when the daemon wrote, and when it is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

fn is_end(fd: &PollFd<'_>) -> bool {
    fd.revents().intersects(PollFlags::HUP | PollFlags::ERR)
}
