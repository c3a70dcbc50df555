//! A mapping that is unmapped when it is dropped.

use super::{AreaError, Pages};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::os::fd::AsFd;
use std::ptr;

/// Bytes of a huge page on x86-64 and arm64 with 4 KiB base pages.
const HUGE_BYTES: usize = 2 << 20;

/// A mapping. It hands out its address only; who may touch which bytes is the business of `Lease` and `FileSlice`.
#[derive(Debug)]
pub(super) struct Map {
    base: *mut u8,
    len: usize,
    mapped: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread, and this type never touches its bytes.
unsafe impl Send for Map {}
// SAFETY: as above: shared references give the address and the length only.
unsafe impl Sync for Map {}

impl Map {
    /// Zeroed memory.
    pub(super) fn anonymous(len: usize, pages: Pages) -> Result<Self, AreaError> {
        let (mapped, flags) = match pages {
            Pages::Normal => (len, MapFlags::PRIVATE),
            // MAP_HUGE_2MB: the pool of 2 MiB pages, whatever the default huge page size is.
            Pages::Huge => {
                (len.next_multiple_of(HUGE_BYTES), MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB)
            }
        };
        // SAFETY: an anonymous mapping at an address of the kernel's choice touches no memory of this program.
        let base =
            unsafe { mmap_anonymous(ptr::null_mut(), mapped, ProtFlags::READ | ProtFlags::WRITE, flags) }
                .map_err(|e| match (pages, e) {
                    (Pages::Huge, rustix::io::Errno::NOMEM) => {
                        AreaError::HugePages { pages: mapped / HUGE_BYTES, free: free_huge_pages() }
                    }
                    _ => AreaError::Map { len: mapped, cause: e.into() },
                })?;
        Ok(Self { base: base.cast(), len, mapped })
    }

    /// The first `len` bytes of a file, read-only and shared with the page cache.
    pub(super) fn file(file: impl AsFd, len: usize) -> Result<Self, AreaError> {
        // SAFETY: as above; the pages are only ever read, and only by the kernel.
        let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, 0) }
            .map_err(|e| AreaError::Map { len, cause: e.into() })?;
        Ok(Self { base: base.cast(), len, mapped: len })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: base and mapped are what mmap returned, and every lease of this memory holds the mapping alive, so
        // nobody uses it any more. An error leaves the pages mapped, which harms nobody.
        let _ = unsafe { munmap(self.base.cast(), self.mapped) };
    }
}

fn free_huge_pages() -> String {
    std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|s| s.lines().find_map(|l| l.strip_prefix("HugePages_Free:").map(|v| v.trim().to_owned())))
        .unwrap_or_else(|| "unknown".to_owned())
}
