//! Address space: memory for frames, and the mappings of the kernel's rings.
//!
//! A [`Mapping`] owns its pages and unmaps them when dropped. It hands out addresses only; who may read or write which
//! bytes when is the matter of its users ([`super::umem`] for frames, [`super::ring`] for rings).

use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Length of a huge page, bytes.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// `MAP_HUGE_2MB` (include/uapi/linux/mman.h): 21 in the six bits above `MAP_HUGE_SHIFT`, whatever the default length is.
const MAP_HUGE_2MB: u32 = 21 << 26;

/// Readable and writable pages that are unmapped with the value.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a stretch of address space belongs to no thread, and the value itself never reads or writes it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `len` bytes of zeroes, present from the start. With `huge`, of pages of 2 MiB, of which `len` is a multiple.
    pub(super) fn anonymous(len: usize, huge: bool) -> io::Result<Self> {
        let mut flags = MapFlags::PRIVATE | MapFlags::POPULATE;
        if huge {
            flags |= MapFlags::HUGETLB | MapFlags::from_bits_retain(MAP_HUGE_2MB);
        }
        // SAFETY: a new mapping at an address that the kernel chooses touches no other one.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)? };
        Self::kept_from_children(base.cast(), len)
    }

    /// `len` bytes that a socket shares, at `offset` of it.
    pub(super) fn of_socket(socket: BorrowedFd<'_>, len: usize, offset: u64) -> io::Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no other one.
        let base =
            unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, socket, offset)? };
        Self::kept_from_children(base.cast(), len)
    }

    /// Owns a mapping that was just made. A forked child doesn't get it: pages that are shared until one side writes are
    /// replaced by copies that the kernel doesn't know, and a ring that is still mapped keeps its queue busy.
    fn kept_from_children(base: *mut u8, len: usize) -> io::Result<Self> {
        let mapping = Self { base: NonNull::new(base).ok_or(io::Errno::NOMEM)?, len };
        // SAFETY: the range of the mapping; nothing changes in this process.
        unsafe { madvise(base.cast(), len, Advice::LinuxDontFork)? };
        Ok(mapping)
    }

    /// The first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly the range that was mapped; users keep no address beyond the life of the mapping.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
