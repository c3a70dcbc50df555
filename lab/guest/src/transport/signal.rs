//! Doorbells and interrupts: eventfds, or what a bus has.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::Doorbell;
use super::pci::UioInterrupt;

/// An eventfd.
impl Doorbell for OwnedFd {
    fn ring(&self) -> io::Result<()> {
        match rustix::io::write(self, &1u64.to_ne_bytes()) {
            // EAGAIN: the counter is full, so the device is notified anyway.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// What a device signals: an eventfd, or an interrupt that queues share.
#[derive(Debug)]
pub struct Interrupt(InterruptSource);

#[derive(Debug)]
enum InterruptSource {
    Counter(OwnedFd),
    /// An interrupt of a whole device. Its queues share it, so one thread must
    /// wait for all of them, and look at all of them after it.
    Shared(Arc<UioInterrupt>),
}

impl Interrupt {
    /// Makes an eventfd.
    ///
    /// # Errors
    /// What eventfd(2) returns.
    pub fn new() -> io::Result<Interrupt> {
        new_eventfd().map(Interrupt::from_fd)
    }

    /// Uses a descriptor that reads like an eventfd and does not block.
    pub(crate) fn from_fd(fd: OwnedFd) -> Interrupt {
        Interrupt(InterruptSource::Counter(fd))
    }

    /// One of the queues that share an interrupt.
    pub(super) fn shared(interrupt: Arc<UioInterrupt>) -> Interrupt {
        Interrupt(InterruptSource::Shared(interrupt))
    }

    /// Whether no other queue takes what it says.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self.0, InterruptSource::Counter(_))
    }

    /// Takes the pending notifications; returns how many there were.
    ///
    /// # Errors
    /// What read(2) returns.
    pub fn clear(&self) -> io::Result<u64> {
        let fd = match &self.0 {
            InterruptSource::Counter(fd) => fd,
            InterruptSource::Shared(interrupt) => return interrupt.clear(),
        };
        let mut count = [0; 8];
        match rustix::io::read(fd, &mut count) {
            Ok(_) => Ok(u64::from_ne_bytes(count)),
            Err(Errno::AGAIN) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits for a notification and leaves it pending. False when `timeout`
    /// ran out first.
    ///
    /// # Errors
    /// What poll(2) returns, except EINTR, which counts as a time-out.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(timeout).ok();
        match poll(&mut [PollFd::new(self, PollFlags::IN)], limit.as_ref()) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            InterruptSource::Counter(fd) => fd.as_fd(),
            InterruptSource::Shared(interrupt) => interrupt.as_fd(),
        }
    }
}

/// Makes an eventfd that does not block: the doorbell of a vhost-user back end.
///
/// # Errors
/// What eventfd(2) returns.
pub fn new_eventfd() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
