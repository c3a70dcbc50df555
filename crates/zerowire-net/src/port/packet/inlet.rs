//! virtio-net from a packet port: frames come by a ring that is shared with the kernel, or by the
//! socket, a read a frame. Tagged ones come by a socket of their own.

use std::io;

use zerowire::ledger::{CopyReason, DropReason};
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::ring::RingError;

use super::queue::PacketQueue;
use super::tagged::{TAG_BYTES, restore};
use crate::receive::{
    CopySide, Forecast, HeldFrame, Inlet, ReadBatch, ReceiveContext, ReceiveSetup, ReceiveTurn, Received,
    Room, RxBuffers, RxPort,
};
use crate::{MAX_FRAME_BYTES, Policy};

/// Turns in which a ring that was found empty is checked again before its socket is watched. A
/// check costs nothing; a wake-up costs this thread and the sender more than a frame does. Fewer
/// than a worker makes before it sleeps.
pub const LOOKS: u32 = 24;

/// Most tagged frames of a turn, those that are dropped among them: an error that comes again and
/// again must not hold the thread.
const TAGGED_BATCH: usize = 32;

/// After this many turns with untagged frames, the tagged ones get a turn.
const TURNS_UNTAGGED: u32 = 16;

/// Receives from the sockets of one queue pair.
#[derive(Debug)]
pub struct PacketInlet {
    pub(super) batch: ReadBatch,
    /// Timed out waiting for buffers: use what is posted.
    pub(super) settled: bool,
    /// The next frame was tried before, and found too few buffers.
    pub(super) retried: bool,
    /// Looks at the ring that are left.
    looks: u32,
    /// Turns since the tagged frames had one.
    turns: u32,
    /// Where tagged frames are read to.
    buffer: Box<[u8]>,
}

impl PacketInlet {
    /// For the frames of one ring, which ordinarily reach `mtu` bytes.
    ///
    /// # Errors
    /// Private memory for them can't be had.
    pub fn new(policy: Policy, mtu: usize, setup: ReceiveSetup) -> io::Result<Self> {
        Ok(Self {
            batch: ReadBatch::new(policy, mtu, setup)?,
            settled: false,
            retried: false,
            looks: 0,
            turns: 0,
            buffer: vec![0; 12 + MAX_FRAME_BYTES + TAG_BYTES].into(),
        })
    }

    #[cold]
    fn take_tagged(
        &mut self,
        side: &mut CopySide,
        port: &mut PacketQueue,
        turn: &mut ReceiveTurn,
        cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let link = &mut port.link;
        cx.counters.dropped_many(DropReason::NoRoom, std::mem::take(&mut link.missed));
        let left = side.most_frames.saturating_sub(turn.turn.chains).max(1);
        let (mut frames, most) = (0, TAGGED_BATCH.min(left));
        for _ in 0..most {
            if side.is_waiting() {
                break;
            }
            cx.counters.system_calls.add(1);
            let room = self.buffer.len() - TAG_BYTES;
            let (len, tag) = match link.tagged.recv_tagged(&mut self.buffer[..room]) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(e) if matches!(e.raw_os_error(), Some(libc::ENETDOWN)) => {
                    link.look();
                    break;
                }
                Err(_) => {
                    cx.counters.dropped(DropReason::PortRefused);
                    continue;
                }
            };
            let restored = match (tag, len > room) {
                (_, true) => {
                    cx.counters.dropped(DropReason::TooLong);
                    continue;
                }
                (Some(tag), _) => restore(&mut self.buffer, len, side.setup.header_len, tag),
                (None, _) => Some(len),
            };
            match restored {
                Some(len) => {
                    let frame = &mut self.buffer[..len];
                    side.fit_or_hold(frame, CopyReason::Rebuilt, self.batch.given(), cx)?;
                }
                None => cx.counters.dropped(DropReason::TooShort),
            }
            frames += 1;
        }
        turn.turn.chains += frames;
        turn.turn.notify |= side.host.ring.publish();
        let waits = side.is_waiting();
        if waits {
            turn.buffers = RxBuffers::Awaited;
        }
        // Where some were dropped there may be more: being watched again, the port says so at once.
        if turn.port == RxPort::Empty && (frames == most || waits) {
            turn.port = RxPort::More;
        }
        Ok(())
    }
}

impl Inlet for PacketInlet {
    type Port = PacketQueue;
    type Waiting = HeldFrame;
    type Given = Forecast;
    // Nobody can ask the kernel to leave any out.
    const ANY_OFFLOAD: bool = true;

    fn start(&mut self, side: &CopySide, port: &mut PacketQueue, memory: &GuestMemory) -> Result<(), String> {
        self.batch.start(side, &mut port.io, memory)?;
        (self.settled, self.retried) = (false, false);
        port.link.set_header_bytes(side.setup.header_len).map_err(|e| e.to_string())
    }

    #[inline]
    fn begin(&mut self, side: &CopySide, port: &mut PacketQueue) -> Option<RxPort> {
        port.link.wake();
        if self.looks > 0
            && !side.is_waiting()
            && let Some(slots) = port.link.slots()
            && slots.arrived(0).is_none()
        {
            self.looks -= 1;
            return Some(if self.looks == 0 { RxPort::Empty } else { RxPort::More });
        }
        None
    }

    /// By the ring if there is one.
    #[inline]
    fn receive(
        &mut self,
        side: &mut CopySide,
        port: &mut PacketQueue,
        cx: &ReceiveContext<'_>,
    ) -> Result<Option<Received>, RingError> {
        match port.link.slots() {
            Some(slots) => Ok(self.receive_slots(slots, side, &mut port.io, cx)),
            None => self.batch.receive(side, &mut port.io, cx),
        }
    }

    #[inline]
    fn give(
        &mut self,
        frame: &HeldFrame,
        side: &mut CopySide,
        port: &mut PacketQueue,
        cx: &ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        self.batch.give(frame, side, &mut port.io, cx)
    }

    /// What is left to be done: tagged frames, and an interface that went.
    #[inline]
    fn end(
        &mut self,
        side: &mut CopySide,
        port: &mut PacketQueue,
        turn: &mut ReceiveTurn,
        cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        if port.link.slots().is_some() {
            self.looks = 0;
            match (turn.turn.chains, turn.port) {
                // What woke this thread may be an error, which no read of an empty ring tells.
                (0, RxPort::Empty) => port.link.look_behind_ring(),
                (_, RxPort::Empty) if !turn.buffers.are_awaited() => {
                    (self.looks, turn.port) = (LOOKS, RxPort::More);
                }
                _ => {}
            }
        }
        self.turns += 1;
        if turn.port == RxPort::Gone {
            port.link.look();
            turn.port = RxPort::Empty;
        }
        // If no untagged frame woke this thread, a tagged one did. Tagged frames don't wait for
        // ever behind the others.
        if turn.turn.chains == 0 || self.turns >= TURNS_UNTAGGED {
            self.turns = 0;
            if !turn.buffers.are_awaited() {
                self.take_tagged(side, port, turn, cx)?;
            }
        }
        Ok(())
    }

    fn settle(&mut self) {
        self.settled = true;
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
