//! Frames to groups, such as broadcasts, of which the guest takes no more than a bound.

use std::time::Instant;

use zerowire::ledger::{Counters, DropReason};

use super::pending::Waits;
use super::side::RxSide;

/// The bit of a frame's first byte that says that it is for a group (IEEE 802).
const GROUP: u8 = 1;

impl<W: Waits> RxSide<W> {
    /// Whether there is a bound.
    #[inline]
    pub fn bounds_groups(&self) -> bool {
        self.storm.is_some()
    }

    /// Whether a frame that begins with this byte goes beyond the bound. One that does not counts.
    pub fn is_beyond_bound(&mut self, first: u8) -> bool {
        match &mut self.storm {
            Some(bound) if first & GROUP != 0 => !bound.passes(Instant::now()),
            _ => false,
        }
    }

    /// Drops a frame that goes beyond the bound, behind its virtio-net header. Returns whether it
    /// did.
    #[inline]
    pub fn drops_group(&mut self, frame: &[u8], counters: &Counters) -> bool {
        if !self.bounds_groups() {
            return false;
        }
        let first = frame.get(self.setup.header_len).copied().unwrap_or(0);
        let is_beyond = self.is_beyond_bound(first);
        if is_beyond {
            counters.dropped(DropReason::Storm);
        }
        is_beyond
    }
}
