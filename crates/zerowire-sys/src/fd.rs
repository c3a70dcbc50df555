//! Descriptors by their numbers.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

use rustix::io;

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
