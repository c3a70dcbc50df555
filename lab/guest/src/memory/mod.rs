//! Guest memory: regions of memfds at chosen guest-physical addresses.
//!
//! # Who owns the bytes
//! The guest owns the memfds and its mapping; the device maps the same pages. Either side may write
//! at any time, so no reference into these pages is ever made. Access goes through [`GuestSlice`],
//! which copies, or reads and writes single integers with volatile or atomic operations. A region
//! stays mapped as long as a slice of it lives, also after it was removed.

mod physical;
mod region;
mod slice;

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::GuestError;
pub use region::Region;
pub use slice::GuestSlice;

/// A guest-physical address.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct GuestAddr(pub u64);

impl fmt::Display for GuestAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// Regions by their first address.
type Regions = BTreeMap<GuestAddr, Arc<Region>>;

/// The memory of one guest. Clones share it.
#[derive(Clone, Debug)]
pub struct GuestMemory {
    regions: Arc<Mutex<Regions>>,
    huge_pages: bool,
}

/// Bytes that a region's address and length are multiples of.
pub const PAGE: usize = 4096;

const HUGE_PAGE: usize = 2 << 20;

impl GuestMemory {
    /// Memory with the given regions (first address, bytes). All lie in one memfd one after the
    /// other, as a VMM lays out RAM around its PCI hole.
    ///
    /// ```
    /// use zerowire_guest::{GuestAddr, GuestMemory};
    /// let memory = GuestMemory::new(&[(GuestAddr(0), 1 << 20), (GuestAddr(1 << 32), 1 << 20)])?;
    /// let buffer = memory.allocate(4096, 64)?;
    /// buffer.write(0, b"hello");
    /// # Ok::<(), zerowire_guest::GuestError>(())
    /// ```
    ///
    /// # Errors
    /// [`GuestError::BadRegion`], [`GuestError::Io`].
    pub fn new(regions: &[(GuestAddr, usize)]) -> Result<GuestMemory, GuestError> {
        Self::with_huge_pages(regions, false)
    }

    /// As [`GuestMemory::new`], with 2 MiB pages if `huge_pages` (they must
    /// have been reserved in `vm.nr_hugepages`).
    ///
    /// # Errors
    /// [`GuestError::BadRegion`], [`GuestError::Io`].
    pub fn with_huge_pages(
        regions: &[(GuestAddr, usize)],
        huge_pages: bool,
    ) -> Result<GuestMemory, GuestError> {
        let memory = GuestMemory { regions: Arc::default(), huge_pages };
        let total: usize = regions.iter().map(|&(_, len)| len).sum();
        let file = memory.make_file(total)?;
        let mut offset = 0;
        for &(addr, len) in regions {
            memory.insert(addr, len, &file, offset)?;
            offset += len;
        }
        Ok(memory)
    }

    /// Adds a region in a memfd of its own: hot-plug. The device does not know
    /// it before [`crate::Transport::add_memory`].
    ///
    /// # Errors
    /// [`GuestError::BadRegion`], [`GuestError::Io`].
    pub fn add_region(&self, addr: GuestAddr, len: usize) -> Result<Arc<Region>, GuestError> {
        let file = self.make_file(len)?;
        self.insert(addr, len, &file, 0)
    }

    /// Takes the region at `addr` out; nothing is allocated from it any more.
    /// It stays mapped until its last slice is dropped.
    ///
    /// # Errors
    /// [`GuestError::NoSuchMemory`] when no region begins there.
    pub fn remove_region(&self, addr: GuestAddr) -> Result<Arc<Region>, GuestError> {
        self.lock().remove(&addr).ok_or(GuestError::NoSuchMemory { addr, len: 0 })
    }

    /// All regions, lowest address first.
    pub fn regions(&self) -> Vec<Arc<Region>> {
        self.lock().values().cloned().collect()
    }

    /// Allocates `len` bytes that begin at a multiple of `align`, from the
    /// first region that has them. They are given back when the last slice
    /// of them is dropped, whether or not the device still uses them. Their
    /// content is whatever was there before.
    ///
    /// # Errors
    /// [`GuestError::OutOfMemory`].
    pub fn allocate(&self, len: usize, align: usize) -> Result<GuestSlice, GuestError> {
        let regions = self.regions();
        regions
            .iter()
            .find_map(|region| GuestSlice::allocate(region, len, align))
            .ok_or(GuestError::OutOfMemory { len })
    }

    /// The region that begins at `region` alone, as memory to give to a queue
    /// or a pool that must lie there. Allocations are shared with `self`.
    ///
    /// # Errors
    /// [`GuestError::NoSuchMemory`].
    pub fn only(&self, region: GuestAddr) -> Result<GuestMemory, GuestError> {
        let found = self.lock().get(&region).cloned();
        let found = found.ok_or(GuestError::NoSuchMemory { addr: region, len: 0 })?;
        let regions = Arc::new(Mutex::new(BTreeMap::from([(region, found)])));
        Ok(GuestMemory { regions, huge_pages: self.huge_pages })
    }

    /// A view of memory at a guest address, allocated or not.
    ///
    /// # Errors
    /// [`GuestError::NoSuchMemory`] unless one region holds the whole range.
    pub fn at(&self, addr: GuestAddr, len: usize) -> Result<GuestSlice, GuestError> {
        let regions = self.lock();
        regions
            .values()
            .find_map(|region| GuestSlice::view(region, addr, len))
            .ok_or(GuestError::NoSuchMemory { addr, len })
    }

    fn lock(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory that the devices of this machine can use: `huge_pages` pages of 2 MiB. Each is a
    /// region whose guest address is its physical address. For a driver in a real guest
    /// ([`crate::pci`]), not for vhost-user.
    ///
    /// It needs `huge_pages` free pages (`vm.nr_hugepages`) and CAP_SYS_ADMIN, without which the
    /// kernel shows no physical addresses (Documentation/admin-guide/mm/pagemap.rst). No allocation
    /// crosses a page, so each is at most 2 MiB. The kernel moves such pages only when memory is
    /// taken out of the machine, or when an administrator has it compacted. Don't do that while a
    /// device runs.
    ///
    /// # Errors
    /// [`GuestError::BadSetting`] for no pages; [`GuestError::Io`] with the
    /// remedy.
    pub fn physical(huge_pages: usize) -> Result<GuestMemory, GuestError> {
        if huge_pages == 0 {
            let what = "the number of huge pages";
            return Err(GuestError::BadSetting { what, value: 0, rule: "at least 1" });
        }
        let memory = GuestMemory { regions: Arc::default(), huge_pages: true };
        let len = HUGE_PAGE * huge_pages;
        let file = memory.make_file(len)?;
        for offset in (0..len).step_by(HUGE_PAGE) {
            // A page has a physical address once it was touched. A region keeps the address that it
            // was mapped with, so this mapping finds it out.
            let probe = map(GuestAddr(0), HUGE_PAGE, &file, offset)?;
            let addr = physical::address_of(&probe)?;
            memory.lock().insert(addr, Arc::new(map(addr, HUGE_PAGE, &file, offset)?));
        }
        Ok(memory)
    }

    fn make_file(&self, len: usize) -> Result<Arc<OwnedFd>, GuestError> {
        let mut flags = MemfdFlags::CLOEXEC;
        if self.huge_pages {
            flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
        }
        let file = memfd_create("guest-memory", flags)
            .map_err(|e| GuestError::io("memfd_create for guest memory", e))?;
        ftruncate(&file, len as u64)
            .map_err(|e| GuestError::io(format!("setting guest memory to {len} bytes"), e))?;
        Ok(Arc::new(file))
    }

    fn insert(
        &self,
        addr: GuestAddr,
        len: usize,
        file: &Arc<OwnedFd>,
        offset: usize,
    ) -> Result<Arc<Region>, GuestError> {
        let bad = |rule| Err(GuestError::BadRegion { addr, len, rule });
        let page = if self.huge_pages { HUGE_PAGE } else { PAGE };
        if len == 0 || !len.is_multiple_of(page) || !addr.0.is_multiple_of(page as u64) {
            return bad("address and length must be multiples of the page size, and not empty");
        }
        let Some(end) = addr.0.checked_add(len as u64) else {
            return bad("the end must fit in 64 bits");
        };
        let mut regions = self.lock();
        let overlaps = |r: &Arc<Region>| r.guest_addr().0 < end && addr.0 < r.end().0;
        if regions.values().any(overlaps) {
            return bad("it overlaps another region");
        }
        let region = Arc::new(map(addr, len, file, offset)?);
        regions.insert(addr, Arc::clone(&region));
        Ok(region)
    }
}

fn map(addr: GuestAddr, len: usize, file: &Arc<OwnedFd>, offset: usize) -> Result<Region, GuestError> {
    Region::map(addr, len, Arc::clone(file), offset).map_err(|e| {
        let what = "mapping guest memory (for huge pages, reserve them in vm.nr_hugepages)";
        GuestError::io(format!("{what}: {len} bytes"), e)
    })
}
