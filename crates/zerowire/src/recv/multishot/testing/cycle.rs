//! For measuring: buffers are posted to the ring of provided buffers, named by a completion, lent,
//! dropped and collected, as in a receiver. The ring is a real one; the completions are made here,
//! as bundles.

use super::super::Multishot;
use crate::recv::core::RecvState;
use crate::recv::receiver::new_core;
use crate::recv::testing::connect;
use crate::recv::{Arrival, RecvError, RecvOptions};

/// See the module.
pub(in crate::recv) struct Cycle {
    core: RecvState,
    engine: Multishot,
    /// The position in the ring that the next completion begins at.
    next: u16,
}

impl Cycle {
    /// One connection, which may hold all buffers.
    pub(in crate::recv) fn new(options: &RecvOptions) -> Result<Self, RecvError> {
        let mut core = new_core(options)?;
        connect(&mut core);
        let engine = Multishot::new(&mut core, options)?;
        Ok(Self { core, engine, next: 0 })
    }

    /// Takes a completion that fills up to `count` of the posted buffers.
    pub(in crate::recv) fn lend(&mut self, count: usize, out: &mut Vec<Arrival>) {
        let Self { core, engine: Multishot { machine, buffers, .. }, next } = self;
        let (bytes, count) = (core.buffer_bytes, count.min(machine.posted.count));
        let first = machine.posted.slot_at(*next);
        // The slots were taken when their buffers were posted, and no socket is in this ring:
        // nobody writes.
        machine.deliver(core, Some(0), (first, count * bytes), |at| buffers.len_at(at));
        core.take_arrivals(out);
        *next = next.wrapping_add(count as u16);
    }

    /// Collects what was dropped and posts it.
    pub(in crate::recv) fn refill(&mut self) {
        self.core.collect(|_| {});
        self.core.eased.clear();
        self.engine.post(&mut self.core);
    }
}
