//! Mappings that only their holder writes: their bytes are a slice.
//!
//! **Who owns these bytes.** The holder does, by ordinary borrows. The kernel reads or writes them
//! only within a system call that the holder makes, and the holder keeps no borrow across it.

use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io;

use super::Mapping;

/// Zeroed private memory, none by default. A page takes memory from its first use until it is
/// released.
#[derive(Debug, Default)]
pub struct PrivateMap(Mapping);

impl PrivateMap {
    /// `len` bytes. Core dumps leave them out.
    pub fn new(len: usize) -> io::Result<Self> {
        Ok(Self(Mapping::private(len)?))
    }

    /// Releases all pages: every byte is zero afterwards.
    pub fn release_pages(&mut self) {
        self.0.discard();
    }
}

impl Deref for PrivateMap {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped, readable and private to this value as long as that lives.
        // Only `deref_mut` and `release_pages` change it, which borrow the value exclusively, and
        // system calls of the holder, during which it keeps no borrow.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }
    }
}

impl DerefMut for PrivateMap {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len()) }
    }
}

/// Memory that others may read, and the holder alone writes.
#[derive(Debug)]
pub struct SealedMap(PrivateMap);

impl SealedMap {
    /// `len` bytes of zeroes, and their file, which has this name in /proc. Whoever gets the file
    /// can map it for reading only, and can't change its length.
    ///
    /// # Errors
    /// Those of memfd_create(2), mmap(2) and fcntl(2): EINVAL before Linux 5.1.
    pub fn new(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, len as u64)?;
        let map = Mapping::shared(&file, 0, len)?;
        // The mapping above stays as it is: no other one that can write was made before, and none
        // can be from here on.
        let length = SealFlags::SHRINK | SealFlags::GROW;
        fcntl_add_seals(&file, length | SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        Ok((Self(PrivateMap(map)), file))
    }
}

impl Deref for SealedMap {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for SealedMap {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests;
