//! How chains that a port was lent go back to the guest. Where no in-flight region tells which are
//! out, they go in the order in which they were taken.

use std::time::Instant;

use zerowire_vhost::ring::SplitRing;

use super::line::{Late, Line};

/// Chains that are out.
#[derive(Debug)]
pub(super) struct Returns {
    /// Those that are not marked in an in-flight region.
    pub line: Line,
    /// The time in this turn, if anybody asked; None when a turn begins.
    pub now: Option<Instant>,
}

impl Returns {
    /// None are out of a ring of `size` entries.
    pub fn new(size: u16) -> Self {
        Self { line: Line::new(size), now: None }
    }

    /// A chain that was taken is lent.
    #[inline]
    pub fn lent(&mut self, ring: &SplitRing, head: u16) {
        if !ring.is_tracked() {
            self.line.lent(head);
        }
    }

    /// A chain that was lent is back, and given back as soon as those before it are.
    #[inline]
    pub fn back(&mut self, ring: &mut SplitRing, head: u16) {
        if ring.is_tracked() || self.line.back(head) {
            ring.push_used(head, 0);
        }
    }

    /// A chain that was taken is done, and given back as soon as those before it are.
    #[inline]
    pub fn done(&mut self, ring: &mut SplitRing, head: u16) {
        if self.line.is_empty() {
            ring.push_used(head, 0);
        } else {
            let now = *self.now.get_or_insert_with(Instant::now);
            self.line.done(head, now);
        }
    }

    /// Gives back what is done; `late` decides about chains that have to wait for others. Returns
    /// how many passed others.
    #[inline]
    pub fn give(&mut self, ring: &mut SplitRing, late: impl FnOnce() -> Late) -> u64 {
        self.line.give(late, |head| ring.push_used(head, 0))
    }
}
