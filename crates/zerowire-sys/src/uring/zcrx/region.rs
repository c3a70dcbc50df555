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
use std::sync::atomic::{AtomicU64, Ordering};

use super::abi::{CopyStats, Rqe};
use crate::map::Mapping;

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
    memory: Mapping,
    layout: RegionLayout,
}

impl ZcrxRegion {
    /// # Errors
    /// The kernel named places outside of the memory.
    pub(super) fn new(memory: Mapping, layout: RegionLayout, bytes: usize) -> io::Result<Self> {
        let end = (layout.entries as usize).checked_mul(size_of::<Rqe>());
        let end = end.and_then(|e| e.checked_add(layout.entries_at));
        let is_inside = layout.entries.is_power_of_two()
            && layout.entries_at.is_multiple_of(align_of::<Rqe>())
            && end.is_some_and(|e| e <= layout.stats.unwrap_or(bytes))
            && layout.stats.is_none_or(|s| s.is_multiple_of(64) && s + size_of::<CopyStats>() <= bytes)
            && memory.find_word(layout.head).is_some()
            && memory.find_word(layout.tail).is_some();
        if is_inside {
            Ok(Self { memory, layout })
        } else {
            Err(io::Error::other("the refill ring lies outside of its memory"))
        }
    }

    /// Entries of the refill ring.
    #[inline]
    pub fn entries(&self) -> u32 {
        self.layout.entries
    }

    /// How far the kernel has taken entries.
    #[inline]
    pub fn head(&self) -> u32 {
        self.memory.find_word(self.layout.head).map_or(0, |w| w.load(Ordering::Acquire))
    }

    /// How far entries were handed over.
    #[inline]
    pub fn tail(&self) -> u32 {
        self.memory.find_word(self.layout.tail).map_or(0, |w| w.load(Ordering::Acquire))
    }

    /// Writes the entry at position `at`. The kernel must not have it, and one thread writes at a
    /// time: the kernel reads a mixture otherwise.
    #[inline]
    pub fn write(&self, at: u32, entry: Rqe) {
        let [off, length] = self.entry_at(at);
        off.store(entry.off, Ordering::Relaxed);
        let fields = u64::from(entry.len) | u64::from(entry.pad) << 32;
        length.store(
            if cfg!(target_endian = "big") { fields.rotate_left(32) } else { fields },
            Ordering::Relaxed,
        );
    }

    /// The two words of an entry: its place, and its length beside four free bytes.
    #[inline]
    fn entry_at(&self, at: u32) -> [&AtomicU64; 2] {
        let place = (at & (self.layout.entries - 1)) as usize;
        let entries = self.memory.as_ptr().wrapping_add(self.layout.entries_at).cast::<Rqe>();
        let words = entries.wrapping_add(place).cast::<u64>();
        // SAFETY: inside the region (checked at the registration), which lives as long as this
        // value, and aligned; this process reads and writes whole words, atomically.
        [0, 1].map(|i| unsafe { AtomicU64::from_ptr(words.wrapping_add(i)) })
    }

    /// Hands the entries before `tail` to the kernel.
    #[inline]
    pub fn publish(&self, tail: u32) {
        if let Some(word) = self.memory.find_word(self.layout.tail) {
            word.store(tail, Ordering::Release);
        }
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
        if let Some(word) = self.memory.find_word(self.layout.head) {
            word.store(self.tail(), Ordering::Release);
        }
    }

    /// Takes the next entry, as the kernel does.
    #[cfg(any(test, feature = "testing"))]
    pub fn take(&self) -> Option<Rqe> {
        let head = self.head();
        if head == self.tail() {
            return None;
        }
        let [off, length] = self.entry_at(head).map(|word| word.load(Ordering::Relaxed));
        let fields = if cfg!(target_endian = "big") { length.rotate_left(32) } else { length };
        let entry = Rqe { off, len: fields as u32, pad: (fields >> 32) as u32 };
        self.memory.find_word(self.layout.head)?.store(head.wrapping_add(1), Ordering::Release);
        Some(entry)
    }

    /// Whether the kernel sends events and counts what it copies.
    pub fn has_events(&self) -> bool {
        self.layout.stats.is_some()
    }

    /// What the kernel has copied so far, for all rings; zero where it doesn't count.
    pub fn copied(&self) -> CopyStats {
        let Some(at) = self.layout.stats else { return CopyStats::default() };
        let words = self.memory.as_ptr().wrapping_add(at).cast::<u64>();
        // SAFETY: inside the region, at a multiple of 64; both sides use whole words, this one
        // atomically.
        let read = |i| unsafe { AtomicU64::from_ptr(words.wrapping_add(i)) }.load(Ordering::Relaxed);
        CopyStats { count: read(0), bytes: read(1) }
    }
}

#[cfg(test)]
mod tests;
