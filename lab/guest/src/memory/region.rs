//! One mapped region and the list of its free ranges.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::MapFlags;
use zerowire_sys::map::{Mapping, READ_WRITE};

use crate::GuestAddr;

/// A region of guest memory, or a BAR of a PCI device, mapped in this process.
#[derive(Debug)]
pub struct Region {
    guest_addr: GuestAddr,
    /// Only accessed with volatile, atomic or raw copy operations.
    mapping: Mapping,
    file: Arc<OwnedFd>,
    file_offset: usize,
    /// Free ranges (offset, bytes), lowest first, never adjacent.
    free: Mutex<Vec<(usize, usize)>>,
}

impl Region {
    /// Maps a part of `file`. Huge pages that are missing are an error here, not a signal later.
    pub(crate) fn map(
        guest_addr: GuestAddr,
        len: usize,
        file: Arc<OwnedFd>,
        file_offset: usize,
    ) -> io::Result<Region> {
        let mapping =
            Mapping::shared_with(file.as_fd(), file_offset as u64, len, READ_WRITE, MapFlags::empty())?;
        Ok(Region { guest_addr, mapping, file, file_offset, free: Mutex::new(vec![(0, len)]) })
    }

    /// Guest-physical address of the first byte.
    pub fn guest_addr(&self) -> GuestAddr {
        self.guest_addr
    }

    /// Guest-physical address of the first byte behind it.
    pub fn end(&self) -> GuestAddr {
        GuestAddr(self.guest_addr.0 + self.len() as u64)
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len()
    }

    /// Address of the first byte in this process.
    pub fn user_addr(&self) -> u64 {
        self.base() as u64
    }

    /// Offset of the first byte in [`Region::file`].
    pub fn file_offset(&self) -> u64 {
        self.file_offset as u64
    }

    /// The memfd, which other regions may share, or the device's file of the BAR.
    pub fn file(&self) -> BorrowedFd<'_> {
        (*self.file).as_fd()
    }

    /// Brings the first page into memory, without changing it.
    pub(super) fn touch(&self) {
        // SAFETY: the first byte is mapped for reading and writing while the
        // region lives. The mapping is new: nobody else writes it yet.
        unsafe { self.base().write_volatile(self.base().read_volatile()) }
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.mapping.as_ptr()
    }

    /// Takes the first free range that fits.
    pub(super) fn take(&self, len: usize, align: usize) -> Option<usize> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, start) = free.iter().enumerate().find_map(|(at, &(offset, size))| {
            let start = offset.checked_next_multiple_of(align.max(1))?;
            (start.checked_add(len)? <= offset + size).then_some((at, start))
        })?;
        let (offset, size) = free.remove(at);
        let (end, taken_end) = (offset + size, start + len);
        if taken_end < end {
            free.insert(at, (taken_end, end - taken_end));
        }
        if offset < start {
            free.insert(at, (offset, start - offset));
        }
        Some(start)
    }

    /// Gives a range back that was taken.
    pub(super) fn give_back(&self, offset: usize, len: usize) {
        if len == 0 {
            return;
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let at = free.partition_point(|&(start, _)| start < offset);
        free.insert(at, (offset, len));
        if at + 1 < free.len() && offset + len == free[at + 1].0 {
            free[at].1 += free[at + 1].1;
            free.remove(at + 1);
        }
        if at > 0 && free[at - 1].0 + free[at - 1].1 == offset {
            free[at - 1].1 += free[at].1;
            free.remove(at);
        }
    }

    #[cfg(test)]
    pub(super) fn free_ranges(&self) -> Vec<(usize, usize)> {
        self.free.lock().unwrap().clone()
    }
}
