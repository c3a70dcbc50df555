//! Descriptors by their numbers.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::{self, FdFlags};

use crate::syscall;

/// Whether anything is open by this number.
pub fn is_open(number: RawFd) -> bool {
    // SAFETY: the number is used for one call, which fails where nothing is open by it.
    number >= 0 && io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).is_ok()
}

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

/// The descriptor of this number, which the process was started with.
///
/// All that this program opens is closed on exec. What is not came with the start, and nobody owns
/// it. It is closed on exec from now on: so each can be taken once.
///
/// # Errors
/// EBADF where nothing is open by this number, or what is open is closed on exec.
pub fn take_inherited(number: RawFd) -> io::Result<OwnedFd> {
    if number < 0 {
        return Err(io::Errno::BADF);
    }
    // SAFETY: the number is used for two calls, which fail where nothing is open by it.
    let fd = unsafe { BorrowedFd::borrow_raw(number) };
    if io::fcntl_getfd(fd)?.contains(FdFlags::CLOEXEC) {
        return Err(io::Errno::BADF);
    }
    io::fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and no value owns it: those of this program are closed on exec.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
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

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_was_inherited_is_taken_once() {
        let (socket, _peer) = UnixStream::pair().expect("sockets");
        let own = socket.as_raw_fd();
        assert_eq!(take_inherited(own).expect_err("this program opened it"), io::Errno::BADF);
        io::fcntl_setfd(&socket, FdFlags::empty()).expect("flags");
        let inherited = take_inherited(socket.into_raw_fd()).expect("as if it came with the start");
        assert_eq!(take_inherited(own).expect_err("it is taken"), io::Errno::BADF);
        assert!(is_open(own) && !is_open(-1) && !is_open(i32::MAX));
        assert!(io::fcntl_getfd(&inherited).expect("flags").contains(FdFlags::CLOEXEC));
        assert_eq!(take_inherited(-1).expect_err("no number of a descriptor"), io::Errno::BADF);
    }
}
