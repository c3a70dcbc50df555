//! Waiting for a window, by sleeping or by an event loop.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;

use super::connection::MappedConnection;
use super::error::{Error, system};
use zerowire_wire::doorbell::{awake, sleep_check};
use zerowire_wire::mapped::POLL_NOTHING;

/// Polls until something happens or the deadline passes; false if it passed.
pub(super) fn poll_for(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> Result<bool, Error> {
    loop {
        let left = deadline.map(|d| {
            let left = d.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) }
        });
        match rustix::event::poll(fds, left.as_ref()) {
            Ok(n) => return Ok(n > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::System { call: "poll", errno }),
        }
    }
}

/// One descriptor for what can wake a program: the daemon's `ready`, and the end of the daemon.
pub(super) fn event_fd(ready: &OwnedFd, socket: &OwnedFd) -> Result<OwnedFd, Error> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
    let add =
        |fd, flags| epoll::add(&events, fd, epoll::EventData::new_u64(0), flags).map_err(system("epoll_ctl"));
    add(ready, epoll::EventFlags::IN)?;
    // Hang-up and error are always reported.
    add(socket, epoll::EventFlags::empty())?;
    Ok(events)
}

impl MappedConnection {
    /// Sleeps until [`Self::dequeue`] has something to say (a window, or the end): true. False if
    /// `timeout` passes first; None waits without a limit. Makes no system call if there is
    /// something already.
    ///
    /// One thread at a time can wait for a connection.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool, Error> {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if self.next_poll_value()? != POLL_NOTHING {
                return Ok(true);
            }
            if self.arm()? {
                return Ok(true);
            }
            let mut fds =
                [PollFd::new(&self.ready, PollFlags::IN), PollFd::new(&self.socket, PollFlags::empty())];
            let woken = poll_for(&mut fds, deadline);
            let hangup = fds[1].revents().intersects(PollFlags::HUP | PollFlags::ERR);
            self.ledger.system_calls.add(1);
            self.disarm()?;
            if self.next_poll_value()? != POLL_NOTHING {
                return Ok(true);
            }
            if hangup {
                return Err(Error::Disconnected { path: self.path.clone() });
            }
            if !woken? {
                return Ok(false);
            }
        }
    }

    /// Tells the daemon to make [`AsFd::as_fd`] readable with the next window. Returns true if
    /// there is something already; then it is not armed: dequeue, and don't sleep.
    ///
    /// An event loop calls this when [`Self::dequeue`] says that there is nothing yet, and
    /// [`Self::disarm`] when the descriptor is readable. While it is not armed the daemon makes no
    /// system call for this connection. When the descriptor is readable, there is nothing, and
    /// [`Self::is_hung_up`] is true, then the daemon is gone.
    pub fn arm(&self) -> Result<bool, Error> {
        let (view, _) = self.view()?;
        Ok(!sleep_check(view.program_sleeps(), || {
            // An error is something to look at, too.
            !self.next_poll_value().is_ok_and(|value| value == POLL_NOTHING)
        }))
    }

    /// Takes [`Self::arm`] back, and makes the descriptor not readable again.
    pub fn disarm(&self) -> Result<(), Error> {
        let (view, _) = self.view()?;
        awake(view.program_sleeps());
        match rustix::io::read(&self.ready, &mut [0u8; 8]) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::System { call: "read (the ready socket)", errno }),
        }
    }

    /// Whether the daemon's end of the connection is closed. Windows that are published, and the
    /// mark of the end, are still there to dequeue.
    pub fn is_hung_up(&self) -> Result<bool, Error> {
        let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
        poll_for(&mut fds, Some(Instant::now()))?;
        Ok(fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR))
    }
}

impl AsFd for MappedConnection {
    /// For poll and epoll: readable after [`MappedConnection::arm`] when the daemon has published,
    /// and when the daemon is gone. Nothing is to be read from it or written to it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}
