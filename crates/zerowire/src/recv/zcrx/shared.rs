//! What all receivers of one registration share: the refill ring, what the kernel counts, the
//! areas.
//!
//! ```text
//!  receiver 1 ─ ring 1 ─┐                                   ┌─ completions of ring 1
//!                       ├─ one registration, its areas ─────┤
//!  receiver 2 ─ ring 2 ─┘  one refill ring, under a lock    └─ completions of ring 2
//! ```
//! # Who owns which bytes
//! As with one receiver: a buffer is the kernel's until a completion of one of the rings names a
//! piece of it. When a receiver goes, what it leaves behind comes back to the others. Pieces that
//! nobody took come back at once, leases that are still out when the last of them is dropped.

use super::areas::Areas;
use super::refill::RefillRing;
use crate::recv::ZeroCopied;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use zerowire_sys::lock;
use zerowire_sys::uring::zcrx::{CopyStats, Rqe, ZcrxRegion};

/// See the module.
#[derive(Debug)]
pub(super) struct SharedIfq {
    pub(super) areas: Arc<Areas>,
    /// Queue and interface; `None`: no device.
    pub(super) queue: Option<(String, u32)>,
    /// See [`ZcrxState`](super::state::ZcrxState).
    pub(super) owed: Option<Arc<AtomicI64>>,
    /// The refill ring and the statistics.
    pub(super) region: Arc<ZcrxRegion>,
    /// The writing end of the refill ring. Entries are written before the tail moves.
    ring: Mutex<RefillRing>,
    /// What receivers left behind that are gone.
    late: Mutex<Vec<Rqe>>,
    has_late: AtomicBool,
    /// How far the kernel's counts were read.
    seen_count: AtomicU64,
    seen_bytes: AtomicU64,
    /// Other rings may take part.
    is_exported: AtomicBool,
}

impl SharedIfq {
    pub(super) fn new(areas: Areas, queue: Option<(String, u32)>, region: Arc<ZcrxRegion>) -> Self {
        let owed = queue.is_some().then(Arc::default);
        Self {
            areas: Arc::new(areas),
            queue,
            owed,
            ring: Mutex::new(RefillRing::new(region.entries())),
            region,
            late: Mutex::default(),
            has_late: AtomicBool::default(),
            seen_count: AtomicU64::default(),
            seen_bytes: AtomicU64::default(),
            is_exported: AtomicBool::default(),
        }
    }

    /// How far the count of what a NIC placed is known: without a device nobody but the kernel
    /// placed any.
    pub(super) fn zero_copied(&self) -> ZeroCopied {
        match (&self.queue, self.region.has_events()) {
            (None, _) => ZeroCopied::Exact,
            (Some(_), true) => ZeroCopied::AtMost,
            (Some(_), false) => ZeroCopied::Unknown,
        }
    }

    /// From now on other receivers may have pieces of the areas.
    pub(super) fn set_exported(&self) {
        self.is_exported.store(true, Ordering::Relaxed);
    }

    /// Whether they may.
    pub(super) fn is_exported(&self) -> bool {
        self.is_exported.load(Ordering::Relaxed)
    }

    /// Writes what waits into the refill ring, as far as there is room, and what was left behind.
    pub(super) fn publish(&self, waiting: &mut VecDeque<Rqe>) {
        if self.has_late.load(Ordering::Relaxed) {
            self.has_late.store(false, Ordering::Relaxed);
            waiting.extend(lock(&self.late).drain(..));
        }
        if waiting.is_empty() {
            return;
        }
        let mut ring = lock(&self.ring);
        // The ring's book gives positions only that the kernel has passed, and its lock one writer.
        let tail = ring.publish(waiting, self.region.head(), |at, entry| self.region.write(at, entry));
        if let Some(tail) = tail {
            self.region.publish(tail);
        }
    }

    /// Entries of the refill ring that the kernel has not taken.
    pub(super) fn untaken(&self) -> u32 {
        let head = self.region.head();
        self.region.tail().wrapping_sub(head).min(self.region.entries())
    }

    /// Pieces that nobody will give back otherwise.
    fn leave(&self, pieces: impl IntoIterator<Item = Rqe>) {
        lock(&self.late).extend(pieces);
        self.has_late.store(true, Ordering::Relaxed);
    }

    /// What the kernel has copied since anybody asked last.
    pub(super) fn copied(&self) -> CopyStats {
        let now = self.region.copied();
        let since = |seen: &AtomicU64, now: u64| {
            // A count that stands still is not written: the word stays shared in the caches.
            if seen.load(Ordering::Relaxed) == now {
                return 0;
            }
            now.saturating_sub(seen.fetch_max(now, Ordering::Relaxed))
        };
        CopyStats { count: since(&self.seen_count, now.count), bytes: since(&self.seen_bytes, now.bytes) }
    }
}

/// What a receiver leaves in its pool: dropped with the last lease.
#[derive(Debug)]
pub(super) struct Leftover {
    shared: Arc<SharedIfq>,
    lent: Mutex<Vec<Rqe>>,
    /// The ring's part in the registration: as long as it is open, the kernel takes nothing back.
    _ring: Arc<OwnedFd>,
}

impl Leftover {
    pub(super) fn new(shared: Arc<SharedIfq>, ring: Arc<OwnedFd>) -> Self {
        Self { shared, lent: Mutex::default(), _ring: ring }
    }

    /// The receiver goes: `lent` are pieces under leases that are still out, `free` those that
    /// nobody has.
    pub(super) fn set(&self, lent: Vec<Rqe>, free: Vec<Rqe>) {
        *lock(&self.lent) = lent;
        self.shared.leave(free);
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        self.shared.leave(std::mem::take(&mut *lock(&self.lent)));
    }
}

#[cfg(test)]
mod tests;
