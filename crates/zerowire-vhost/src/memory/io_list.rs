//! Memory that a system call reads or writes, by address.
//!
//! **Who holds what.** A list borrows all that it names: the guest's memory with the snapshot that
//! maps it, and private bytes for themselves alone. So a call with a list touches nothing else,
//! whoever made it.

use std::marker::PhantomData;

use super::{GuestMemory, HostPtr, Region, Segment};

/// A scatter list. The array that it fills is kept from call to call to save the allocation.
#[derive(Debug)]
pub struct IoList<'a> {
    entries: &'a mut Vec<libc::iovec>,
    memory: PhantomData<(&'a GuestMemory, &'a mut [u8])>,
}

impl<'a> IoList<'a> {
    /// An empty one.
    #[inline]
    pub fn new(entries: &'a mut Vec<libc::iovec>) -> Self {
        entries.clear();
        Self { entries, memory: PhantomData }
    }

    /// Appends a run of guest memory. If `memory` does not have all of it, the entry names what
    /// nobody has mapped, and the call fails (EFAULT).
    #[inline]
    pub fn add(&mut self, memory: &'a GuestMemory, run: &Segment) {
        let len = run.len as usize;
        let within = |r: &Region| {
            let start = run.ptr.addr().wrapping_sub(r.ptr().addr());
            (start <= r.len() && len <= r.len() - start).then(|| r.ptr().wrapping_add(start))
        };
        let start = memory.regions().get(usize::from(run.region)).and_then(within);
        let iov_base = start.unwrap_or(HostPtr::NULL).as_ptr().cast();
        self.entries.push(libc::iovec { iov_base, iov_len: len });
    }

    /// Appends private bytes.
    #[inline]
    pub fn add_private(&mut self, bytes: &'a mut [u8]) {
        self.entries.push(libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() });
    }

    /// How many entries there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Forgets the entries from `len` on.
    pub fn truncate(&mut self, len: usize) {
        self.entries.truncate(len);
    }

    /// The entries, as a system call takes them.
    #[inline]
    pub fn entries(&self) -> &[libc::iovec] {
        self.entries
    }
}

#[cfg(test)]
mod tests;
