//! Guest memory whose pages come later: userfaultfd(2) on this process's mappings.
//!
//! A thread that touches a page which the file does not have yet sleeps. The front end holds the
//! same descriptor: it learns of the fault, puts the page into the file, and wakes the thread.
//! [`Userfault::release`] ends all waits, and from then on missing pages read as zeros.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, OnceLock, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::UserfaultfdFlags;

use super::GuestMemory;

// linux/userfaultfd.h
const UFFD_API: u64 = 0xaa;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const USERFAULTFD_IOC_NEW: libc::c_ulong = 0xaa00;
const MODE_MISSING: u64 = 1;

/// A descriptor, and the mappings that are registered with it.
#[derive(Debug)]
pub struct Userfault(Mutex<Option<Registered>>);

#[derive(Debug)]
struct Registered {
    fd: OwnedFd,
    /// First address and bytes.
    ranges: Vec<[u64; 2]>,
}

impl Userfault {
    /// Opens one for faults of the kernel, too: it reads and writes guest memory in system calls.
    ///
    /// # Errors
    /// EPERM without CAP_SYS_PTRACE, unless vm.unprivileged_userfaultfd is 1 or /dev/userfaultfd
    /// can be opened; ENOSYS where the kernel has none.
    pub fn open() -> io::Result<Self> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: a new descriptor; nothing is registered with it.
        let fd = match unsafe { rustix::mm::userfaultfd(flags) } {
            Err(Errno::PERM) => open_by_device()?,
            fd => fd?,
        };
        ioctl(&fd, UFFDIO_API, &mut [UFFD_API, 0, 0])?;
        Ok(Self(Mutex::new(Some(Registered { fd, ranges: Vec::new() }))))
    }

    /// Whether this process can open one. Asks once.
    pub fn is_available() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        *AVAILABLE.get_or_init(|| Self::open().is_ok())
    }

    /// The descriptor for the front end.
    ///
    /// # Errors
    /// EMFILE; EBADF after [`Self::release`].
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(registered) => registered.fd.try_clone(),
            None => Err(Errno::BADF.into()),
        }
    }

    /// From now on missing pages of `memory` are waited for.
    ///
    /// # Errors
    /// What the kernel says of a mapping; EBADF after [`Self::release`].
    pub fn register(&self, memory: &GuestMemory) -> io::Result<()> {
        let mut registered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(registered) = &mut *registered else { return Err(Errno::BADF.into()) };
        // Mappings that are no more are no more registered.
        registered.ranges.clear();
        for region in memory.regions() {
            let range = [region.ptr().addr() as u64, region.len() as u64];
            ioctl(&registered.fd, UFFDIO_REGISTER, &mut [range[0], range[1], MODE_MISSING, 0])?;
            registered.ranges.push(range);
        }
        Ok(())
    }

    /// Ends all waits. This side's descriptor is closed.
    pub fn release(&self) {
        let registered = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Registered { fd, ranges }) = registered else { return };
        for mut range in ranges {
            // One that was unmapped meanwhile is refused, and nobody waits there.
            let _ = ioctl(&fd, UFFDIO_UNREGISTER, &mut range);
        }
    }
}

/// The way that goes by the rights of a file.
fn open_by_device() -> io::Result<OwnedFd> {
    let device = rustix::fs::open("/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let flags = libc::c_ulong::from((libc::O_CLOEXEC | libc::O_NONBLOCK) as u32);
    // SAFETY: takes flags and no pointer; gives a new descriptor or an error.
    let fd = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for this function.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `argument` is as long as the request says (its bits 16 to 29).
fn ioctl<const N: usize>(fd: &OwnedFd, request: libc::c_ulong, argument: &mut [u64; N]) -> io::Result<()> {
    debug_assert_eq!((request >> 16) as usize & 0x3fff, 8 * N);
    // SAFETY: the kernel reads and writes as many bytes as `argument` has. What is registered are
    // mappings of guest memory, to which nobody holds a reference.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, argument.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
