//! userfaultfd(2): pages that come later. A thread sleeps when it touches a page of a registered
//! range that the file does not have yet. It sleeps until somebody puts the page there and wakes
//! it, or until the range is unregistered.
//!
//! # Errors
//! Those of the system calls.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::UserfaultfdFlags;

use crate::check;

// linux/userfaultfd.h
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xaa00;
const MODE_MISSING: u64 = 1;

/// The file that gives descriptors by its rights.
const DEVICE: &str = "/dev/userfaultfd";

/// Opens one for faults of the kernel, too: those inside system calls.
///
/// EPERM without CAP_SYS_PTRACE, unless vm.unprivileged_userfaultfd is 1 or /dev/userfaultfd can be
/// opened; ENOSYS where the kernel has none.
pub fn open() -> io::Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: a new descriptor; nothing is registered with it.
    let fd = match unsafe { rustix::mm::userfaultfd(flags) } {
        Err(Errno::PERM) => by_device(open_device()?)?,
        fd => fd?,
    };
    ioctl(&fd, UFFDIO_API, &mut [UFFD_API, 0, 0])?;
    Ok(fd)
}

/// Whether this user may open one: as [`open`], but without a call on the descriptor.
pub fn try_open() -> io::Result<()> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: as above.
    match unsafe { rustix::mm::userfaultfd(flags) } {
        Err(Errno::PERM) => open_device().map(drop).map_err(|_| Errno::PERM.into()),
        fd => Ok(fd.map(drop)?),
    }
}

/// From now on missing pages of a range (its first address and its bytes, whole pages) are waited
/// for.
pub fn register(fd: &OwnedFd, [start, len]: [u64; 2]) -> io::Result<()> {
    ioctl(fd, UFFDIO_REGISTER, &mut [start, len, MODE_MISSING, 0])
}

/// Ends all waits for pages of a range; missing ones read as zeros.
pub fn unregister(fd: &OwnedFd, mut range: [u64; 2]) -> io::Result<()> {
    ioctl(fd, UFFDIO_UNREGISTER, &mut range)
}

fn open_device() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

fn by_device(device: OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::c_ulong::from((libc::O_CLOEXEC | libc::O_NONBLOCK) as u32);
    // SAFETY: takes flags and no pointer; gives a new descriptor or an error.
    let fd = check(unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags) })?;
    // SAFETY: the kernel has just made it for this function.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `argument` is as long as the request says (its bits 16 to 29).
fn ioctl<const N: usize>(fd: &OwnedFd, request: libc::c_ulong, argument: &mut [u64; N]) -> io::Result<()> {
    debug_assert_eq!((request >> 16) as usize & 0x3fff, 8 * N);
    // SAFETY: the kernel reads and writes as many bytes as `argument` has. No byte of a range
    // changes.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, argument.as_mut_ptr()) }).map(drop)
}
