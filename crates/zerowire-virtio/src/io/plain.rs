//! The engine without io_uring: an operation is a system call, made at once.

use std::os::fd::RawFd;

use super::{Done, FixedPieces, Op};

#[derive(Debug, Default)]
pub(super) struct Plain {
    fixed: FixedPieces,
}

impl Plain {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn fixed(&self) -> &FixedPieces {
        &self.fixed
    }
}

/// Carries out an operation of a batch; how many system calls it took.
///
/// # Safety
/// As [`super::PortIo::push`].
#[inline]
pub(super) unsafe fn push(fd: RawFd, op: Op, done: &mut Vec<Done>) -> u64 {
    // Behind a read that found nothing a further one is in vain.
    let empty = !op.write && done.last().is_some_and(|d| d.result == -libc::EAGAIN);
    if empty {
        done.push(Done { slot: op.slot, result: -libc::EAGAIN });
        return 0;
    }
    // SAFETY: the caller's promise.
    done.push(unsafe { carry_out(fd, op) });
    1
}

/// One operation as one system call on a descriptor that does not block.
///
/// # Safety
/// As [`super::PortIo::push`].
#[inline]
pub(super) unsafe fn carry_out(fd: RawFd, op: Op) -> Done {
    // SAFETY: the caller promises that the array is valid.
    let first = unsafe { *op.iov };
    let n = match (op.write, op.len) {
        // SAFETY: the caller promises that the memory is valid.
        (true, 1) => unsafe { libc::write(fd, first.iov_base, first.iov_len) },
        // SAFETY: as above.
        (false, 1) => unsafe { libc::read(fd, first.iov_base, first.iov_len) },
        // SAFETY: as above.
        (true, len) => unsafe { libc::writev(fd, op.iov, len as libc::c_int) },
        // SAFETY: as above.
        (false, len) => unsafe { libc::readv(fd, op.iov, len as libc::c_int) },
    };
    let result =
        if n < 0 { -std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) } else { n as i32 };
    Done { slot: op.slot, result }
}
