//! Kicks that have come and whose rings the next turn serves.

use std::time::Instant;

use super::{EVENTS, GroupVm};

/// Rings whose kicks have come since the last turn.
pub(super) struct Kicked {
    at: Option<Instant>,
    /// VM and queue of each.
    rings: Vec<(usize, u16)>,
}

impl Kicked {
    /// None.
    pub(super) fn new() -> Self {
        Self { at: None, rings: Vec::with_capacity(EVENTS) }
    }

    /// Kicks came at this moment: those that [`Self::add`] adds next.
    pub(super) fn came(&mut self, at: Instant) {
        self.at = Some(at);
    }

    /// One of them.
    pub(super) fn add(&mut self, vm: usize, queue: u16) {
        self.rings.push((vm, queue));
    }

    /// A turn has ended: counts how long kicks took, if any had come.
    #[inline]
    pub(super) fn served(&mut self, vms: &[GroupVm]) {
        if let Some(at) = self.at.take() {
            let took = at.elapsed();
            for (v, queue) in self.rings.drain(..) {
                // The event queue is never served.
                if let Some(times) = vms[v].counters.kicks.get(usize::from(queue)) {
                    times.add(took);
                }
            }
        }
    }
}
