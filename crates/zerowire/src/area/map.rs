//! The memory of areas and files.

use std::os::fd::AsFd;

use rustix::mm::{MapFlags, ProtFlags};
use zerowire_sys::map::{HUGE_PAGE_BYTES, HUGE_PAGES, Mapping};

use super::{AreaError, Pages};

/// A mapping. It hands out its address only; who may touch which bytes is the business of `Lease`
/// and `FileSlice`.
#[derive(Debug)]
pub(super) struct Map {
    mapping: Mapping,
    len: usize,
}

impl Map {
    /// Zeroed memory.
    pub(super) fn anonymous(len: usize, pages: Pages) -> Result<Self, AreaError> {
        let (mapped, flags) = match pages {
            Pages::Normal => (len, MapFlags::empty()),
            Pages::Huge => (len.next_multiple_of(HUGE_PAGE_BYTES), HUGE_PAGES),
        };
        let mapping = Mapping::private_with(mapped, flags).map_err(|e| match (pages, e) {
            (Pages::Huge, rustix::io::Errno::NOMEM) => {
                AreaError::HugePages { pages: mapped / HUGE_PAGE_BYTES, free: free_huge_pages() }
            }
            _ => AreaError::Map { len: mapped, cause: e.into() },
        })?;
        Ok(Self { mapping, len })
    }

    /// The first `len` bytes of a file, read-only and shared with the page cache.
    pub(super) fn file(file: impl AsFd, len: usize) -> Result<Self, AreaError> {
        let mapping = Mapping::shared_with(file, 0, len, ProtFlags::READ, MapFlags::empty())
            .map_err(|e| AreaError::Map { len, cause: e.into() })?;
        Ok(Self { mapping, len })
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

fn free_huge_pages() -> String {
    std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|s| s.lines().find_map(|l| l.strip_prefix("HugePages_Free:").map(|v| v.trim().to_owned())))
        .unwrap_or_else(|| "unknown".to_owned())
}
