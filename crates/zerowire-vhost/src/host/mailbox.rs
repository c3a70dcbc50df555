//! A queue of commands to a thread that sleeps in epoll.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;

use rustix::event::{EventfdFlags, eventfd};

use crate::queue::{QueueInlet, QueueOutlet, queue};

/// Sends commands to a thread and wakes it.
#[derive(Debug)]
pub struct Mailbox<C> {
    queue: QueueInlet<C>,
    wake: Arc<OwnedFd>,
}

impl<C> Clone for Mailbox<C> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), wake: self.wake.clone() }
    }
}

impl<C> Mailbox<C> {
    /// Returns false where the thread is gone.
    pub fn send(&self, command: C) -> bool {
        let put = || self.queue.send(command).is_ok();
        // An eventfd is full only if it was not read for 2^64 - 1 writes.
        let ring = || {
            let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
        };
        post(put, ring)
    }
}

/// Puts a command into the queue and rings. The command goes first: who is woken finds it.
fn post(put: impl FnOnce() -> bool, ring: impl FnOnce()) -> bool {
    let sent = put();
    ring();
    sent
}

/// What the receiver does each time it is woken: several commands may have rung once. Returns false
/// where no more can come.
pub fn take_all<S, C>(
    receiver: &mut S,
    next: impl Fn(&mut S) -> Result<C, TryRecvError>,
    carry_out: impl Fn(&mut S, C),
) -> bool {
    loop {
        match next(receiver) {
            Ok(command) => carry_out(receiver, command),
            Err(e) => return e == TryRecvError::Empty,
        }
    }
}

/// A mailbox, its receiving end, and the descriptor that wakes the receiver. It is watched
/// edge-triggered and never read; the receiver calls [`take_all`] each time it is woken.
pub fn mailbox<C>() -> io::Result<(Mailbox<C>, QueueOutlet<C>, Arc<OwnedFd>)> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (inlet, outlet) = queue();
    Ok((Mailbox { queue: inlet, wake: wake.clone() }, outlet, wake))
}

#[cfg(test)]
pub(crate) mod tests;
