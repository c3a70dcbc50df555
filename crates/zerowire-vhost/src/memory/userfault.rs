//! Guest memory whose pages come later: userfaultfd(2) on this process's mappings.
//!
//! A thread that touches a page which the file does not have yet sleeps. The front end holds the
//! same descriptor: it learns of the fault, puts the page into the file, and wakes the thread.
//! [`Userfault::release`] ends all waits, and from then on missing pages read as zeros.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, OnceLock};

use rustix::io::Errno;
use zerowire_sys::lock;
use zerowire_sys::userfault;

use super::GuestMemory;

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
        let fd = userfault::open()?;
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
        match &*lock(&self.0) {
            Some(registered) => registered.fd.try_clone(),
            None => Err(Errno::BADF.into()),
        }
    }

    /// From now on missing pages of `memory` are waited for.
    ///
    /// # Errors
    /// What the kernel says of a mapping; EBADF after [`Self::release`].
    pub fn register(&self, memory: &GuestMemory) -> io::Result<()> {
        let mut registered = lock(&self.0);
        let Some(registered) = &mut *registered else { return Err(Errno::BADF.into()) };
        // Mappings that are no more are no more registered.
        registered.ranges.clear();
        for region in memory.regions() {
            let range = [region.ptr().addr() as u64, region.len() as u64];
            userfault::register(&registered.fd, range)?;
            registered.ranges.push(range);
        }
        Ok(())
    }

    /// Ends all waits. This side's descriptor is closed.
    pub fn release(&self) {
        let registered = lock(&self.0).take();
        let Some(Registered { fd, ranges }) = registered else { return };
        for range in ranges {
            // One that was unmapped meanwhile is refused, and nobody waits there.
            let _ = userfault::unregister(&fd, range);
        }
    }
}
