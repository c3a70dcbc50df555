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

/// Whether the kernel may soon want what comes back of an area of so many `buffers`: each of them
/// may be out once half as many leases are, since a buffer may be one lease. Receivers that `share`
/// the area may want each.
pub(super) fn is_low(lent: usize, buffers: usize, share: bool) -> bool {
    lent * 2 >= buffers || (share && lent > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum RefillStep {
        Return(u8),
        Publish,
        Take(u8),
    }

    fn step() -> impl Strategy<Value = RefillStep> {
        prop_oneof![
            (1..9u8).prop_map(RefillStep::Return),
            Just(RefillStep::Publish),
            (1..9u8).prop_map(RefillStep::Take),
        ]
    }

    proptest! {
        /// Against a kernel that takes entries when it likes: each arrives once, in order, and none
        /// is overwritten before it was taken. The ring is never over-full, across the end of the
        /// positions too.
        #[test]
        fn every_entry_arrives_once(start in prop_oneof![Just(0u32), u32::MAX - 9..=u32::MAX], steps in prop::collection::vec(step(), 0..200)) {
            const ENTRIES: u32 = 8;
            let (mut book, mut waiting) = (RefillRing { entries: ENTRIES, tail: start }, VecDeque::new());
            let mut ring = [None; ENTRIES as usize];
            let (mut head, mut tail) = (start, start);
            let (mut next, mut taken) = (0u64, 0u64);
            for step in steps {
                match step {
                    RefillStep::Return(count) => for _ in 0..count {
                        waiting.push_back(Rqe { off: next, len: 1, pad: 0 });
                        next += 1;
                    },
                    RefillStep::Publish => {
                        let new = book.publish(&mut waiting, head, |at, entry| {
                            let place = &mut ring[(at % ENTRIES) as usize];
                            assert!(place.is_none(), "overwrites an entry that was not taken");
                            *place = Some(entry.off);
                        });
                        tail = new.unwrap_or(tail);
                        prop_assert!(tail.wrapping_sub(head) <= ENTRIES);
                        prop_assert!(waiting.is_empty() || book.untaken(head) == ENTRIES);
                    }
                    RefillStep::Take(count) => for _ in 0..count {
                        if head == tail { break; }
                        prop_assert_eq!(ring[(head % ENTRIES) as usize].take(), Some(taken));
                        taken += 1;
                        head = head.wrapping_add(1);
                    },
                }
                prop_assert_eq!(next, taken + u64::from(book.untaken(head)) + waiting.len() as u64);
            }
        }
    }

    /// On a NIC's queue a buffer holds up to 16 leases: free leases say nothing of free buffers.
    #[test]
    fn an_area_is_low_when_half_of_its_buffers_may_be_lent() {
        assert_eq!([0, 7, 8, 16, 256].map(|lent| is_low(lent, 16, false)), [false, false, true, true, true]);
        assert_eq!([0, 1].map(|lent| is_low(lent, 16, true)), [false, true], "others may want it");
    }

    #[test]
    fn a_head_that_cannot_be_stops_the_ring_and_nothing_else() {
        let (mut book, mut waiting) = (RefillRing::new(4), VecDeque::from([Rqe::default()]));
        assert_eq!(book.publish(&mut waiting, 1, |_, _| panic!("no room is known")), None);
        assert_eq!((waiting.len(), book.publish(&mut waiting, 0, |_, _| ())), (1, Some(1)));
    }
}
