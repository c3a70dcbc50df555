//! The rings that a program and the kernel share: one side produces, the other consumes.
//!
//! Memory: the kernel allocates a ring, and the program maps it. Two 32-bit indices that count up
//! and wrap tell how far each side is; entry `i` lies at `i & (size - 1)`. The entries from the
//! consumer's index up to the producer's belong to the consumer, all others to the producer. A side
//! gives entries over by storing its index with release order, and sees the other's with acquire
//! order (Documentation/networking/af_xdp.rst, net/xdp/xsk_queue.h). Each side keeps its own index
//! and the last one that it saw of the other. So a side touches the shared cache lines only once a
//! batch.
//!
//! Positions are masked: whatever the other side stores, no access leaves the ring.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::map::{EntryTable, Mapping};
use crate::plain::{PlainData, plain};

plain! {
    /// A frame, or a piece of one, in the receive and transmit rings (`struct xdp_desc`,
    /// include/uapi/linux/if_xdp.h).
    #[derive(Debug, PartialEq, Eq)]
    pub struct Descriptor {
        /// Where it starts in the UMEM, bytes. With unaligned chunks, bits 48 to 63 are added to
        /// the lower ones ([`super::address`]).
        pub address: u64,
        /// Bytes, 1 to the length of a chunk.
        pub len: u32,
        /// [`Descriptor::CONTINUES`], or 0.
        pub options: u32,
    }
}

impl Descriptor {
    /// `XDP_PKT_CONTD`: the frame goes on in the next descriptor.
    pub const CONTINUES: u32 = libc::XDP_PKT_CONTD;

    /// Whether the frame goes on in the next descriptor.
    #[inline]
    pub fn continues(&self) -> bool {
        self.options & Self::CONTINUES != 0
    }
}

/// What a ring can hold: plain data of which every bit pattern is a value.
pub trait Entry: Copy + PlainData {}

impl Entry for u64 {}
impl Entry for Descriptor {}

/// `XDP_RING_NEED_WAKEUP` (include/uapi/linux/if_xdp.h).
const NEED_WAKEUP: u32 = libc::XDP_RING_NEED_WAKEUP;

/// Where the parts of a ring lie in its mapping, bytes from the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub producer: usize,
    pub consumer: usize,
    pub flags: usize,
    pub entries: usize,
}

/// The shared part.
struct SharedRing<T> {
    entries: EntryTable<T>,
    layout: Layout,
}

impl<T: Entry> SharedRing<T> {
    /// None if the parts don't lie within the mapping, or aren't aligned, or `size` isn't a power
    /// of two.
    fn new(mapping: Mapping, layout: Layout, size: u32) -> Option<Self> {
        let words = [layout.producer, layout.consumer, layout.flags];
        let has_words = words.into_iter().all(|at| mapping.find_word(at).is_some());
        let entries = EntryTable::new(mapping, layout.entries, size).filter(|_| has_words)?;
        Some(Self { entries, layout })
    }

    #[inline]
    fn producer(&self) -> &AtomicU32 {
        self.entries.memory().word(self.layout.producer)
    }

    #[inline]
    fn consumer(&self) -> &AtomicU32 {
        self.entries.memory().word(self.layout.consumer)
    }

    #[inline]
    fn needs_wakeup(&self) -> bool {
        self.entries.memory().word(self.layout.flags).load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// The producing side: the fill ring and the transmit ring.
///
/// Entries that were pushed are seen by the consumer from [`publish`](Self::publish) on.
pub struct Producer<T: Entry> {
    shared: SharedRing<T>,
    /// Index of the next entry that is written.
    next: u32,
    /// The last index that was published.
    published: u32,
    /// The consumer's index, as it was seen last.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    pub(super) fn new(mapping: Mapping, layout: Layout, size: u32) -> Option<Self> {
        SharedRing::new(mapping, layout, size).map(Self::with)
    }

    fn with(shared: SharedRing<T>) -> Self {
        let next = shared.producer().load(Ordering::Relaxed);
        let consumed = shared.consumer().load(Ordering::Acquire);
        Self { shared, next, published: next, consumed }
    }

    /// Entries in all.
    #[inline]
    pub fn size(&self) -> u32 {
        self.shared.entries.len()
    }

    /// Entries that can be pushed now. Looks at the consumer's index only if fewer than `wanted`
    /// are known to be free.
    #[inline]
    pub fn room(&mut self, wanted: u32) -> u32 {
        let room = self.known_room();
        if room >= wanted {
            return room;
        }
        self.look();
        self.known_room()
    }

    /// Wrong indices of the other side make a ring that looks full, never one with more room than
    /// entries.
    #[inline]
    fn known_room(&self) -> u32 {
        self.size().saturating_sub(self.next.wrapping_sub(self.consumed))
    }

    #[inline]
    fn look(&mut self) {
        self.consumed = self.shared.consumer().load(Ordering::Acquire);
    }

    /// Writes the next entry; false if the ring is full.
    #[inline]
    pub fn push(&mut self, entry: T) -> bool {
        if self.room(1) == 0 {
            return false;
        }
        self.shared.entries.write(self.next, &entry);
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Gives the consumer what was pushed; returns how many entries.
    #[inline]
    pub fn publish(&mut self) -> u32 {
        let n = self.next.wrapping_sub(self.published);
        if n > 0 {
            self.shared.producer().store(self.next, Ordering::Release);
            self.published = self.next;
        }
        n
    }

    /// Entries that were published and that the consumer hasn't said it took. The kernel stores its
    /// index once a call or once a batch, so that this is an upper bound.
    #[inline]
    pub fn waiting(&mut self) -> u32 {
        self.look();
        self.published.wrapping_sub(self.consumed).min(self.size())
    }

    /// Index of the first entry that the consumer hasn't taken, as it was seen last.
    #[inline]
    pub fn consumed(&self) -> u32 {
        self.consumed
    }

    /// An entry that was pushed no more than [`size`](Self::size) entries ago: it stays as it is
    /// until its place is written again, taken or not.
    #[inline]
    pub fn entry(&self, index: u32) -> T {
        self.shared.entries.read(index)
    }

    /// Whether the kernel asks for a system call to go on (`XDP_USE_NEED_WAKEUP`).
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }

    /// Takes back what was pushed and not yet taken by the consumer, the oldest first.
    ///
    /// Only correct once the consumer has stopped for good (an interface that is gone, a socket
    /// that was shut). Otherwise entries are taken twice; memory stays safe in any case.
    pub fn take_back(&mut self, mut each: impl FnMut(T)) -> u32 {
        self.look();
        let n = self.next.wrapping_sub(self.consumed).min(self.size());
        for i in 0..n {
            each(self.shared.entries.read(self.consumed.wrapping_add(i)));
        }
        self.next = self.consumed;
        self.published = self.consumed;
        self.shared.producer().store(self.consumed, Ordering::Release);
        n
    }
}

impl<T: Entry> std::fmt::Debug for Producer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Producer {{ size: {}, next: {}, consumed: {} }}", self.size(), self.next, self.consumed)
    }
}

/// The consuming side: the completion ring and the receive ring.
///
/// Entries that were taken are free for the producer from [`release`](Self::release) on.
pub struct Consumer<T: Entry> {
    shared: SharedRing<T>,
    /// Index of the next entry that is read.
    next: u32,
    /// The last index that was released.
    released: u32,
    /// The producer's index, as it was seen last.
    produced: u32,
}

impl<T: Entry> Consumer<T> {
    pub(super) fn new(mapping: Mapping, layout: Layout, size: u32) -> Option<Self> {
        SharedRing::new(mapping, layout, size).map(Self::with)
    }

    fn with(shared: SharedRing<T>) -> Self {
        let next = shared.consumer().load(Ordering::Relaxed);
        let produced = shared.producer().load(Ordering::Acquire);
        Self { shared, next, released: next, produced }
    }

    /// Entries in all.
    #[inline]
    pub fn size(&self) -> u32 {
        self.shared.entries.len()
    }

    /// Entries that can be taken now. Looks at the producer's index only if none is known.
    #[inline]
    pub fn available(&mut self) -> u32 {
        if self.produced == self.next {
            self.produced = self.shared.producer().load(Ordering::Acquire);
        }
        self.produced.wrapping_sub(self.next).min(self.size())
    }

    /// Takes the next entry; None if there is none.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.available() == 0 {
            return None;
        }
        let entry = self.shared.entries.read(self.next);
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the producer the places of what was taken; returns how many.
    #[inline]
    pub fn release(&mut self) -> u32 {
        let n = self.next.wrapping_sub(self.released);
        if n > 0 {
            self.shared.consumer().store(self.next, Ordering::Release);
            self.released = self.next;
        }
        n
    }

    /// Whether the kernel asks for a system call to go on.
    #[inline]
    pub fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

impl<T: Entry> std::fmt::Debug for Consumer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Consumer {{ size: {}, next: {}, produced: {} }}", self.size(), self.next, self.produced)
    }
}

#[cfg(test)]
mod tests;
