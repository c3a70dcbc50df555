//! Counts the pages of a mapping that are gone.
//!
//! A process that discards a part of a shared file (`fallocate` with PUNCH_HOLE, `MADV_REMOVE`)
//! takes its pages out of all mappings. Whatever is written to the file there later lies in other
//! pages. In a mapping that nobody touches, the entry in the page table stays empty. So map a range
//! twice, let the kernel pin it through one mapping and touch it through the other only. Then the
//! first mapping's page table says whether the pinned pages are still the file's.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use crate::ioctl::{self, PageRegion};

const PAGEMAP: &str = "/proc/self/pagemap";

/// `PAGEMAP_SCAN` for a list of requests that are allowed.
pub const SCAN_REQUEST: u32 = ioctl::PAGEMAP_SCAN;
// include/uapi/linux/fs.h
const PAGE_IS_PRESENT: u64 = 1 << 3;
const PAGE_IS_SWAPPED: u64 = 1 << 4;

/// An entry that names a page. While the kernel tries to move a page, as compaction does, the entry
/// is one of those that are called swapped (mm/rmap.c, `try_to_migrate`). It does so with pinned
/// pages, too, and leaves them where they are.
const NAMES_A_PAGE: u64 = PAGE_IS_PRESENT | PAGE_IS_SWAPPED;

/// Entries of /proc/self/pagemap are 64 bits for a page of 4096 bytes; bit 63: present, bit 62:
/// swapped (Documentation/admin-guide/mm/pagemap.rst).
const PAGE: usize = 4096;
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;

/// Regions that one call returns at most.
const REGIONS: usize = 64;

/// The page table of this process, if it was [opened for good](open_for_good).
static KEPT: OnceLock<File> = OnceLock::new();

/// Opens the page table for [`absent`], for a process that can open nothing later.
pub fn open_for_good() {
    // Without it nobody can tell, as without /proc.
    if let Ok(pagemap) = File::open(PAGEMAP) {
        let _ = KEPT.set(pagemap);
    }
}

/// Bytes of `range`, addresses of this process on page bounds, that are not mapped to any page;
/// None where the kernel doesn't say.
pub fn absent(range: Range<usize>) -> Option<u64> {
    let absent = |pagemap| scan(pagemap, range.clone()).or_else(|_| read(pagemap, range.clone())).ok();
    match KEPT.get() {
        Some(pagemap) => absent(pagemap),
        None => absent(&File::open(PAGEMAP).ok()?),
    }
}

fn scan(pagemap: &File, range: Range<usize>) -> io::Result<u64> {
    let mut bytes = 0;
    let mut start = range.start as u64;
    let end = range.end as u64;
    while start < end {
        let mut regions = [PageRegion::default(); REGIONS];
        let (n, walk_end) = ioctl::scan_pages(pagemap, start..end, NAMES_A_PAGE, &mut regions)?;
        bytes += regions.iter().take(n).map(|r| r.end - r.start).sum::<u64>();
        if walk_end <= start {
            break;
        }
        start = walk_end;
    }
    Ok(bytes)
}

fn read(pagemap: &File, range: Range<usize>) -> io::Result<u64> {
    let mut absent = 0;
    let mut buffer = vec![0u8; 64 << 10];
    let mut at = range.start / PAGE;
    let end = range.end / PAGE;
    while at < end {
        let n = (end - at).min(buffer.len() / 8);
        let part = &mut buffer[..8 * n];
        pagemap.read_exact_at(part, 8 * at as u64)?;
        let entries = part.chunks_exact(8).filter_map(|e| e.try_into().ok()).map(u64::from_ne_bytes);
        absent += entries.filter(|e| e & (PRESENT | SWAPPED) == 0).count() as u64;
        at += n;
    }
    Ok(absent * PAGE as u64)
}

#[cfg(test)]
mod tests;
