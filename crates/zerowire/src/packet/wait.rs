//! Waits for frames to come back.
//!
//! A packet socket is writable (POLLOUT) as long as its buffer is less than half full, whatever its
//! slots do. So a plain poll(2) would return at once and turn in circles. The event itself tells of
//! a returned frame: each one wakes the writers of the socket (`sock_wfree`), and an edge-triggered
//! epoll(7) reports it once. An epoll that watches costs about 150 ns a frame, however, so it
//! watches only while somebody waits.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use super::link::PacketLink;
use crate::send::frame::{FrameError, FrameSender, RETRY};

/// The kernel wakes nobody while the socket's buffer is more than half full: look again after this
/// time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A sender that waits for its frames.
pub(super) trait WaitsForFrames: FrameSender + Sized {
    /// What it waits by.
    fn waiter(&mut self) -> (&mut Waiter, &PacketLink);

    /// Hands frames over until it is `done`. None when it is; the time that passed where `timeout`
    /// is over before.
    fn wait_until(
        &mut self,
        timeout: Duration,
        done: impl FnMut(&mut Self) -> bool,
    ) -> Result<Option<Duration>, FrameError> {
        let late = self.flush_until(timeout, done);
        let (waiter, link) = self.waiter();
        waiter.stop(link.fd());
        late
    }

    /// As [`wait_until`](Self::wait_until), which ends what this begins.
    fn flush_until(
        &mut self,
        timeout: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) -> Result<Option<Duration>, FrameError> {
        let start = Instant::now();
        loop {
            self.flush()?;
            if done(self) {
                return Ok(None);
            }
            let waited = start.elapsed();
            let Some(left) = timeout.checked_sub(waited).filter(|t| !t.is_zero()) else {
                return Ok(Some(waited));
            };
            let (waiter, link) = self.waiter();
            waiter.pause(link, left)?;
        }
    }
}

pub(super) struct Waiter {
    epoll: OwnedFd,
    watching: bool,
    /// The interface's queue was full at the last flush.
    pub(super) queue_full: bool,
}

impl Waiter {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, watching: false, queue_full: false })
    }

    /// Sleeps until something may have changed, `left` at the longest.
    fn pause(&mut self, link: &PacketLink, left: Duration) -> Result<(), FrameError> {
        if self.queue_full {
            // A full queue wakes nobody when it has room again.
            std::thread::sleep(left.min(RETRY));
            return Ok(());
        }
        self.wait(link.fd(), left).map_err(|e| link.error("epoll_wait", e, 0))
    }

    /// Waits until frames came back since the last call, or for a short while, or for `timeout`.
    /// The first call only begins to watch: what came back before it is not reported, so look
    /// again.
    fn wait(&mut self, socket: BorrowedFd<'_>, timeout: Duration) -> io::Result<()> {
        if self.watching {
            return self.next(timeout.min(LOOK_AGAIN));
        }
        let flags = epoll::EventFlags::OUT | epoll::EventFlags::ET;
        epoll::add(&self.epoll, socket, epoll::EventData::new_u64(0), flags)?;
        self.watching = true;
        // Drops the first event: the socket was writable before.
        self.next(Duration::ZERO)
    }

    /// Ends a series of waits.
    fn stop(&mut self, socket: BorrowedFd<'_>) {
        if std::mem::take(&mut self.watching) {
            // It fails only for a socket that isn't watched.
            let _ = epoll::delete(&self.epoll, socket);
        }
    }

    fn next(&self, timeout: Duration) -> io::Result<()> {
        let spec = rustix::time::Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [none];
        match epoll::wait(&self.epoll, &mut events[..], Some(&spec)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}
