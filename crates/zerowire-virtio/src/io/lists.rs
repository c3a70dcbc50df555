//! The scatter lists of a batch, in memory that does not move.
//!
//! **Who holds what.** A queued operation names its list by address ([`super::Op::iov`]), and the engine follows that until the
//! batch has run. So the lists of a batch lie in one array of a length that is given once: an entry that it has no room
//! for is refused, where a growing one would leave the operations before with memory that was freed.

/// Scatter lists, one behind the other.
#[derive(Debug)]
pub struct Lists {
    /// Never longer than `most`, for which it has had room from the beginning: it is not allocated anew.
    entries: Vec<libc::iovec>,
    most: usize,
}

/// There is no room for another entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Lists {
    /// Room for so many entries.
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
    /// There is no room; nothing has changed.
    #[inline]
    pub fn push(&mut self, entry: libc::iovec) -> Result<(), Full> {
        if self.room() == 0 {
            return Err(Full);
        }
        self.entries.push(entry);
        Ok(())
    }

    /// The last entry of the list that begins at `start`, if it has one.
    #[inline]
    pub fn last_from(&mut self, start: usize) -> Option<&mut libc::iovec> {
        self.entries.get_mut(start..).and_then(|list| list.last_mut())
    }

    /// The list that begins at `start`, which is the last one: its address, and how many entries it has. The address stays good
    /// until [`Self::clear`], or until `self` goes.
    #[inline]
    pub fn list_from(&self, start: usize) -> (*const libc::iovec, u32) {
        let list = self.entries.get(start..).unwrap_or_default();
        (list.as_ptr(), list.len() as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(len: usize) -> libc::iovec {
        libc::iovec { iov_base: std::ptr::null_mut(), iov_len: len }
    }

    #[test]
    fn a_full_array_refuses_entries_and_stays_where_it_is() {
        for most in [1, 7, 4096] {
            let mut lists = Lists::new(most);
            let (at, _) = lists.list_from(0);
            for n in 0..most {
                assert_eq!((lists.end(), lists.room()), (n, most - n));
                assert_eq!(lists.push(entry(n)), Ok(()));
            }
            for _ in 0..3 {
                assert_eq!(lists.push(entry(0)), Err(Full));
                assert_eq!(lists.list_from(0), (at, most as u32));
                assert_eq!(lists.last_from(0).map(|e| e.iov_len), Some(most - 1));
            }
            lists.clear();
            assert_eq!(lists.push(entry(3)), Ok(()));
            assert_eq!(lists.list_from(0), (at, 1));
        }
    }

    #[test]
    fn a_list_begins_where_it_is_said_to() {
        let mut lists = Lists::new(8);
        (1..=5).for_each(|n| assert_eq!(lists.push(entry(n)), Ok(())));
        let (all, _) = lists.list_from(0);
        assert_eq!(lists.list_from(3), (all.wrapping_add(3), 2));
        assert!(lists.last_from(5).is_none() && lists.last_from(9).is_none());
        lists.truncate(3);
        assert_eq!((lists.list_from(3).1, lists.last_from(2).map(|e| e.iov_len)), (0, Some(3)));
    }
}
