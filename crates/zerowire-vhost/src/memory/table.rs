//! The memory table: which guest-physical addresses are backed by what.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use zerowire_sys::map::Mapping;

use super::access::{HostPtr, KeepsMapped, SharedWords, walk};
use super::composite::RegionView;
use super::error::MemoryError;
use super::file::{check_memory, file_len, is_same_file, page_size};
use super::log::DirtyLog;
use super::region_pool::{OWN_REGIONS, POOL, PooledRegion};
use super::sigbus::Guarded;

/// Bytes of guest memory at most: the mappings of one VM leave addresses for those of the others.
pub(super) const MAX_BYTES: u64 = 16 << 40;

/// At most this many memory regions a VM: what `VHOST_USER_GET_MAX_MEM_SLOTS` answers, as QEMU's
/// libvhost-user does. KVM once had that many slots for a guest.
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

/// A region, mapped into this process.
#[derive(Clone, Debug)]
pub struct Region {
    guest_addr: u64,
    len: u64,
    ptr: HostPtr,
    user_addr: u64,
    offset: u64,
    /// Distinguishes regions over the life of the process, so that what was made of one is never
    /// taken for part of another.
    id: u64,
    backing: Arc<Backing>,
}

/// What a region is made of.
#[derive(Debug)]
struct Backing {
    file: OwnedFd,
    map: Guarded,
    /// Its place among the regions that the VMs share; None for one of the VM's own.
    _pooled: Option<PooledRegion>,
}

impl KeepsMapped for Backing {
    fn map(&self) -> &Guarded {
        &self.map
    }
}

/// A region for another program, which can read it and not write.
#[derive(Debug)]
pub struct ReadOnlyRegion {
    /// Its file, opened for reading.
    pub file: OwnedFd,
    /// Where the region begins in the file, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
    /// [`Region::id`].
    pub id: u64,
}

impl Region {
    /// Identity of this region; never used again for another one.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where the guest's bytes of this region are mapped.
    #[inline]
    pub fn ptr(&self) -> HostPtr {
        self.ptr
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the region is empty; never so.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A run of guest bytes that is contiguous in this process, inside one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where it starts. Who accesses it must hold the [`GuestMemory`] that it came from.
    pub ptr: HostPtr,
    /// Length, bytes; never 0 in a scatter list.
    pub len: u32,
    /// Index of its region in [`GuestMemory::regions`].
    pub region: u16,
}

/// An immutable snapshot of the memory table.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    /// In order of guest address, not overlapping.
    regions: Vec<Region>,
    /// Where writes are noted, while the guest migrates.
    log: Option<DirtyLog>,
}

static NEXT_REGION: AtomicU64 = AtomicU64::new(1);

impl GuestMemory {
    /// Builds a table (`VHOST_USER_SET_MEM_TABLE`). On an error nothing stays mapped.
    pub fn new(regions: Vec<RegionConfig>) -> Result<Self, MemoryError> {
        let mut memory = Self::default();
        for region in regions {
            memory = memory.with_region(region)?;
        }
        Ok(memory)
    }

    /// The same table with one region more (`VHOST_USER_ADD_MEM_REG`). Regions that stay are not
    /// mapped again.
    pub fn with_region(&self, config: RegionConfig) -> Result<Self, MemoryError> {
        let RegionConfig { guest_addr, len, user_addr, offset, file } = config;
        check(guest_addr, len, user_addr, offset)?;
        if self.regions.len() >= MAX_REGIONS || self.len().saturating_add(len) > MAX_BYTES {
            return Err(MemoryError::TooMany);
        }
        let pooled = match self.regions.len() < OWN_REGIONS {
            true => None,
            false => Some(POOL.take().ok_or(MemoryError::PoolEmpty)?),
        };
        for r in &self.regions {
            if guest_addr < r.guest_addr + r.len && r.guest_addr < guest_addr + len {
                return Err(MemoryError::Overlap(r.guest_addr, guest_addr));
            }
        }
        check_memory(&file).map_err(|cause| MemoryError::File { guest_addr, cause })?;
        let map_error = |cause| MemoryError::Map { guest_addr, cause };
        let have = file_len(&file).map_err(map_error)?;
        let page = page_size(&file).map_err(map_error)?;
        if (len | offset) & (page - 1) != 0 {
            return Err(MemoryError::Unaligned { guest_addr, len, offset, page });
        }
        let need = offset + len;
        if have < need {
            return Err(MemoryError::FileTooShort { guest_addr, need, have });
        }
        let map = Guarded::new(
            Mapping::shared(&file, offset, len as usize).map_err(|e| map_error(e.into()))?,
            page as usize,
        );
        let ptr = map.as_ptr().into();
        let id = NEXT_REGION.fetch_add(1, Ordering::Relaxed);
        let backing = Arc::new(Backing { file, map, _pooled: pooled });
        let mut next = self.clone();
        let at = next.regions.partition_point(|r| r.guest_addr < guest_addr);
        next.regions.insert(at, Region { guest_addr, len, ptr, user_addr, offset, id, backing });
        Ok(next)
    }

    /// Whether a region with the same addresses, length and file is in the table.
    pub fn is_same_region(&self, config: &RegionConfig) -> bool {
        if check_memory(&config.file).is_err() {
            return false;
        }
        self.regions.iter().any(|r| {
            (r.guest_addr, r.len, r.user_addr, r.offset)
                == (config.guest_addr, config.len, config.user_addr, config.offset)
                && is_same_file(&r.backing.file, &config.file)
        })
    }

    /// The same table with one region less (`VHOST_USER_REM_MEM_REG`): the one with this guest
    /// address, user address and length.
    pub fn without_region(&self, guest_addr: u64, user_addr: u64, len: u64) -> Result<Self, MemoryError> {
        let mut next = self.clone();
        next.regions.retain(|r| (r.guest_addr, r.user_addr, r.len) != (guest_addr, user_addr, len));
        if next.regions.len() == self.regions.len() {
            return Err(MemoryError::NotFound { guest_addr, len });
        }
        Ok(next)
    }

    /// Where `len` bytes at guest address `addr` are mapped, if they lie in one region (indirect
    /// tables do).
    #[inline]
    pub fn contiguous(&self, addr: u64, len: u32, hint: &mut usize) -> Option<HostPtr> {
        if let Some(ptr) = self.within(addr, len, *hint) {
            return Some(ptr);
        }
        let i = self.regions.partition_point(|r| r.guest_addr <= addr).checked_sub(1)?;
        let ptr = self.within(addr, len, i)?;
        *hint = i;
        Some(ptr)
    }

    /// Where `len` bytes at guest address `addr` are mapped, if they lie in region `index`.
    #[inline(always)]
    pub fn within(&self, addr: u64, len: u32, index: usize) -> Option<HostPtr> {
        let r = self.regions.get(index)?;
        let start = addr.wrapping_sub(r.guest_addr);
        let fits = start < r.len && u64::from(len) <= r.len - start;
        fits.then(|| r.ptr.wrapping_add(start as usize))
    }

    /// The regions, sorted by guest address.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The regions as the front end described them, each with a duplicate of its file's
    /// descriptor.
    ///
    /// # Errors
    /// EMFILE, ENFILE.
    pub fn configs(&self) -> io::Result<Vec<RegionConfig>> {
        let config = |r: &Region| {
            let &Region { guest_addr, len, user_addr, offset, .. } = r;
            Ok(RegionConfig { guest_addr, len, user_addr, offset, file: r.backing.file.try_clone()? })
        };
        self.regions.iter().map(config).collect()
    }

    /// The regions, each with a descriptor of its file that can only read.
    pub fn read_only(&self) -> io::Result<Vec<ReadOnlyRegion>> {
        let read_only = |r: &Region| {
            let path = format!("/proc/self/fd/{}", r.backing.file.as_raw_fd());
            let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
            let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
            Ok(ReadOnlyRegion { file, offset: r.offset, len: r.len, id: r.id })
        };
        self.regions.iter().map(read_only).collect()
    }

    /// The same memory with another log of what is written, or none. Segments of the one are
    /// segments of the other.
    pub fn with_log(&self, log: Option<DirtyLog>) -> Self {
        Self { regions: self.regions.clone(), log }
    }

    /// Where writes are noted; None while the guest does not migrate.
    #[inline]
    pub fn log(&self) -> Option<&DirtyLog> {
        self.log.as_ref()
    }

    /// The end of the highest region: all of memory lies below this guest address.
    pub fn end(&self) -> u64 {
        // Regions end within 64 bits (`check`).
        self.regions.last().map_or(0, |r| r.guest_addr + r.len)
    }

    /// Notes that `len` bytes of the segments, `skip` bytes in, were written by this process or by
    /// the kernel in its name. Call it behind each write, before the ring says so or stops. It
    /// costs one branch while the guest does not migrate.
    #[inline]
    pub fn wrote(&self, segments: &[Segment], skip: usize, len: usize) {
        if let Some(log) = &self.log {
            self.note(log, segments, skip, len);
        }
    }

    #[cold]
    fn note(&self, log: &DirtyLog, segments: &[Segment], skip: usize, len: usize) {
        walk(segments, skip, len, |s, ptr, n| {
            if let Some(r) = self.regions.get(usize::from(s.region)) {
                log.wrote(r.guest_addr + (ptr.addr() - r.ptr.addr()) as u64, n as u64);
            }
        });
    }

    /// Bytes of the smallest page behind any of the memory; 0 where there is none.
    ///
    /// # Errors
    /// Those of statx(2) and mmap(2).
    pub fn smallest_page(&self) -> io::Result<usize> {
        Ok(self.region_views()?.iter().map(|r| r.page).min().unwrap_or(0))
    }

    /// The regions, in their order, to be mapped once more.
    pub(crate) fn region_views<'a>(&'a self) -> io::Result<Vec<RegionView<'a>>> {
        let view = |(index, r): (usize, &'a Region)| {
            let (file, page) = (r.backing.file.as_fd(), page_size(&r.backing.file)? as usize);
            Ok(RegionView { index, file, offset: r.offset, len: r.len as usize, page })
        };
        self.regions.iter().enumerate().map(view).collect()
    }

    /// Bytes of guest memory.
    pub fn len(&self) -> u64 {
        self.regions.iter().map(|r| r.len).sum()
    }

    /// Whether the VM has no memory.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Where `len` bytes at the front end's address `user_addr` are mapped here, if they lie in one
    /// region (rings are contiguous there).
    pub fn ring_ptr(&self, user_addr: u64, len: u64) -> Option<HostPtr> {
        self.ring_region(user_addr, len).map(|(r, start)| r.ptr.wrapping_add(start))
    }

    /// The same bytes, which stay mapped as long as what is returned; None also where they begin at
    /// an odd address.
    pub(crate) fn ring_words(&self, user_addr: u64, len: u64) -> Option<SharedWords> {
        let (r, start) = self.ring_region(user_addr, len)?;
        SharedWords::new(r.backing.clone(), start, len as usize)
    }

    /// The region that has these bytes, and where they begin in it.
    fn ring_region(&self, user_addr: u64, len: u64) -> Option<(&Region, usize)> {
        self.regions.iter().find_map(|r| {
            let start = user_addr.checked_sub(r.user_addr)?;
            let end = start.checked_add(len)?;
            (end <= r.len).then_some((r, start as usize))
        })
    }

    /// Appends the segments of `[addr, addr + len)` to `out`. `hint` is the region of the last
    /// translation: most buffers lie in the same one. Returns false, with `out` as it was, where a
    /// byte is not backed or the list is full. Addresses are guest-physical, and a range may cross
    /// adjacent regions (virtio 1.3 §2.7.5).
    #[inline]
    pub fn translate(&self, addr: u64, len: u32, hint: &mut usize, out: &mut Vec<Segment>) -> bool {
        match self.within(addr, len, *hint) {
            Some(ptr) => push(out, Segment { ptr, len, region: *hint as u16 }),
            None => self.translate_slow(addr, len, hint, out),
        }
    }

    #[cold]
    fn translate_slow(&self, addr: u64, len: u32, hint: &mut usize, out: &mut Vec<Segment>) -> bool {
        let mark = out.len();
        let is_whole = self.translate_parts(addr, len.into(), hint, out).is_some();
        if !is_whole {
            out.truncate(mark);
        }
        is_whole
    }

    fn translate_parts(
        &self,
        mut at: u64,
        mut left: u64,
        hint: &mut usize,
        out: &mut Vec<Segment>,
    ) -> Option<()> {
        while left > 0 {
            let i = self.regions.partition_point(|r| r.guest_addr <= at).checked_sub(1)?;
            let r = &self.regions[i];
            let start = at - r.guest_addr;
            let n = left.min(r.len.checked_sub(start).filter(|n| *n > 0)?);
            *hint = i;
            let ptr = r.ptr.wrapping_add(start as usize);
            push(out, Segment { ptr, len: n as u32, region: i as u16 }).then_some(())?;
            left -= n;
            if left > 0 {
                at = at.checked_add(n)?;
            }
        }
        Some(())
    }
}

/// Adds a segment; false where the list is full.
#[inline]
fn push(out: &mut Vec<Segment>, segment: Segment) -> bool {
    // A hot path makes no allocation: the capacity is the bound.
    if out.len() == out.capacity() {
        return false;
    }
    out.push(segment);
    true
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
