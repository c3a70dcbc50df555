//! Memory that is shared with the kernel: queues and rings.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::AtomicU32;

/// A mapping, unmapped when it is dropped and not inherited by child processes.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    len: usize,
}

impl Mapping {
    /// `len` bytes of what `fd` has at `offset`, shared.
    pub(crate) fn of(fd: &OwnedFd, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), len, access, MapFlags::SHARED | MapFlags::POPULATE, fd, offset)?
        };
        Self::sole(base.cast(), len)
    }

    /// `len` bytes of zeroes.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        // SAFETY: as above.
        let base = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap_anonymous(ptr::null_mut(), len, access, MapFlags::PRIVATE)?
        };
        Self::sole(base.cast(), len)
    }

    fn sole(base: *mut u8, len: usize) -> io::Result<Self> {
        let mapping = Self { base, len };
        // SAFETY: the range was just mapped; the advice changes what a fork copies, not the bytes.
        unsafe { madvise(base.cast(), len, Advice::LinuxDontFork)? };
        Ok(mapping)
    }

    /// Its first byte.
    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// The 32-bit word at `offset` bytes, which the kernel may change at any time. `None`: not inside, or not aligned.
    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicU32> {
        if !offset.is_multiple_of(4) || offset.checked_add(4)? > self.len {
            return None;
        }
        // SAFETY: aligned, inside the mapping, which lives as long as the borrow; all access to it is atomic.
        Some(unsafe { AtomicU32::from_ptr(self.base.wrapping_add(offset).cast()) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: what mmap returned, and nothing borrows it any more.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}
