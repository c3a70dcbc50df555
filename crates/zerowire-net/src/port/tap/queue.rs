//! Frames between a ring and a tap: a frame is a write, or a read.

use std::io;

use zerowire::ledger::{Counters, DropReason};
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::ring::RingError;

use crate::Policy;
use crate::io::PortIo;
use crate::receive::{
    CopySide, Forecast, HeldFrame, Inlet, ReadBatch, ReceiveContext, ReceiveSetup, ReceiveTurn, Received,
    Room, RxPort,
};
use crate::transmit::{Outlet, Pushed, SendBatch, TxFrame, TxPlace, TxSlot, TxState};

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
        let (done, calls) = self.batch.run(io);
        let mut lost = false;
        for d in done.iter().filter(|d| d.result < 0) {
            if let Some(slot) = batch.get_mut(usize::from(d.slot)) {
                slot.refuse();
                counters.dropped(DropReason::PortRefused);
                if d.result == -libc::EBADFD {
                    lost = true;
                }
            }
        }
        counters.system_calls.add(calls);
        if lost {
            io.set_lost();
        }
        // What a tap has no room for is lost.
        0
    }

    fn trim(&mut self) {
        self.batch.trim();
    }
}

/// Receives from one queue of a tap, or from any file that does not block and of which a read takes
/// a frame.
#[derive(Debug)]
pub struct TapInlet {
    batch: ReadBatch,
}

impl TapInlet {
    /// For the frames of one ring, which ordinarily reach `mtu` bytes.
    ///
    /// # Errors
    /// Private memory for them can't be had.
    pub fn new(policy: Policy, mtu: usize, setup: ReceiveSetup) -> io::Result<Self> {
        Ok(Self { batch: ReadBatch::new(policy, mtu, setup)? })
    }
}

impl Inlet for TapInlet {
    type Port = PortIo;
    type Waiting = HeldFrame;
    type Given = Forecast;

    fn start(&mut self, _side: &CopySide, _io: &mut PortIo, _memory: &GuestMemory) -> Result<(), String> {
        self.batch.start();
        Ok(())
    }

    #[inline]
    fn receive(
        &mut self,
        side: &mut CopySide,
        io: &mut PortIo,
        cx: &ReceiveContext<'_>,
    ) -> Result<Option<Received>, RingError> {
        self.batch.receive(side, io, cx)
    }

    #[inline]
    fn give(
        &mut self,
        frame: &HeldFrame,
        side: &mut CopySide,
        _io: &mut PortIo,
        cx: &ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        self.batch.give(frame, side, cx)
    }

    #[inline]
    fn end(
        &mut self,
        _side: &mut CopySide,
        io: &mut PortIo,
        turn: &mut ReceiveTurn,
        _cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        if turn.port == RxPort::Gone {
            io.set_lost();
        }
        Ok(())
    }

    fn settle(&mut self) {
        self.batch.settle();
    }

    #[inline]
    fn given(&mut self) -> &mut Forecast {
        self.batch.given()
    }

    fn trim(&mut self) {
        self.batch.trim();
    }
}
