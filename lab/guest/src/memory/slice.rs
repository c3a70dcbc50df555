//! Bounded access to guest memory.

use std::sync::Arc;
use std::sync::atomic::AtomicU16;

use super::Region;
use crate::GuestAddr;

/// An unsigned integer, which lies in a device's memory with its lowest byte first.
pub trait LeInt: Copy {
    /// From memory.
    fn from_le(value: Self) -> Self;
    /// As it lies in memory.
    fn to_le(self) -> Self;
}

macro_rules! le_int {
    ($($int:ty),*) => {
        $(impl LeInt for $int {
            #[inline]
            fn from_le(value: Self) -> Self {
                <$int>::from_le(value)
            }

            #[inline]
            fn to_le(self) -> Self {
                <$int>::to_le(self)
            }
        })*
    };
}
le_int!(u8, u16, u32, u64);

/// A range of one region of guest memory or registers. Cheap to clone; keeps the region
/// mapped, and its bytes allocated if it came from
/// [`crate::GuestMemory::allocate`].
///
/// Offsets are in bytes from the slice's start. Access outside the slice
/// panics, as with Rust's own slices: offsets come from the driver, never from
/// the device.
#[derive(Clone, Debug)]
pub struct GuestSlice {
    owner: Arc<Owner>,
    base: *mut u8,
    len: usize,
}

#[derive(Debug)]
struct Owner {
    region: Arc<Region>,
    /// The allocated range, given back on drop; (0, 0) for a view.
    taken: (usize, usize),
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.region.give_back(self.taken.0, self.taken.1);
    }
}

// SAFETY: `base` points into shared memory that `owner` keeps mapped. All access is volatile,
// atomic or a raw copy, and any thread or process may do it.
unsafe impl Send for GuestSlice {}
// SAFETY: as for Send.
unsafe impl Sync for GuestSlice {}

impl GuestSlice {
    pub(super) fn allocate(region: &Arc<Region>, len: usize, align: usize) -> Option<GuestSlice> {
        let offset = region.take(len, align)?;
        Some(GuestSlice::new(region, (offset, len), offset, len))
    }

    pub(crate) fn view(region: &Arc<Region>, addr: GuestAddr, len: usize) -> Option<GuestSlice> {
        let offset = usize::try_from(addr.0.checked_sub(region.guest_addr().0)?).ok()?;
        (offset.checked_add(len)? <= region.len()).then(|| GuestSlice::new(region, (0, 0), offset, len))
    }

    fn new(region: &Arc<Region>, taken: (usize, usize), offset: usize, len: usize) -> GuestSlice {
        let owner = Arc::new(Owner { region: Arc::clone(region), taken });
        GuestSlice { owner, base: region.base().wrapping_add(offset), len }
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Guest-physical address of the first byte.
    pub fn guest_addr(&self) -> GuestAddr {
        let offset = self.base as usize - self.owner.region.base() as usize;
        GuestAddr(self.owner.region.guest_addr().0 + offset as u64)
    }

    /// Address of the first byte in this process, which SET_VRING_ADDR wants.
    pub fn user_addr(&self) -> u64 {
        self.base as u64
    }

    /// The part of `len` bytes from `offset`.
    ///
    /// # Panics
    /// When it is not inside.
    pub fn part(&self, offset: usize, len: usize) -> GuestSlice {
        self.check(offset, len, 1);
        GuestSlice { owner: Arc::clone(&self.owner), base: self.base.wrapping_add(offset), len }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// When they don't fit.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        let target = self.check(offset, bytes.len(), 1);
        // SAFETY: `check` gave an address of as many mapped bytes; `bytes` is
        // ordinary memory and can't overlap. The device may access the same
        // bytes through its own mapping; no reference to them exists here.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// When there are not as many.
    #[inline]
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        let source = self.check(offset, bytes.len(), 1);
        // SAFETY: as in `write`, with the directions exchanged.
        unsafe { std::ptr::copy_nonoverlapping(source, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// All bytes in a new vector.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.read(0, &mut bytes);
        bytes
    }

    /// Copies `len` bytes from `offset` to the end of `bytes`.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn append_to(&self, offset: usize, len: usize, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.resize(start + len, 0);
        self.read(offset, &mut bytes[start..]);
    }

    /// Sets all bytes to `value`.
    pub fn fill(&self, value: u8) {
        // SAFETY: the slice's own range is mapped; no reference to it exists.
        unsafe { std::ptr::write_bytes(self.base, value, self.len) }
    }

    /// The u16 at `offset` for atomic access; its bytes are in the order of
    /// the memory (little-endian in a ring).
    ///
    /// # Panics
    /// When it is outside or not aligned to 2.
    #[inline]
    pub fn atomic_u16(&self, offset: usize) -> &AtomicU16 {
        let target = self.check(offset, 2, 2);
        // SAFETY: mapped and aligned as `check` saw, for as long as `self`
        // lives; atomics may be changed by anybody.
        unsafe { AtomicU16::from_ptr(target.cast()) }
    }

    /// Reads a little-endian integer.
    ///
    /// # Panics
    /// When it is outside or not aligned to its length.
    #[inline]
    pub fn read_int<T: LeInt>(&self, offset: usize) -> T {
        let source = self.check(offset, size_of::<T>(), size_of::<T>());
        // SAFETY: mapped and aligned as `check` saw; any bytes are an integer.
        T::from_le(unsafe { source.cast::<T>().read_volatile() })
    }

    /// Writes a little-endian integer.
    ///
    /// # Panics
    /// When it is outside or not aligned to its length.
    #[inline]
    pub fn write_int<T: LeInt>(&self, offset: usize, value: T) {
        let target = self.check(offset, size_of::<T>(), size_of::<T>());
        // SAFETY: mapped and aligned as `check` saw.
        unsafe { target.cast::<T>().write_volatile(value.to_le()) }
    }

    #[inline]
    fn check(&self, offset: usize, len: usize, align: usize) -> *mut u8 {
        let inside = offset <= self.len && len <= self.len - offset;
        let target = self.base.wrapping_add(offset);
        assert!(
            inside && (target as usize).is_multiple_of(align),
            "guest access of {len} bytes at {offset} in {} bytes, alignment {align}",
            self.len
        );
        target
    }
}

#[cfg(test)]
mod tests;
