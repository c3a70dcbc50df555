//! What a worker counts, and what it says of its queue pair in the log and the statistics.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use zerowire_vhost::limit::Limiters;
use zerowire_vhost::ring::RingError;

use super::side::Direction;
use crate::stats::{PairCounters, Shared};

/// A queue pair in the statistics of its VM.
#[derive(Debug)]
pub(super) struct Report {
    /// The queue pair's number.
    pub(super) pair: usize,
    shared: Arc<Shared>,
    /// When epoll reported kicks last.
    pub(super) woke: Option<Instant>,
    /// The same for each direction whose ring was not served since.
    kicked: [Option<Instant>; 2],
}

impl Report {
    pub(super) fn new(pair: usize, shared: Arc<Shared>) -> Self {
        Self { pair, shared, woke: None, kicked: [None; 2] }
    }

    /// Where the pair's frames are counted.
    #[inline]
    pub(super) fn counters(&self) -> &PairCounters {
        &self.shared.pairs[self.pair]
    }

    /// The driver has kicked.
    pub(super) fn kicked(&mut self, direction: Direction) {
        let counters = self.counters();
        match direction {
            Direction::Transmit => counters.transmit.kicks.add(1),
            Direction::Receive => counters.receive.kicks.add(1),
        }
        self.kicked[direction as usize] = self.woke;
    }

    /// A turn has served the ring of this direction: counts how long a kick took, if one had come.
    #[inline]
    pub(super) fn served(&mut self, direction: Direction) {
        if let Some(at) = self.kicked[direction as usize].take() {
            self.counters().kicks[direction as usize].add(at.elapsed());
        }
    }

    /// What the VM may move in a second.
    #[inline]
    pub(super) fn limiters(&self) -> &Limiters {
        &self.shared.limiters
    }

    /// A previous process left this many chains in flight whose state is unknown.
    pub(super) fn unsure(&self, chains: usize) {
        self.shared.unsure.fetch_add(chains as u64, Ordering::Relaxed);
    }

    /// Which path runs; the first pair says it for all.
    #[cold]
    pub(super) fn path(&self, describe: impl FnOnce() -> String) {
        if self.pair == 0 {
            self.shared.set_path(describe());
        }
    }

    /// The guest broke a rule of a ring.
    #[cold]
    pub(super) fn ring_broke(&self, error: &RingError) {
        // The text goes first: who sees the count finds the text that belongs to it.
        self.shared.set_error(error.to_string());
        self.shared.ring_errors.fetch_add(1, Ordering::Release);
        self.shared.needs_reset.store(true, Ordering::Release);
        tracing::error!("{error}; this queue is stopped until the driver resets it");
    }

    /// A ring can't move to other memory for this reason.
    pub(super) fn ring_waits(&self, problem: &str) {
        self.shared.set_error(problem.to_owned());
        self.shared.ring_errors.fetch_add(1, Ordering::Release);
        tracing::error!("{problem}; this queue waits until its memory comes back");
    }
}
