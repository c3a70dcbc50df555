//! virtio-net to a tap: a frame is a write.

use std::io;

use zerowire::ledger::{Counters, DropReason};

use super::Policy;
use super::transmit::{Outlet, Pushed, SendBatch, TxFrame, TxPlace, TxSlot, TxState};
use crate::io::PortIo;

/// Sends to one queue of a tap, or to any file of which a write takes a frame.
#[derive(Debug)]
pub struct TapOutlet {
    batch: SendBatch,
}

impl TapOutlet {
    /// For the frames of one ring.
    ///
    /// # Errors
    /// Private memory for them can't be had.
    pub fn new(policy: Policy) -> io::Result<Self> {
        Ok(Self { batch: SendBatch::new(policy)? })
    }
}

impl Outlet for TapOutlet {
    type Port = PortIo;

    #[inline]
    fn begin(&mut self, io: &mut PortIo, work: bool, _counters: &Counters) -> TxState {
        if work {
            self.batch.clear();
            io.clear();
        }
        TxState::Ready
    }

    #[inline]
    fn has_room(&self, _io: &mut PortIo) -> bool {
        self.batch.has_room()
    }

    #[inline]
    fn place(&mut self, _io: &PortIo, frame: &TxFrame<'_>) -> TxPlace {
        let gather = self.batch.gather(frame);
        self.batch.place(frame, gather)
    }

    #[inline]
    fn bytes(&mut self, place: &TxPlace) -> &mut [u8] {
        self.batch.bytes(place)
    }

    #[inline]
    fn push(&mut self, io: &mut PortIo, frame: &TxFrame<'_>, place: TxPlace) -> Result<Pushed, DropReason> {
        self.batch.push(io, frame, &place, false).map(Pushed::Queued)
    }

    #[inline]
    fn flush(&mut self, io: &mut PortIo, batch: &mut [TxSlot], counters: &Counters) -> usize {
        let (done, calls) = io.run();
        for d in done.iter().filter(|d| d.result < 0) {
            if let Some(slot) = batch.get_mut(usize::from(d.slot)) {
                slot.refuse();
                counters.dropped(DropReason::PortRefused);
            }
        }
        counters.system_calls.add(calls);
        // What a tap has no room for is lost.
        0
    }

    fn trim(&mut self) {
        self.batch.trim();
    }
}
