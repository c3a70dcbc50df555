//! The order of a ring's slots: who has which, and what lies in it. Plain state without I/O.
//!
//! Three positions only grow; a slot is a position modulo the number of slots:
//!
//! ```text
//!        tail            unsent           head
//!   free   |   kernel's    |   requested   |   free
//! ```

use std::ops::{Index, IndexMut, Range};

/// What is known of a slot's frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PacketSlot {
    /// Number of the frame, counted by `push` and `send_loaded`.
    pub(super) number: u64,
    /// Bytes of the frame, without virtio-net header.
    pub(super) len: usize,
    /// Bytes of its longest segment on the wire.
    pub(super) wire: usize,
    /// True: the kernel copies all of it.
    pub(super) copied: bool,
    /// Its bytes came from elsewhere and were not counted yet.
    pub(super) outside: bool,
    /// Loaded by `load`: it may be sent again.
    pub(super) loaded: bool,
    pub(super) ethertype: u16,
}

/// A position that only grows, and its slot, kept beside it to save a division a frame.
#[derive(Clone, Copy, Debug, Default)]
struct SlotCursor {
    position: u64,
    slot: usize,
}

impl SlotCursor {
    #[inline]
    fn step(&mut self, slots: usize) {
        self.position += 1;
        self.slot = if self.slot + 1 == slots { 0 } else { self.slot + 1 };
    }
}

/// See the module.
pub(super) struct SlotOrder {
    slots: Box<[PacketSlot]>,
    tail: SlotCursor,
    unsent: SlotCursor,
    head: SlotCursor,
    /// Frames pushed since opening: the number of the next one.
    next_number: u64,
}

impl SlotOrder {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: vec![PacketSlot::default(); slots].into(),
            tail: SlotCursor::default(),
            unsent: SlotCursor::default(),
            head: SlotCursor::default(),
            next_number: 0,
        }
    }

    /// Slots of the ring.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Frames between tail and head.
    #[inline]
    pub(super) fn used(&self) -> usize {
        (self.head.position - self.tail.position) as usize
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.used() == self.slots.len()
    }

    /// Whether a slot's frame is between tail and head.
    pub(super) fn in_use(&self, slot: usize) -> bool {
        let n = self.slots.len();
        (slot + n - self.tail.slot) % n < self.used()
    }

    /// The number of the next frame.
    #[inline]
    pub(super) fn next_number(&self) -> u64 {
        self.next_number
    }

    /// The slot at the head, which the next frame goes into.
    #[inline]
    pub(super) fn head(&self) -> usize {
        self.head.slot
    }

    /// A frame was put into the slot at the head.
    #[inline]
    pub(super) fn push(&mut self) {
        self.next_number += 1;
        self.head.step(self.slots.len());
    }

    /// Frames that are not handed over.
    #[inline]
    pub(super) fn unsent(&self) -> usize {
        (self.head.position - self.unsent.position) as usize
    }

    /// The slot of the first of them.
    #[inline]
    pub(super) fn first_unsent(&self) -> usize {
        self.unsent.slot
    }

    /// The slots of all of them, as positions.
    pub(super) fn unsent_positions(&self) -> Range<u64> {
        self.unsent.position..self.head.position
    }

    pub(super) fn slot_at(&self, position: u64) -> usize {
        (position % self.slots.len() as u64) as usize
    }

    /// The kernel took the first frame that was not handed over.
    #[inline]
    pub(super) fn hand_over(&mut self) {
        self.unsent.step(self.slots.len());
    }

    /// Those that are not handed over are out of the order.
    pub(super) fn take_back_unsent(&mut self) {
        self.head = self.unsent;
    }

    /// The last frame is out of the order.
    pub(super) fn take_back_last(&mut self) {
        let position = self.head.position - 1;
        self.head = SlotCursor { position, slot: self.slot_at(position) };
    }

    /// The slot of the oldest frame.
    #[inline]
    pub(super) fn oldest(&self) -> usize {
        self.tail.slot
    }

    /// Whether the kernel has the oldest frame, or had it.
    #[inline]
    pub(super) fn is_oldest_handed_over(&self) -> bool {
        self.tail.position < self.unsent.position
    }

    /// The oldest frame is back.
    #[inline]
    pub(super) fn collect(&mut self) {
        self.tail.step(self.slots.len());
    }
}

impl Index<usize> for SlotOrder {
    type Output = PacketSlot;

    #[inline]
    fn index(&self, slot: usize) -> &PacketSlot {
        &self.slots[slot]
    }
}

impl IndexMut<usize> for SlotOrder {
    #[inline]
    fn index_mut(&mut self, slot: usize) -> &mut PacketSlot {
        &mut self.slots[slot]
    }
}

#[cfg(test)]
mod tests;
