//! Frames whose headers ask for what they may not.

use zerowire::ledger::DropReason;

/// Frames with wrong offloads.
#[derive(Debug)]
pub(super) struct OffloadErrors {
    queue: u16,
    seen: u64,
}

impl OffloadErrors {
    pub(super) fn new(queue: u16) -> Self {
        Self { queue, seen: 0 }
    }

    /// The next one is the first.
    pub(super) fn forget(&mut self) {
        self.seen = 0;
    }

    /// Tells the log of the first one.
    #[cold]
    pub(super) fn log(&mut self, error: &dyn std::fmt::Display) -> DropReason {
        self.seen += 1;
        if self.seen == 1 {
            let queue = self.queue;
            tracing::warn!("queue {queue}: frame dropped: {error} (further ones are only counted)");
        }
        DropReason::BadOffload
    }
}
