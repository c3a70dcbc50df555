//! Receive: from an AF_XDP socket to the guest's buffers.
//!
//! **Ownership.** A chain is taken from the ring, and then either *posted* or *kept*. The memory of
//! a posted chain is in the fill ring, and the kernel may write to it. A kept chain waits here for
//! a frame that comes over the slab. Before the ring stops the socket is closed, so that the kernel
//! writes to none of them. Chains that no frame came for are put back (`release`).

mod again;
mod deliver;
mod kept;

use std::ops::Range;

use zerowire::ledger::{Counters, DropReason};
use zerowire_sys::xdp::address;
use zerowire_vhost::memory::{GuestMemory, Segment};
use zerowire_vhost::ring::{RingError, RxChains, SplitRing};

use super::RING_ENTRIES;
use super::geometry::{CHUNK_BYTES, Geometry};
use super::link::Link;
use super::posted::{Buffer, Posted};
use super::slab::RECEIVE_PLACES;
use crate::receive::{BARE, Inlet, ReceiveContext, Received, Room, RxPort, RxSide, Waits};
use crate::{PathMode, Policy};
pub use kept::KeptChains;

/// Frames that are taken in one turn at most.
const BATCH: usize = 64;

/// The guest's side, whose frames wait in the slab.
type SlabSide = RxSide<SlabFrame>;

/// A chain that was posted: its head, its number, and where header and frame lie.
type PostedChain = (u16, u16, [Option<Segment>; 2]);

/// Receives from one queue of an interface.
#[derive(Debug)]
pub struct XdpInlet {
    /// Every frame is copied, as was asked for.
    copy: bool,
    /// Chains that are kept for frames of this process's own.
    reserve: usize,
    kept: KeptChains,
    posted: Posted,
    /// Of the posted buffers, those that are the guest's.
    posted_chains: usize,
    /// Places of the slab that are free.
    places: Vec<u16>,
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
pub struct SlabFrame {
    place: u16,
    /// Where in the place it begins, bytes.
    offset: usize,
    len: usize,
}

impl Waits for SlabFrame {
    const AHEAD: usize = RECEIVE_PLACES;

    #[inline]
    fn len(&self) -> usize {
        self.len
    }
}

/// What a batch comes to.
#[derive(Default)]
struct Sums {
    frames: u64,
    bytes: u64,
}

impl XdpInlet {
    /// For a ring of `ring_size` entries; `reserve` chains are kept for frames of this process's
    /// own.
    pub fn new(policy: Policy, ring_size: u16, reserve: usize) -> Self {
        Self {
            copy: policy.mode == PathMode::Copy,
            reserve,
            kept: KeptChains::new(ring_size),
            posted: Posted::new(),
            posted_chains: 0,
            places: all_places().collect(),
            generation: 0,
            registration: 0,
            device_reach: 0,
            in_pieces: false,
            abandoned: false,
        }
    }

    /// Closes the socket: nobody writes to the buffers any more, and `each` sees those that were
    /// posted. Returns what [`Order::end`] does.
    fn take_back(
        &mut self,
        side: &mut SlabSide,
        link: &mut Link,
        counters: &Counters,
        mut each: impl FnMut(&Buffer),
    ) -> (Vec<u16>, Vec<u16>) {
        link.stop_receiving();
        link.missed.count(counters);
        for buffer in self.posted.take_all() {
            each(&buffer);
            if let Buffer::Place(place) = buffer {
                self.places.push(place);
            }
        }
        self.posted_chains = 0;
        self.drop_waiting(side, |_| true, counters);
        side.chains.clear();
        self.kept.numbers.clear();
        self.kept.order.end()
    }

    /// Takes a batch of frames. Returns how many there were.
    #[inline]
    fn harvest(&mut self, side: &mut SlabSide, link: &mut Link, cx: &ReceiveContext<'_>) -> usize {
        let Some(geometry) = link.registered.geometry() else { return 0 };
        let (header_len, counters) = (side.setup.header_len, cx.counters);
        let mut sums = Sums::default();
        let mut taken = 0;
        while taken < BATCH.min(side.most_frames)
            && let Some(piece) = link.pop()
        {
            taken += 1;
            let Some(buffer) = self.posted.back(address::chunk(piece.address)) else {
                tracing::error!("a frame came in memory that was not posted, at {:#x}", piece.address);
                continue;
            };
            let len = piece.len as usize;
            // A frame in pieces is longer than any that the guest's buffers take.
            let whole = !self.in_pieces && !piece.continues() && piece.len <= geometry.frame_bytes;
            let offset = address::plain(piece.address) - address::chunk(piece.address);
            if !whole || deliver::is_storm(side, link, &buffer, offset) {
                if whole || !self.in_pieces {
                    counters.dropped(if whole { DropReason::Storm } else { DropReason::TooLong });
                }
                self.in_pieces = piece.continues();
                // A device's own header lies before the first piece.
                let from = if geometry.zero_copy { 0 } else { header_len };
                unseen(&buffer, from..header_len + len, cx.memory);
                self.post_once_more(side, link, geometry, buffer, cx.memory);
                continue;
            }
            match buffer {
                Buffer::Guest { head, taken, at } => {
                    self.posted_chains -= 1;
                    let chain = (head, taken, at);
                    if offset == geometry.frame_offset() {
                        self.give_posted(side, chain, len, cx.memory, &mut sums);
                    } else {
                        let shift = offset as i64 - geometry.frame_offset() as i64;
                        self.give_shifted(side, chain, len, shift, cx);
                    }
                }
                Buffer::Place(place) => {
                    // There are fewer places than frames that may wait.
                    if !side.keep(len, || SlabFrame { place, offset: offset as usize, len }) {
                        self.places.push(place);
                        counters.dropped(DropReason::NoRoom);
                    }
                }
            }
        }
        counters.frames.add(sums.frames);
        counters.zero_copied_frames.add(sums.frames);
        counters.zero_copied_bytes.add(sums.bytes);
        taken
    }

    /// Takes what the driver has made available: posts it, or keeps it. Frames that wait for chains
    /// have them first, and are added to `frames` then.
    #[inline]
    fn post(
        &mut self,
        side: &mut SlabSide,
        link: &mut Link,
        geometry: Geometry,
        frames: &mut usize,
        cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let need = side.setup.header_len + geometry.frame_bytes as usize;
        // Places of the slab that are there for the driver's sake need chains to go to, until they
        // were used.
        let places = self.posted.len() - self.posted_chains + side.waiting();
        let first = link.first_places.min(places);
        side.host.ring.refresh()?;
        while self.kept.order.has_room() && self.posted.has_room() && link.fill_room() > 0 {
            let i = side.chains.len();
            if !side.ensure(i, need, cx.memory)? {
                break;
            }
            self.kept.add(side);
            // Frames come to these places first. So the oldest chains wait for them, and the
            // youngest are kept for answers. Chains are then used in the order in which they became
            // available. If this process dies, the next one knows from that order alone where to go
            // on.
            let next = i.checked_sub(self.reserve).filter(|i| *i >= first);
            let direct = next.filter(|_| !self.copy && !side.is_waiting());
            match direct.and_then(|i| place_of(side, link, geometry, side.chains.segments(i)).map(|d| (i, d)))
            {
                Some((i, (chunk, at))) => {
                    // Nearly always the oldest.
                    let numbers = &mut self.kept.numbers;
                    let taken = if i == 0 { numbers.pop_front() } else { numbers.remove(i) };
                    let (Some(head), Some(taken)) = (side.chains.remove(i), taken) else {
                        break;
                    };
                    // There was room in the ring.
                    link.fill(chunk);
                    self.posted.post(chunk, Buffer::Guest { head, taken, at });
                    self.posted_chains += 1;
                }
                None if side.is_waiting() => *frames += self.give_from_slab(side, link, cx),
                None => {}
            }
        }
        if side.chains.len() > self.reserve {
            self.post_places(side, link);
        }
        Ok(())
    }

    /// Posts as many places of the slab as there are chains that wait for frames from there.
    fn post_places(&mut self, side: &SlabSide, link: &mut Link) {
        let busy = self.posted.len() - self.posted_chains + side.waiting();
        let wanted = side.chains.len().saturating_sub(self.reserve).saturating_sub(busy);
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

impl Inlet for XdpInlet {
    type Port = Link;
    type Waiting = SlabFrame;
    type Given = KeptChains;
    const POSTS_AHEAD: bool = true;

    /// Nothing is posted: the first turn finds another socket.
    fn start(&mut self, side: &SlabSide, link: &mut Link, memory: &GuestMemory) -> Result<(), String> {
        (self.generation, self.registration, self.device_reach) = (0, 0, 0);
        self.places.clear();
        self.places.extend(all_places());
        self.in_pieces = false;
        self.abandoned = false;
        link.note_buffers(first_buffer(side.host.peek(memory)?, memory));
        link.start(true)
    }

    /// Takes what has come, and posts what the driver has made available.
    #[inline]
    fn receive(
        &mut self,
        side: &mut SlabSide,
        link: &mut Link,
        cx: &ReceiveContext<'_>,
    ) -> Result<Option<Received>, RingError> {
        let Some(geometry) = link.registered.geometry().filter(|_| link.is_ready()) else {
            return Ok(Some(Received { frames: 0, port: RxPort::Empty, short: false, broken: None }));
        };
        if link.generation != self.generation {
            self.post_again(side, link, geometry, cx);
        }
        let mut frames = self.harvest(side, link, cx);
        if side.is_waiting() {
            frames += self.give_from_slab(side, link, cx);
        }
        let posted = self.post(side, link, geometry, &mut frames, cx);
        if frames > 0 {
            link.moved();
        }
        link.missed.count(cx.counters);
        if link.publish_fill() {
            cx.counters.system_calls.add(1);
        }
        // Before the driver has posted anything frames are the host's: the kernel would drop them.
        if self.posted.len() > 0
            && let Err(e) = link.steer()
            && !link.is_over()
        {
            tracing::error!("{e}");
        }
        let port = if link.release() { RxPort::Empty } else { RxPort::More };
        // As soon as half of the ring is with the kernel, the driver need not be asked for more.
        // But a frame that waits for buffers goes to the guest as soon as they are there.
        let short = self.posted_chains + side.chains.len() < usize::from(side.host.ring.size() / 2).max(1)
            || side.is_waiting();
        Ok(Some(Received { frames, port, short, broken: posted.err() }))
    }

    /// Copies a frame out of the slab into chains that are kept.
    #[inline]
    fn give(
        &mut self,
        frame: &SlabFrame,
        side: &mut SlabSide,
        link: &mut Link,
        cx: &ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        let Some(geometry) = link.registered.geometry() else { return Ok(Room::Short) };
        let reason = self.reason(side, link, geometry);
        let Some((slab, _)) = link.memory() else { return Ok(Room::Short) };
        let bytes = slab.received(frame.place, frame.offset, frame.len);
        let room = side.copy_out::<BARE, _>(bytes, reason, &mut self.kept, cx)?;
        if room != Room::Short {
            self.places.push(frame.place);
        }
        Ok(room)
    }

    #[inline]
    fn given(&mut self) -> &mut KeptChains {
        &mut self.kept
    }

    /// Chains that are kept are there for this; else what the driver has posted since.
    fn make_room(&mut self, side: &mut SlabSide, len: usize, memory: &GuestMemory) -> Result<(), RingError> {
        if side.chains.is_empty() && self.kept.order.has_room() && side.ensure(0, len, memory)? {
            self.kept.add(side);
        }
        Ok(())
    }

    /// Gets all buffers back. Frames that have come by then are given to the guest.
    fn release(&mut self, side: &mut SlabSide, link: &mut Link, cx: &ReceiveContext<'_>) {
        if self.abandoned {
            return;
        }
        if cx.memory.log().is_some() {
            // Every byte that is written has to be noted.
            link.unsteer_for_good();
        } else {
            link.unsteer();
        }
        if link.generation == self.generation {
            for _ in 0..RING_ENTRIES as usize / BATCH {
                let taken = self.harvest(side, link, cx);
                self.give_from_slab(side, link, cx);
                if taken == 0 {
                    break;
                }
            }
        }
        let reach = self.device_reach;
        let see = |buffer: &Buffer| unseen(buffer, 0..reach, cx.memory);
        let (between, last) = self.take_back(side, link, cx.counters, see);
        for head in between {
            side.host.ring.push_used(head, 0);
        }
        side.host.ring.untake(last.into_iter());
        if side.host.publish() {
            cx.counters.calls.add(1);
        }
    }

    fn abandon(&mut self, side: &mut SlabSide, link: &mut Link, counters: &Counters) {
        self.take_back(side, link, counters, |_| {});
        self.abandoned = true;
    }
}

/// Where a frame lands in a chain with these segments: the chunk, and the segments that hold header
/// and frame. None where the longest frame would not lie in one piece behind the header.
#[inline]
fn place_of(
    side: &SlabSide,
    link: &Link,
    geometry: Geometry,
    segments: &[Segment],
) -> Option<(u64, [Option<Segment>; 2])> {
    let (header, frame) = (side.setup.header_len as u64, u64::from(geometry.frame_bytes));
    let first = *segments.first()?;
    let start = link.registered.address(&first)?;
    if geometry.zero_copy {
        // The device writes a header of its own right before the frame, and reaches one page only.
        let chunk = geometry.chunk_for(start + header)?;
        let fits = u64::from(first.len) >= header + frame && link.reaches(chunk, CHUNK_BYTES);
        return fits.then_some((chunk, [Some(first), None]));
    }
    if u64::from(first.len) >= header + frame {
        return Some((geometry.chunk_for(start + header)?, [Some(first), None]));
    }
    // The header has a segment of its own, or the frame goes on in the next one without a gap.
    let second = *segments.get(1)?;
    let next = link.registered.address(&second)?;
    if u64::from(first.len) == header && u64::from(second.len) >= frame {
        return Some((geometry.chunk_for(next)?, [Some(first), Some(second)]));
    }
    let joined = next == start + u64::from(first.len);
    if joined && u64::from(first.len) + u64::from(second.len) >= header + frame {
        return Some((geometry.chunk_for(start + header)?, [Some(first), Some(second)]));
    }
    None
}

/// Bytes of the first buffer that the driver has posted already, as far as they are in one piece;
/// `ring` is one that nothing is taken from otherwise.
fn first_buffer(mut ring: SplitRing, memory: &GuestMemory) -> Option<usize> {
    let mut chains = RxChains::default();
    // A broken chain is found when it is taken.
    let known = chains.ensure(0, usize::from(u16::MAX), &mut ring, memory, 0).ok()?;
    chains.segments(0).first().filter(|_| known).map(|s| s.len as usize)
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
