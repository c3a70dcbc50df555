//! The book of the refill ring: which entries are on their way to the kernel. Plain code without
//! I/O.
//!
//! ```text
//!   returned ──> waiting ──publish──> ring: head .. tail ──kernel──> free
//!                (each receiver's)    never more than its length
//! ```
//! Positions run freely over 32 bits; the place is the position modulo the ring's length, a power
//! of two.

use std::collections::VecDeque;
use zerowire_sys::uring::zcrx::Rqe;

/// The writing end of a refill ring.
#[derive(Debug)]
pub(super) struct RefillRing {
    entries: u32,
    tail: u32,
}

impl RefillRing {
    /// A ring of `entries` (a power of two) that nothing was written to.
    pub(super) fn new(entries: u32) -> Self {
        Self { entries, tail: 0 }
    }

    /// Entries in the ring that the kernel, which is at `head`, has not taken. A head that can't be
    /// counts as a full ring.
    pub(super) fn untaken(&self, head: u32) -> u32 {
        self.tail.wrapping_sub(head).min(self.entries)
    }

    /// Moves what waits into the ring, as far as there is room: `write` gets each entry and its
    /// position. The new tail, if it has moved.
    pub(super) fn publish(
        &mut self,
        waiting: &mut VecDeque<Rqe>,
        head: u32,
        mut write: impl FnMut(u32, Rqe),
    ) -> Option<u32> {
        let room = self.entries - self.untaken(head);
        let count = waiting.len().min(room as usize);
        for entry in waiting.drain(..count) {
            write(self.tail, entry);
            self.tail = self.tail.wrapping_add(1);
        }
        (count > 0).then_some(self.tail)
    }
}

/// Whether the kernel may soon want what comes back of an area of `buffers` buffers: each of them
/// may be out once half as many leases are, since a buffer may be one lease. Receivers that `share`
/// the area may want each.
pub(super) fn is_low(lent: usize, buffers: usize, share: bool) -> bool {
    lent * 2 >= buffers || (share && lent > 0)
}

#[cfg(test)]
mod tests;
