//! The operations of a batch with their scatter lists, in memory that does not move.
//!
//! **Who holds what.** A queued operation names its list by address ([`Op::iov`]), and the kernel
//! follows that when the batch runs. So the lists of a batch lie in one array whose length is fixed
//! when it is made. An entry that does not fit is refused. A growing array would leave earlier
//! operations with memory that was freed. An entry names guest memory, which who runs the turn
//! holds, or private memory, which the batch has itself.

use std::io;
use std::ops::Range;

use zerowire_sys::batch::{MAX_BATCH, Op};
use zerowire_vhost::memory::{HostPtr, PrivateMap};

/// Scatter lists, one behind the other, and the operations that have them.
#[derive(Debug)]
pub struct Lists {
    /// Never longer than `most`, for which it has had room from the beginning: it is not allocated
    /// anew.
    entries: Vec<libc::iovec>,
    most: usize,
    /// Operations that wait for the batch to run.
    queued: Vec<Op>,
    /// Where their lists end.
    queued_end: usize,
    private: PrivateMap,
}

/// The array has no room for another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Lists {
    /// Room for `most` entries, with this much private memory.
    ///
    /// # Errors
    /// The private memory can't be had.
    pub fn new(most: usize, private_bytes: usize) -> io::Result<Self> {
        Ok(Self {
            entries: Vec::with_capacity(most),
            most,
            queued: Vec::with_capacity(MAX_BATCH),
            queued_end: 0,
            private: PrivateMap::new(private_bytes)?,
        })
    }

    /// Forgets all operations and lists.
    #[inline]
    pub fn clear(&mut self) {
        self.queued.clear();
        self.queued_end = 0;
        self.entries.clear();
    }

    /// Forgets the entries from `len` on that no operation has.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.entries.truncate(len.max(self.queued_end));
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

    /// The private memory.
    #[inline]
    pub fn private(&mut self) -> &mut PrivateMap {
        &mut self.private
    }

    #[inline]
    fn push(&mut self, entry: libc::iovec) -> Result<(), Full> {
        if self.room() == 0 {
            return Err(Full);
        }
        self.entries.push(entry);
        Ok(())
    }

    /// Appends private memory.
    ///
    /// # Errors
    /// The array is full; nothing has changed.
    #[inline]
    pub fn add_private(&mut self, range: Range<usize>) -> Result<(), Full> {
        let bytes = &mut self.private[range];
        let entry = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        self.push(entry)
    }

    /// Appends `len` bytes of guest memory at `ptr`.
    ///
    /// # Errors
    /// As [`Self::add_private`].
    #[inline]
    pub fn add(&mut self, ptr: HostPtr, len: usize) -> Result<(), Full> {
        self.push(libc::iovec { iov_base: ptr.as_ptr().cast(), iov_len: len })
    }

    /// As [`Self::add`], to the list that begins at `start`, which is the last one. Memory right
    /// behind its last entry extends that entry, as where a guest cuts buffers out of larger
    /// blocks.
    ///
    /// # Errors
    /// As [`Self::add_private`].
    #[inline]
    pub fn extend(&mut self, start: usize, ptr: HostPtr, len: usize) -> Result<(), Full> {
        if self.entries.len() > start
            && let Some(last) = self.entries.last_mut()
            && last.iov_base.wrapping_byte_add(last.iov_len) == ptr.as_ptr().cast()
        {
            last.iov_len += len;
            return Ok(());
        }
        self.add(ptr, len)
    }

    /// The operation on the list that begins at `start`, which is the last one. It is good until
    /// [`Self::clear`], or until `self` goes.
    #[inline]
    pub(super) fn operation(&mut self, slot: u16, write: bool, start: usize) -> Op {
        self.queued_end = self.entries.len();
        let list = self.entries.get(start..).unwrap_or_default();
        Op { slot, write, iov: list.as_ptr(), len: list.len() as u32 }
    }

    /// Queues an operation on the list that begins at `start`, which is the last one and not empty,
    /// at most [`MAX_BATCH`] of them. `slot` comes back with its result. A batch has reads or
    /// writes, not both.
    #[inline]
    pub fn queue(&mut self, slot: u16, write: bool, start: usize) {
        let op = self.operation(slot, write, start);
        self.queued.push(op);
    }

    /// The operations that wait.
    #[inline]
    pub(super) fn queued(&mut self) -> &mut Vec<Op> {
        &mut self.queued
    }
}

#[cfg(test)]
mod tests;
