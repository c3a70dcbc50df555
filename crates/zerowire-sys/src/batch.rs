//! Reads and writes over scatter lists, a batch at a time, on a file that does not block.
//!
//! Memory: all is done when a call returns, and nothing is lent to the kernel after it. Who makes
//! an [`Op`] answers for its list and for what that names.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::socket::{self, messages::MessageHeaders};
use crate::syscall;

/// Most operations in a batch.
pub const MAX_BATCH: usize = 64;

/// One finished operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The number given with the operation.
    pub slot: u16,
    /// Bytes moved, or a negated errno.
    pub result: i32,
}

/// An operation to run.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Comes back in [`Done`].
    pub slot: u16,
    /// Read into the segments, or write from them.
    pub write: bool,
    /// The segments.
    pub iov: *const libc::iovec,
    /// How many; at least one.
    pub len: u32,
}

/// Carries out operations of a batch, one behind the other; returns how many system calls it took.
/// Nothing else is done between two of them. What a program does there costs the kernel's code its
/// place in the processor's first-level cache and predictors.
///
/// # Safety
/// As [`carry_out`], for each of them.
pub unsafe fn run(fd: BorrowedFd<'_>, ops: &mut Vec<Op>, done: &mut Vec<Done>) -> u64 {
    // SAFETY: the caller's promise.
    run_by(ops, done, |op| unsafe { carry_out(fd, op) })
}

/// As [`run`], on a socket from which messages are read by recvmsg(2).
///
/// # Safety
/// As [`run`].
pub unsafe fn run_on_socket(fd: BorrowedFd<'_>, ops: &mut Vec<Op>, done: &mut Vec<Done>) -> u64 {
    // SAFETY: the caller's promise.
    run_by(ops, done, |op| unsafe { if op.write { carry_out(fd, op) } else { receive(fd, op) } })
}

#[inline]
fn run_by(ops: &mut Vec<Op>, done: &mut Vec<Done>, carry_out: impl Fn(Op) -> Done) -> u64 {
    let mut calls = 0;
    let mut empty = false;
    for op in ops.drain(..) {
        // Behind a read that found nothing a further one finds nothing either.
        if empty && !op.write {
            done.push(Done { slot: op.slot, result: -libc::EAGAIN });
            continue;
        }
        let result = carry_out(op);
        empty = result.result == -libc::EAGAIN;
        done.push(result);
        calls += 1;
    }
    calls
}

/// Takes one message from a socket.
///
/// # Safety
/// As [`carry_out`].
unsafe fn receive(fd: BorrowedFd<'_>, op: Op) -> Done {
    // SAFETY: the caller promises that the list is valid, and what it names.
    let received = unsafe { socket::receive(fd, std::slice::from_raw_parts(op.iov, op.len as usize)) };
    Done { slot: op.slot, result: received.map_or_else(|errno| -errno, |received| received.len as i32) }
}

/// One operation as one system call on a descriptor that does not block.
///
/// # Safety
/// The list is valid until this returns. What it names is readable for a write. For a read it is
/// writable, and no Rust reference points to it. Others may change it meanwhile.
#[inline]
pub unsafe fn carry_out(fd: BorrowedFd<'_>, op: Op) -> Done {
    // SAFETY: the caller promises that the array is valid.
    let first = unsafe { *op.iov };
    let one = (first.iov_base as usize, first.iov_len);
    let list = (op.iov as usize, op.len as usize);
    let (number, (at, len)) = match (op.write, op.len) {
        (true, 1) => (libc::SYS_write, one),
        (false, 1) => (libc::SYS_read, one),
        (true, _) => (libc::SYS_writev, list),
        (false, _) => (libc::SYS_readv, list),
    };
    // SAFETY: the caller promises that the memory is valid.
    let result = match unsafe { syscall::call(number, [fd.as_raw_fd() as usize, at, len, 0, 0, 0]) } {
        Ok(n) => n as i32,
        Err(errno) => -errno,
    };
    Done { slot: op.slot, result }
}

/// Writes to a socket: a batch is one sendmmsg(2).
///
/// A packet socket takes a frame of a message with less work than by write(2). The work is much
/// less than by a ring's WRITE, which goes through the layer of files (`zerowire-bench net --port
/// packet --direction tx`).
///
/// Memory: headers of the messages, which mean nothing between two calls.
#[derive(Debug, Default)]
pub struct Messages(MessageHeaders);

impl Messages {
    /// Carries out writes, in their order; returns how many system calls it took. Behind a write
    /// for which the socket has no room (EAGAIN) it tries no other.
    ///
    /// # Safety
    /// As [`carry_out`], for each of them.
    pub unsafe fn run(&mut self, fd: BorrowedFd<'_>, ops: &[Op], done: &mut Vec<Done>) -> u64 {
        let mut calls = 0;
        let mut left = ops;
        while !left.is_empty() {
            self.0.clear();
            for op in left.iter().take(MAX_BATCH) {
                self.0.push(op.iov, op.len as usize);
            }
            calls += 1;
            // SAFETY: the caller promises that the lists are valid, and what they name.
            let taken = match unsafe { self.0.send(fd, 0) } {
                Ok(n) => {
                    let sent = left.iter().zip(self.0.lens()).take(n);
                    done.extend(sent.map(|(op, len)| Done { slot: op.slot, result: len as i32 }));
                    n
                }
                Err(libc::EINTR) => 0,
                Err(libc::EAGAIN) => {
                    done.extend(left.iter().map(|op| Done { slot: op.slot, result: -libc::EAGAIN }));
                    left.len()
                }
                // That of the first one.
                Err(errno) => {
                    done.extend(left.first().map(|op| Done { slot: op.slot, result: -errno }));
                    1
                }
            };
            left = left.get(taken..).unwrap_or(&[]);
        }
        calls
    }
}

#[cfg(test)]
mod tests;
