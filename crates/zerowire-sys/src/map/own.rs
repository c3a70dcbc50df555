//! Mappings that only their holder writes: their bytes are a slice.
//!
//! **Who owns these bytes.** The holder does, by ordinary borrows. The kernel reads or writes them
//! only within a system call that the holder makes, and the holder keeps no borrow across it.

use std::ops::{Deref, DerefMut};

use rustix::io;

use super::Mapping;

/// Zeroed private memory, none by default. A page takes memory from its first use until it is
/// released.
#[derive(Debug, Default)]
pub struct PrivateMap(Mapping);

impl PrivateMap {
    /// `len` bytes. Core dumps leave them out.
    ///
    /// # Errors
    /// What mmap(2) says.
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

#[cfg(test)]
mod tests {
    use super::super::testing::is_left_out;
    use super::*;

    #[test]
    fn released_pages_are_zero_and_can_be_used_again() {
        let mut map = PrivateMap::new(8192).expect("memory");
        assert!(map.len() == 8192 && map.iter().all(|b| *b == 0));
        assert!(is_left_out(map.as_ptr()), "core dumps leave it out");
        map[4090..4102].fill(7);
        assert_eq!(map.iter().filter(|b| **b == 7).count(), 12);
        map.release_pages();
        assert!(map.iter().all(|b| *b == 0));
        map[0] = 1;
        assert_eq!(map[..2], [1, 0]);
    }
}
