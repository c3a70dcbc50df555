//! Receive: from the RX ring to the guest's buffers.
//!
//! **Ownership.** A chain is taken from the ring, and then either *posted* or *kept*. The memory of
//! a posted chain is in the fill ring, and the kernel may write to it. A kept chain waits here for
//! a frame that comes over the slab. Before the ring stops the socket is closed, so that the kernel
//! writes to none of them. Chains that no frame came for are put back ([`XdpReceive::release`]).

mod again;
mod deliver;

use std::collections::VecDeque;
use std::ops::Range;

use zerowire::ledger::{Counters, DropReason};
use zerowire_sys::xdp::address;

use super::RING_ENTRIES;
use super::geometry::{CHUNK_BYTES, Geometry};
use super::link::Link;
use super::posted::{Buffer, Order, Posted};
use super::slab::RECEIVE_PLACES;
use crate::host::HostRing;
use crate::memory::{GuestMemory, Segment, access};
use crate::net::receive::{ReceiveTurn, RxBuffers, RxPort};
use crate::net::transmit::Turn;
use crate::ring::{RingError, RxChains, SplitRing};

/// Frames that are taken in one turn at most.
const BATCH: usize = 64;

/// What the guest and the port agreed on.
#[derive(Clone, Copy, Debug)]
pub struct XdpReceiveSetup {
    /// Frames may span several chains.
    pub mergeable: bool,
    /// Length of the virtio-net header, bytes.
    pub header_len: usize,
    /// Every frame is copied, as was asked for.
    pub copy: bool,
    /// Chains that are kept for frames of this process's own.
    pub reserve: usize,
}

/// The receive side of a queue pair.
#[derive(Debug)]
pub struct XdpReceive {
    host: HostRing,
    setup: XdpReceiveSetup,
    /// Chains that are kept, and their numbers in `order`.
    chains: RxChains,
    kept: VecDeque<u16>,
    order: Order,
    posted: Posted,
    /// Of the posted buffers, those that are the guest's.
    posted_chains: usize,
    /// Places of the slab that are free, and those that hold a frame that finds no room yet, with
    /// its length.
    places: Vec<u16>,
    pending: VecDeque<Pending>,
    /// The socket that buffers were posted to, and the registration that its places are in.
    generation: u64,
    registration: u64,
    /// Bytes of a buffer that a device writes to by itself, without this process seeing each write;
    /// 0 in copy mode.
    device_reach: usize,
    /// True: pieces of the frame under way follow, which are dropped.
    in_pieces: bool,
    /// True: the guest broke a rule, and nobody reads the ring any more.
    abandoned: bool,
}

/// A frame in a place of the slab.
#[derive(Clone, Copy, Debug)]
struct Pending {
    place: u16,
    /// Where in the place it begins, bytes.
    offset: usize,
    len: usize,
}

/// What a batch comes to.
#[derive(Default)]
struct Sums {
    frames: u64,
    bytes: u64,
}

impl XdpReceive {
    /// The receive side on `ring`.
    pub fn new(ring: impl Into<HostRing>, setup: XdpReceiveSetup) -> Self {
        let host = ring.into();
        let order = Order::new(host.ring.size());
        Self {
            host,
            setup,
            chains: RxChains::new(),
            kept: VecDeque::with_capacity(64),
            order,
            posted: Posted::new(),
            posted_chains: 0,
            places: all_places().collect(),
            pending: VecDeque::with_capacity(RECEIVE_PLACES),
            generation: 0,
            registration: 0,
            device_reach: 0,
            in_pieces: false,
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

    /// The ring is in other memory, and nothing of it is posted: the next turn finds another
    /// socket.
    pub fn moved(&mut self) {
        (self.generation, self.registration, self.device_reach) = (0, 0, 0);
        self.places.clear();
        self.places.extend(all_places());
        self.in_pieces = false;
        self.abandoned = false;
    }

    /// Bytes of the first buffer that the driver has posted already, as far as they are in one
    /// piece; `ring` is one that nothing is taken from otherwise.
    pub fn first_buffer(mut ring: SplitRing, memory: &GuestMemory) -> Option<usize> {
        let mut chains = RxChains::new();
        // A broken chain is found when it is taken.
        let known = chains.ensure(0, usize::from(u16::MAX), &mut ring, memory, 0).ok()?;
        chains.segments(0).first().filter(|_| known).map(|s| s.len as usize)
    }

    /// Lets go of long segment lists.
    pub fn trim(&mut self) {
        self.chains.trim();
    }

    /// Gets all buffers back, before the ring stops. Frames that have come by then are given to the
    /// guest.
    pub fn release(&mut self, link: &mut Link, memory: &GuestMemory, counters: &Counters) {
        if self.abandoned {
            return;
        }
        if memory.log().is_some() {
            // Every byte that is written has to be noted.
            link.unsteer_for_good();
        } else {
            link.unsteer();
        }
        if link.generation() == self.generation {
            for _ in 0..RING_ENTRIES as usize / BATCH {
                let taken = self.harvest(link, memory, counters);
                self.deliver_pending(link, memory, counters);
                if taken == 0 {
                    break;
                }
            }
        }
        let reach = self.device_reach;
        let (between, last) = self.take_back(link, counters, |buffer| unseen(buffer, 0..reach, memory));
        for head in between {
            self.host.ring.push_used(head, 0);
        }
        self.host.ring.untake(last.into_iter());
        if self.host.publish() {
            counters.calls.add(1);
        }
    }

    /// Gets all buffers back and gives none to the guest.
    pub fn abandon(&mut self, link: &mut Link, counters: &Counters) {
        self.take_back(link, counters, |_| {});
        self.abandoned = true;
    }

    /// Closes the socket: nobody writes to the buffers any more, and `each` sees those that were
    /// posted. Returns what [`Order::end`] does.
    fn take_back(
        &mut self,
        link: &mut Link,
        counters: &Counters,
        mut each: impl FnMut(&Buffer),
    ) -> (Vec<u16>, Vec<u16>) {
        link.stop_receiving();
        link.count_missed(counters);
        for buffer in self.posted.take_all() {
            each(&buffer);
            if let Buffer::Place(place) = buffer {
                self.places.push(place);
            }
        }
        self.posted_chains = 0;
        self.drop_pending(|_| true, counters);
        self.chains.clear();
        self.kept.clear();
        self.order.end()
    }

    /// Takes what has come, and posts what the driver has made available.
    #[inline]
    pub fn run(
        &mut self,
        link: &mut Link,
        memory: &GuestMemory,
        counters: &Counters,
    ) -> Result<ReceiveTurn, RingError> {
        let Some(geometry) = link.geometry().filter(|_| link.is_ready()) else {
            return Ok(ReceiveTurn { port: RxPort::Empty, ..ReceiveTurn::default() });
        };
        if link.generation() != self.generation {
            self.post_again(link, geometry, memory, counters);
        }
        let mut frames = self.harvest(link, memory, counters);
        if !self.pending.is_empty() {
            frames += self.deliver_pending(link, memory, counters);
        }
        let posted = self.post(link, memory, geometry, counters, &mut frames);
        if frames > 0 {
            link.moved();
        }
        link.count_missed(counters);
        if link.publish_fill() {
            counters.system_calls.add(1);
        }
        // Before the driver has posted anything frames are the host's: the kernel would drop them.
        if self.posted.len() > 0
            && let Err(e) = link.steer()
        {
            tracing::error!("{e}");
        }
        let port = if link.release() { RxPort::Empty } else { RxPort::More };
        let turn = Turn { chains: frames, notify: self.host.ring.publish() };
        posted?;
        // As soon as half of the ring is with the kernel, the driver need not be asked for more.
        // But a frame that waits for buffers goes to the guest as soon as they are there.
        let starved = self.posted_chains + self.kept.len() < usize::from(self.host.ring.size() / 2).max(1)
            || !self.pending.is_empty();
        let buffers = if starved { RxBuffers::Short } else { RxBuffers::Enough };
        Ok(ReceiveTurn { turn, port, buffers })
    }

    /// Takes a batch of frames. Returns how many there were.
    #[inline]
    fn harvest(&mut self, link: &mut Link, memory: &GuestMemory, counters: &Counters) -> usize {
        let Some(geometry) = link.geometry() else { return 0 };
        let mut sums = Sums::default();
        let mut taken = 0;
        while taken < BATCH
            && let Some(piece) = link.pop()
        {
            taken += 1;
            let Some(buffer) = self.posted.back(address::chunk(piece.address)) else {
                tracing::error!("a frame came in memory that was not posted, at {:#x}", piece.address);
                continue;
            };
            let len = piece.len as usize;
            // A frame in pieces is longer than any that the guest's buffers take.
            let whole = !self.in_pieces && !piece.continues() && piece.len <= geometry.frame_bytes();
            if !whole {
                if !self.in_pieces {
                    counters.dropped(DropReason::TooLong);
                }
                self.in_pieces = piece.continues();
                // A device's own header lies before the first piece.
                let from = if geometry.zero_copy() { 0 } else { self.setup.header_len };
                unseen(&buffer, from..self.setup.header_len + len, memory);
                self.post_once_more(link, geometry, buffer, memory);
                continue;
            }
            let offset = address::plain(piece.address) - address::chunk(piece.address);
            match buffer {
                Buffer::Guest { head, taken, at } => {
                    self.posted_chains -= 1;
                    if offset == geometry.frame_offset() {
                        self.give(head, taken, at, len, memory, &mut sums);
                    } else {
                        let shift = offset as i64 - geometry.frame_offset() as i64;
                        self.give_shifted(head, taken, at, len, shift, memory, counters);
                    }
                }
                Buffer::Place(place) => {
                    self.pending.push_back(Pending { place, offset: offset as usize, len });
                }
            }
        }
        counters.frames.add(sums.frames);
        counters.zero_copied_frames.add(sums.frames);
        counters.zero_copied_bytes.add(sums.bytes);
        taken
    }

    /// Gives the guest a frame of `len` bytes that lies where it shall.
    #[inline]
    fn give(
        &mut self,
        head: u16,
        taken: u16,
        at: [Option<Segment>; 2],
        len: usize,
        memory: &GuestMemory,
        sums: &mut Sums,
    ) {
        let whole = self.setup.header_len + len;
        let segments = [at[0], at[1]];
        let list: &[Segment] = match &segments {
            [Some(a), Some(b)] => &[*a, *b],
            [Some(a), None] => &[*a],
            _ => &[],
        };
        match self.setup.header_len == HEADER.len() {
            true => access::write_header(list, &HEADER),
            false => _ = access::write(list, 0, &HEADER[..self.setup.header_len]),
        }
        // A device may have written more, which means nothing to the guest (virtio 1.3 §2.7.8).
        memory.wrote(list, 0, whole);
        self.host.ring.push_used(head, whole as u32);
        self.order.used(taken);
        sums.frames += 1;
        sums.bytes += whole as u64;
    }

    /// Takes what the driver has made available: posts it, or keeps it. Frames that wait for chains
    /// have them first, and are added to `frames` then.
    #[inline]
    fn post(
        &mut self,
        link: &mut Link,
        memory: &GuestMemory,
        geometry: Geometry,
        counters: &Counters,
        frames: &mut usize,
    ) -> Result<(), RingError> {
        let need = self.setup.header_len + geometry.frame_bytes() as usize;
        // Places of the slab that are there for the driver's sake need chains to go to, until they
        // were used.
        let places = self.posted.len() - self.posted_chains + self.pending.len();
        let first = link.first_places.min(places);
        self.host.ring.refresh()?;
        while self.order.has_room() && self.posted.has_room() && link.fill_room() > 0 {
            let i = self.chains.len();
            if !self.chains.ensure(i, need, &mut self.host.ring, memory, self.setup.header_len)? {
                break;
            }
            let head = self.chains.heads().next_back().unwrap_or(0);
            self.kept.push_back(self.order.take(head));
            // Frames come to these places first. So the oldest chains wait for them, and the
            // youngest are kept for answers. Chains are then used in the order in which they became
            // available. If this process dies, the next one knows from that order alone where to go
            // on.
            let next = i.checked_sub(self.setup.reserve).filter(|i| *i >= first);
            let direct = next.filter(|_| !self.setup.copy && self.pending.is_empty());
            match direct.and_then(|i| self.place_of(link, geometry, self.chains.segments(i)).map(|d| (i, d)))
            {
                Some((i, (chunk, at))) => {
                    // Nearly always the oldest.
                    let taken = if i == 0 { self.kept.pop_front() } else { self.kept.remove(i) };
                    let (Some(head), Some(taken)) = (self.chains.remove(i), taken) else {
                        break;
                    };
                    // There was room in the ring.
                    link.fill(chunk);
                    self.posted.post(chunk, Buffer::Guest { head, taken, at });
                    self.posted_chains += 1;
                }
                None if !self.pending.is_empty() => *frames += self.deliver_pending(link, memory, counters),
                None => {}
            }
        }
        if self.kept.len() > self.setup.reserve {
            self.post_places(link);
        }
        Ok(())
    }

    /// Where a frame lands in a chain with these segments: the chunk, and the segments that hold
    /// header and frame. None where the longest frame would not lie in one piece behind the header.
    #[inline]
    fn place_of(
        &self,
        link: &Link,
        geometry: Geometry,
        segments: &[Segment],
    ) -> Option<(u64, [Option<Segment>; 2])> {
        let (header, frame) = (self.setup.header_len as u64, u64::from(geometry.frame_bytes()));
        let first = *segments.first()?;
        let start = link.address(&first)?;
        if geometry.zero_copy() {
            // The device writes a header of its own right before the frame, and reaches one page
            // only.
            let chunk = geometry.chunk_for(start + header)?;
            let fits = u64::from(first.len) >= header + frame && link.reaches(chunk, CHUNK_BYTES);
            return fits.then_some((chunk, [Some(first), None]));
        }
        if u64::from(first.len) >= header + frame {
            return Some((geometry.chunk_for(start + header)?, [Some(first), None]));
        }
        // The header has a segment of its own, or the frame goes on in the next one without a gap.
        let second = *segments.get(1)?;
        let next = link.address(&second)?;
        if u64::from(first.len) == header && u64::from(second.len) >= frame {
            return Some((geometry.chunk_for(next)?, [Some(first), Some(second)]));
        }
        let joined = next == start + u64::from(first.len);
        if joined && u64::from(first.len) + u64::from(second.len) >= header + frame {
            return Some((geometry.chunk_for(start + header)?, [Some(first), Some(second)]));
        }
        None
    }

    /// Posts as many places of the slab as there are chains that wait for frames from there.
    fn post_places(&mut self, link: &mut Link) {
        let busy = self.posted.len() - self.posted_chains + self.pending.len();
        let wanted = (self.kept.len() - self.setup.reserve.min(self.kept.len())).saturating_sub(busy);
        for _ in 0..wanted {
            if !self.posted.has_room() || link.fill_room() == 0 {
                return;
            }
            let Some(place) = self.places.pop() else { return };
            self.post_place(link, place);
        }
    }

    fn post_place(&mut self, link: &mut Link, place: u16) {
        match link.memory().map(|(slab, _)| slab.receive_chunk(place)) {
            Some(chunk) if link.fill(chunk) => self.posted.post(chunk, Buffer::Place(place)),
            _ => self.places.push(place),
        }
    }
}

/// The places of the slab; the first one is taken first.
fn all_places() -> impl Iterator<Item = u16> {
    (0..RECEIVE_PLACES as u16).rev()
}

/// Logs that these bytes of a posted buffer may have been written, without the guest's knowledge.
fn unseen(buffer: &Buffer, bytes: Range<usize>, memory: &GuestMemory) {
    if let Buffer::Guest { at: [Some(first), second], .. } = *buffer {
        let list = [first, second.unwrap_or(Segment { len: 0, ..first })];
        memory.wrote(&list, bytes.start, bytes.len());
    }
}

/// The virtio-net header of a frame that asks for nothing, in one buffer (virtio 1.3 §5.1.6.4.1).
const HEADER: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
