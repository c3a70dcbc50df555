//! Frames that ask more of the guest than it takes: their checksums and segments are made here. A
//! device sets no flag and no segmentation that was not negotiated (virtio 1.3 §5.1.6.4.1).
//!
//! This is for ports that can't be asked for frames that ask for less
//! ([`ANY_OFFLOAD`](super::Inlet::ANY_OFFLOAD)). Plain code on private memory. The bytes are those
//! of some sender on the network, the offload fields those of the kernel.

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_vhost::ring::RingError;

use super::ReceiveContext;
use super::inlet::{CopySide, Given};
use super::pending::HeldFrame;
use super::side::{HEADED, Room};
use crate::features::Offloads;
use crate::header::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4};
use crate::offload::{Checksum, Headers, Request, Segmenter, complete};

/// Bytes of the virtio-net header that tell of offloads.
pub(super) const HEADER_BYTES: usize = 10;

/// A frame that its offload fields don't fit. It is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unfit;

/// What frames may ask of the guest.
#[derive(Debug, Default)]
pub(super) struct Fit {
    /// None where the port sees to that.
    pub accepts: Option<Offloads>,
    /// A segment of a frame that the guest does not take whole.
    piece: Vec<u8>,
}

impl CopySide {
    /// Whether nearly each frame of another program's may have to be changed for this guest.
    #[inline]
    pub fn rebuilds_most(&self) -> bool {
        self.fit.accepts.is_some_and(|a| !a.csum)
    }

    /// Gives the guest a frame of the port's, or keeps it until there are buffers.
    #[inline]
    pub fn fit_or_hold<G: Given>(
        &mut self,
        frame: &mut [u8],
        reason: CopyReason,
        given: &mut G,
        cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        if self.drops_group(frame, cx.counters) {
            return Ok(());
        }
        let room = self.fit(frame, reason, given, cx)?;
        self.hold(room, frame, reason, cx.counters);
        Ok(())
    }

    /// Gives the guest a frame of the port's, which may have to be changed to be what it takes. The
    /// frames that come of a change are kept if they find no room. Otherwise the frame is as it was
    /// unless it was taken.
    #[inline]
    pub fn fit<G: Given>(
        &mut self,
        frame: &mut [u8],
        reason: CopyReason,
        given: &mut G,
        cx: &ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        match (self.fit.accepts, frame.first_chunk()) {
            (Some(accepts), Some(header)) if !passes(header, accepts) => {
                self.rebuild(frame, given, cx).map(|()| Room::Taken)
            }
            _ if frame.len() > self.longest() => {
                cx.counters.dropped(DropReason::TooLong);
                Ok(Room::Taken)
            }
            _ => self.copy_in_turn(frame, reason, given, cx),
        }
    }

    /// Does what the frame asks for, and gives the guest the frames that result.
    #[cold]
    fn rebuild<G: Given>(
        &mut self,
        frame: &mut [u8],
        given: &mut G,
        cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let mut piece = std::mem::take(&mut self.fit.piece);
        let mut broken = Ok(());
        let reason = CopyReason::Rebuilt;
        let done = rebuild(frame, self.setup.header_len, &mut piece, |frame| {
            match self.copy_in_turn(frame, reason, given, cx) {
                Ok(room) => self.hold(room, frame, reason, cx.counters),
                Err(e) => {
                    broken = Err(e);
                    false
                }
            }
        });
        self.fit.piece = piece;
        match done {
            Ok(left) => cx.counters.dropped_many(DropReason::NoRoom, left as u64),
            Err(_) => cx.counters.dropped(DropReason::BadOffload),
        }
        broken
    }

    /// Gives the guest a frame, if nothing waits that came before it.
    #[inline]
    fn copy_in_turn<G: Given>(
        &mut self,
        frame: &[u8],
        reason: CopyReason,
        given: &mut G,
        cx: &ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        match self.is_waiting() {
            false => self.copy_out::<HEADED, _>(frame, reason, given, cx),
            true => Ok(Room::Short),
        }
    }

    /// Keeps a frame for which there was no `room` until there are buffers; where too many are kept
    /// already it is dropped. Returns whether there may be room for a further one.
    #[inline]
    pub fn hold(&mut self, room: Room, frame: &[u8], reason: CopyReason, counters: &Counters) -> bool {
        match room {
            Room::Taken => true,
            Room::Short => {
                let kept = self.keep(frame.len(), || HeldFrame { bytes: frame.to_vec(), reason });
                if !kept {
                    counters.dropped(DropReason::NoRoom);
                }
                kept
            }
            Room::Never => {
                counters.dropped(DropReason::NoRoom);
                true
            }
        }
    }
}

/// Whether the guest takes a frame with this header as it is.
#[inline]
pub(super) fn passes(header: &[u8; HEADER_BYTES], accepts: Offloads) -> bool {
    let [flags, gso, ..] = *header;
    let taken = match gso & !GSO_ECN {
        GSO_NONE => true,
        GSO_TCPV4 => accepts.tso4,
        GSO_TCPV6 => accepts.tso6,
        GSO_UDP_L4 => accepts.uso,
        _ => false,
    };
    taken && (gso & GSO_ECN == 0 || accepts.ecn) && (flags == 0 || accepts.csum)
}

/// Makes frames that ask for nothing from one frame, its virtio-net header in front. Gives them to
/// `give` one after the other, as long as that returns true. Segments are built in `piece`. Returns
/// how many were not made.
pub(super) fn rebuild(
    frame: &mut [u8],
    header_len: usize,
    piece: &mut Vec<u8>,
    mut give: impl FnMut(&[u8]) -> bool,
) -> Result<usize, Unfit> {
    let (header, bytes) = frame.split_at_mut_checked(header_len).ok_or(Unfit)?;
    match header.first_chunk().and_then(Request::read).ok_or(Unfit)? {
        Request::Plain => {}
        Request::Checksum { start, offset } => {
            if !complete(bytes, start, offset, Checksum::new()) {
                return Err(Unfit);
            }
        }
        Request::Segments { kind, size, start, offset } => {
            let headers = Headers::find(bytes, kind, start, offset).map_err(|_| Unfit)?;
            let segmenter =
                Segmenter::new(bytes, bytes.len(), headers, size, usize::MAX).map_err(|_| Unfit)?;
            let mut payload = &bytes[segmenter.headers_len()..];
            for i in 0..segmenter.frames() {
                let (part, rest) = payload.split_at(segmenter.payload_len(i));
                payload = rest;
                let mut sum = Checksum::new();
                sum.add(part);
                piece.clear();
                piece.resize(header_len + segmenter.headers_len(), 0);
                segmenter.write(i, sum, &mut piece[header_len..]);
                piece.extend_from_slice(part);
                if !give(piece) {
                    return Ok(segmenter.frames() - i - 1);
                }
            }
            return Ok(0);
        }
    }
    header.fill(0);
    give(frame);
    Ok(0)
}

#[cfg(test)]
mod tests;
