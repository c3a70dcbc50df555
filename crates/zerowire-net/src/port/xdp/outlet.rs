//! Transmit: from a guest's frame to the TX ring.
//!
//! What a frame asks for in its virtio-net header is done before (`Outlet::OFFLOADS`).
//!
//! **Ownership.** A chain is lent to the kernel until its last piece is completed; or copied, and
//! given back at once.

use std::time::Instant;

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_sys::xdp::{Descriptor, MAX_PIECES, address};
use zerowire_vhost::memory::access;

use super::account::Frame;
use super::link::Link;
use super::loans::Lent;
use super::pieces::{add_piece, private_memory};
use super::slab::{HEAD_BYTES, SEND_PLACES};
use crate::offload::HEADERS_BYTES;
use crate::transmit::{
    FIRST_PIECE_BYTES, INSPECT_BYTES, Outlet, Pushed, TxFrame, TxPart, TxPlace, TxSlot, TxState, TxTally,
};
use crate::{PathMode, Policy};

// The headers of any frame fit into a head.
const _: () = assert!(HEADERS_BYTES <= HEAD_BYTES);

/// Sends to one queue of an interface.
#[derive(Debug)]
pub struct XdpOutlet {
    /// Every frame is copied, as was asked for.
    copy: bool,
    /// Frames with private headers are copied up to this length, bytes.
    gather_max_bytes: usize,
    /// Chains that are lent at most.
    most_lent: usize,
    /// The first bytes of a frame, with its virtio-net header, from when they are read until it is
    /// pushed.
    start: [u8; 12 + HEADERS_BYTES],
    /// Pieces of the frame that is pushed: addresses in the UMEM, and bytes.
    pieces: Vec<(u64, u32)>,
    /// The loan that holds the chain of a frame that becomes many.
    holder: u16,
    /// Most places of the slab were taken when the turn began: the driver does not send at once.
    scarce: bool,
}

impl XdpOutlet {
    /// For the frames of a ring of `ring_size` entries.
    pub fn new(policy: Policy, ring_size: u16) -> Self {
        Self {
            copy: policy.mode == PathMode::Copy,
            gather_max_bytes: policy.gather_max_bytes,
            most_lent: usize::from(ring_size / 2).max(1),
            start: [0; 12 + HEADERS_BYTES],
            pieces: Vec::with_capacity(MAX_PIECES + 2),
            holder: 0,
            scarce: false,
        }
    }

    /// Whether lending has to stop for now. Where chains have passed others, it does until those
    /// are back.
    #[inline]
    fn holds_enough(&self, link: &mut Link, may_lend: bool) -> bool {
        !may_lend || link.outgoing.holds_enough(self.most_lent)
    }

    /// Puts the pieces of a frame into the TX ring, where there is room.
    #[inline]
    fn queue(&self, link: &mut Link, number: u16) {
        let last = self.pieces.len().saturating_sub(1);
        for (i, &(at, len)) in self.pieces.iter().enumerate() {
            let options = if i < last { Descriptor::CONTINUES } else { 0 };
            // Addresses begin behind the padding, so that each can carry any number.
            let address = address::encode(at, number).unwrap_or(at);
            link.push(Descriptor { address, len, options });
        }
    }

    /// Bytes of the pieces that lie in the guest's memory.
    #[inline]
    fn lent_bytes(&self, link: &mut Link) -> usize {
        let private = link.memory().map_or(u64::MAX, |(_, umem)| umem.slab_at());
        self.pieces.iter().filter(|p| p.0 < private).map(|p| p.1 as usize).sum()
    }

    /// Cuts a frame into pieces that can be sent from where they lie. A private head comes first if
    /// something was inspected or the first piece would be too short. Returns why that can't be.
    #[inline]
    fn cut(
        &mut self,
        link: &mut Link,
        number: u16,
        frame: &TxFrame<'_>,
        place: &TxPlace,
    ) -> Option<CopyReason> {
        let mut skip = place.len;
        self.pieces.clear();
        let inspected = &self.start[frame.header_len..place.len];
        if !inspected.is_empty() {
            let (slab, _) = link.memory()?;
            let (bytes, at) = slab.head(usize::from(number));
            bytes[..inspected.len()].copy_from_slice(inspected);
            self.pieces.push((at, inspected.len() as u32));
        }
        let most = link.max_pieces();
        for s in frame.segments {
            let len = s.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let Some(start) = link.registered.address(s) else { return Some(CopyReason::NotPinned) };
            let (at, left) = (start + skip as u64, s.len - skip as u32);
            skip = 0;
            if !add_piece(&mut self.pieces, at, left, most) {
                return Some(CopyReason::Scattered);
            }
        }
        if self.pieces.iter().any(|p| !link.reaches(p.0, p.1)) {
            return Some(CopyReason::UnsafeBuffer);
        }
        let first = FIRST_PIECE_BYTES.min(frame.len - frame.header_len);
        match self.pieces.first() {
            Some(p) if self.pieces.len() > 1 && (p.1 as usize) < first => Some(CopyReason::Scattered),
            Some(_) => None,
            None => Some(CopyReason::Scattered),
        }
    }

    /// Makes a frame of private headers and pieces of the chain, and lends it. Returns why that
    /// can't be.
    fn lend_part(&mut self, part: &mut TxPart<'_>, number: u16, link: &mut Link) -> Option<CopyReason> {
        let (headers, payload) = (part.headers_len(), part.payload_len());
        let (slab, _) = link.memory()?;
        let (_, at) = slab.head(usize::from(number));
        self.pieces.clear();
        self.pieces.push((at, headers as u32));
        let (most, mut problem) = (link.max_pieces(), None);
        let summed = part.sum(|run| {
            problem = problem.or_else(|| match link.registered.address(&run) {
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
        part.write_headers(summed, slab.head(usize::from(number)).0);
        link.outgoing.loans.lend(Lent::Part(self.holder), self.pieces.len() as u16);
        link.outgoing
            .account
            .queue(number, Frame::lent(self.pieces.len(), part.chain_header + headers, payload));
        None
    }

    /// Copies a frame into the slab. False if no place is free.
    fn copy_part(&mut self, part: &mut TxPart<'_>, number: u16, reason: CopyReason, link: &mut Link) -> bool {
        let len = part.headers_len() + part.payload_len();
        let Some((lent, bytes, at)) = private_memory(link, number, len <= HEAD_BYTES) else { return false };
        part.copy(&mut bytes[..len]);
        self.pieces.clear();
        self.pieces.push((at, len as u32));
        link.outgoing.loans.lend(lent, 1);
        link.outgoing.account.queue(number, Frame::copied(reason, len, part.chain_header));
        true
    }
}

impl Outlet for XdpOutlet {
    type Port = Link;
    const LENDS: bool = true;
    // AF_XDP has none for frames in pieces.
    const OFFLOADS: bool = false;

    fn start(&mut self, link: &mut Link, _header_len: usize) -> Result<(), String> {
        link.start(false)
    }

    #[inline]
    fn begin(&mut self, link: &mut Link, work: bool, counters: &Counters) -> TxState {
        if work && (!link.is_ready() || link.outgoing.down) {
            link.try_again();
            link.kick();
            if link.waits_for_queue() {
                return TxState::Wait;
            }
            if !link.is_ready() || link.outgoing.down {
                link.outgoing.account.settle(counters);
                return TxState::Refuse;
            }
        }
        self.scarce = link.outgoing.loans.places.len() < SEND_PLACES / 4;
        TxState::Ready
    }

    #[inline]
    fn has_room(&self, link: &mut Link) -> bool {
        link.room(MAX_PIECES as u32) >= MAX_PIECES as u32 && link.outgoing.loans.next().is_some()
    }

    #[inline]
    fn longest_frame(&self, link: &Link) -> usize {
        link.registered.longest()
    }

    fn longest_offered(&self, link: &Link) -> usize {
        link.registered.geometry().map_or(0, |g| g.frame_bytes as usize)
    }

    /// What is inspected is read once, and sent from where it was read to.
    #[inline]
    fn place(&mut self, _link: &Link, frame: &TxFrame<'_>) -> TxPlace {
        let inspect = if frame.inspected { INSPECT_BYTES } else { 0 };
        TxPlace { at: 0, len: frame.len.min(frame.header_len + inspect), gather: None }
    }

    #[inline]
    fn bytes(&mut self, place: &TxPlace) -> &mut [u8] {
        &mut self.start[place.range()]
    }

    /// Queues a frame as one, its first bytes from its place.
    #[inline]
    fn push(&mut self, link: &mut Link, frame: &TxFrame<'_>, place: TxPlace) -> Result<Pushed, DropReason> {
        let frame_len = frame.len - frame.header_len;
        let Some(number) = link.outgoing.loans.next() else { return Ok(Pushed::Full) };
        let reason = if self.copy {
            Some(CopyReason::Asked)
        } else if place.len == frame.len {
            // All of it was read already.
            Some(CopyReason::Small)
        } else if self.holds_enough(link, frame.may_lend) {
            Some(CopyReason::Held)
        // As in `push_part`: one piece is cheaper.
        } else if frame.summed && frame_len <= self.gather_max_bytes && !link.outgoing.loans.places.is_empty()
        {
            Some(CopyReason::Cheaper)
        } else {
            self.cut(link, number, frame, &place)
        };
        let Some(reason) = reason else {
            link.outgoing.loans.lend(Lent::Chain(frame.head), self.pieces.len() as u16);
            let lent = self.lent_bytes(link);
            link.outgoing.account.queue(number, Frame::lent(self.pieces.len(), frame.len - lent, lent));
            self.queue(link, number);
            return Ok(Pushed::Lent);
        };
        let Some((lent, bytes, at)) = private_memory(link, number, reason == CopyReason::Small) else {
            return Ok(Pushed::Full);
        };
        let inspected = &self.start[frame.header_len..place.len];
        let (first, rest) = bytes[..frame_len].split_at_mut(inspected.len());
        first.copy_from_slice(inspected);
        access::read(frame.segments, place.len, rest);
        self.pieces.clear();
        self.pieces.push((at, frame_len as u32));
        link.outgoing.loans.lend(lent, 1);
        link.outgoing.account.queue(number, Frame::copied(reason, frame.len, 0));
        self.queue(link, number);
        Ok(Pushed::Queued(TxTally { scattered: 0, copied: frame.len as u32, reason }))
    }

    fn begin_parts(&mut self, link: &mut Link, head: u16) -> bool {
        let Some(holder) = link.outgoing.loans.next() else { return false };
        link.outgoing.loans.hold(head);
        self.holder = holder;
        true
    }

    fn has_parts(&self, link: &Link) -> bool {
        link.outgoing.loans.is_held(self.holder)
    }

    fn push_part(&mut self, link: &mut Link, part: &mut TxPart<'_>) -> bool {
        if link.room(MAX_PIECES as u32) < MAX_PIECES as u32 {
            return false;
        }
        let Some(number) = link.outgoing.loans.next() else { return false };
        let len = part.headers_len() + part.payload_len();
        let reason = if self.copy {
            Some(CopyReason::Asked)
        } else if len <= HEAD_BYTES {
            Some(CopyReason::Small)
        } else if self.holds_enough(link, part.may_lend) {
            Some(CopyReason::Held)
        } else if len > self.gather_max_bytes {
            self.lend_part(part, number, link)
        } else if !link.outgoing.loans.places.is_empty() {
            // One piece: for each one behind the first the kernel takes a page and copies into that
            // (net/xdp/xsk.c, `xsk_build_skb`). That costs more than a copy of bytes that are read
            // for their sum anyway. Measured with examples/offload_cost.rs for short and for the
            // longest frames, see docs/xdp.md.
            Some(CopyReason::Cheaper)
        } else if !self.scarce {
            // The places come back when a call has the kernel send.
            return false;
        } else {
            self.lend_part(part, number, link)
        };
        if let Some(reason) = reason
            && !self.copy_part(part, number, reason, link)
        {
            return false;
        }
        self.queue(link, number);
        true
    }

    fn end_parts(&mut self, link: &mut Link) {
        link.outgoing.finished.extend(link.outgoing.loans.let_go(self.holder));
    }

    #[inline]
    fn flush(&mut self, link: &mut Link, _batch: &mut [TxSlot], counters: &Counters) -> usize {
        if link.outgoing.unsent {
            link.moved();
            link.kick();
            link.outgoing.account.settle(counters);
        }
        0
    }

    fn send_waiting(&mut self, link: &mut Link, counters: &Counters) {
        if link.outgoing.unsent {
            link.kick();
        }
        link.outgoing.account.settle(counters);
    }

    fn end(&mut self, link: &mut Link, counters: &Counters) {
        link.drain();
        if link.outgoing.loans.chains > 0 {
            // What the kernel has not sent by now it does not send any more.
            link.close();
        }
        link.outgoing.account.settle(counters);
    }

    #[inline]
    fn returned(&mut self, link: &mut Link, in_order: bool, back: impl FnMut(u16)) -> bool {
        link.outgoing.end_loans_with_copy(in_order);
        if !link.outgoing.loans.is_empty() {
            // In copy mode a frame whose receiver took it at once is back already.
            link.reap();
        }
        link.outgoing.finished.drain(..).for_each(back);
        link.outgoing.keeps_order()
    }

    #[inline]
    fn passed(&mut self, link: &mut Link, chains: u64, due: Option<Instant>) {
        if chains > 0 {
            link.count_passed(chains);
        }
        link.outgoing.give_at = due;
    }
}
