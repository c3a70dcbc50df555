//! Receive from a ring shared with the kernel. Short frames are copied out of it. Longer ones are
//! read from the socket's queue straight into the guest's buffers, where their slots say that they
//! are.
//!
//! **Ownership.** A slot is this process's until it is given back, and that is when its frame is in
//! the guest's buffers, kept, or dropped. What the guest has no buffers for stays in the ring.

use zerowire::ledger::{CopyReason, DropReason};
use zerowire_vhost::ring::RingError;

use super::PacketInlet;
use super::inlet::LOOKS;
use crate::io::{MAX_BATCH, PortIo};
use crate::port::packet::{Arrived, Slots};
use crate::receive::{CopySide, Done, Inlet, LONG_BATCH, ReceiveContext, Received, Room, RxPort};

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

impl PacketInlet {
    /// Takes a batch of frames from a ring. None if the guest has too few buffers for the first.
    #[inline]
    pub(super) fn receive_slots(
        &mut self,
        slots: &mut Slots,
        side: &mut CopySide,
        io: &mut PortIo,
        cx: &ReceiveContext<'_>,
    ) -> Option<Received> {
        let mut progress = Progress::default();
        let mut taken = self.take_slots(slots, &mut progress, side, io, cx);
        // The socket is readable as soon as a long frame is in its queue, some time before its slot
        // says so.
        if taken.is_ok()
            && progress.frames == 0
            && progress.empty
            && (0..LOOKS).any(|_| slots.arrived(0).is_some())
        {
            progress.empty = false;
            taken = self.take_slots(slots, &mut progress, side, io, cx);
        }
        if taken.is_ok() && progress.starved && progress.frames == 0 {
            return None;
        }
        let port = match (progress.port_gone, progress.empty) {
            (true, _) => RxPort::Gone,
            (false, true) => RxPort::Empty,
            (false, false) => RxPort::More,
        };
        // What was given before the guest's mistake is its own.
        Some(Received { frames: progress.frames, port, short: false, broken: taken.err() })
    }

    #[inline]
    fn take_slots(
        &mut self,
        slots: &mut Slots,
        progress: &mut Progress,
        side: &mut CopySide,
        io: &mut PortIo,
        cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        while progress.frames < MAX_BATCH.min(side.most_frames) && !side.is_waiting() && !progress.port_gone {
            match slots.arrived(0) {
                None => {
                    progress.empty = true;
                    break;
                }
                Some(Arrived::Here) => {
                    if !self.copy_slot(slots, side, cx)? {
                        progress.starved = true;
                        break;
                    }
                    progress.frames += 1;
                }
                Some(Arrived::Queued(len)) => {
                    let left = side.most_frames - progress.frames;
                    let Some(done) = self.read_queued(slots, (len, left), side, io, cx)? else {
                        progress.starved = true;
                        break;
                    };
                    progress.frames += done.frames;
                    progress.port_gone = done.port_gone;
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
    fn copy_slot(
        &mut self,
        slots: &mut Slots,
        side: &mut CopySide,
        cx: &ReceiveContext<'_>,
    ) -> Result<bool, RingError> {
        // A frame that has to be rebuilt is kept if it finds no buffers. So none is taken as long
        // as the guest has no buffers at all.
        if !side.ensure(0, 1, cx.memory)? {
            return Ok(false);
        }
        let Some(frame) = slots.frame() else {
            cx.counters.dropped(DropReason::PortRefused);
            slots.give_back();
            return Ok(true);
        };
        side.prefetch_buffer(frame.len(), cx.memory);
        if !self.retried && side.drops_group(frame, cx.counters) {
            slots.give_back();
            return Ok(true);
        }
        let room = side.fit(frame, CopyReason::Outside, self.batch.given(), cx)?;
        // Too few for this one: it is given up at last, as any other, so that it does not stop
        // those behind it for ever.
        self.retried = room == Room::Short && !self.settled;
        if self.retried {
            return Ok(false);
        }
        side.hold(room, frame, CopyReason::Outside, cx.counters);
        slots.give_back();
        self.settled = false;
        side.end_wait();
        Ok(true)
    }

    /// Reads up to `most` frames that are in the socket's queue, from that of the next slot on,
    /// whose length is `first`. None where the guest has too few buffers for it.
    fn read_queued(
        &mut self,
        slots: &mut Slots,
        (first, most): (usize, usize),
        side: &mut CopySide,
        io: &mut PortIo,
        cx: &ReceiveContext<'_>,
    ) -> Result<Option<Done>, RingError> {
        let mut lengths = [first; LONG_BATCH];
        let mut queued = 1;
        while queued < most
            && let Some(length) = lengths.get_mut(queued)
            && let Some(Arrived::Queued(len)) = slots.arrived(queued)
        {
            *length = len;
            queued += 1;
        }
        let private = side.rebuilds_most();
        let longest = lengths[..queued].iter().copied().max().unwrap_or(first).min(side.longest());
        let (batch, memory) = (&mut self.batch, cx.memory);
        let offered = match side.setup.mergeable {
            // Timed out waiting for more.
            _ if self.settled => batch.offer_each(1, longest, side, io, memory),
            true => batch.offer_runs(queued, |read| lengths[read].min(longest), private, side, io, memory),
            false if private => batch.offer_runs(queued, |_| 1, true, side, io, memory),
            false => batch.offer_each(queued, longest, side, io, memory),
        };
        let private = private && !self.settled;
        let Some((done, broken)) = batch.read(offered, private, side, io, cx)? else { return Ok(None) };
        self.settled = false;
        let gone = done.frames + done.refused;
        (0..gone).for_each(|_| slots.give_back());
        if gone == 0 && !done.port_gone {
            // The queue does not have what the slot says: go on behind it.
            cx.counters.dropped(DropReason::NoRoom);
            slots.give_back();
        }
        match broken {
            Some(e) => Err(e),
            None => Ok(Some(done)),
        }
    }
}
