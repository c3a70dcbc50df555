//! How frames pass between memory and a port's file: in batches by io_uring, or by plain system calls.
//!
//! Both do their work before [`PortIo::run`] returns: nothing is lent to the kernel across calls, so that a ring
//! can stop, or memory go, between two batches. Reads and writes carry `RWF_NOWAIT`: a tap that has no frame
//! says so at once, where io_uring would otherwise park the request.

mod lists;
mod messages;
mod plain;
mod uring;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

pub use lists::{Full, Lists};
use messages::Messages;
use uring::Uring;

/// Most operations in a batch.
pub const MAX_BATCH: usize = 64;

/// Which engine to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring where the kernel has what is needed, plain system calls elsewhere.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// Plain system calls.
    Syscall,
}

/// One finished operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The number given with the operation.
    pub slot: u16,
    /// Bytes moved, or a negated errno.
    pub result: i32,
}

/// An operation to run. The iovec array and the memory must stay valid until [`PortIo::run`] returns.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Comes back in [`Done`].
    pub slot: u16,
    /// Read into the segments, or write from them.
    pub write: bool,
    /// The segments: one of the [`Lists`] of the batch.
    pub iov: *const libc::iovec,
    /// How many.
    pub len: u32,
}

#[derive(Debug)]
enum Backend {
    Uring(Box<Uring>),
    Plain,
}

/// The file of one queue of a port, with the engine that serves it.
#[derive(Debug)]
pub struct PortIo {
    // The engine goes before the file.
    backend: Backend,
    file: OwnedFd,
    done: Vec<Done>,
    /// Operations that are system calls of their own.
    alone: Vec<Op>,
    /// The port is a socket: writes are messages.
    messages: Option<Messages>,
    /// Operations for the ring that come behind others.
    behind: Vec<Op>,
    /// System calls made for the batch so far.
    calls: u64,
    /// Why plain system calls run although io_uring was wanted.
    fallback: Option<String>,
}

impl PortIo {
    /// Serves `file` with `engine`. `Engine::Auto` never fails for the lack of io_uring; see [`Self::describe`].
    pub fn new(file: OwnedFd, engine: Engine) -> io::Result<Self> {
        let mut fallback = None;
        let backend = match engine {
            Engine::Syscall => Backend::Plain,
            Engine::Uring => Backend::Uring(Box::new(Uring::new(file.as_raw_fd())?)),
            Engine::Auto => match Uring::new(file.as_raw_fd()) {
                Ok(u) => Backend::Uring(Box::new(u)),
                Err(e) => {
                    fallback = Some(e.to_string());
                    Backend::Plain
                }
            },
        };
        Ok(Self {
            backend,
            file,
            done: Vec::with_capacity(MAX_BATCH),
            alone: Vec::with_capacity(MAX_BATCH),
            messages: None,
            behind: Vec::new(),
            calls: 0,
            fallback,
        })
    }

    /// The port is a socket: writes go out as messages, a batch a system call (sendmmsg).
    #[must_use]
    pub fn to_socket(mut self) -> Self {
        self.messages = Some(Messages::default());
        self
    }

    /// The path that runs, and why, in words for the log.
    pub fn describe(&self) -> String {
        let messages = if self.messages.is_some() { "sendmmsg; " } else { "" };
        format!("{messages}{}", self.describe_engine())
    }

    fn describe_engine(&self) -> String {
        match (&self.backend, &self.fallback) {
            (Backend::Uring(_), _) => "io_uring".to_owned(),
            (Backend::Plain, None) => "plain system calls, as asked".to_owned(),
            (Backend::Plain, Some(why)) => format!("plain system calls, since {why}"),
        }
    }

    /// The port's file.
    pub fn port(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Adds an operation to the batch, at most [`MAX_BATCH`] of them. Writes of one buffer at the front of a batch are system
    /// calls of their own, which cost less than a place in a ring (`zerowire bench net --direction tx --sizes 64,1500`).
    ///
    /// # Safety
    /// The iovec array and the memory that it names must be valid until [`Self::run`] has returned.
    #[inline]
    pub unsafe fn push(&mut self, op: Op) {
        // What was pushed before goes out before: once the ring has something, all that follows goes there.
        let is_alone = op.write && (op.len == 1 || self.messages.is_some());
        match &mut self.backend {
            Backend::Uring(u) if is_alone && self.behind.is_empty() && u.is_idle() => self.alone.push(op),
            Backend::Uring(_) if !self.alone.is_empty() => self.behind.push(op),
            // SAFETY: the caller's promise.
            Backend::Uring(u) => unsafe { u.push(op) },
            Backend::Plain => self.alone.push(op),
        }
    }

    /// As [`Self::push`], to be carried out by a system call of its own. For reads into one buffer, and for long ones, that is
    /// cheaper than a place in a ring (`zerowire bench net --direction rx --sizes 64,60000`); not to be mixed with `push` in one
    /// batch.
    ///
    /// # Safety
    /// As [`Self::push`].
    #[inline]
    pub unsafe fn push_alone(&mut self, op: Op) {
        self.alone.push(op);
    }

    /// Carries out an operation at once, by a system call of its own; not to be mixed with [`Self::push`] in one batch.
    ///
    /// # Safety
    /// As [`Self::push`], until this returns.
    #[inline]
    pub unsafe fn carry_out(&mut self, op: Op) {
        // SAFETY: the caller's promise.
        self.done.push(unsafe { plain::carry_out(self.file.as_raw_fd(), op) });
        self.calls += 1;
    }

    /// Bytes that can be handed to a socket before it is full, as it counts them: what it may have in the kernel less what it
    /// has. None where the port is no socket.
    pub fn send_room(&self) -> Option<usize> {
        let most = rustix::net::sockopt::socket_send_buffer_size(&self.file).ok()?;
        let mut used: libc::c_int = 0;
        // SAFETY: TIOCOUTQ writes an int (SIOCOUTQ, net/packet/af_packet.c: `packet_ioctl`).
        let done = unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TIOCOUTQ, &raw mut used) };
        (done == 0).then(|| most.saturating_sub(used.max(0) as usize))
    }

    /// What came of the operation that was carried out last in this batch; None where all of them wait for [`Self::run`].
    #[inline]
    pub fn last_result(&self) -> Option<i32> {
        self.done.last().map(|d| d.result)
    }

    /// Runs the batch and returns what came of it, in the order in which the operations were carried out, and how
    /// many system calls it took.
    #[inline]
    pub fn run(&mut self) -> io::Result<(&[Done], u64)> {
        let mut calls = std::mem::take(&mut self.calls);
        // SAFETY: the callers of `push` and `push_alone` have promised that all is valid until this returns.
        calls += unsafe { self.run_alone() };
        if let Backend::Uring(u) = &mut self.backend {
            for op in self.behind.drain(..) {
                // SAFETY: the callers of `push` have promised that all is valid until this returns.
                unsafe { u.push(op) };
            }
            calls += u.run(self.file.as_raw_fd(), &mut self.done)?;
        }
        Ok((&self.done, calls))
    }

    /// # Safety
    /// As [`Self::push`], for all that was pushed.
    #[inline]
    unsafe fn run_alone(&mut self) -> u64 {
        let fd = self.file.as_raw_fd();
        match &mut self.messages {
            Some(messages) if self.alone.first().is_some_and(|op| op.write) => {
                // SAFETY: the caller's promise.
                let calls = unsafe { messages.run(fd, &self.alone, &mut self.done) };
                self.alone.clear();
                calls
            }
            // SAFETY: the caller's promise.
            _ => unsafe { plain::run(fd, &mut self.alone, &mut self.done) },
        }
    }

    /// Forgets the results of the last batch; to be called before the next one is pushed.
    #[inline]
    pub fn clear(&mut self) {
        debug_assert!(
            self.alone.is_empty()
                && self.behind.is_empty()
                && !matches!(&self.backend, Backend::Uring(u) if !u.is_idle()),
            "the last batch was pushed and not run"
        );
        self.done.clear();
    }
}
