//! Writes to a socket: a batch is one sendmmsg(2).
//!
//! A packet socket takes a frame of a message with less work than by write(2). The work is much
//! less than by a ring's WRITE, which goes through the layer of files (`zerowire-bench net --port
//! packet --direction tx`).

use std::os::fd::{AsRawFd, BorrowedFd};

use super::{Done, MAX_BATCH, Op};
use crate::syscall;

/// Headers of the messages; they mean nothing between two calls.
#[derive(Default)]
pub struct Messages(Vec<libc::mmsghdr>);

impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Messages")
    }
}

impl Messages {
    /// Carries out writes, in their order; returns how many system calls it took. Behind a write
    /// for which the socket has no room (EAGAIN) it tries no other.
    ///
    /// # Safety
    /// As [`super::carry_out`], for each of them.
    pub unsafe fn run(&mut self, fd: BorrowedFd<'_>, ops: &[Op], done: &mut Vec<Done>) -> u64 {
        let mut calls = 0;
        let mut left = ops;
        while !left.is_empty() {
            self.0.clear();
            self.0.extend(left.iter().take(MAX_BATCH).map(|op| {
                // SAFETY: a structure of integers and pointers that may be null: all zeroes is a
                // valid value.
                let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
                message.msg_hdr.msg_iov = op.iov.cast_mut();
                message.msg_hdr.msg_iovlen = op.len as usize;
                message
            }));
            calls += 1;
            let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
            let arguments =
                [fd.as_raw_fd() as usize, self.0.as_mut_ptr() as usize, self.0.len(), flags, 0, 0];
            // SAFETY: the headers live until the call returns, and the caller promises so of what
            // they name.
            let taken = match unsafe { syscall::call(libc::SYS_sendmmsg, arguments) } {
                Ok(n) => {
                    let sent = left.iter().zip(&self.0).take(n);
                    done.extend(sent.map(|(op, m)| Done { slot: op.slot, result: m.msg_len as i32 }));
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
