//! The guest's side of receive: its ring, its buffers, and the frames that wait for them.

use std::time::Instant;

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_vhost::host::HostRing;
use zerowire_vhost::memory::{GuestMemory, HostPtr, access};
use zerowire_vhost::ring::{RingError, RxChains};
use zerowire_wire::vnet::{FLAGS_AT, NUM_BUFFERS_AT};

use super::batch::MAX_PREFETCH_BYTES;
use super::fit::Fit;
use super::inlet::{Given, Inlet};
use super::pending::{Pending, Waits};
use super::{PATIENCE, ReceiveContext, ReceiveSetup, SETTLE_AFTER};
use crate::MAX_FRAME_BYTES;
use crate::capture::FrameCapture;
use crate::guard::StormBound;
use crate::io::MAX_BATCH;

/// The virtio-net header of a frame that asks for nothing, in one buffer (virtio 1.3 §5.1.6.4.1).
pub const PLAIN_HEADER: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];

/// What happened to a frame on its way into the guest's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// It was given to the guest.
    Taken,
    /// The guest has posted too few buffers for it so far.
    Short,
    /// No number of buffers that this guest can post takes it.
    Never,
}

/// A frame in private memory has its virtio-net header in front of it.
pub const HEADED: bool = true;

/// It has none, and gets one that asks for nothing.
pub const BARE: bool = false;

/// The ring, parsed chains and waiting frames that all inlets share. `W` is a frame that waits.
#[derive(Debug)]
pub struct RxSide<W> {
    pub(crate) host: HostRing,
    /// Those that are here, parsed as far as was asked for.
    pub(crate) chains: RxChains,
    pub(crate) setup: ReceiveSetup,
    /// Frames that were taken from the port and for which the guest had too few buffers.
    pending: Pending<W>,
    /// Frames that may be taken from the port in a turn; the others wait there.
    pub(crate) most_frames: usize,
    /// Since when a frame, or a read, waits for buffers.
    waiting_since: Option<Instant>,
    pub(super) fit: Fit,
    pub(crate) capture: Option<Box<FrameCapture>>,
    /// How many frames to groups the guest takes; None for all.
    pub(super) storm: Option<StormBound>,
}

impl<W: Waits> RxSide<W> {
    /// Nothing was taken from `host`.
    pub(super) fn new(host: HostRing, setup: ReceiveSetup) -> Self {
        Self {
            host,
            chains: RxChains::default(),
            setup,
            pending: Pending::default(),
            most_frames: usize::MAX,
            waiting_since: None,
            fit: Fit::default(),
            storm: None,
            capture: None,
        }
    }

    /// Has the first chains captured, which hold a frame of `len` bytes, header included.
    #[inline]
    pub(super) fn capture_front(&mut self, len: usize, chains: usize) {
        if let Some(capture) = &mut self.capture {
            let header_len = self.setup.header_len;
            let lists = (0..chains).map(|i| self.chains.segments(i));
            capture.lying((header_len, len - header_len), lists);
        }
    }

    /// What was captured is over.
    #[inline]
    pub(super) fn publish_capture(&mut self) {
        if let Some(capture) = &mut self.capture {
            capture.queue.publish();
        }
    }

    /// The longest frame with its header, bytes.
    #[inline]
    pub fn longest(&self) -> usize {
        self.setup.header_len + MAX_FRAME_BYTES
    }

    /// Whether no more chains can come than are here: the guest has posted its whole ring.
    pub fn has_all_chains(&self) -> bool {
        self.chains.are_all(&self.host.ring)
    }

    /// Makes sure that chain `i` is there and parsed for `need` bytes, or to its end. Returns false
    /// where the guest has posted no more.
    #[inline(always)]
    pub fn ensure(&mut self, i: usize, need: usize, memory: &GuestMemory) -> Result<bool, RingError> {
        self.chains.ensure(i, need, &mut self.host.ring, memory, self.setup.header_len)
    }

    /// Takes at most `most` chains of one segment each, as [`RxChains::take_plain`] does.
    #[inline]
    pub fn take_plain(
        &mut self,
        (need, most): (usize, usize),
        memory: &GuestMemory,
        each: impl FnMut(HostPtr, usize),
    ) -> Result<(usize, usize), RingError> {
        self.chains.take_plain((need, most), &mut self.host.ring, memory, self.setup.header_len, each)
    }

    /// Has what the next turn looks at come into the cache meanwhile.
    #[inline]
    pub fn prefetch(&mut self) {
        self.host.ring.prefetch(MAX_BATCH as u16);
        self.host.ring.prefetch_used(self.chains.len() as u16);
    }

    /// Called when the chain of a frame of `len` bytes is taken: has the buffer after the next one
    /// come into the cache meanwhile, for a frame of that length.
    #[inline]
    pub fn prefetch_buffer(&mut self, len: usize, memory: &GuestMemory) {
        self.chains.prefetch_ahead(1, len.min(MAX_PREFETCH_BYTES), &self.host.ring, memory);
    }

    /// Takes a chain in again that was removed, as the last one. Returns false,
    /// and has nothing of it, where it has a mistake now, or there are too many.
    pub fn put_back(&mut self, head: u16, need: usize, memory: &GuestMemory) -> bool {
        self.chains.put_back(head, need, &self.host.ring, memory, self.setup.header_len)
    }

    /// Puts all chains that are here back into the ring, to be taken again.
    pub fn untake(&mut self) {
        self.host.ring.untake(self.chains.heads());
        self.chains.clear();
    }

    /// Lets go of long lists.
    pub(super) fn trim(&mut self) {
        self.chains.trim();
        self.pending.trim();
    }

    /// Whether frames wait for buffers.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Frames that wait.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Keeps a frame of `len` bytes, which `make` makes, until there are buffers. Returns false
    /// where too many wait already.
    #[inline]
    pub fn keep(&mut self, len: usize, make: impl FnOnce() -> W) -> bool {
        self.pending.push(len, make)
    }

    /// Drops those of the frames that wait for which `which` is true.
    pub fn drop_waiting(&mut self, counters: &Counters, which: impl FnMut(&W) -> bool) {
        let dropped = self.pending.remove(which);
        counters.dropped_many(DropReason::NoRoom, dropped as u64);
    }

    /// There were buffers: what waits now waits from now on.
    #[inline]
    pub fn end_wait(&mut self) {
        self.waiting_since = None;
    }

    /// Nothing could be given for lack of buffers. A frame that waits longer than [`PATIENCE`] is
    /// given up. Returns whether a read has waited longer than [`SETTLE_AFTER`].
    pub(super) fn wait(&mut self, counters: &Counters) -> bool {
        let since = *self.waiting_since.get_or_insert_with(Instant::now);
        if self.pending.is_empty() {
            let settles = since.elapsed() >= SETTLE_AFTER;
            if settles {
                self.waiting_since = None;
            }
            return settles;
        }
        if since.elapsed() >= PATIENCE {
            self.waiting_since = None;
            self.pending.pop();
            counters.dropped(DropReason::NoRoom);
        }
        false
    }

    /// Gives the guest frames that waited, as far as there is room now. Returns how many.
    #[inline]
    pub fn give_waiting<I: Inlet<Waiting = W>>(
        &mut self,
        inlet: &mut I,
        port: &mut I::Port,
        cx: &ReceiveContext<'_>,
    ) -> Result<usize, RingError> {
        let mut given = 0;
        while let Some(frame) = self.pending.pop() {
            match inlet.give(&frame, self, port, cx)? {
                Room::Taken => {
                    self.waiting_since = None;
                    given += 1;
                }
                Room::Never => cx.counters.dropped(DropReason::NoRoom),
                Room::Short => {
                    self.pending.put_back(frame);
                    break;
                }
            }
        }
        Ok(given)
    }

    /// Copies a frame, [`HEADED`] or [`BARE`], into the first chains, if there is room.
    #[inline]
    pub fn copy_out<const IS_HEADED: bool, G: Given>(
        &mut self,
        bytes: &[u8],
        reason: CopyReason,
        given: &mut G,
        cx: &ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        let header_len = if IS_HEADED { 0 } else { self.setup.header_len };
        let len = header_len + bytes.len();
        let mut room = 0;
        let mut n = 0;
        let most = if self.setup.mergeable { usize::from(u16::MAX) } else { 1 };
        while room < len && n < most {
            let is_here = match G::AHEAD {
                true => n < self.chains.len(),
                false => self.ensure(n, len - room, cx.memory)?,
            };
            if !is_here {
                return Ok(if self.has_all_chains() { Room::Never } else { Room::Short });
            }
            room += self.chains.room(n);
            n += 1;
        }
        if room < len {
            return Ok(Room::Never);
        }
        if !IS_HEADED {
            let mut header = PLAIN_HEADER;
            header[NUM_BUFFERS_AT..].copy_from_slice(&(n as u16).to_le_bytes());
            // A chain that is shorter than the header has broken the ring before.
            access::write(self.chains.segments(0), 0, &header[..header_len]);
        }
        if let Some(capture) = &mut self.capture {
            capture.given(&bytes[self.setup.header_len - header_len..]);
        }
        let (mut at, mut skip) = (0, header_len);
        for c in 0..n {
            let part = self.chains.room(c).min(skip + bytes.len() - at);
            debug_assert!(part >= skip, "a chain of {part} bytes, shorter than the header");
            at += access::write(self.chains.segments(c), skip, &bytes[at..at + part - skip]);
            cx.memory.wrote(self.chains.segments(c), 0, part);
            skip = 0;
        }
        match IS_HEADED {
            true => self.give_front(len, n, cx.memory),
            false => self.complete(len, n),
        };
        given.given(len, n);
        cx.counters.frames.add(1);
        cx.counters.copied(reason, len as u64);
        Ok(Room::Taken)
    }

    /// Gives the guest the first chains, of which at most `chains` hold a frame of `len` bytes,
    /// header included, and completes that header. Returns how many they are.
    #[inline(always)]
    pub(super) fn give_front(&mut self, len: usize, chains: usize, memory: &GuestMemory) -> usize {
        // Used elements are seen when they are published, so that the header may be written after
        // them.
        let first = self.chains.segments(0).first().copied();
        let whole_header = first.filter(|s| s.len as usize >= NUM_BUFFERS_AT + 2);
        if self.setup.clears_flags {
            access::write(self.chains.segments(0), FLAGS_AT, &[0]);
            memory.wrote(self.chains.segments(0), FLAGS_AT, 1);
        }
        if whole_header.is_none() {
            self.write_num_buffers(len, chains, memory);
        }
        let used = self.complete(len, chains);
        if let Some(first) = whole_header
            && self.setup.header_len == 12
        {
            access::write_now(&first, NUM_BUFFERS_AT, (used as u16).to_le_bytes());
            memory.wrote(std::slice::from_ref(&first), NUM_BUFFERS_AT, 2);
        }
        used
    }

    /// Gives back the first chains, of which at most `chains` hold `len` bytes. Returns how many
    /// they are.
    #[inline(always)]
    fn complete(&mut self, len: usize, chains: usize) -> usize {
        let mut used = 0;
        let mut left = len;
        while used < chains && (left > 0 || used == 0) {
            let Some((head, room)) = self.chains.pop() else { break };
            let n = left.min(room);
            self.host.ring.push_used(head, n as u32);
            left -= n;
            used += 1;
        }
        used
    }

    /// Writes num_buffers into a header that lies in several segments. It is the number of chains,
    /// and 1 without MRG_RXBUF (virtio 1.3 §5.1.6.4.1).
    #[cold]
    fn write_num_buffers(&mut self, len: usize, chains: usize, memory: &GuestMemory) {
        if self.setup.header_len != 12 {
            return;
        }
        let (mut used, mut left) = (0, len);
        while used < chains && (left > 0 || used == 0) {
            left -= left.min(self.chains.room(used));
            used += 1;
        }
        access::write(self.chains.segments(0), NUM_BUFFERS_AT, &(used as u16).to_le_bytes());
        memory.wrote(self.chains.segments(0), NUM_BUFFERS_AT, 2);
    }
}
