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
use zerowire_sys::batch::{self, Messages};
pub use zerowire_sys::batch::{Done, MAX_BATCH, Op};

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

/// The file of one queue of a port, and the batch that is made for it.
#[derive(Debug)]
pub struct PortIo {
    file: Arc<OwnedFd>,
    batch: Vec<Op>,
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
        let (batch, done) = (Vec::with_capacity(MAX_BATCH), Vec::with_capacity(MAX_BATCH));
        Self { file: file.into(), batch, done, by: IoCalls::Plain, calls: 0, lost: false }
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

    /// Adds an operation to the batch, at most [`MAX_BATCH`] of them. A batch has reads or writes,
    /// not both.
    ///
    /// # Safety
    /// The iovec array and the memory that it names must be valid until [`Self::run`] has returned.
    #[inline]
    pub unsafe fn push(&mut self, op: Op) {
        self.batch.push(op);
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

    /// Carries out an operation at once, by a system call of its own; not to be mixed with
    /// [`Self::push`] in one batch.
    ///
    /// # Safety
    /// As [`Self::push`], until this returns.
    #[inline]
    pub unsafe fn carry_out(&mut self, op: Op) {
        // SAFETY: the caller's promise.
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

    /// Runs the batch. Returns the results in the order in which the operations were carried out,
    /// and how many system calls they took.
    #[inline]
    pub fn run(&mut self) -> (&[Done], u64) {
        let Self { file, batch, done, by, calls, .. } = self;
        // SAFETY: the callers of `push` have promised that all is valid until this returns.
        let made = unsafe { run(file.as_fd(), by, batch, done) };
        (done, std::mem::take(calls) + made)
    }

    /// As [`Self::run`], for a batch that the caller has collected: it is empty afterwards.
    ///
    /// # Safety
    /// As [`Self::push`], for each operation.
    #[inline]
    pub unsafe fn run_with(&mut self, batch: &mut Vec<Op>) -> (&[Done], u64) {
        let Self { file, done, by, calls, .. } = self;
        // SAFETY: the caller's promise.
        let made = unsafe { run(file.as_fd(), by, batch, done) };
        (done, std::mem::take(calls) + made)
    }

    /// Forgets the results of the last batch. Call it before the next one is pushed.
    #[inline]
    pub fn clear(&mut self) {
        debug_assert!(self.batch.is_empty(), "the last batch was pushed and not run");
        self.done.clear();
    }
}

/// Runs a batch, which is empty afterwards; returns how many system calls it took.
///
/// # Safety
/// As [`PortIo::push`], for each operation.
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
