//! A guest's memory, or a part of it, side by side with private memory, in one range of addresses.
//!
//! ```text
//!  base                                                                            base + len
//!  [ padding, private ][ region ][ region ] … [ slab, private                              ]
//!                       ▲ the guest's pages, mapped a second time
//! ```
//!
//! The kernel registers such a range as one (a UMEM is one, net/xdp/xdp_umem.c) and names bytes by
//! their distance from its begin. This process itself reads and writes the guest's bytes by the
//! first mapping only, which is guarded against files that shrink. Of the range it touches the
//! slab, which the guest can't reach.

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::MapFlags;
use zerowire_sys::map::{Mapping, READ_WRITE};
use zerowire_sys::pages;

use super::{GuestMemory, Segment};

/// Alignment of regions, bytes: that of a huge page, since files of huge pages can be mapped
/// nowhere else.
const ALIGN: usize = 2 << 20;

/// A region, as far as mapping it again goes.
pub(crate) struct RegionView<'a> {
    /// Its index in [`GuestMemory::regions`].
    pub index: usize,
    pub file: BorrowedFd<'a>,
    pub offset: u64,
    pub len: usize,
    /// Bytes of a page of the file.
    pub page: usize,
}

/// Where a region is in the range.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    delta: u64,
    end: u64,
}

/// The range. Dropping it unmaps it.
#[derive(Debug)]
pub struct Composite {
    range: Arc<Mapping>,
    /// Where the composition begins in the mapping.
    base_at: usize,
    len: usize,
    padding: usize,
    slab_at: usize,
    /// By region: what to add to a segment's pointer for its distance from the base, and the
    /// pointer where the part in the range ends.
    places: Vec<Place>,
    /// Bytes of the smallest page behind any of the guest's memory.
    smallest_page: usize,
}

impl Composite {
    /// Maps `memory`, at most `most` bytes of it in whole pages, to be pinned: its pages come now.
    /// `padding` bytes of private memory lie before it and `slab` bytes behind; both are multiples
    /// of the page size.
    ///
    /// # Errors
    /// What mmap says.
    pub fn new(memory: &GuestMemory, most: u64, padding: usize, slab: usize) -> io::Result<Self> {
        let mut regions = memory.region_views()?;
        // Large pages first: each region then begins at a multiple of its page size, without holes.
        regions.sort_unstable_by_key(|r| (std::cmp::Reverse(r.page), r.index));
        if let Some(large) = regions.first().filter(|r| r.page > ALIGN) {
            let text =
                format!("pages of {} bytes: guest memory on pages up to 2 MiB can be registered", large.page);
            return Err(io::Error::other(text));
        }
        let mut left = usize::try_from(most).unwrap_or(usize::MAX);
        for region in &mut regions {
            region.len = region.len.min(left / region.page * region.page);
            left -= region.len;
        }
        let ram: usize = regions.iter().map(|r| r.len).sum();
        let len = padding + ram + slab;
        let mut range = Mapping::private(len + ALIGN)?;
        let base_at = range.as_ptr().wrapping_add(padding).align_offset(ALIGN);
        let mut places = vec![Place::default(); regions.len()];
        let mut at = padding;
        for region in regions.iter().filter(|r| r.len > 0) {
            let file = (region.file, region.offset);
            let mut place =
                |more| range.place(base_at + at, region.len, file, READ_WRITE, MapFlags::NORESERVE | more);
            // Locked, pages stay in the page table. Reclaim takes those of a shared file out of it
            // before it finds that it can't have them, pinned ones as well (mm/vmscan.c,
            // `shrink_folio_list`). They would look as if they had been discarded. Past the limit
            // of locked memory it goes without.
            place(MapFlags::LOCKED).or_else(|_| place(MapFlags::empty()))?;
            let ptr = memory.regions()[region.index].ptr().addr() as u64;
            places[region.index] =
                Place { delta: (at as u64).wrapping_sub(ptr), end: ptr + region.len as u64 };
            at += region.len;
        }
        let smallest_page = regions.iter().filter(|r| r.len > 0).map(|r| r.page).min().unwrap_or(4096);
        let range = Arc::new(range);
        Ok(Self { range, base_at, len, padding, slab_at: padding + ram, places, smallest_page })
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.range.base().map_addr(|a| a.saturating_add(self.base_at))
    }

    /// The mapping, which stays as long as any holder, and the part of it that this is.
    pub fn range(&self) -> (Arc<Mapping>, Range<usize>) {
        (Arc::clone(&self.range), self.base_at..self.base_at + self.len)
    }

    /// Bytes in all.
    #[allow(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Where the slab begins, bytes from the base.
    pub fn slab_at(&self) -> usize {
        self.slab_at
    }

    /// Bytes of the guest's memory that are in the range.
    pub fn guest_bytes(&self) -> u64 {
        (self.slab_at - self.padding) as u64
    }

    /// Bytes of the guest's part whose pages were discarded since they were all there; None where
    /// that can't be told. What is there in their place now are other pages.
    pub fn discarded(&self) -> Option<u64> {
        pages::absent(self.guest_part())
    }

    fn guest_part(&self) -> Range<usize> {
        let start = self.base().addr().get();
        start + self.padding..start + self.slab_at
    }

    /// Bytes of the smallest page behind any of the guest's memory.
    pub fn smallest_page(&self) -> usize {
        self.smallest_page
    }

    /// The distance of a segment's first byte from the base; None where not all of the segment is
    /// in the range. The segment is one of the memory that the range was made of.
    #[inline]
    pub fn address(&self, segment: &Segment) -> Option<u64> {
        let place = self.places.get(usize::from(segment.region))?;
        let start = segment.ptr.addr() as u64;
        (start + u64::from(segment.len) <= place.end).then(|| start.wrapping_add(place.delta))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::RegionConfig;
    use zerowire_sys::map::testing::is_left_out;

    #[test]
    fn core_dumps_leave_out_the_second_mapping() {
        const LEN: u64 = 4 << 20;
        let region = |guest_addr| {
            let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
            rustix::fs::ftruncate(&file, LEN).expect("its length");
            RegionConfig { guest_addr, len: LEN, user_addr: guest_addr, offset: 0, file }
        };
        let memory = GuestMemory::new(vec![region(0), region(1 << 32)]).expect("guest memory");
        let both = Composite::new(&memory, u64::MAX, 4096, 4096).expect("a range");
        let base = both.base().as_ptr();
        for at in [0, 4096, 4096 + LEN as usize, both.slab_at()] {
            assert!(is_left_out(base.wrapping_add(at)), "at {at:#x}");
        }
    }
}
