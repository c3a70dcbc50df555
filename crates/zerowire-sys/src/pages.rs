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
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

const PAGEMAP: &str = "/proc/self/pagemap";

/// `PAGEMAP_SCAN`, `PAGE_IS_PRESENT`, `PAGE_IS_SWAPPED` (include/uapi/linux/fs.h, since Linux 6.7).
const PAGEMAP_SCAN: libc::Ioctl = SCAN_REQUEST as libc::Ioctl;
/// The same for a list of requests that are allowed.
pub const SCAN_REQUEST: u32 = 0xc060_6610;
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

/// `struct page_region`
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

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
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start,
            end,
            vec: regions.as_mut_ptr().addr() as u64,
            vec_len: REGIONS as u64,
            category_inverted: NAMES_A_PAGE,
            category_mask: NAMES_A_PAGE,
            return_mask: NAMES_A_PAGE,
            ..Scan::default()
        };
        // SAFETY: the kernel reads and fills in the structure, and the array that it names, which
        // lives as long as the call.
        let n = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        bytes += regions.iter().take(n).map(|r| r.end - r.start).sum::<u64>();
        if scan.walk_end <= start {
            break;
        }
        start = scan.walk_end;
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
