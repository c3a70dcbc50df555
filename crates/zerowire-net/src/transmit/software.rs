//! Frames that ask for a checksum or for segments, toward a port that does neither: done here.
//!
//! A frame with a checksum goes the way of all frames, with a private start that holds the
//! completed field. A long frame becomes many. Each has private headers, and its payload behind
//! them: copied, or in the chain, which is held until the last one is back. Where the port has no
//! room for more, the rest waits for the next turn; no other chain is begun before it is done.

use zerowire::ledger::{Counters, DropReason};
use zerowire_vhost::memory::{Segment, access};
use zerowire_wire::vnet::Fields;

use super::outlet::{Outlet, TxFrame, TxPlace};
use super::{OffloadErrors, Pushed, Taken, Transmit, TransmitContext, TxSlot};
use crate::offload::{
    Checksum, Cursor, HEADERS_BYTES, Headers, Request, SegmentError, Segmenter, add_guest, complete,
};
use crate::{MAX_FRAME_BYTES, header};

/// The least length of the first piece of a frame in pieces, bytes, if the frame has that many. The
/// kernel takes the Ethernet header from it without a further look (net/ethernet/eth.c,
/// `eth_type_trans`).
pub const FIRST_PIECE_BYTES: usize = 64;

/// A long frame, as far as it has been cut. Its segments are those of [`Transmit`]: no other chain
/// is parsed meanwhile.
#[derive(Debug)]
pub(super) struct Long {
    head: u16,
    segmenter: Segmenter,
    next: usize,
    /// Where the next frame's payload begins.
    cursor: Cursor,
}

/// The next frame of a long one.
#[derive(Debug)]
pub struct TxPart<'a> {
    long: &'a mut Long,
    /// Where the long frame lies in the guest's memory.
    segments: &'a [Segment],
    /// Bytes of the chain's virtio-net header, which goes with the first frame.
    pub chain_header: usize,
    /// A chain may be lent.
    pub may_lend: bool,
}

/// What is known of a part's payload: its sum, and where it ends.
pub struct Summed(Checksum, Cursor);

impl TxPart<'_> {
    /// Bytes of its headers.
    #[inline]
    pub fn headers_len(&self) -> usize {
        self.long.segmenter.headers_len()
    }

    /// Bytes behind them.
    #[inline]
    pub fn payload_len(&self) -> usize {
        self.long.segmenter.payload_len(self.long.next)
    }

    /// Writes all of it to `to`, which has as many bytes: the payload is read once, and the copy
    /// summed.
    #[inline]
    pub fn copy(&mut self, to: &mut [u8]) {
        let payload = &mut to[self.long.segmenter.headers_len()..];
        self.long.cursor.read(self.segments, payload);
        let mut sum = Checksum::new();
        sum.add(payload);
        self.long.segmenter.write(self.long.next, sum, to);
    }

    /// Sums the payload where it lies; each run of it is given to `each`.
    #[inline]
    pub fn sum(&self, each: impl FnMut(Segment)) -> Summed {
        let mut cursor = self.long.cursor;
        let sum = self.long.segmenter.sum_payload(self.long.next, self.segments, &mut cursor, each);
        Summed(sum, cursor)
    }

    /// Writes its headers to the front of `to`; the payload is sent from where it lies.
    #[inline]
    pub fn write_headers(&mut self, payload: Summed, to: &mut [u8]) {
        let Summed(sum, cursor) = payload;
        self.long.segmenter.write(self.long.next, sum, to);
        self.long.cursor = cursor;
    }
}

impl<O: Outlet> Transmit<O> {
    /// Queues the frame in `self.segments`, which asks for something; in `place` is its virtio-net
    /// header and what was read of it already.
    #[inline(never)]
    pub(super) fn offloaded(
        &mut self,
        head: u16,
        len: usize,
        mut place: TxPlace,
        port: &mut O::Port,
        cx: &mut TransmitContext<'_>,
    ) -> Result<Taken, DropReason> {
        let header_len = self.header_len;
        let frame_len = len - header_len;
        if frame_len > MAX_FRAME_BYTES {
            return Err(DropReason::TooLong);
        }
        let (longest, at_most) = (self.outlet.longest_frame(port), self.outlet.longest_offered(port));
        // Of what was read nothing is read again, and the rest of the headers now.
        let have = place.len;
        let inspect = start_len(self.outlet.bytes(&place), frame_len).max(have - header_len);
        place.len = header_len + inspect;
        let read = self.outlet.bytes(&place);
        access::read(&self.segments, have, &mut read[have..]);
        header::check(read, header_len, frame_len, self.acked).map_err(|e| self.errors.log(&e))?;
        let chain = TxFrame {
            head,
            index: self.batch.len(),
            len,
            header_len,
            segments: &self.segments,
            inspected: true,
            may_lend: !self.returns.line.is_broken(),
            summed: true,
        };
        if let Some(capture) = &mut self.capture {
            capture.sent(&chain, read, O::LEAVES);
        }
        if cx.inspect(&chain, read)? {
            return Ok(Taken::Out);
        }
        let request = read.first_chunk().and_then(Request::read);
        let frame = &mut read[header_len..];
        let (start, offset) = match request {
            Some(Request::Checksum { start, offset }) => (start, offset),
            Some(Request::Segments { kind, size, start, offset }) => {
                let headers = Headers::find(frame, kind, start, offset);
                let headers = headers.map_err(|e| self.errors.log(&e))?;
                if frame_len - headers.payload_at > usize::from(size) {
                    let segmenter = Segmenter::new(frame, frame_len, headers, size, longest);
                    let segmenter = segmenter.map_err(|e| self.errors.uncut(&e, at_most))?;
                    return Ok(self.begin_long(head, segmenter, port, cx.counters));
                }
                // No longer than one segment: it stays as it is.
                (start, offset)
            }
            _ => return Err(self.errors.log(&"segments of a kind that was not offered")),
        };
        if frame_len > longest {
            return Err(DropReason::TooLong);
        }
        sum(&chain, frame, start, offset).map_err(|e| self.errors.log(&e))?;
        self.outlet.push(port, &chain, place).map(Taken::Frame)
    }

    /// Begins with a long frame.
    fn begin_long(
        &mut self,
        head: u16,
        segmenter: Segmenter,
        port: &mut O::Port,
        counters: &Counters,
    ) -> Taken {
        if !self.outlet.begin_parts(port, head) {
            return Taken::Frame(Pushed::Full);
        }
        self.returns.lent(&self.host.ring, head);
        let cursor = Cursor::at(&self.segments, self.header_len + segmenter.headers_len());
        self.long = Some(Long { head, segmenter, next: 0, cursor });
        self.go_on(port, counters);
        Taken::Begun
    }

    /// Goes on with a long frame, if one is under way, as far as there is room. Returns how many
    /// frames were queued.
    pub(super) fn go_on(&mut self, port: &mut O::Port, counters: &Counters) -> usize {
        let Some(mut long) = self.long.take() else { return 0 };
        if !self.outlet.has_parts(port) {
            // The port went, and the chain came back.
            counters.dropped(DropReason::PortRefused);
            return 0;
        }
        let (first, frames) = (long.next, long.segmenter.frames());
        while long.next < frames {
            let mut part = TxPart {
                chain_header: if long.next == 0 { self.header_len } else { 0 },
                may_lend: !self.returns.line.is_broken(),
                long: &mut long,
                segments: &self.segments,
            };
            if !self.outlet.push_part(port, &mut part) {
                break;
            }
            long.next += 1;
        }
        let queued = long.next - first;
        if first == 0 && queued > 0 {
            // Not before: of a chain that waits for room nothing has gone out.
            self.batch.push(TxSlot { head: long.head, len: 0, tally: None, skipped: None });
        }
        if long.next < frames {
            self.long = Some(long);
        } else {
            self.outlet.end_parts(port);
        }
        queued
    }

    /// Ends a long frame that is under way where it is; its chain comes back with the frames that
    /// were queued.
    pub(super) fn end_long(&mut self, port: &mut O::Port, counters: &Counters) {
        if self.long.take().is_some() {
            counters.dropped(DropReason::PortRefused);
            self.outlet.end_parts(port);
        }
    }
}

impl OffloadErrors {
    /// A frame can't be cut; where frames of up to `at_most` bytes may go out at another time.
    #[cold]
    fn uncut(&mut self, error: &SegmentError, at_most: usize) -> DropReason {
        match *error {
            // Within what the guest may send, but for an MTU that is smaller now.
            SegmentError::TooLong { size, headers, .. } if usize::from(size) + headers <= at_most => {
                DropReason::TooLong
            }
            _ => self.log(error),
        }
    }
}

/// Completes the checksum of a frame whose first bytes are `head`, for which the rest is read here.
fn sum(frame: &TxFrame<'_>, head: &mut [u8], start: u16, offset: u16) -> Result<(), String> {
    let mut rest = Checksum::new();
    Cursor::at(frame.segments, frame.header_len + head.len())
        .take(frame.segments, frame.len, |run| add_guest(&mut rest, &run));
    match complete(head, start, offset, rest) {
        true => Ok(()),
        false => Err(format!("csum_start {start} + csum_offset {offset} beyond {HEADERS_BYTES} bytes")),
    }
}

/// How many bytes of the frame to read into private memory for what the header at the begin of
/// `start` asks for. The header has not been checked yet.
fn start_len(start: &[u8], frame_len: usize) -> usize {
    let fields = Fields::of(start);
    let cut = fields.gso_type != header::GSO_NONE;
    let most = frame_len.min(HEADERS_BYTES);
    if cut || frame_len <= HEADERS_BYTES {
        most
    } else {
        (usize::from(fields.csum_start) + usize::from(fields.csum_offset) + 2)
            .max(FIRST_PIECE_BYTES)
            .min(most)
    }
}
