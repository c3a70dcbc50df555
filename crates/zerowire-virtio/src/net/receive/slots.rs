//! Receive from a ring shared with the kernel. Short frames are copied out of it. Longer ones are
//! read from the socket's queue straight into the guest's buffers, where their slots say that they
//! are.
//!
//! **Ownership.** A slot is this process's until it is given back, and that is when its frame is in
//! the guest's buffers, kept, or dropped. What the guest has no buffers for stays in the ring.

use zerowire::ledger::{CopyReason, DropReason};

use super::batch::Batch;
use super::{LONG_BATCH, Receive, ReceiveContext, ReceiveTurn, Room};
use crate::io::MAX_BATCH;
use crate::net::transmit::Turn;
use crate::port::{Arrived, Slots};
use crate::ring::RingError;

/// How far a turn got.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    frames: usize,
    /// The ring has no frame left.
    empty: bool,
    /// The guest has too few buffers for the next one.
    starved: bool,
    port_gone: bool,
}

impl Receive {
    /// Takes a batch of frames from a ring.
    ///
    /// # Errors
    /// The guest broke a rule of its ring.
    #[inline]
    pub fn run_slots(
        &mut self,
        slots: &mut Slots,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<ReceiveTurn, RingError> {
        if !self.deliver_pending(cx)? {
            return Ok(self.wait(cx));
        }
        let mut progress = Progress::default();
        let taken = self.take_slots(slots, &mut progress, cx);
        if taken.is_ok() && progress.starved && progress.frames == 0 {
            return Ok(self.wait(cx));
        }
        // What was given before the guest's mistake is its own.
        let turn = Turn { chains: progress.frames, notify: self.host.ring.publish() };
        taken?;
        let waiting = !self.pending.is_empty();
        let (port_empty, port_gone) = (progress.empty, progress.port_gone);
        Ok(ReceiveTurn { turn, port_empty, port_gone, starved: waiting, waiting })
    }

    #[inline]
    fn take_slots(
        &mut self,
        slots: &mut Slots,
        progress: &mut Progress,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        while progress.frames < MAX_BATCH && self.pending.is_empty() && !progress.port_gone {
            match slots.arrived(0) {
                None => {
                    progress.empty = true;
                    break;
                }
                Some(Arrived::Here) => {
                    if !self.copy_slot(slots, cx)? {
                        progress.starved = true;
                        break;
                    }
                    progress.frames += 1;
                }
                Some(Arrived::Queued(len)) => {
                    let Some(batch) = self.read_queued(slots, len, cx)? else {
                        progress.starved = true;
                        break;
                    };
                    progress.frames += batch.frames;
                    progress.port_gone = batch.port_gone;
                }
                Some(Arrived::Cut) => {
                    cx.counters.dropped(DropReason::NoRoom);
                    slots.give_back();
                    progress.frames += 1;
                }
            }
        }
        Ok(())
    }

    /// Copies the frame of the next slot to the guest. Returns whether there were buffers.
    #[inline]
    fn copy_slot(&mut self, slots: &mut Slots, cx: &mut ReceiveContext<'_>) -> Result<bool, RingError> {
        // A frame that has to be rebuilt is kept if it finds no buffers. So none is taken as long
        // as the guest has no buffers at all.
        if !self.chains.ensure(0, 1, &mut self.host.ring, cx.memory, self.setup.header_len)? {
            return Ok(false);
        }
        let Some(frame) = slots.frame() else {
            cx.counters.dropped(DropReason::PortRefused);
            slots.give_back();
            return Ok(true);
        };
        let room = self.fit(frame, CopyReason::Outside, cx)?;
        // Too few for this one: it is given up at last, as any other, so that it does not stop
        // those behind it for ever.
        if room == Room::Short && !self.settled {
            return Ok(false);
        }
        self.hold(room, frame, CopyReason::Outside, cx.counters);
        slots.give_back();
        (self.settled, self.waiting_since) = (false, None);
        Ok(true)
    }

    /// Reads frames that are in the socket's queue, from that of the next slot on, whose length is
    /// `first`. None where the guest has too few buffers for it.
    fn read_queued(
        &mut self,
        slots: &mut Slots,
        first: usize,
        cx: &mut ReceiveContext<'_>,
    ) -> Result<Option<Batch>, RingError> {
        let mut lengths = [first; LONG_BATCH];
        let mut queued = 1;
        while let Some(length) = lengths.get_mut(queued)
            && let Some(Arrived::Queued(len)) = slots.arrived(queued)
        {
            *length = len;
            queued += 1;
        }
        let private = self.rebuilds_most();
        let longest = lengths[..queued].iter().copied().max().unwrap_or(first).min(self.longest());
        let offered = match self.setup.mergeable {
            // Timed out waiting for more.
            _ if self.settled => self.offer_each(1, longest, cx),
            true => self.offer_runs(queued, |read| lengths[read].min(longest), private, cx),
            false if private => self.offer_runs(queued, |_| 1, true, cx),
            false => self.offer_each(queued, longest, cx),
        };
        let private = private && !self.settled;
        let Some((batch, broken)) = self.read(offered, private, cx)? else { return Ok(None) };
        self.settled = false;
        let gone = batch.frames + batch.refused;
        (0..gone).for_each(|_| slots.give_back());
        if gone == 0 && !batch.port_gone {
            // The queue does not have what the slot says: go on behind it.
            cx.counters.dropped(DropReason::NoRoom);
            slots.give_back();
        }
        match broken {
            Some(e) => Err(e),
            None => Ok(Some(batch)),
        }
    }
}
