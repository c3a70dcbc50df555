//! How frames pass between memory and a port's file: by system calls, one a frame, or one a batch
//! where the port is a socket.
//!
//! All is done before [`PortIo::run`] returns, and nothing is lent to the kernel across calls. So a
//! ring can stop, or memory go, between two batches. The file does not block: a port without a
//! frame says so at once.

mod lists;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

pub use lists::{Full, Lists};
use zerowire_sys::batch::{self, Messages, Op};
pub use zerowire_sys::batch::{Done, MAX_BATCH};

/// By which system calls.
#[derive(Debug)]
enum IoCalls {
    /// read(2), readv(2), write(2), writev(2).
    Plain,
    /// Those of a socket: sendmmsg(2) writes a batch.
    Batches(Messages),
    /// Those of a socket on which nothing may name a receiver: recvmsg(2), write(2), writev(2).
    Bound,
}

/// The file of one queue of a port, and what came of the batch that it carried out last.
#[derive(Debug)]
pub struct PortIo {
    file: Arc<OwnedFd>,
    done: Vec<Done>,
    by: IoCalls,
    /// System calls made for the batch so far.
    calls: u64,
    /// True: a call found that the interface is gone, since [`Self::take_lost`].
    lost: bool,
}

impl PortIo {
    /// Serves `file`, which does not block.
    pub fn new(file: impl Into<Arc<OwnedFd>>) -> Self {
        let done = Vec::with_capacity(MAX_BATCH);
        Self { file: file.into(), done, by: IoCalls::Plain, calls: 0, lost: false }
    }

    /// The port is a socket: writes go out as messages, a batch a system call (sendmmsg).
    #[must_use]
    pub fn to_socket(mut self) -> Self {
        self.by = IoCalls::Batches(Messages::default());
        self
    }

    /// The port is a socket that is bound, in a process that may not name a receiver.
    #[must_use]
    pub(crate) fn for_bound_socket(mut self) -> Self {
        self.by = IoCalls::Bound;
        self
    }

    /// The path that runs, in words for the log.
    pub fn describe(&self) -> &'static str {
        match self.by {
            IoCalls::Batches(_) => "a system call a batch out (sendmmsg), one a frame in",
            IoCalls::Plain | IoCalls::Bound => "a system call a frame",
        }
    }

    /// The port's file.
    pub fn port(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A call found that the interface is gone.
    #[cold]
    pub fn set_lost(&mut self) {
        self.lost = true;
    }

    /// Whether a call found that the interface is gone since this was asked last.
    #[inline]
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Writes a list at once, by a system call of its own: the one that begins at `start`, which is
    /// the last one and not empty. Not to be mixed with [`Lists::queue`] in one batch.
    #[inline]
    pub fn write_now(&mut self, lists: &mut Lists, slot: u16, start: usize) {
        let op = lists.operation(slot, true, start);
        // SAFETY: as in `run`.
        self.done.push(unsafe { batch::carry_out(self.file.as_fd(), op) });
        self.calls += 1;
    }

    /// Bytes that a socket takes before it is full, as the socket counts them: its limit less what
    /// is unsent. None where the port is not a socket.
    pub fn send_room(&self) -> Option<usize> {
        let most = rustix::net::sockopt::socket_send_buffer_size(&self.file).ok()?;
        let used = zerowire_sys::socket::unsent(&self.file).ok()?;
        Some(most.saturating_sub(used))
    }

    /// What came of the operation that was carried out last in this batch; None where all of them
    /// wait for [`Self::run`].
    #[inline]
    pub fn last_result(&self) -> Option<i32> {
        self.done.last().map(|d| d.result)
    }

    /// Runs the operations that are queued. Returns the results of the batch in the order in which
    /// the operations were carried out, and how many system calls they took.
    #[inline]
    pub fn run(&mut self, lists: &mut Lists) -> (&[Done], u64) {
        let Self { file, done, by, calls, .. } = self;
        // SAFETY: the lists of the operations stay where they are (`Lists`). They name guest
        // memory, which who runs the turn holds, and private memory of `lists`, which is borrowed
        // exclusively.
        let made = unsafe { run(file.as_fd(), by, lists.queued(), done) };
        (done, std::mem::take(calls) + made)
    }

    /// Forgets the results of the last batch. Call it before the next one is queued.
    #[inline]
    pub fn clear(&mut self) {
        self.done.clear();
    }
}

/// Runs a batch, which is empty afterwards; returns how many system calls it took.
///
/// # Safety
/// As [`batch::carry_out`], for each operation.
#[inline]
unsafe fn run(fd: BorrowedFd<'_>, by: &mut IoCalls, batch: &mut Vec<Op>, done: &mut Vec<Done>) -> u64 {
    match by {
        IoCalls::Batches(messages) if batch.first().is_some_and(|op| op.write) => {
            // SAFETY: the caller's promise.
            let calls = unsafe { messages.run(fd, batch, done) };
            batch.clear();
            calls
        }
        // SAFETY: as above.
        IoCalls::Bound => unsafe { batch::run_on_socket(fd, batch, done) },
        // SAFETY: as above.
        _ => unsafe { batch::run(fd, batch, done) },
    }
}
