//! Frames that ask for a checksum or for segments: done here, since AF_XDP has neither for frames
//! in pieces.
//!
//! A frame with a checksum goes the way of all frames, with a private head that holds the completed
//! field. A long frame becomes many: each has private headers in the slab, and its payload behind
//! them, copied, or in the chain, which is held until the last one is back. Where the TX ring has
//! no room for more, the rest waits for the next turn; no other chain is begun before it is done.

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_sys::xdp::MAX_PIECES;

use super::pieces::{add_piece, private_memory};
use super::{Chain, FIRST_PIECE_BYTES, INSPECT_BYTES, Taken, XdpTransmit};
use crate::memory::access;
use crate::net::offload::{
    AddGuest, Checksum, Cursor, HEADERS_BYTES, Headers, Request, SegmentError, Segmenter, complete,
};
use crate::net::transmit::{Detour, take_out};
use crate::net::xdp::account::Frame;
use crate::net::xdp::link::Link;
use crate::net::xdp::loans::Lent;
use crate::net::xdp::slab::HEAD_BYTES;
use crate::net::{MAX_FRAME_BYTES, header};

// The headers of any frame fit into a head.
const _: () = assert!(HEADERS_BYTES <= HEAD_BYTES);

/// A long frame, as far as it has been cut. Its segments are those of [`XdpTransmit`]: no other
/// chain is parsed meanwhile.
#[derive(Debug)]
pub(super) struct Long {
    head: u16,
    /// The loan that holds the chain.
    holder: u16,
    segmenter: Segmenter,
    next: usize,
    /// Where the next frame's payload begins.
    cursor: Cursor,
}

impl XdpTransmit {
    /// Queues the frame in `self.segments`, which asks for something; `start` is its virtio-net
    /// header and what was read of it already.
    #[inline(never)]
    pub(super) fn offloaded(
        &mut self,
        chain: Chain,
        start: &[u8],
        link: &mut Link,
        counters: &Counters,
        detour: &mut Option<&mut dyn Detour>,
    ) -> Result<Taken, DropReason> {
        let Chain { head, len, frame_len, .. } = chain;
        let header_len = self.header_len;
        if frame_len > MAX_FRAME_BYTES {
            return Err(DropReason::TooLong);
        }
        let longest = link.longest();
        let registered = link.geometry().map_or(0, |g| g.frame_bytes() as usize);
        // Of what was read nothing is read again, and the rest of the headers now.
        let mut private = [0u8; 12 + HEADERS_BYTES];
        private[..start.len()].copy_from_slice(start);
        let inspect = head_len(start, frame_len).max(start.len() - header_len);
        let read = &mut private[..header_len + inspect];
        access::read(&self.segments, start.len(), &mut read[start.len()..]);
        if let Err(e) = header::check(read, header_len, frame_len, self.acked) {
            return Err(self.bad_offload(&e));
        }
        if let Some(detour) = detour.as_deref_mut()
            && detour.wants(&read[header_len..header_len + inspect.min(INSPECT_BYTES)])
        {
            take_out(&self.segments, header_len, len, read, detour);
            counters.copied(CopyReason::Metadata, len as u64);
            self.done(head);
            return Ok(Taken::Done);
        }
        let request = read.first_chunk().and_then(Request::read);
        let frame = &mut read[header_len..];
        let (start, offset) = match request {
            Some(Request::Checksum { start, offset }) => (start, offset),
            Some(Request::Segments { kind, size, start, offset }) => {
                let headers = match Headers::find(frame, kind, start, offset) {
                    Ok(h) => h,
                    Err(e) => return Err(self.bad_offload(&e)),
                };
                if frame_len - headers.len() > usize::from(size) {
                    let segmenter = match Segmenter::new(frame, frame_len, headers, size, longest) {
                        Ok(s) => s,
                        // Within what the guest may send, but for an MTU that is smaller now.
                        Err(SegmentError::TooLong { size, headers, .. })
                            if usize::from(size) + headers <= registered =>
                        {
                            return Err(DropReason::TooLong);
                        }
                        Err(e) => return Err(self.bad_offload(&e)),
                    };
                    return Ok(self.begin(head, segmenter, link, counters));
                }
                // No longer than one segment: it stays as it is.
                (start, offset)
            }
            _ => return Err(self.bad_offload(&"segments of a kind that was not offered")),
        };
        if frame_len > longest {
            return Err(DropReason::TooLong);
        }
        let mut rest = Checksum::new();
        Cursor::at(&self.segments, header_len + inspect)
            .take(&self.segments, frame_len, |run| rest.add_guest(&run));
        if !complete(frame, start, offset, rest) {
            let text = format!("csum_start {start} + csum_offset {offset} beyond {HEADERS_BYTES} bytes");
            return Err(self.bad_offload(&text));
        }
        self.whole(Chain { summed: true, ..chain }, &private, inspect, link)
    }

    /// Begins with a long frame.
    fn begin(&mut self, head: u16, segmenter: Segmenter, link: &mut Link, counters: &Counters) -> Taken {
        let Some(holder) = link.loans.next() else { return Taken::Full };
        link.loans.hold(head);
        self.lent(head);
        let cursor = Cursor::at(&self.segments, self.header_len + segmenter.headers_len());
        self.long = Some(Long { head, holder, segmenter, next: 0, cursor });
        self.go_on(link, counters);
        Taken::Done
    }

    /// Goes on with a long frame, if one is under way, as far as there is room. Returns how many
    /// frames were queued.
    pub(super) fn go_on(&mut self, link: &mut Link, counters: &Counters) -> usize {
        let Some(mut long) = self.long.take() else { return 0 };
        if !link.loans.is_held(long.holder) {
            // The socket is gone, and the chain came back with it.
            counters.dropped(DropReason::PortRefused);
            return 0;
        }
        let (first, frames) = (long.next, long.segmenter.frames());
        while long.next < frames && self.part(&mut long, link) {
            long.next += 1;
        }
        let queued = long.next - first;
        if first == 0 && queued > 0 {
            // Not before: of a chain that waits for room nothing has gone out.
            self.handed.push(long.head);
        }
        if long.next < frames {
            self.long = Some(long);
        } else if let Some(head) = link.loans.let_go(long.holder) {
            self.back(head);
        }
        queued
    }

    /// Ends a long frame that is under way where it is; its chain comes back with the frames that
    /// were queued.
    pub(super) fn end_long(&mut self, link: &mut Link, counters: &Counters) {
        if let Some(long) = self.long.take() {
            counters.dropped(DropReason::PortRefused);
            link.finished.extend(link.loans.let_go(long.holder));
        }
    }

    /// Queues the next frame of a long one. False where there is no room.
    fn part(&mut self, long: &mut Long, link: &mut Link) -> bool {
        if link.room(MAX_PIECES as u32) < MAX_PIECES as u32 {
            return false;
        }
        let Some(number) = link.loans.next() else { return false };
        let len = long.segmenter.headers_len() + long.segmenter.payload_len(long.next);
        let reason = if self.copy {
            Some(CopyReason::Asked)
        } else if len <= HEAD_BYTES {
            Some(CopyReason::Small)
        } else if self.holds_enough(link) {
            Some(CopyReason::Held)
        } else if len > self.gather_max_bytes {
            self.lend_part(long, number, link)
        } else if link.loans.places() > 0 {
            // One piece: for each one behind the first the kernel takes a page and copies into that
            // (net/xdp/xsk.c, `xsk_build_skb`), which costs more than a copy of bytes that are read
            // for their sum anyway. Measured with examples/offload_cost.rs for short and for the
            // longest frames, see docs/xdp.md.
            Some(CopyReason::Cheaper)
        } else if !self.scarce {
            // The places come back when the kernel is told to send.
            return false;
        } else {
            self.lend_part(long, number, link)
        };
        if let Some(reason) = reason
            && !self.copy_part(long, number, reason, len, link)
        {
            return false;
        }
        self.queued += 1;
        self.queue(link, number);
        true
    }

    /// Cuts the next frame of a long one into private headers and pieces of the chain, and lends
    /// it. Returns why that can't be.
    fn lend_part(&mut self, long: &mut Long, number: u16, link: &mut Link) -> Option<CopyReason> {
        let (headers, payload) = (long.segmenter.headers_len(), long.segmenter.payload_len(long.next));
        let (slab, _) = link.memory()?;
        let (_, at) = slab.head(usize::from(number));
        self.pieces.clear();
        self.pieces.push((at, headers as u32));
        let (mut cursor, most, mut problem) = (long.cursor, link.max_pieces(), None);
        let sum = long.segmenter.sum_payload(long.next, &self.segments, &mut cursor, |run| {
            problem = problem.or_else(|| match link.address(&run) {
                Some(at) if add_piece(&mut self.pieces, at, run.len, most) => None,
                Some(_) => Some(CopyReason::Scattered),
                None => Some(CopyReason::NotPinned),
            });
        });
        if problem.is_none() && self.pieces.iter().any(|p| !link.reaches(p.0, p.1)) {
            problem = Some(CopyReason::UnsafeBuffer);
        }
        if problem.is_some() {
            return problem;
        }
        let (slab, _) = link.memory()?;
        long.segmenter.write(long.next, sum, slab.head(usize::from(number)).0);
        long.cursor = cursor;
        link.loans.lend(Lent::Part(long.holder), self.pieces.len() as u16);
        let frame = Frame::lent(self.pieces.len(), self.chain_header(long) + headers, payload);
        link.account.queue(number, frame);
        None
    }

    /// Copies the next frame of a long one, `len` bytes with its headers, into the slab, and sums
    /// the copy. False where there is no room.
    fn copy_part(
        &mut self,
        long: &mut Long,
        number: u16,
        reason: CopyReason,
        len: usize,
        link: &mut Link,
    ) -> bool {
        let Some((lent, bytes, at)) = private_memory(link, number, len <= HEAD_BYTES) else { return false };
        let payload = &mut bytes[long.segmenter.headers_len()..len];
        long.cursor.read(&self.segments, payload);
        let mut sum = Checksum::new();
        sum.add(payload);
        long.segmenter.write(long.next, sum, bytes);
        self.pieces.clear();
        self.pieces.push((at, len as u32));
        link.loans.lend(lent, 1);
        link.account.queue(number, Frame::copied(reason, len, self.chain_header(long)));
        true
    }

    /// Bytes of the chain's virtio-net header, which goes with the first frame.
    fn chain_header(&self, long: &Long) -> usize {
        if long.next == 0 { self.header_len } else { 0 }
    }
}

/// Bytes of the frame that are to be read into private memory for what the header at the begin of
/// `start` asks for, which has not been checked yet.
fn head_len(start: &[u8], frame_len: usize) -> usize {
    let word = |at: usize| start.get(at..at + 2).map_or(0, |b| usize::from(u16::from_le_bytes([b[0], b[1]])));
    let cut = start.get(1).is_some_and(|gso| *gso != header::GSO_NONE);
    let most = frame_len.min(HEADERS_BYTES);
    if cut || frame_len <= HEADERS_BYTES {
        most
    } else {
        (word(6) + word(8) + 2).max(FIRST_PIECE_BYTES).min(most)
    }
}
