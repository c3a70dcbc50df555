//! A batch of reads, from the port to what they brought.

use zerowire::ledger::DropReason;

use super::{READ_BATCH, Read, Receive, ReceiveContext};
use crate::io::MAX_BATCH;
use crate::memory::GuestMemory;
use crate::ring::{RingError, RxChains};

/// The usual order of results.
const IN_ORDER: [u16; READ_BATCH] = {
    let mut order = [0; READ_BATCH];
    let mut i = 0;
    while i < READ_BATCH {
        order[i] = i as u16;
        i += 1;
    }
    order
};

/// What came of a batch of reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Batch {
    pub reads: usize,
    pub frames: usize,
    /// Frames that were taken out of the port and could not be put into memory.
    pub refused: usize,
    /// How many frames stayed where they were read to, if all could have.
    pub in_place: Option<usize>,
    pub port_gone: bool,
}

impl Receive {
    /// Carries out the reads that were offered, and gives the guest what came; the caller publishes
    /// it. None where there were no reads for lack of buffers. A broken chain stops the ring, but
    /// only behind the reads that were queued before it: that error comes beside what they brought.
    #[inline]
    pub(super) fn read(
        &mut self,
        offered: Result<usize, RingError>,
        private: bool,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<Option<(Batch, Option<RingError>)>, RingError> {
        // None may stay queued.
        let (reads, broken) = match offered {
            Ok(n) => (n, None),
            Err(e) if self.reads.is_empty() => return Err(e),
            Err(e) => (self.reads.len(), Some(e)),
        };
        if reads == 0 {
            return Ok(None);
        }
        self.waiting_since = None;
        self.host.ring.prefetch(MAX_BATCH as u16);
        self.host.ring.prefetch_used(self.chains.len() as u16);
        let (done, calls) = cx.io.run();
        cx.counters.system_calls.add(calls);
        // Frames arrived in the order of `done`; chains were offered in the order of `reads`.
        // Nearly always both are the same, with the reads that found nothing at the end.
        let mut in_order = true;
        let mut batch = Batch { reads, ..Batch::default() };
        for (i, d) in done.iter().enumerate() {
            if let Some(r) = self.reads.get_mut(usize::from(d.slot)) {
                r.result = d.result;
            }
            if d.result >= 0 {
                in_order &= usize::from(d.slot) == batch.frames && i == batch.frames;
                batch.frames += 1;
            } else if d.result == -libc::EBADFD || d.result == -libc::ENETDOWN {
                batch.port_gone = true;
            } else if d.result != -libc::EAGAIN {
                // The frame was taken out of the port and could not be put into the guest's memory.
                cx.counters.dropped(DropReason::PortRefused);
                batch.refused += 1;
            }
        }
        if cx.memory.log().is_some() {
            note_reads(&self.reads, &self.chains, cx.memory);
        }
        let order: [u16; READ_BATCH] = match in_order && !private {
            true => IN_ORDER,
            false => std::array::from_fn(|i| done.get(i).map_or(0, |d| d.slot)),
        };
        let frames = batch.frames;
        if private {
            self.deliver_scratch(&order[..reads], cx)?;
        } else if !in_order {
            self.deliver_staged(&order[..reads], 0, 0, false, cx)?;
        } else {
            let sound = self.sound(frames);
            let (delivered, chains) = self.deliver_in_place(sound, cx)?;
            if delivered < frames {
                self.deliver_staged(&order[..frames], delivered, chains, delivered == sound, cx)?;
            }
            batch.in_place = Some(delivered);
        }
        Ok(Some((batch, broken)))
    }
}

/// Notes what a batch of reads wrote to the guest's chains, wherever its frames go afterwards.
#[cold]
fn note_reads(reads: &[Read], chains: &RxChains, memory: &GuestMemory) {
    let mut first = 0;
    for r in reads {
        let mut left = match r.result {
            len if len >= 0 => len as usize,
            // Nothing was there to be read.
            e if e == -libc::EAGAIN || e == -libc::EBADFD || e == -libc::ENETDOWN => 0,
            // The kernel failed half-way and does not say where.
            _ => r.room,
        };
        for i in first..first + r.chains {
            let n = chains.room(i).min(left);
            memory.wrote(chains.segments(i), 0, n);
            left -= n;
        }
        first += r.chains;
    }
}
