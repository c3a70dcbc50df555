//! Lists of a VM's connections that have something in common, by their slots.

use std::collections::VecDeque;

/// Slots in the order in which they came, each at most once.
///
/// A mark is the slot's, not its tenant's. Else a guest that takes no buffer and begins connections
/// over and over would make a list as long as it likes.
#[derive(Debug, Default)]
pub(super) struct SlotList {
    order: VecDeque<u32>,
    /// For each slot: true while it is in the list.
    marks: Vec<bool>,
}

impl SlotList {
    /// Makes room for the mark of a slot, so that putting it in allocates nothing for that.
    fn make_room(&mut self, slot: u32) {
        let len = slot as usize + 1;
        if self.marks.len() < len {
            self.marks.resize(len, false);
        }
    }

    /// Marks a slot. False where it is in the list already.
    #[inline]
    fn mark(&mut self, slot: u32) -> bool {
        self.make_room(slot);
        !std::mem::replace(&mut self.marks[slot as usize], true)
    }

    /// Slots in the list.
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Whether a slot is in the list.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn contains(&self, slot: u32) -> bool {
        self.marks.get(slot as usize).is_some_and(|mark| *mark)
    }

    /// Puts a slot behind the others, if it is not in the list.
    #[inline]
    pub(super) fn push(&mut self, slot: u32) {
        if self.mark(slot) {
            self.order.push_back(slot);
        }
    }

    /// As [`Self::push`], before the others.
    pub(super) fn push_front(&mut self, slot: u32) {
        if self.mark(slot) {
            self.order.push_front(slot);
        }
    }

    /// Takes the first slot out.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<u32> {
        let slot = self.order.pop_front()?;
        self.marks[slot as usize] = false;
        Some(slot)
    }

    /// The slots in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.order.iter().copied()
    }

    /// Takes all slots out.
    pub(super) fn clear(&mut self) {
        while self.pop().is_some() {}
    }
}

/// The lists of a VM.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// Connections that may have something for the guest.
    pub(super) ready: SlotList,
    /// Connections with payload for the guest that waits for its limit.
    pub(super) limited: SlotList,
    /// Connections whose credit the thread reviews once nothing has happened for a while.
    pub(super) quiet: SlotList,
    /// Connections that may have lent chains of the guest.
    pub(super) lenders: SlotList,
    /// Mapped connections whose windows were filled in this turn.
    pub(super) filled: SlotList,
}

impl Lists {
    /// A slot is in use from now on.
    pub(super) fn make_room(&mut self, slot: u32) {
        let Self { ready, limited, quiet, lenders, filled } = self;
        for list in [ready, limited, quiet, lenders, filled] {
            list.make_room(slot);
        }
    }
}

#[cfg(test)]
mod tests;
