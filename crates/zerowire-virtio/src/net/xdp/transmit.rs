//! Transmit: from the guest's ring to the TX ring.
//!
//! What a frame asks for in its virtio-net header is done before, in [`offload`].
//!
//! **Ownership.** A chain is taken from the ring and lent to the kernel until its last piece is
//! completed; or copied, and given back at once. Before the ring stops all chains are back
//! ([`XdpTransmit::release`]). Where no in-flight region is kept, chains go back in the order in
//! which they were taken: each that is not given back at once stands in a [`Line`].

mod offload;
mod pieces;

use std::time::Instant;

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_sys::xdp::{Descriptor, MAX_PIECES, address};

use super::account::Frame;
use super::line::{Late, Line};
use super::link::Link;
use super::loans::Lent;
use super::slab::SEND_PLACES;
use crate::host::HostRing;
use crate::io::MAX_BATCH;
use crate::memory::{GuestMemory, MAX_REGIONS, Segment, access};
use crate::net::offload::Request;
use crate::net::transmit::{Detour, TransmitContext, Turn, parse, take_out};
use crate::net::{ETH_HEADER_BYTES, PathMode, Policy, header};
use crate::ring::{RingError, SplitRing};
use pieces::{add_piece, private_memory};

/// How much of a frame is read into private memory where something inspects it, bytes behind the
/// virtio-net header: Ethernet with two tags, IPv6 or IPv4 with options, TCP with options.
const INSPECT_BYTES: usize = 22 + 60 + 60;

/// The first piece of a frame in pieces has at least so many bytes, if there are so many: the
/// kernel takes the Ethernet header from it without a further look (net/ethernet/eth.c,
/// `eth_type_trans`).
const FIRST_PIECE_BYTES: usize = 64;

/// A chain that was taken.
#[derive(Clone, Copy)]
struct Chain {
    head: u16,
    /// Bytes in all, and without the virtio-net header.
    len: usize,
    frame_len: usize,
    /// A checksum was completed in its private head.
    summed: bool,
}

/// What a guest's chain became.
enum Taken {
    /// It is on its way, or dropped.
    Done,
    /// There is no room for it now.
    Full,
}

/// The transmit side of a queue pair.
#[derive(Debug)]
pub struct XdpTransmit {
    host: HostRing,
    /// Chains that are out, where they are not marked in an in-flight region.
    line: Line,
    /// The time in this turn, if anybody asked.
    now: Option<Instant>,
    acked: u64,
    header_len: usize,
    /// Every frame is copied, as was asked for.
    copy: bool,
    /// Frames with private headers are copied up to this length, bytes.
    gather_max_bytes: usize,
    hint: usize,
    segments: Vec<Segment>,
    pieces: Vec<(u64, u32)>,
    /// Heads of the batch, which go to the kernel together.
    handed: Vec<u16>,
    /// Frames that were queued in this turn.
    queued: usize,
    /// A frame that becomes many, of which not all are queued.
    long: Option<offload::Long>,
    /// Most places of the slab were taken when the turn began: the driver does not send at once.
    scarce: bool,
    offload_errors: u64,
    /// The guest broke a rule: the ring is not looked at any more.
    abandoned: bool,
}

impl XdpTransmit {
    /// The transmit side on `ring`, for a guest that acknowledged the features `acked`.
    pub fn new(ring: impl Into<HostRing>, acked: u64, header_len: usize, policy: Policy) -> Self {
        let host = ring.into();
        let size = host.ring.size();
        let most = usize::from(size).max(1024) + MAX_REGIONS;
        Self {
            host,
            line: Line::new(size),
            now: None,
            acked,
            header_len,
            copy: policy.mode == PathMode::Copy,
            gather_max_bytes: policy.gather_max_bytes,
            hint: 0,
            segments: Vec::with_capacity(most),
            pieces: Vec::with_capacity(MAX_PIECES + 2),
            handed: Vec::with_capacity(MAX_BATCH),
            queued: 0,
            long: None,
            scarce: false,
            offload_errors: 0,
            abandoned: false,
        }
    }

    /// The ring, and who is notified of it.
    #[inline]
    pub fn host(&self) -> &HostRing {
        &self.host
    }

    /// The ring, and who is notified of it.
    #[inline]
    pub fn host_mut(&mut self) -> &mut HostRing {
        &mut self.host
    }

    /// Gives up the ring.
    pub fn into_host(self) -> HostRing {
        self.host
    }

    /// The ring.
    pub fn ring(&mut self) -> &mut SplitRing {
        &mut self.host.ring
    }

    /// The ring is in other memory, and nothing of it is lent.
    pub fn moved(&mut self) {
        self.line = Line::new(self.host.ring.size());
        self.hint = 0;
        self.offload_errors = 0;
        self.abandoned = false;
    }

    /// Gives the guest back what has been sent. Returns how many chains came back.
    #[inline]
    fn give_back(&mut self, link: &mut Link) -> usize {
        let most = usize::from(self.host.ring.size() / 2).max(1);
        let waits = link.keeps_order();
        let late = || if waits { Late::Wait } else { Late::Pass { now: Instant::now(), most } };
        let n = self.give_back_or(link, late);
        link.give_at = self.line.due().filter(|_| !waits);
        n
    }

    /// The same; `late` says what is to become of those that have to wait for others.
    #[inline]
    fn give_back_or(&mut self, link: &mut Link, late: impl FnOnce() -> Late) -> usize {
        let n = link.finished.len();
        for head in link.finished.drain(..) {
            self.back(head);
        }
        let passed = self.line.give(late, |head| self.host.ring.push_used(head, 0));
        if passed > 0 {
            link.count_passed(passed);
        }
        n
    }

    /// A chain that was lent is back, and given back as soon as those before it are.
    #[inline]
    fn back(&mut self, head: u16) {
        if self.host.ring.is_tracked() || self.line.back(head) {
            self.host.ring.push_used(head, 0);
        }
    }

    /// A chain that was taken is done, and given back as soon as those before it are.
    #[inline]
    fn done(&mut self, head: u16) {
        if self.line.is_empty() {
            self.host.ring.push_used(head, 0);
        } else {
            let now = *self.now.get_or_insert_with(Instant::now);
            self.line.done(head, now);
        }
    }

    /// Whether another chain may be taken: one that breaks the rules can't have more of them wait
    /// than its ring has entries.
    #[inline]
    fn line_has_room(&self) -> bool {
        self.line.len() < usize::from(self.host.ring.size())
    }

    /// A chain that was taken is lent.
    #[inline]
    fn lent(&mut self, head: u16) {
        if !self.host.ring.is_tracked() {
            self.line.lent(head);
        }
    }

    /// Gets all chains back, before the ring stops.
    pub fn release(&mut self, link: &mut Link, counters: &Counters) {
        if self.abandoned {
            return;
        }
        self.end_loans(link, counters);
        // All are back, so that none waits for another.
        self.give_back_or(link, || Late::PassAll);
        link.give_at = None;
        self.host.ring.publish();
    }

    /// Ends what is under way, and gives nothing back.
    pub fn abandon(&mut self, link: &mut Link, counters: &Counters) {
        self.end_loans(link, counters);
        link.finished.clear();
        link.give_at = None;
        self.line.clear();
        self.abandoned = true;
    }

    fn end_loans(&mut self, link: &mut Link, counters: &Counters) {
        self.end_long(link, counters);
        link.drain();
        if link.loans.chains() > 0 {
            // What the kernel has not sent by now it does not send any more.
            link.close();
        }
        link.account.settle(counters);
    }

    /// Gives back everything that the driver has made available without sending it. What was queued
    /// before goes out.
    pub fn discard(&mut self, link: &mut Link, counters: &Counters) -> Result<Turn, RingError> {
        if link.is_unsent() {
            link.kick();
        }
        self.refuse(link, counters)
    }

    fn refuse(&mut self, link: &mut Link, counters: &Counters) -> Result<Turn, RingError> {
        self.end_long(link, counters);
        link.reap();
        link.account.settle(counters);
        let mut back = self.give_back(link);
        let mut chains = 0;
        self.now = None;
        // One ring's worth a turn: a driver that adds as fast as this takes must not hold the
        // thread.
        while chains < usize::from(self.host.ring.size())
            && self.line_has_room()
            && let Some(head) = self.host.ring.take()?
        {
            self.done(head);
            counters.dropped(DropReason::PortRefused);
            chains += 1;
        }
        back += self.give_back(link);
        Ok(Turn { chains: chains + back, notify: self.host.ring.publish() })
    }

    /// Sends one batch, and gives back what has been sent.
    #[inline]
    pub fn run(&mut self, link: &mut Link, cx: &mut TransmitContext<'_>) -> Result<Turn, RingError> {
        let TransmitContext { memory, counters, detour } = cx;
        link.end_loans_with_copy(!self.host.ring.is_tracked());
        if !link.loans.is_empty() || !link.finished.is_empty() {
            link.reap();
        }
        let mut chains = self.give_back(link);
        let available = self.host.ring.refresh()?;
        if (available > 0 || self.long.is_some()) && (!link.is_ready() || link.is_down()) {
            // As a cable that is not plugged in: frames are lost, and nobody waits.
            link.try_again();
            link.kick();
            if link.waits_for_queue() {
                return Ok(Turn { chains, notify: self.host.ring.publish() });
            }
            if !link.is_ready() || link.is_down() {
                return self.refuse(link, counters);
            }
        }
        let mut broken = None;
        self.now = None;
        self.handed.clear();
        self.queued = 0;
        self.scarce = link.loans.places() < SEND_PLACES / 4;
        chains += self.go_on(link, counters);
        for _ in 0..usize::from(available).min(MAX_BATCH) {
            let room = link.room(MAX_PIECES as u32) >= MAX_PIECES as u32 && link.loans.next().is_some();
            if !room || self.long.is_some() || !self.line_has_room() {
                break;
            }
            match self.chain(link, memory, counters, detour) {
                Ok(Taken::Done) => chains += 1,
                Ok(Taken::Full) => break,
                Err(e) => {
                    broken = Some(e);
                    break;
                }
            }
        }
        if self.queued > 0 || link.is_unsent() {
            self.host.ring.hand_on(self.handed.iter().copied());
            link.moved();
            link.kick();
            // In copy mode a frame whose receiver took it at once is back already.
            link.reap();
            chains += self.give_back(link);
            link.account.settle(counters);
        }
        let turn = Turn { chains, notify: self.host.ring.publish() };
        match broken {
            Some(e) => Err(e),
            None => Ok(turn),
        }
    }

    /// Takes one chain and queues its frame. On an error the chain is not given back: its ring
    /// stops.
    #[inline]
    fn chain(
        &mut self,
        link: &mut Link,
        memory: &GuestMemory,
        counters: &Counters,
        detour: &mut Option<&mut dyn Detour>,
    ) -> Result<Taken, RingError> {
        let Some(head) = self.host.ring.take()? else { return Ok(Taken::Full) };
        let len = parse(&self.host.ring, head, memory, &mut self.hint, &mut self.segments)?;
        match self.frame(head, len, link, counters, detour) {
            Ok(Taken::Full) => {
                self.host.ring.untake(std::iter::once(head));
                return Ok(Taken::Full);
            }
            Ok(Taken::Done) => {}
            Err(reason) => {
                counters.dropped(reason);
                self.done(head);
            }
        }
        Ok(Taken::Done)
    }

    /// Queues the frame in `self.segments`, or says why it is dropped.
    #[inline]
    fn frame(
        &mut self,
        head: u16,
        len: usize,
        link: &mut Link,
        counters: &Counters,
        detour: &mut Option<&mut dyn Detour>,
    ) -> Result<Taken, DropReason> {
        let frame_len = len.checked_sub(self.header_len).filter(|n| *n >= ETH_HEADER_BYTES);
        let Some(frame_len) = frame_len else { return Err(DropReason::TooShort) };
        let chain = Chain { head, len, frame_len, summed: false };
        // What is inspected is read once, and sent from where it was read to.
        let mut private = [0u8; 12 + INSPECT_BYTES];
        let inspect = if detour.is_some() { INSPECT_BYTES.min(frame_len) } else { 0 };
        let start = &mut private[..self.header_len + inspect];
        access::read(&self.segments, 0, start);
        if start.first_chunk().is_some_and(Request::is_any) {
            return self.offloaded(chain, start, link, counters, detour);
        }
        if frame_len > link.longest() {
            return Err(DropReason::TooLong);
        }
        if let Err(e) = header::check(start, self.header_len, frame_len, self.acked) {
            return Err(self.bad_offload(&e));
        }
        if let Some(detour) = detour.as_deref_mut()
            && detour.wants(&start[self.header_len..])
        {
            take_out(&self.segments, self.header_len, len, start, detour);
            counters.copied(CopyReason::Metadata, len as u64);
            self.done(head);
            return Ok(Taken::Done);
        }
        self.whole(chain, &private, inspect, link)
    }

    /// Queues the frame in `self.segments` as one, its first `inspect` bytes from `private`, where
    /// they lie behind the virtio-net header.
    #[inline]
    fn whole(
        &mut self,
        chain: Chain,
        private: &[u8],
        inspect: usize,
        link: &mut Link,
    ) -> Result<Taken, DropReason> {
        let Chain { head, len, frame_len, summed } = chain;
        let Some(number) = link.loans.next() else { return Ok(Taken::Full) };
        let reason = if self.copy {
            Some(CopyReason::Asked)
        } else if inspect == frame_len {
            // All of it was read already.
            Some(CopyReason::Small)
        } else if self.holds_enough(link) {
            Some(CopyReason::Held)
        // As in `offload`: one piece is cheaper.
        } else if summed && frame_len <= self.gather_max_bytes && link.loans.places() > 0 {
            Some(CopyReason::Cheaper)
        } else {
            self.cut(link, number, private, inspect, frame_len)
        };
        let inspected = &private[self.header_len..self.header_len + inspect];
        match reason {
            None => {
                link.loans.lend(Lent::Chain(head), self.pieces.len() as u16);
                self.lent(head);
                let lent = self.lent_bytes(link);
                link.account.queue(number, Frame::lent(self.pieces.len(), len - lent, lent));
            }
            Some(reason) => {
                let Some((lent, bytes, at)) = private_memory(link, number, reason == CopyReason::Small)
                else {
                    return Ok(Taken::Full);
                };
                bytes[..inspected.len()].copy_from_slice(inspected);
                let rest = &mut bytes[inspected.len()..frame_len];
                access::read(&self.segments, self.header_len + inspected.len(), rest);
                self.pieces.clear();
                self.pieces.push((at, frame_len as u32));
                link.loans.lend(lent, 1);
                link.account.queue(number, Frame::copied(reason, len, 0));
                self.done(head);
            }
        }
        self.queued += 1;
        self.handed.push(head);
        self.queue(link, number);
        Ok(Taken::Done)
    }

    /// Whether lending has to stop for now. Where chains have passed others, it does until those
    /// are back.
    #[inline]
    fn holds_enough(&self, link: &mut Link) -> bool {
        self.line.is_broken() || link.holds_enough(usize::from(self.host.ring.size() / 2).max(1))
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

    /// Cuts the frame into pieces as they can be sent from where they lie, a private head first if
    /// something was inspected or the first piece would be too short. Returns why that can't be.
    #[inline]
    fn cut(
        &mut self,
        link: &mut Link,
        number: u16,
        private: &[u8],
        inspect: usize,
        frame_len: usize,
    ) -> Option<CopyReason> {
        let mut skip = self.header_len + inspect;
        self.pieces.clear();
        if inspect > 0 {
            let (slab, _) = link.memory()?;
            let (bytes, at) = slab.head(usize::from(number));
            bytes[..inspect].copy_from_slice(&private[self.header_len..skip]);
            self.pieces.push((at, inspect as u32));
        }
        let most = link.max_pieces();
        for s in &self.segments {
            let len = s.len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let Some(start) = link.address(s) else { return Some(CopyReason::NotPinned) };
            let (at, left) = (start + skip as u64, s.len - skip as u32);
            skip = 0;
            if !add_piece(&mut self.pieces, at, left, most) {
                return Some(CopyReason::Scattered);
            }
        }
        if self.pieces.iter().any(|p| !link.reaches(p.0, p.1)) {
            return Some(CopyReason::UnsafeBuffer);
        }
        match self.pieces.first() {
            Some(p) if self.pieces.len() > 1 && (p.1 as usize) < FIRST_PIECE_BYTES.min(frame_len) => {
                Some(CopyReason::Scattered)
            }
            Some(_) => None,
            None => Some(CopyReason::Scattered),
        }
    }

    /// Says what is wrong with a frame's offload fields, the first time.
    #[cold]
    fn bad_offload(&mut self, e: &dyn std::fmt::Display) -> DropReason {
        self.offload_errors += 1;
        if self.offload_errors == 1 {
            let queue = self.host.ring.queue();
            tracing::warn!("queue {queue}: frame dropped: {e} (further ones are only counted)");
        }
        DropReason::BadOffload
    }
}
