//! Memory that a system call reads or writes, by address.
//!
//! **Who holds what.** A list borrows all that it names: the guest's memory with the snapshot that
//! maps it, and private bytes for themselves alone. So a call with a list touches nothing else,
//! whoever made it.

use std::marker::PhantomData;

use super::{GuestMemory, Region, Segment};

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
        let iov_base = start.unwrap_or(std::ptr::null_mut()).cast();
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
mod tests {
    use super::*;
    use crate::memory::RegionConfig;

    #[test]
    fn what_the_memory_does_not_have_is_not_named() {
        const LEN: u64 = 8192;
        let file = rustix::fs::memfd_create("ram", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, LEN).expect("its length");
        let region = RegionConfig { guest_addr: 0, len: LEN, user_addr: 0, offset: 0, file };
        let memory = GuestMemory::new(vec![region]).expect("guest memory");
        let base = memory.regions()[0].ptr();
        let (mut entries, mut private) = (Vec::new(), [0; 3]);
        let named = |at: *mut u8, len, region| {
            let mut entries = Vec::new();
            let mut list = IoList::new(&mut entries);
            list.add(&memory, &Segment { ptr: at, len, region });
            list.entries().iter().all(|e| e.iov_base == at.cast() && e.iov_len == len as usize)
        };
        for (at, len) in [(0, LEN as u32), (1, LEN as u32 - 1), (8191, 1), (8192, 0)] {
            assert!(named(base.wrapping_add(at), len, 0), "{len} at {at}");
            assert!(!named(base.wrapping_add(at), len, 1), "no such region");
        }
        for (at, len) in [(1, LEN as u32), (8191, 2), (8192, 1), (0, u32::MAX)] {
            assert!(!named(base.wrapping_add(at), len, 0), "{len} at {at}");
        }
        assert!(!named(base.wrapping_sub(1), 1, 0));
        let mut list = IoList::new(&mut entries);
        list.add_private(&mut private);
        list.add(&memory, &Segment { ptr: base, len: 7, region: 0 });
        assert_eq!(list.entries().iter().map(|e| e.iov_len).collect::<Vec<_>>(), [3, 7]);
        list.truncate(1);
        assert!(list.len() == 1 && !list.is_empty());
        assert!(IoList::new(&mut entries).is_empty());
    }
}
