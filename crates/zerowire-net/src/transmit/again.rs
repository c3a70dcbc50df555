//! Frames that the port had no room for. Their chains go back to the ring, and come once more.

use zerowire::ledger::{Counters, DropReason};

use super::{Outlet, Transmit};

impl<O: Outlet> Transmit<O> {
    /// Puts the last `full` chains of the batch, for which the port had no room, back into the
    /// ring. It does so only if they may be taken `again`: no broken chain was taken after them.
    #[cold]
    pub(super) fn put_back(&mut self, full: usize, again: bool, counters: &Counters) {
        if !again {
            counters.dropped_many(DropReason::PortRefused, full as u64);
            return;
        }
        let kept = self.batch.len() - full;
        self.host.ring.untake(self.batch[kept..].iter().map(|s| s.head));
        self.batch.truncate(kept);
        self.uncapture(kept);
    }

    /// Frames of the batch from this number on come once more: a capture has none of them yet.
    pub(super) fn uncapture(&mut self, first: usize) {
        if let Some(capture) = &mut self.capture {
            capture.put_back(first);
        }
    }
}
