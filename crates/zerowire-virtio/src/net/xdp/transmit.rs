//! Transmit: from the guest's ring to the TX ring.
//!
//! **Ownership.** A chain is taken from the ring and lent to the kernel until its last piece is completed; or copied, and given
//! back at once. Before the ring stops all chains are back ([`XdpTransmit::release`]).

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire::xdp::{Descriptor, MAX_PIECES, address};

use super::geometry::CHUNK_BYTES;
use super::link::Link;
use super::loans::Lent;
use crate::io::MAX_BATCH;
use crate::memory::{GuestMemory, MAX_REGIONS, Segment, access};
use crate::net::transmit::{Detour, Turn, TurnError, parse, take_out};
use crate::net::{ETH_HEADER_BYTES, header};
use crate::ring::{RingError, SplitRing};

/// How much of a frame is read into private memory where something inspects it, bytes behind the virtio-net header: Ethernet
/// with two tags, IPv6 or IPv4 with options, TCP with options.
const INSPECT_BYTES: usize = 22 + 60 + 60;

/// The first piece of a frame in pieces has at least so many bytes, if there are so many: the kernel takes the Ethernet header
/// from it without a further look (net/ethernet/eth.c, `eth_type_trans`).
const FIRST_PIECE_BYTES: usize = 64;

/// What a guest's chain became.
enum Taken {
    /// It is on its way, or dropped.
    Done,
    /// There is no room for it now.
    Full,
}

/// What a batch comes to.
#[derive(Default)]
struct Sums {
    frames: u64,
    whole: u64,
    lent_bytes: u64,
    header_bytes: u64,
}

/// The transmit side of a queue pair.
#[derive(Debug)]
pub struct XdpTransmit {
    ring: SplitRing,
    acked: u64,
    header_len: usize,
    /// Every frame is copied, as was asked for.
    copy: bool,
    hint: usize,
    segments: Vec<Segment>,
    pieces: Vec<(u64, u32)>,
    /// Heads of the batch, which go to the kernel together.
    handed: Vec<u16>,
    offload_errors: u64,
}

impl XdpTransmit {
    /// The transmit side on `ring`, for a guest that acknowledged the features `acked`.
    pub fn new(ring: SplitRing, acked: u64, header_len: usize, copy: bool) -> Self {
        let most = usize::from(ring.size()).max(1024) + MAX_REGIONS;
        Self {
            ring,
            acked,
            header_len,
            copy,
            hint: 0,
            segments: Vec::with_capacity(most),
            pieces: Vec::with_capacity(MAX_PIECES + 2),
            handed: Vec::with_capacity(MAX_BATCH),
            offload_errors: 0,
        }
    }

    /// The ring.
    pub fn ring(&mut self) -> &mut SplitRing {
        &mut self.ring
    }

    /// Gives the guest back what has been sent. Returns how many chains.
    #[inline]
    fn give_back(&mut self, link: &mut Link) -> usize {
        let n = link.finished.len();
        for head in link.finished.drain(..) {
            self.ring.push_used(head, 0);
        }
        n
    }

    /// Gets all chains back, before the ring stops.
    pub fn release(&mut self, link: &mut Link) {
        link.drain();
        if link.loans.chains() > 0 {
            // What the kernel has not sent by now it does not send any more.
            link.close();
        }
        self.give_back(link);
        self.ring.publish();
    }

    /// Gives back everything that the driver has made available without sending it.
    pub fn discard(&mut self, link: &mut Link, counters: &Counters) -> Result<Turn, TurnError> {
        link.reap();
        let back = self.give_back(link);
        let mut chains = 0;
        // One ring's worth a turn: a driver that adds as fast as this takes must not hold the thread.
        while chains < usize::from(self.ring.size())
            && let Some(head) = self.ring.take()?
        {
            self.ring.push_used(head, 0);
            counters.dropped(DropReason::PortRefused);
            chains += 1;
        }
        Ok(Turn { chains: chains + back, notify: self.ring.publish() })
    }

    /// Sends one batch, and gives back what has been sent.
    #[inline]
    pub fn run(
        &mut self,
        link: &mut Link,
        memory: &GuestMemory,
        counters: &Counters,
        mut detour: Option<&mut dyn Detour>,
    ) -> Result<Turn, TurnError> {
        if !link.loans.is_empty() || !link.finished.is_empty() {
            link.reap();
        }
        let mut chains = self.give_back(link);
        let available = self.ring.refresh()?;
        if available > 0 && (!link.is_ready() || link.is_down()) {
            // As a cable that is not plugged in: frames are lost, and nobody waits.
            link.try_again();
            link.kick(counters);
            if !link.is_ready() || link.is_down() {
                return self.discard(link, counters);
            }
        }
        let mut sums = Sums::default();
        let mut broken = None;
        self.handed.clear();
        for _ in 0..usize::from(available).min(MAX_BATCH) {
            if link.room(MAX_PIECES as u32) < MAX_PIECES as u32 || link.loans.next().is_none() {
                break;
            }
            match self.chain(link, memory, counters, &mut detour, &mut sums) {
                Ok(Taken::Done) => chains += 1,
                Ok(Taken::Full) => break,
                Err(e) => {
                    broken = Some(e);
                    break;
                }
            }
        }
        if sums.frames > 0 || link.is_unsent() {
            self.ring.hand_on(self.handed.iter().copied());
            link.kick(counters);
            // In copy mode a frame whose receiver took it at once is back already.
            link.reap();
            chains += self.give_back(link);
            counters.frames.add(sums.frames);
            counters.zero_copied_frames.add(sums.whole);
            counters.zero_copied_bytes.add(sums.lent_bytes);
            if sums.header_bytes > 0 {
                counters.copied(CopyReason::Header, sums.header_bytes);
            }
        }
        let turn = Turn { chains, notify: self.ring.publish() };
        match broken {
            Some(e) => Err(e.into()),
            None => Ok(turn),
        }
    }

    /// Takes one chain and queues its frame. On an error the chain is not given back: its ring stops.
    #[inline]
    fn chain(
        &mut self,
        link: &mut Link,
        memory: &GuestMemory,
        counters: &Counters,
        detour: &mut Option<&mut dyn Detour>,
        sums: &mut Sums,
    ) -> Result<Taken, RingError> {
        let Some(head) = self.ring.take()? else { return Ok(Taken::Full) };
        let len = parse(&self.ring, head, memory, &mut self.hint, &mut self.segments)?;
        match self.frame(head, len, link, counters, detour, sums) {
            Ok(Taken::Full) => {
                self.ring.untake(std::iter::once(head));
                return Ok(Taken::Full);
            }
            Ok(Taken::Done) => {}
            Err(reason) => {
                counters.dropped(reason);
                self.ring.push_used(head, 0);
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
        sums: &mut Sums,
    ) -> Result<Taken, DropReason> {
        let longest = link.geometry().map_or(0, |g| g.frame_bytes() as usize);
        let frame_len = len.checked_sub(self.header_len).filter(|n| *n >= ETH_HEADER_BYTES);
        let Some(frame_len) = frame_len else { return Err(DropReason::TooShort) };
        if frame_len > longest {
            return Err(DropReason::TooLong);
        }
        // What is inspected is read once, and sent from where it was read to.
        let mut private = [0u8; 12 + INSPECT_BYTES];
        let inspect = if detour.is_some() { INSPECT_BYTES.min(frame_len) } else { 0 };
        let start = &mut private[..self.header_len + inspect];
        access::read(&self.segments, 0, start);
        if let Err(e) = header::check(start, self.header_len, frame_len, self.acked) {
            self.offload_error(&e);
            return Err(DropReason::BadOffload);
        }
        if let Some(detour) = detour.as_deref_mut()
            && detour.wants(&start[self.header_len..])
        {
            take_out(&self.segments, self.header_len, len, start, detour);
            counters.copied(CopyReason::Metadata, len as u64);
            self.ring.push_used(head, 0);
            return Ok(Taken::Done);
        }
        let Some(number) = link.loans.next() else { return Ok(Taken::Full) };
        let reason = if self.copy {
            Some(CopyReason::Asked)
        } else if link.holds_enough(usize::from(self.ring.size() / 2).max(1)) {
            Some(CopyReason::Held)
        } else {
            self.cut(link, number, &private, inspect, frame_len)
        };
        let inspected = &private[self.header_len..self.header_len + inspect];
        match reason {
            None => {
                link.loans.lend(Lent::Chain(head), self.pieces.len() as u16);
                sums.whole += 1;
                let copied = (len - self.lent_bytes(link)) as u64;
                sums.header_bytes += copied;
                sums.lent_bytes += len as u64 - copied;
            }
            Some(reason) => {
                let Some(place) = link.loans.place() else { return Ok(Taken::Full) };
                let Some((slab, _)) = link.memory() else {
                    link.loans.put_back(place);
                    return Ok(Taken::Full);
                };
                let (bytes, at) = slab.send_place(place);
                bytes[..inspected.len()].copy_from_slice(inspected);
                let rest = &mut bytes[inspected.len()..frame_len];
                access::read(&self.segments, self.header_len + inspected.len(), rest);
                self.pieces.clear();
                self.pieces.push((at, frame_len as u32));
                link.loans.lend(Lent::Place(place), 1);
                self.ring.push_used(head, 0);
                counters.copied(reason, len as u64);
            }
        }
        sums.frames += 1;
        self.handed.push(head);
        let last = self.pieces.len() - 1;
        for (i, &(at, len)) in self.pieces.iter().enumerate() {
            let options = if i < last { Descriptor::CONTINUES } else { 0 };
            // Addresses begin behind the padding, so that each can carry any number.
            let address = address::encode(at, number).unwrap_or(at);
            link.push(Descriptor { address, len, options });
        }
        Ok(Taken::Done)
    }

    /// Bytes of the pieces that lie in the guest's memory.
    #[inline]
    fn lent_bytes(&self, link: &mut Link) -> usize {
        let private = link.memory().map_or(u64::MAX, |(_, umem)| umem.slab_at());
        self.pieces.iter().filter(|p| p.0 < private).map(|p| p.1 as usize).sum()
    }

    /// Cuts the frame into pieces as they can be sent from where they lie, a private head first if something was inspected or
    /// the first piece would be too short. Returns why that can't be.
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
            let (mut at, mut left) = (link.address(s) + skip as u64, s.len - skip as u32);
            skip = 0;
            while left > 0 {
                let pieces = self.pieces.len();
                let n = match self.pieces.last_mut() {
                    // What lies one behind the other is one piece.
                    Some(p) if p.0 + u64::from(p.1) == at && p.1 < CHUNK_BYTES => {
                        let n = left.min(CHUNK_BYTES - p.1);
                        p.1 += n;
                        n
                    }
                    _ if pieces == most => return Some(CopyReason::Scattered),
                    _ => {
                        let n = left.min(CHUNK_BYTES);
                        self.pieces.push((at, n));
                        n
                    }
                };
                at += u64::from(n);
                left -= n;
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

    #[cold]
    fn offload_error(&mut self, e: &header::OffloadError) {
        self.offload_errors += 1;
        if self.offload_errors == 1 {
            let queue = self.ring.queue();
            tracing::warn!("queue {queue}: frame dropped: {e} (further ones are only counted)");
        }
    }
}
