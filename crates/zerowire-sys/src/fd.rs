//! Descriptors by their numbers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::io;

use crate::syscall;

/// A duplicate of whatever is open by this number, closed on exec.
///
/// # Errors
/// EBADF where nothing is; EMFILE.
pub fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Errno::BADF);
    }
    // SAFETY: the number is used for one call, which fails where nothing is open by it.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    io::fcntl_dupfd_cloexec(fd, 0)
}

/// Whether a file without a type (an anonymous inode) takes 8 bytes by write(2). Nothing is
/// written: the kernel can't read the bytes. A file that can't be written says so before. For other
/// files it tells nothing, and may wait: for room in a pipe or a socket.
pub fn takes_eight_bytes(fd: impl AsFd) -> bool {
    let arguments = [fd.as_fd().as_raw_fd() as usize, 0, 8, 0, 0, 0];
    // SAFETY: the kernel reads no memory of this process: nothing is mapped at address 0.
    let written = unsafe { syscall::call(libc::SYS_write, arguments) };
    written == Err(libc::EFAULT)
}
