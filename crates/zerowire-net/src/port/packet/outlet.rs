//! virtio-net to a packet port: frames go by the socket, a batch a system call, or by a ring that
//! is shared with the kernel.
//!
//! A batch goes all by the ring, or all by the socket, so that no frame overtakes another.
//!
//! **A socket can be full**: its frames stay in the guest's ring, and nothing is lost or overtaken.
//! A packet socket takes frames until what it has in the kernel exceeds a bound, and says EAGAIN
//! then. In a batch of many a frame could be refused and the next one taken, when the interface
//! finishes with one in between. So the outlet asks for the room before a batch begins, and asks
//! again only when that room has been used up. Where there is little left, frames go one by one, up
//! to the first that is refused.

use std::io;

use zerowire::ledger::{CopyReason, Counters, DropReason};

use super::frame_ring::vnet;
use super::queue::PacketQueue;
use crate::io::{Done, MAX_BATCH};
use crate::transmit::{Outlet, Pushed, SendBatch, TxFrame, TxPlace, TxSlot, TxState, TxTally};
use crate::{MAX_FRAME_BYTES, Policy};

/// With less room than this frames go one by one; more than the longest frame costs.
const PRESSED_BYTES: usize = 256 << 10;

/// What the longest frame costs.
const MAX_COST: usize = cost(12 + MAX_FRAME_BYTES);

const _: () = assert!(MAX_COST < PRESSED_BYTES);

/// The most that a frame of `len` bytes costs of the room in a socket. Its buffer is rounded up to
/// a power of two, and has structures of the kernel beside it.
const fn cost(len: usize) -> usize {
    2 * len + 2048
}

/// Sends to the sockets of one queue pair.
#[derive(Debug)]
pub struct PacketOutlet {
    batch: SendBatch,
    /// The longest segment that may be made of a frame, bytes.
    segment_bytes: usize,
    /// The socket is nearly full.
    pressed: bool,
    /// Room in the socket that is known to be there, bytes.
    room: usize,
    /// Frames of the batch that go by the ring, by their numbers in the batch, and how many go by
    /// the socket.
    by_ring: Vec<u16>,
    by_socket: usize,
}

/// What became of a frame that was to go by the ring.
enum ByRing {
    /// It is in the ring.
    Taken(TxTally),
    /// Another turn.
    NotNow,
    /// It goes by the socket.
    Never,
}

impl PacketOutlet {
    /// For the frames of one ring.
    ///
    /// # Errors
    /// Private memory for them can't be had.
    pub fn new(policy: Policy) -> io::Result<Self> {
        Ok(Self {
            batch: SendBatch::new(policy)?,
            segment_bytes: usize::MAX,
            pressed: false,
            room: 0,
            by_ring: Vec::with_capacity(MAX_BATCH),
            by_socket: 0,
        })
    }

    /// Puts a frame into the ring whose checked head is in that place.
    #[inline]
    fn push_by_ring(
        &mut self,
        port: &mut PacketQueue,
        frame: &TxFrame<'_>,
        place: &TxPlace,
    ) -> Result<ByRing, DropReason> {
        let Some(ring) = &mut port.outbound.ring else { return Ok(ByRing::Never) };
        let start = &*self.batch.bytes(place);
        let Some(header) = vnet(start, frame.header_len) else {
            return Ok(if self.by_ring.is_empty() { ByRing::Never } else { ByRing::NotNow });
        };
        if self.by_socket > 0 || !ring.push(&header, start, frame)? {
            return Ok(ByRing::NotNow);
        }
        self.by_ring.push(frame.index as u16);
        Ok(ByRing::Taken(TxTally { scattered: 0, copied: frame.len as u32, reason: CopyReason::Outside }))
    }

    /// Hands over what is in the ring, from this batch and from those before. Returns whether the
    /// interface was there.
    #[cold]
    #[inline(never)]
    fn flush_ring(&self, port: &mut PacketQueue, batch: &mut [TxSlot], counters: &Counters) -> bool {
        let Some(ring) = &mut port.outbound.ring else { return true };
        let first = ring.next - self.by_ring.len() as u64;
        let there = ring.hand_over(counters, |lost| {
            for number in lost.start.max(first)..lost.end {
                let index = self.by_ring.get((number - first) as usize);
                if let Some(slot) = index.and_then(|i| batch.get_mut(usize::from(*i))) {
                    slot.refuse();
                }
            }
        });
        port.outbound.leave();
        there
    }
}

impl Outlet for PacketOutlet {
    type Port = PacketQueue;

    const LEAVES: bool = true;

    fn start(&mut self, port: &mut PacketQueue, header_len: usize) -> Result<(), String> {
        (self.pressed, self.room) = (false, 0);
        port.link.set_header_bytes(header_len).map_err(|e| e.to_string())
    }

    #[inline]
    fn begin(&mut self, port: &mut PacketQueue, work: bool, counters: &Counters) -> TxState {
        self.segment_bytes = port.link.segment_bytes();
        port.outbound.open(&mut port.link);
        if !work {
            return TxState::Ready;
        }
        self.batch.begin(&mut port.io, work, counters);
        self.by_ring.clear();
        self.by_socket = 0;
        if self.room < PRESSED_BYTES {
            self.room = port.io.send_room().unwrap_or(usize::MAX);
            self.pressed = self.room < PRESSED_BYTES;
        }
        TxState::Ready
    }

    #[inline]
    fn has_room(&self, port: &mut PacketQueue) -> bool {
        let may_be_full = match self.pressed {
            // The frame before was refused.
            true => port.io.last_result() == Some(-libc::EAGAIN),
            // The next one may be as long as any.
            false => self.room < MAX_COST,
        };
        !may_be_full && self.batch.has_room(&mut port.io)
    }

    #[inline]
    fn longest_segment(&self) -> usize {
        self.segment_bytes
    }

    /// For a frame that goes by the ring a head is enough: the rest is copied into that.
    #[inline]
    fn place(&mut self, port: &PacketQueue, frame: &TxFrame<'_>) -> TxPlace {
        let gather = if port.outbound.ring.is_some() { None } else { self.batch.gather(frame) };
        self.batch.place_for(frame, gather)
    }

    #[inline]
    fn bytes(&mut self, place: &TxPlace) -> &mut [u8] {
        self.batch.bytes(place)
    }

    #[inline]
    fn sends_at_once(&self) -> bool {
        self.pressed
    }

    #[inline]
    fn push(
        &mut self,
        port: &mut PacketQueue,
        frame: &TxFrame<'_>,
        mut place: TxPlace,
    ) -> Result<Pushed, DropReason> {
        if port.outbound.ring.is_some() {
            match self.push_by_ring(port, frame, &place)? {
                ByRing::Taken(tally) => return Ok(Pushed::Queued(tally)),
                ByRing::NotNow => return Ok(Pushed::Full),
                ByRing::Never => self.batch.gather_rest(frame, &mut place),
            }
        }
        let tally = self.batch.queue(&mut port.io, frame, &place, self.pressed)?;
        self.by_socket += 1;
        self.room = self.room.saturating_sub(cost(frame.len));
        Ok(Pushed::Queued(tally))
    }

    #[inline]
    fn flush(&mut self, port: &mut PacketQueue, batch: &mut [TxSlot], counters: &Counters) -> usize {
        let mut gone = false;
        if port.outbound.ring.is_some() {
            gone = !self.flush_ring(port, batch, counters);
        }
        let (done, calls) = self.batch.run(&mut port.io);
        let mut full = false;
        for d in done.iter().filter(|d| d.result < 0) {
            let Some(slot) = batch.get_mut(usize::from(d.slot)) else { continue };
            slot.refuse();
            if is_full(d) {
                full = true;
                continue;
            }
            gone |= matches!(-d.result, libc::ENXIO | libc::ENODEV | libc::ENETDOWN);
            counters.dropped(DropReason::PortRefused);
        }
        counters.system_calls.add(calls);
        let mut kept = 0;
        if full {
            self.room = 0;
            let (first, lost) = full_at_end(done);
            counters.dropped_many(DropReason::PortRefused, lost as u64);
            kept = first.map_or(0, |first| batch.len().saturating_sub(usize::from(first)));
        }
        if gone {
            port.link.look();
        }
        kept
    }

    fn send_waiting(&mut self, port: &mut PacketQueue, counters: &Counters) {
        port.flush(counters);
    }

    fn trim(&mut self) {
        self.batch.trim();
    }
}

/// The first of the frames at the end of a batch that the socket had no room for, and how many of
/// those before are lost, since one behind them was sent. That does not happen as long as frames
/// cost no more than [`cost`].
#[cold]
fn full_at_end(done: &[Done]) -> (Option<u16>, usize) {
    let end = done.iter().rposition(|d| !is_full(d)).map_or(0, |last| last + 1);
    let lost = done[..end].iter().filter(|d| is_full(d)).count();
    (done.get(end).map(|d| d.slot), lost)
}

#[inline]
fn is_full(done: &Done) -> bool {
    done.result == -libc::EAGAIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_behind_which_none_was_sent_stay_in_the_ring() {
        let done = |results: &[(u16, i32)]| -> Vec<Done> {
            results.iter().map(|&(slot, result)| Done { slot, result }).collect()
        };
        const FULL: i32 = -libc::EAGAIN;
        let cases = [
            (done(&[(0, 60), (1, FULL)]), (Some(1), 0)),
            (done(&[(0, FULL), (1, FULL)]), (Some(0), 0)),
            // Chains between them and behind them have no frame for the socket.
            (done(&[(1, 60), (3, FULL), (5, FULL)]), (Some(3), 0)),
            (done(&[(0, FULL), (1, 60), (2, FULL)]), (Some(2), 1)),
            (done(&[(0, FULL), (2, FULL), (3, -libc::ENXIO)]), (None, 2)),
        ];
        for (done, expected) in cases {
            assert_eq!(full_at_end(&done), expected, "{done:?}");
        }
    }
}
