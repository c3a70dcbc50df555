//! userfaultfd(2): pages that come later. A thread sleeps when it touches a page of a registered
//! range that the file does not have yet. It sleeps until somebody puts the page there and wakes
//! it, or until the range is unregistered.
//!
//! # Errors
//! Those of the system calls.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};

use crate::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER, USERFAULTFD_IOC_NEW};
use crate::syscall::userfaultfd;

// include/uapi/linux/userfaultfd.h
const UFFD_API: u64 = 0xaa;
const MODE_MISSING: u64 = 1;

const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK);

/// The file that gives descriptors by its rights.
const DEVICE: &str = "/dev/userfaultfd";

/// Opens one for faults of the kernel, too: those inside system calls.
///
/// EPERM without CAP_SYS_PTRACE, unless vm.unprivileged_userfaultfd is 1 or /dev/userfaultfd can be
/// opened; ENOSYS where the kernel has none.
pub fn open() -> io::Result<OwnedFd> {
    let fd = match userfaultfd(FLAGS) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            USERFAULTFD_IOC_NEW.open(open_device()?, FLAGS.bits() as usize)?
        }
        fd => fd?,
    };
    UFFDIO_API.of(&fd, [UFFD_API, 0, 0])?;
    Ok(fd)
}

/// Whether this user may open one: as [`open`], but without a call on the descriptor.
pub fn try_open() -> io::Result<()> {
    match userfaultfd(FLAGS) {
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => open_device().map(drop).map_err(|_| e),
        fd => fd.map(drop),
    }
}

/// From now on missing pages of a range (its first address and its bytes, whole pages) are waited
/// for.
pub fn register(fd: &OwnedFd, [start, len]: [u64; 2]) -> io::Result<()> {
    UFFDIO_REGISTER.of(fd, [start, len, MODE_MISSING, 0]).map(drop)
}

/// Ends all waits for pages of a range; missing ones read as zeros.
pub fn unregister(fd: &OwnedFd, range: [u64; 2]) -> io::Result<()> {
    UFFDIO_UNREGISTER.of(fd, range).map(drop)
}

fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}
