//! The memory table: which guest-physical addresses are backed by what.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::error::MemoryError;
use super::file::check_memory;
use super::log::DirtyLog;
use super::map::Mapping;
use super::region_pool::{OWN_REGIONS, POOL, PooledRegion};
use super::sigbus::Guarded;

/// The largest piece of guest memory; a multiple of the huge page size.
pub const PIECE_MAX_BYTES: usize = (1 << 30) - (2 << 20);

/// Pieces at most: an index of 16 bits names them, and no guest has so much memory.
pub(super) const MAX_PIECES: u64 = 16 << 10;

/// At most this many memory regions a VM: what `VHOST_USER_GET_MAX_MEM_SLOTS` answers, as QEMU's
/// libvhost-user does. KVM had so many slots for a guest once.
pub const MAX_REGIONS: usize = 509;

/// One region as the front end described it (vhost-user, "Memory region description").
#[derive(Debug)]
pub struct RegionConfig {
    /// First guest-physical address.
    pub guest_addr: u64,
    /// Length, bytes.
    pub len: u64,
    /// First address in the front end's own address space; rings are named by it.
    pub user_addr: u64,
    /// Where the region starts in the file, bytes.
    pub offset: u64,
    /// The file.
    pub file: OwnedFd,
}

#[derive(Debug)]
struct Region {
    guest_addr: u64,
    user_addr: u64,
    len: u64,
    offset: u64,
    file: OwnedFd,
    map: Guarded,
    /// Its place among the regions that the VMs share; None for one of the VM's own.
    _pooled: Option<PooledRegion>,
}

/// A part of a region, at most [`PIECE_MAX_BYTES`] long.
#[derive(Clone, Debug)]
pub struct Piece {
    guest_addr: u64,
    len: u64,
    ptr: *mut u8,
    region: std::sync::Arc<RegionHandle>,
    /// Distinguishes pieces over the life of the process, so that what was made of one is never taken for part of another.
    id: u64,
}

// SAFETY: the pointer is into the mapping that `region` keeps alive; accesses follow the module's rules.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

#[derive(Debug)]
struct RegionHandle(Region);

/// A region for another program, which can read it and not write.
#[derive(Debug)]
pub struct ReadOnlyRegion {
    /// Its file, opened for reading.
    pub file: OwnedFd,
    /// Where the region begins in the file, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
    /// The pieces that lie in it, by [`Piece::id`], and where in it they begin, bytes.
    pub pieces: Vec<(u64, u64)>,
}

impl Piece {
    /// Identity of this piece; never used again for another one.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where the guest's bytes of this piece are mapped.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the piece is empty; never so.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A run of guest bytes that is contiguous in this process, inside one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts.
    pub ptr: *mut u8,
    /// Length, bytes; never 0 in a scatter list.
    pub len: u32,
    /// Index of its piece in [`GuestMemory::pieces`].
    pub piece: u16,
}

// SAFETY: a segment is an address; who dereferences it must hold the GuestMemory it came from.
unsafe impl Send for Segment {}

/// An immutable snapshot of the memory table.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    /// Sorted by guest address, not overlapping.
    pieces: Vec<Piece>,
    /// Where writes are noted, while the guest migrates.
    log: Option<DirtyLog>,
}

static NEXT_PIECE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);

impl GuestMemory {
    /// Builds a table (`VHOST_USER_SET_MEM_TABLE`). On an error nothing stays mapped.
    pub fn new(regions: Vec<RegionConfig>) -> Result<Self, MemoryError> {
        let mut memory = Self::default();
        for region in regions {
            memory = memory.with_region(region)?;
        }
        Ok(memory)
    }

    /// The same table with one region more (`VHOST_USER_ADD_MEM_REG`). Regions that stay are not mapped again.
    pub fn with_region(&self, config: RegionConfig) -> Result<Self, MemoryError> {
        let RegionConfig { guest_addr, len, user_addr, offset, file } = config;
        check(guest_addr, len, user_addr, offset)?;
        let pieces = len.div_ceil(PIECE_MAX_BYTES as u64);
        if self.region_count() >= MAX_REGIONS || self.pieces.len() as u64 + pieces > MAX_PIECES {
            return Err(MemoryError::TooMany);
        }
        let pooled = match self.region_count() < OWN_REGIONS {
            true => None,
            false => Some(POOL.take().ok_or(MemoryError::PoolEmpty)?),
        };
        for p in &self.pieces {
            let r = &p.region.0;
            if guest_addr < r.guest_addr + r.len && r.guest_addr < guest_addr + len {
                return Err(MemoryError::Overlap(r.guest_addr, guest_addr));
            }
        }
        check_memory(&file).map_err(|source| MemoryError::File { guest_addr, source })?;
        let map_error = |source| MemoryError::Map { guest_addr, source };
        let stat = rustix::fs::fstat(&file).map_err(|e| map_error(e.into()))?;
        let have = stat.st_size as u64;
        let page = page_size(&file).map_err(map_error)?;
        if (len | offset) & (page - 1) != 0 {
            return Err(MemoryError::Unaligned { guest_addr, len, offset, page });
        }
        let need = offset + len;
        if have < need {
            return Err(MemoryError::FileTooShort { guest_addr, need, have });
        }
        let map = Guarded::new(
            Mapping::shared(file.as_fd(), offset, len as usize).map_err(map_error)?,
            page as usize,
        );
        let region = std::sync::Arc::new(RegionHandle(Region {
            guest_addr,
            user_addr,
            len,
            offset,
            file,
            map,
            _pooled: pooled,
        }));
        let mut next = self.clone();
        let mut start = 0;
        while start < len {
            let piece_len = (len - start).min(PIECE_MAX_BYTES as u64);
            next.pieces.push(Piece {
                guest_addr: guest_addr + start,
                len: piece_len,
                ptr: region.0.map.as_ptr().wrapping_add(start as usize),
                region: region.clone(),
                id: NEXT_PIECE.fetch_add(1, std::sync::atomic::Ordering::Relaxed),
            });
            start += piece_len;
        }
        next.pieces.sort_by_key(|p| p.guest_addr);
        Ok(next)
    }

    /// Whether a region with the same addresses, length and file is in the table.
    pub fn is_same_region(&self, config: &RegionConfig) -> bool {
        if check_memory(&config.file).is_err() {
            return false;
        }
        let same_file = |file: &OwnedFd| match (rustix::fs::fstat(file), rustix::fs::fstat(&config.file)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        };
        self.pieces.iter().map(|p| &p.region.0).any(|r| {
            (r.guest_addr, r.len, r.user_addr, r.offset)
                == (config.guest_addr, config.len, config.user_addr, config.offset)
                && same_file(&r.file)
        })
    }

    /// The same table with one region less (`VHOST_USER_REM_MEM_REG`): the one with this guest address, user
    /// address and length.
    pub fn without_region(&self, guest_addr: u64, user_addr: u64, len: u64) -> Result<Self, MemoryError> {
        let mut next = self.clone();
        next.pieces.retain(|p| {
            let r = &p.region.0;
            !(r.guest_addr == guest_addr && r.user_addr == user_addr && r.len == len)
        });
        if next.pieces.len() == self.pieces.len() {
            return Err(MemoryError::NotFound { guest_addr, len });
        }
        Ok(next)
    }

    /// Where `len` bytes at guest address `addr` are mapped, if they lie in one region (indirect tables do).
    #[inline]
    pub fn contiguous(&self, addr: u64, len: u64, hint: &mut usize) -> Option<*mut u8> {
        let covers = |p: &Piece| {
            let start = addr.wrapping_sub(p.guest_addr);
            (start < p.len).then_some(start)
        };
        let i = match self.pieces.get(*hint).and_then(covers) {
            Some(_) => *hint,
            None => self.pieces.partition_point(|p| p.guest_addr <= addr).checked_sub(1)?,
        };
        let p = self.pieces.get(i)?;
        let start = covers(p)?;
        *hint = i;
        let region = &p.region.0;
        let room = region.len - (p.guest_addr - region.guest_addr) - start;
        (len <= room).then(|| p.ptr.wrapping_add(start as usize))
    }

    /// Where `len` bytes at guest address `addr` are mapped, if they lie in piece `index`.
    #[inline(always)]
    pub fn within_piece(&self, addr: u64, len: u32, index: usize) -> Option<*mut u8> {
        let p = self.pieces.get(index)?;
        let start = addr.wrapping_sub(p.guest_addr);
        let fits = start < p.len && u64::from(len) <= p.len - start;
        fits.then(|| p.ptr.wrapping_add(start as usize))
    }

    /// The pieces, sorted by guest address.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The regions, each with a descriptor of its file that can only read.
    pub fn read_only(&self) -> io::Result<Vec<ReadOnlyRegion>> {
        let mut regions: Vec<(&RegionHandle, ReadOnlyRegion)> = Vec::new();
        for p in &self.pieces {
            let r = &p.region.0;
            let piece = (p.id, p.guest_addr - r.guest_addr);
            match regions.iter_mut().find(|(handle, _)| std::ptr::eq(*handle, &*p.region)) {
                Some((_, known)) => known.pieces.push(piece),
                None => {
                    let path = format!("/proc/self/fd/{}", r.file.as_raw_fd());
                    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
                    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
                    let region = ReadOnlyRegion { file, offset: r.offset, len: r.len, pieces: vec![piece] };
                    regions.push((&*p.region, region));
                }
            }
        }
        Ok(regions.into_iter().map(|(_, region)| region).collect())
    }

    /// The same memory with another log of what is written, or none. Segments of the one are segments of the other.
    pub fn with_log(&self, log: Option<DirtyLog>) -> Self {
        Self { pieces: self.pieces.clone(), log }
    }

    /// Where writes are noted; None while the guest does not migrate.
    pub fn log(&self) -> Option<&DirtyLog> {
        self.log.as_ref()
    }

    /// The end of the highest region: all of memory lies below this guest address.
    pub fn end(&self) -> u64 {
        // Regions end within 64 bits (`check`).
        self.pieces.last().map_or(0, |p| p.guest_addr + p.len)
    }

    /// Notes that `len` bytes of the segments, `skip` bytes in, were written by this process or by the kernel in its name.
    /// Called behind each write, before the ring says so or stops. One branch while the guest does not migrate.
    #[inline]
    pub fn wrote(&self, segments: &[Segment], skip: usize, len: usize) {
        if let Some(log) = &self.log {
            self.note(log, segments, skip, len);
        }
    }

    #[cold]
    fn note(&self, log: &DirtyLog, segments: &[Segment], mut skip: usize, mut len: usize) {
        for s in segments {
            if len == 0 {
                return;
            }
            let seg_len = s.len as usize;
            if skip >= seg_len {
                skip -= seg_len;
                continue;
            }
            let n = (seg_len - skip).min(len);
            if let Some(p) = self.pieces.get(usize::from(s.piece)) {
                let start = s.ptr.addr() - p.ptr.addr() + skip;
                log.wrote(p.guest_addr + start as u64, n as u64);
            }
            len -= n;
            skip = 0;
        }
    }

    /// Bytes of the smallest page behind any of the memory; 0 where there is none.
    ///
    /// # Errors
    /// Those of fstatfs.
    pub fn smallest_page(&self) -> io::Result<usize> {
        Ok(self.region_views()?.iter().map(|r| r.page).min().unwrap_or(0))
    }

    /// The regions, to be mapped once more.
    pub(crate) fn region_views(&self) -> io::Result<Vec<super::composite::RegionView<'_>>> {
        let mut views: Vec<(&RegionHandle, super::composite::RegionView<'_>)> = Vec::new();
        for (i, p) in self.pieces.iter().enumerate() {
            let r = &p.region.0;
            let piece = (i, (p.guest_addr - r.guest_addr) as usize);
            match views.iter_mut().find(|(handle, _)| std::ptr::eq(*handle, &*p.region)) {
                Some((_, known)) => known.pieces.push(piece),
                None => {
                    let page = page_size(&r.file)? as usize;
                    let (file, offset, len) = (r.file.as_fd(), r.offset, r.len as usize);
                    let view = super::composite::RegionView { file, offset, len, page, pieces: vec![piece] };
                    views.push((&*p.region, view));
                }
            }
        }
        Ok(views.into_iter().map(|(_, view)| view).collect())
    }

    /// Number of regions.
    pub fn region_count(&self) -> usize {
        self.pieces.iter().filter(|p| p.guest_addr == p.region.0.guest_addr).count()
    }

    /// Bytes of guest memory.
    pub fn len(&self) -> u64 {
        self.pieces.iter().map(|p| p.len).sum()
    }

    /// Whether there is no memory.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Where `len` bytes at the front end's address `user_addr` are mapped here, if they lie in one region (rings
    /// are contiguous there).
    pub fn ring_ptr(&self, user_addr: u64, len: u64) -> Option<*mut u8> {
        self.pieces.iter().map(|p| &p.region.0).find_map(|r| {
            let start = user_addr.checked_sub(r.user_addr)?;
            let end = start.checked_add(len)?;
            (end <= r.len).then(|| r.map.as_ptr().wrapping_add(start as usize))
        })
    }

    /// Appends the segments of `[addr, addr + len)` to `out`. `hint` is the piece of the last translation: most
    /// buffers lie in the same one. Returns false, with `out` as it was, where a byte is not backed or the list
    /// is full (virtio 1.3 §2.7.5: addresses are guest-physical; a range may cross adjacent regions).
    #[inline]
    pub fn translate<L: SegmentList>(&self, addr: u64, len: u32, hint: &mut usize, out: &mut L) -> bool {
        match self.within_piece(addr, len, *hint) {
            Some(ptr) => out.push_segment(Segment { ptr, len, piece: *hint as u16 }),
            None => self.translate_slow(addr, len, hint, out),
        }
    }

    #[cold]
    fn translate_slow<L: SegmentList>(&self, addr: u64, len: u32, hint: &mut usize, out: &mut L) -> bool {
        let mark = out.mark();
        let mut at = addr;
        let mut left = u64::from(len);
        while left > 0 {
            let i = self.pieces.partition_point(|p| p.guest_addr <= at);
            let Some(p) = i.checked_sub(1).and_then(|i| self.pieces.get(i)) else {
                out.rewind(mark);
                return false;
            };
            let start = at - p.guest_addr;
            if start >= p.len {
                out.rewind(mark);
                return false;
            }
            let n = left.min(p.len - start);
            *hint = i - 1;
            let segment =
                Segment { ptr: p.ptr.wrapping_add(start as usize), len: n as u32, piece: (i - 1) as u16 };
            if !out.push_segment(segment) {
                out.rewind(mark);
                return false;
            }
            left -= n;
            let Some(next) = at.checked_add(n) else {
                if left > 0 {
                    out.rewind(mark);
                }
                return left == 0;
            };
            at = next;
        }
        true
    }
}

/// Where translated segments go.
pub trait SegmentList {
    /// A point to come back to.
    fn mark(&self) -> usize;
    /// Drops what was added since `mark`.
    fn rewind(&mut self, mark: usize);
    /// Adds one; false where there is no room.
    fn push_segment(&mut self, segment: Segment) -> bool;
}

impl SegmentList for Vec<Segment> {
    fn mark(&self) -> usize {
        self.len()
    }

    fn rewind(&mut self, mark: usize) {
        self.truncate(mark);
    }

    #[inline]
    fn push_segment(&mut self, segment: Segment) -> bool {
        // A hot path makes no allocation: the capacity is the bound.
        if self.len() == self.capacity() {
            return false;
        }
        self.push(segment);
        true
    }
}

fn check(guest_addr: u64, len: u64, user_addr: u64, offset: u64) -> Result<(), MemoryError> {
    if len == 0 {
        return Err(MemoryError::Empty(guest_addr));
    }
    for (what, start) in [("guest address", guest_addr), ("user address", user_addr), ("file offset", offset)]
    {
        if start.checked_add(len).is_none() {
            return Err(MemoryError::Overflow { what, start, len });
        }
    }
    Ok(())
}

/// Bytes of a page of `file`: that of huge pages where it lies on hugetlbfs (fs/hugetlbfs/inode.c). What other file systems
/// call their block size is no page size.
pub(crate) fn page_size(file: impl AsFd) -> io::Result<u64> {
    const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;
    let fs = rustix::fs::fstatfs(file)?;
    let huge = fs.f_type as i64 & 0xffff_ffff == HUGETLBFS_MAGIC;
    Ok(if huge { (fs.f_bsize as u64).max(4096) } else { 4096 })
}
