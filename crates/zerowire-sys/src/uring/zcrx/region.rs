//! The memory that rings and kernel share besides the area: the refill ring and the statistics.
//!
//! ```text
//!  | head, tail | entries of the refill ring ............ | statistics |
//!   kernel  user  user writes, kernel reads                 kernel writes
//! ```
//! It is memory of this process that the kernel pins, or memory of the kernel that is mapped here.
//! Either may be unmapped at any time without harm to the kernel. All rings that use one area use
//! one refill ring, so that its writer holds a lock.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::abi::{CopyStats, Rqe};
use crate::map::{EntryTable, Mapping};

/// The head of the region, before the entries; what the kernel needs (`rq_hdr_size`) is a part of
/// it.
const HEAD_BYTES: usize = 4096;

/// Where the parts are.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegionLayout {
    pub(super) head: usize,
    pub(super) tail: usize,
    pub(super) entries_at: usize,
    /// Entries of the refill ring, a power of two.
    pub(super) entries: u32,
    /// Where the kernel counts what it copies, if it does.
    pub(super) stats: Option<usize>,
}

/// Where the statistics of a ring of `entries` begin, and the length of the whole.
pub(super) fn lengths(entries: u32) -> (usize, usize) {
    let stats = (HEAD_BYTES + entries as usize * size_of::<Rqe>()).next_multiple_of(64);
    (stats, (stats + size_of::<CopyStats>()).next_multiple_of(rustix::param::page_size()))
}

/// See the module. Words that both sides change, and the entries, are written atomically.
#[derive(Debug)]
pub struct ZcrxRegion {
    entries: EntryTable<Rqe>,
    layout: RegionLayout,
}

impl ZcrxRegion {
    /// # Errors
    /// The kernel named places outside of the memory.
    pub(super) fn new(memory: Mapping, layout: RegionLayout, bytes: usize) -> io::Result<Self> {
        let refused = || io::Error::other("the refill ring lies outside of its memory");
        let RegionLayout { head, tail, entries_at, entries, stats } = layout;
        let has_words = memory.find_word(head).is_some() && memory.find_word(tail).is_some();
        let entries =
            EntryTable::new(memory, entries_at, entries).filter(|_| has_words).ok_or_else(refused)?;
        // The entries end before the statistics.
        let end = entries_at + entries.len() as usize * size_of::<Rqe>();
        let is_inside = end <= stats.unwrap_or(bytes)
            && stats.is_none_or(|s| s.is_multiple_of(64) && s + size_of::<CopyStats>() <= bytes);
        if is_inside { Ok(Self { entries, layout }) } else { Err(refused()) }
    }

    /// The word at a place of the layout.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        self.entries.memory().word(at)
    }

    /// Entries of the refill ring.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.layout.entries
    }

    /// How far the kernel has taken entries.
    #[inline]
    pub fn head(&self) -> u32 {
        self.word(self.layout.head).load(Ordering::Acquire)
    }

    /// How far entries were handed over.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.word(self.layout.tail).load(Ordering::Acquire)
    }

    /// Writes the entry at position `at`. The kernel must not have it, and one thread writes at a
    /// time: the kernel reads a mixture otherwise.
    #[inline]
    pub fn write(&self, at: u32, entry: Rqe) {
        self.entries.write(at, &entry);
    }

    /// Hands the entries before `tail` to the kernel.
    #[inline]
    pub fn publish(&self, tail: u32) {
        self.word(self.layout.tail).store(tail, Ordering::Release);
    }

    /// One that no kernel knows.
    #[cfg(any(test, feature = "testing"))]
    pub fn alone(entries: u32) -> io::Result<Self> {
        Self::unknown(entries, false)
    }

    /// One that no kernel knows, with statistics.
    #[cfg(any(test, feature = "testing"))]
    pub fn counting(entries: u32) -> io::Result<Self> {
        Self::unknown(entries, true)
    }

    #[cfg(any(test, feature = "testing"))]
    fn unknown(entries: u32, has_stats: bool) -> io::Result<Self> {
        let end = (64 + entries as usize * size_of::<Rqe>()).next_multiple_of(64);
        let layout =
            RegionLayout { head: 0, tail: 4, entries_at: 64, entries, stats: has_stats.then_some(end) };
        let bytes = end + size_of::<CopyStats>();
        Self::new(super::memory(bytes.next_multiple_of(4096))?, layout, bytes)
    }

    /// Takes all entries, as the kernel does.
    #[cfg(feature = "testing")]
    pub fn take_all(&self) {
        self.word(self.layout.head).store(self.tail(), Ordering::Release);
    }

    /// Takes the next entry, as the kernel does.
    #[cfg(any(test, feature = "testing"))]
    pub fn take(&self) -> Option<Rqe> {
        let head = self.head();
        if head == self.tail() {
            return None;
        }
        let entry = self.entries.read(head);
        self.word(self.layout.head).store(head.wrapping_add(1), Ordering::Release);
        Some(entry)
    }

    /// Whether the kernel sends events and counts what it copies.
    pub fn has_events(&self) -> bool {
        self.layout.stats.is_some()
    }

    /// What the kernel has copied so far, for all rings; zero where it doesn't count.
    pub fn copied(&self) -> CopyStats {
        let Some(at) = self.layout.stats else { return CopyStats::default() };
        let memory = self.entries.memory();
        let read = |at| memory.atomic::<AtomicU64>(at).map_or(0, |n| n.load(Ordering::Relaxed));
        CopyStats { count: read(at), bytes: read(at + size_of::<u64>()) }
    }
}

#[cfg(test)]
mod tests;
