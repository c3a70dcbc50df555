//! The scatter lists of a batch, in memory that does not move.
//!
//! **Who holds what.** A queued operation names its list by address ([`super::Op::iov`]), and the
//! kernel follows that until the batch has run. So the lists of a batch lie in one array whose
//! length is fixed when it is made. An entry that does not fit is refused. A growing array would
//! leave earlier operations with memory that was freed.

/// Scatter lists, one behind the other.
#[derive(Debug)]
pub struct Lists {
    /// Never longer than `most`, for which it has had room from the beginning: it is not allocated
    /// anew.
    entries: Vec<libc::iovec>,
    most: usize,
}

/// The array has no room for another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Lists {
    /// Room for `most` entries.
    pub fn new(most: usize) -> Self {
        Self { entries: Vec::with_capacity(most), most }
    }

    /// Forgets all lists; nothing may be queued that names one.
    #[inline]
    pub fn clear(&mut self) {
        self.entries.clear();
    }

    /// Forgets the entries from `len` on; nothing may be queued that names one of them.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.entries.truncate(len);
    }

    /// Entries of all lists: where the next list begins.
    #[inline]
    pub fn end(&self) -> usize {
        self.entries.len()
    }

    /// Entries that there is room for.
    #[inline]
    pub fn room(&self) -> usize {
        self.most - self.entries.len()
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// The array is full; nothing has changed.
    #[inline]
    pub fn push(&mut self, entry: libc::iovec) -> Result<(), Full> {
        if self.room() == 0 {
            return Err(Full);
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Appends memory to the list that begins at `start`, which is the last one. Memory right
    /// behind its last entry extends that entry, as where a guest cuts buffers out of larger
    /// blocks.
    ///
    /// # Errors
    /// As [`Self::push`].
    #[inline]
    pub fn add(&mut self, start: usize, ptr: *mut u8, len: usize) -> Result<(), Full> {
        if self.entries.len() > start
            && let Some(last) = self.entries.last_mut()
            && last.iov_base.wrapping_byte_add(last.iov_len) == ptr.cast()
        {
            last.iov_len += len;
            return Ok(());
        }
        self.push(libc::iovec { iov_base: ptr.cast(), iov_len: len })
    }

    /// The list that begins at `start`, which is the last one: its address, and how many entries it
    /// has. The address stays good until [`Self::clear`], or until `self` goes.
    #[inline]
    pub fn list_from(&self, start: usize) -> (*const libc::iovec, u32) {
        let list = self.entries.get(start..).unwrap_or_default();
        (list.as_ptr(), list.len() as u32)
    }
}

#[cfg(test)]
mod tests;
