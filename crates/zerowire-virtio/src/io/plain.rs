//! An operation as a system call.

use std::os::fd::RawFd;

use zerowire_sys::syscall;

use super::{Done, Op};

/// Carries out operations of a batch, one behind the other; returns how many system calls it took.
/// Nothing else is done between two of them. What a program does there costs the kernel's code its
/// place in the processor's first-level cache and predictors.
///
/// # Safety
/// As [`super::PortIo::push`], for each of them.
pub(super) unsafe fn run(fd: RawFd, ops: &mut Vec<Op>, done: &mut Vec<Done>) -> u64 {
    let mut calls = 0;
    let mut empty = false;
    for op in ops.drain(..) {
        // Behind a read that found nothing a further one finds nothing either.
        if empty && !op.write {
            done.push(Done { slot: op.slot, result: -libc::EAGAIN });
            continue;
        }
        // SAFETY: the caller's promise.
        let result = unsafe { carry_out(fd, op) };
        empty = result.result == -libc::EAGAIN;
        done.push(result);
        calls += 1;
    }
    calls
}

/// One operation as one system call on a descriptor that does not block.
///
/// # Safety
/// As [`super::PortIo::push`].
#[inline]
pub(super) unsafe fn carry_out(fd: RawFd, op: Op) -> Done {
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
    let result = match unsafe { syscall::call(number, [fd as usize, at, len, 0, 0, 0]) } {
        Ok(n) => n as i32,
        Err(errno) => -errno,
    };
    Done { slot: op.slot, result }
}
