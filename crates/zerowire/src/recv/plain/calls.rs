//! The system calls of plain receiving.

use crate::recv::core::RecvState;
use rustix::event::Timespec;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

/// Connections that are accepted from one socket at a time.
const ACCEPTS: usize = 64;

/// Bytes that may still be taken from the connection at `place`.
pub(super) fn limit_of(core: &RecvState, place: u32) -> usize {
    let limit = core.connections.get(place as usize).and_then(|c| c.limit);
    limit.map_or(usize::MAX, |l| usize::try_from(l).unwrap_or(usize::MAX))
}

/// Accepts what waits at the listening socket `index`.
pub(super) fn accept(core: &mut RecvState, index: u32) {
    for _ in 0..ACCEPTS {
        let Some(fd) = core.listeners.fd(index).filter(|_| core.listeners.may_accept(index)) else { return };
        core.called();
        match rustix::net::accept_with(borrow(fd), SocketFlags::CLOEXEC) {
            Ok(socket) => core.listeners.accept(index, socket),
            Err(Errno::AGAIN) => return,
            Err(e) => core.listeners.refused(index, e.raw_os_error()),
        }
    }
}

/// Makes a descriptor blocking or not; returns whether it was.
pub(super) fn set_blocking(fd: RawFd, blocking: bool) -> io::Result<bool> {
    let fd = borrow(fd);
    let flags = rustix::fs::fcntl_getfl(fd)?;
    let mut new = flags;
    new.set(OFlags::NONBLOCK, !blocking);
    if new != flags {
        rustix::fs::fcntl_setfl(fd, new)?;
    }
    Ok(!flags.contains(OFlags::NONBLOCK))
}

/// One `recvmsg` that doesn't wait: the bytes received, or the errno.
///
/// # Safety
/// The pieces are memory that nobody else reads or writes during the call.
pub(super) unsafe fn receive(fd: RawFd, pieces: &[libc::iovec]) -> Result<usize, i32> {
    // SAFETY: passed on to the caller.
    unsafe { zerowire_sys::socket::receive(borrow(fd), pieces) }.map(|received| received.len)
}

/// A descriptor of a connection that the core keeps open during the call.
pub(super) fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: it comes from a connection's own descriptor and is used before that can be closed.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

pub(super) fn timespec(timeout: Option<Duration>) -> Option<Timespec> {
    timeout.map(|t| Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: t.subsec_nanos().into(),
    })
}
