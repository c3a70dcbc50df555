//! Calls that are only tried, to tell whether this kernel and this user may make them. Everything
//! made here is owned by the caller and is gone when it is dropped; nothing is shared with another
//! process.
//!
//! # Errors
//! Those of the system calls.

pub mod kvm;

use std::io;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use crate::check;
use crate::map::{Mapping, READ_WRITE};
use crate::uring::wide::{Completions, WideRing};
use crate::uring::zcrx::{Zcrx, ZcrxRequest, ZcrxSource};
use io_uring::IoUring;
use rustix::mm::MapFlags;

/// A socket that is closed on exec; constants of libc.
pub fn socket(family: i32, kind: i32, protocol: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Memory of this process's own, of whole pages: private, or the start of `file` shared.
pub fn map(len: usize, file: Option<BorrowedFd<'_>>) -> io::Result<Mapping> {
    let none = MapFlags::empty();
    Ok(match file {
        None => Mapping::private_with(len, none),
        Some(file) => Mapping::shared_with(file, 0, len, READ_WRITE, none),
    }?)
}

/// Registers the first `len` bytes of `memory` with `ring` and lets go of them again.
pub fn register_and_release(ring: &IoUring, memory: &Mapping, len: usize) -> io::Result<()> {
    let iov = libc::iovec { iov_base: memory.as_ptr().cast(), iov_len: len.min(memory.len()) };
    // SAFETY: the range is mapped, and unregistered before this returns.
    unsafe { ring.submitter().register_buffers(&[iov]) }?;
    ring.submitter().unregister_buffers()
}

/// Registers a ring of `entries` provided buffers at `memory` and lets go of it again.
pub fn register_buffer_ring(ring: &IoUring, memory: &Mapping, entries: u16) -> io::Result<()> {
    assert!(usize::from(entries) * 16 <= memory.len());
    // SAFETY: the memory holds `entries` records of 16 bytes and outlives the registration, which
    // ends here.
    unsafe { ring.submitter().register_buf_ring_with_flags(memory.as_ptr() as u64, entries, 1, 0) }?;
    ring.submitter().unregister_buf_ring(1)
}

/// A ring as zero-copy receive wants it.
pub fn wide_ring() -> io::Result<WideRing> {
    WideRing::new(8, 8, Completions::Wide)
}

/// Tries to register 16 pages for zero-copy receive, on a ring that takes the registration with it.
pub fn register_zcrx(source: ZcrxSource) -> io::Result<()> {
    let ring = wide_ring()?;
    let area = map(16 * rustix::param::page_size(), None)?;
    let request = ZcrxRequest {
        source,
        area: area.as_ptr(),
        area_bytes: area.len(),
        dmabuf: None,
        entries: 64,
        kernel_ring: false,
        buffer_bytes: 0,
        event_data: 0,
    };
    // SAFETY: nobody accesses the area, and the ring ends here.
    unsafe { Zcrx::new(&ring, &request) }.map(drop)
}

/// Whether a child process could `unshare` these namespaces. The child does nothing else and is
/// reaped here.
pub fn unshare_in_child(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the child calls only unshare, errno and _exit, all of which are async-signal-safe.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        // SAFETY: as above; the errno fits the exit status.
        unsafe {
            let failed = libc::unshare(flags) != 0;
            libc::_exit(if failed { *libc::__errno_location() } else { 0 });
        }
    }
    let mut status = 0;
    loop {
        // SAFETY: waits for the child made above and fills `status`.
        match check(unsafe { libc::waitpid(pid, &raw mut status, 0) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(_) => break,
        }
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, errno) => Err(io::Error::from_raw_os_error(errno)),
        (false, _) => Err(io::Error::other("the child was killed")),
    }
}
