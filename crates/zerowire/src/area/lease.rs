//! One buffer of an area, held exclusively or shared read-only.

use super::Area;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// One buffer, held by nobody else. Dropping it gives the buffer back to its area.
#[derive(Debug)]
pub struct Lease {
    area: Area,
    index: u32,
    len: usize,
}

impl Lease {
    pub(super) fn new(area: Area, index: u32) -> Self {
        let len = area.buffer_bytes();
        Self { area, index, len }
    }

    /// Sets the length of the slice that the lease stands for: what is sent, and what `Deref`
    /// gives. Bytes behind it keep their values. Returns `false` and changes nothing when `len` is
    /// more than [`Lease::capacity`].
    #[must_use = "a length past the capacity is refused"]
    pub fn set_len(&mut self, len: usize) -> bool {
        if len > self.capacity() {
            return false;
        }
        self.len = len;
        true
    }

    /// Length of the buffer in bytes.
    pub fn capacity(&self) -> usize {
        self.area.buffer_bytes()
    }

    /// The area that the buffer belongs to.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// Where the buffer begins in the area, in bytes.
    pub fn offset(&self) -> usize {
        self.area.offset_of(self.index)
    }

    /// Gives up the right to write: the bytes may then be shared and lent many times at once.
    pub fn freeze(self) -> Frozen {
        Frozen(Arc::new(self))
    }

    fn start(&self) -> *mut u8 {
        self.area.base().wrapping_add(self.offset())
    }
}

impl Deref for Lease {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the buffer lies in the mapping that `area` keeps, and len is at most its length.
        // The bytes were zeroed at the start, and this lease is the only access to them.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` is the only access to the lease.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.area.give_back(self.index);
    }
}

/// A buffer that nobody can write: clones share it, and the last one gives it back to its area.
#[derive(Clone, Debug)]
pub struct Frozen(Arc<Lease>);

impl Frozen {
    /// The area that the buffer belongs to.
    pub fn area(&self) -> &Area {
        self.0.area()
    }

    /// Where the buffer begins in the area, in bytes.
    pub fn offset(&self) -> usize {
        self.0.offset()
    }

    /// The right to write again, when this is the only handle; otherwise the handle itself.
    ///
    /// # Errors
    /// The handle comes back when there are others.
    pub fn thaw(self) -> Result<Lease, Frozen> {
        Arc::try_unwrap(self.0).map_err(Frozen)
    }
}

impl Deref for Frozen {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests;
