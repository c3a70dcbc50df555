//! Receive: from the port to the guest's buffers.
//!
//! The length of a frame is known only after it was read, and reading it straight into the guest's buffers needs
//! their addresses before. Parsing 64 KiB worth of descriptors for each frame of 60 bytes is what made this path
//! slow elsewhere. Here:
//!
//! * A chain is parsed only as far as the next frame is likely to reach; behind the parsed part the scatter list
//!   ends in scratch memory, so that a longer frame is never cut: its tail is copied (`overflow` in the ledger), and
//!   the next frames are offered more.
//! * A chain that was parsed and not used serves the next frame as it is.
//! * Two shapes of offer: *batch*, many reads of one chain each, while frames fit into their first chain; and *long*,
//!   one read over as many chains as the longest frame may need (only with MRG_RXBUF), while they don't.
//!
//! Chains are given back in exactly the order in which they became available, so that the used index alone says where
//! a back end that starts anew has to go on (it has no other memory of what it took).
//!
//! **Ownership.** Parsed chains belong to this side until they are given back; the kernel holds them only within
//! [`Receive::run`].

mod chains;
mod deliver;

use std::io;

use zerowire::ledger::{CopyReason, Counters};

use super::policy::MAX_IOV;
use super::transmit::{Turn, TurnError};
use super::{ETH_HEADER_BYTES, MAX_FRAME_BYTES, PathMode};
use crate::io::{FixedPiece, FixedPieces, Op, PortIo};
use crate::memory::{GuestMemory, Mapping};
use crate::ring::SplitRing;
use chains::Chains;

/// Most reads in a batch.
const READ_BATCH: usize = 32;

/// Scratch memory behind each read, bytes: the longest frame with its header.
const SCRATCH_BYTES: usize = (12 + MAX_FRAME_BYTES).next_multiple_of(4096);

/// After so many frames in a row that fit into their first chain, long reads give way to batches.
const SHORT_RUN: u32 = 32;

/// What the receive side needs besides its ring.
pub struct ReceiveContext<'a> {
    /// The memory that the ring was made for.
    pub memory: &'a GuestMemory,
    /// The port.
    pub io: &'a mut PortIo,
    /// Where to count.
    pub counters: &'a Counters,
}

/// What the guest and the port agreed on.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveSetup {
    /// Frames may span several chains.
    pub mergeable: bool,
    /// Length of the virtio-net header, bytes.
    pub header_len: usize,
    /// The port's MTU, bytes: what an ordinary frame reaches.
    pub mtu: usize,
    /// Scatter or copy.
    pub mode: PathMode,
}

/// How a turn of reading ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveTurn {
    /// Frames given to the guest, and whether it wants to be notified.
    pub turn: Turn,
    /// The port has no frame left for now.
    pub port_empty: bool,
    /// The guest has no buffer left.
    pub starved: bool,
}

/// A read of the batch.
#[derive(Clone, Copy, Debug, Default)]
struct Read {
    /// Chains offered, from the front.
    chains: usize,
    /// Bytes that they hold.
    room: usize,
    /// Bytes read, with the header, or a negated errno.
    result: i32,
}

/// The receive side of a queue pair.
#[derive(Debug)]
pub struct Receive {
    ring: SplitRing,
    chains: Chains,
    setup: ReceiveSetup,
    /// What an ordinary frame needs, header included.
    ordinary: usize,
    /// Offer the longest frame's room in one read.
    long: bool,
    short_run: u32,
    batch: usize,
    iov: Vec<libc::iovec>,
    reads: Vec<Read>,
    scratch: Mapping,
    scratch_dirty: bool,
}

impl Receive {
    /// The receive side on `ring`.
    pub fn new(ring: SplitRing, setup: ReceiveSetup) -> io::Result<Self> {
        Ok(Self {
            ring,
            chains: Chains::new(),
            setup,
            ordinary: setup.header_len + setup.mtu + ETH_HEADER_BYTES + 8,
            long: false,
            short_run: 0,
            batch: 1,
            iov: Vec::with_capacity(READ_BATCH * 4 + 2 * MAX_IOV),
            reads: Vec::with_capacity(READ_BATCH),
            scratch: Mapping::private(SCRATCH_BYTES * READ_BATCH)?,
            scratch_dirty: false,
        })
    }

    /// The ring.
    pub fn ring(&mut self) -> &mut SplitRing {
        &mut self.ring
    }

    /// Gives parsed chains back to the ring, to be taken again: before it stops, or its memory changes.
    pub fn release(&mut self) {
        self.ring.untake(self.chains.len() as u16);
        self.chains.clear();
    }

    /// Lets go of scratch memory that overflows have touched.
    pub fn trim(&mut self) {
        if std::mem::take(&mut self.scratch_dirty) {
            // SAFETY: the range is this side's own anonymous memory, and no operation is under way.
            unsafe { libc::madvise(self.scratch.as_ptr().cast(), self.scratch.len(), libc::MADV_DONTNEED) };
        }
    }

    fn scratch(&self, read: usize) -> *mut u8 {
        self.scratch.as_ptr().wrapping_add(read * SCRATCH_BYTES)
    }

    /// Reads one batch of frames.
    #[inline]
    pub fn run(&mut self, cx: &mut ReceiveContext<'_>) -> Result<ReceiveTurn, TurnError> {
        let reads = if self.setup.mode == PathMode::Copy {
            self.offer_scratch(cx)?
        } else if self.long && self.setup.mergeable {
            self.offer_long(cx)?
        } else {
            self.offer_batch(cx)?
        };
        if reads == 0 {
            return Ok(ReceiveTurn { starved: true, ..ReceiveTurn::default() });
        }
        let (done, calls) = cx.io.run()?;
        cx.counters.system_calls.add(calls);
        // Frames arrived in the order of `done`; chains were offered in the order of `reads`. Nearly always both are
        // the same, with the reads that found nothing at the end.
        let mut in_order = true;
        let mut frames = 0;
        for (i, d) in done.iter().enumerate() {
            if let Some(r) = self.reads.get_mut(usize::from(d.slot)) {
                r.result = d.result;
            }
            if d.result >= 0 {
                in_order &= usize::from(d.slot) == frames && i == frames;
                frames += 1;
            }
        }
        let order: [u16; READ_BATCH] = std::array::from_fn(|i| done.get(i).map_or(0, |d| d.slot));
        let port_empty = frames < reads;
        self.batch = if port_empty { (frames + 1).min(READ_BATCH) } else { (self.batch * 2).min(READ_BATCH) };
        if self.setup.mode == PathMode::Copy || !in_order {
            self.deliver_staged(&order[..done_len(reads)], 0, cx)?;
        } else {
            let delivered = self.deliver_in_place(frames, cx)?;
            if delivered < frames {
                self.deliver_staged(&order[..frames], delivered, cx)?;
            }
        }
        let turn = Turn { chains: frames, notify: self.ring.publish() };
        Ok(ReceiveTurn { turn, port_empty, starved: false })
    }

    /// Gives the guest a frame from private memory (without a virtio-net header). Returns whether there was room.
    pub fn inject(
        &mut self,
        frame: &[u8],
        memory: &GuestMemory,
        counters: &Counters,
    ) -> Result<bool, TurnError> {
        let mut with_header = vec![0u8; self.setup.header_len];
        with_header.extend_from_slice(frame);
        Ok(self.copy_out(&with_header, CopyReason::Metadata, memory, counters)?)
    }

    /// One read for each of several chains.
    #[inline]
    fn offer_batch(&mut self, cx: &mut ReceiveContext<'_>) -> Result<usize, TurnError> {
        let want = if cx.io.is_batching() { self.batch } else { 1 };
        // A guest without mergeable buffers posts chains for the longest frame: parse them only that far, if long
        // frames come.
        let need = if self.long { self.longest() } else { self.ordinary };
        self.start(cx);
        for i in 0..want {
            if !self.chains.ensure(i, need, &mut self.ring, cx.memory, self.setup.header_len)? {
                break;
            }
            if self.iov.len() + self.chains.segments(i).len() + 1 > self.iov.capacity() {
                break;
            }
            self.read_into(1, i, i, cx);
        }
        Ok(self.reads.len())
    }

    /// One read over as many chains as the longest frame needs.
    fn offer_long(&mut self, cx: &mut ReceiveContext<'_>) -> Result<usize, TurnError> {
        let need = self.longest();
        self.start(cx);
        let (mut n, mut room, mut entries) = (0, 0, 0);
        while room < need && entries < MAX_IOV - 1 {
            if !self.chains.ensure(n, need, &mut self.ring, cx.memory, self.setup.header_len)? {
                break;
            }
            let segments = self.chains.segments(n).len();
            if entries + segments > MAX_IOV - 1 {
                break;
            }
            entries += segments;
            room += self.chains.room(n);
            n += 1;
        }
        if n > 0 {
            self.read_into(n, 0, 0, cx);
        }
        Ok(self.reads.len())
    }

    /// Reads into scratch memory only, as many as there are chains at least.
    fn offer_scratch(&mut self, cx: &mut ReceiveContext<'_>) -> Result<usize, TurnError> {
        let want = if cx.io.is_batching() { self.batch } else { 1 };
        self.start(cx);
        for i in 0..want {
            if !self.chains.ensure(i, 1, &mut self.ring, cx.memory, self.setup.header_len)? {
                break;
            }
            self.read_into(0, 0, i, cx);
        }
        self.scratch_dirty = true;
        Ok(self.reads.len())
    }

    /// The longest frame with its header, bytes.
    fn longest(&self) -> usize {
        self.setup.header_len + MAX_FRAME_BYTES
    }

    /// The registered buffer in which all of the `n` chains from `first` on lie, if they take the longest frame, so
    /// that no scratch memory has to stand behind them.
    #[inline]
    fn registered<'a>(&self, first: usize, n: usize, fixed: &'a FixedPieces) -> Option<&'a FixedPiece> {
        let room: usize = (first..first + n).map(|i| self.chains.room(i)).sum();
        if room < self.longest() {
            return None;
        }
        let common = fixed.common(self.chains.segments(first))?;
        (first + 1..first + n)
            .all(|i| fixed.common(self.chains.segments(i)).is_some_and(|f| f.index == common.index))
            .then_some(common)
    }

    /// Remembers what kind of frame came: `chains` used for `len` bytes.
    #[inline]
    fn note(&mut self, len: usize, chains: usize) {
        let short = chains == 1 && (self.setup.mergeable || len <= self.ordinary);
        if !short {
            self.long = true;
            self.short_run = 0;
        } else if self.long {
            self.short_run += 1;
            self.long = self.short_run < SHORT_RUN;
        }
    }

    fn start(&mut self, cx: &mut ReceiveContext<'_>) {
        self.iov.clear();
        self.reads.clear();
        cx.io.clear();
    }

    /// Queues read number `read` into `n` chains from chain `first` on, and into scratch memory behind them.
    #[inline]
    fn read_into(&mut self, n: usize, first: usize, read: usize, cx: &mut ReceiveContext<'_>) {
        let start = self.iov.len();
        let mut room = 0;
        let longest = self.longest();
        let fixed = self.registered(first, n, cx.io.fixed());
        for i in first..first + n {
            for s in self.chains.segments(i) {
                self.iov.push(match fixed {
                    Some(f) => f.iovec(s),
                    None => libc::iovec { iov_base: s.ptr.cast(), iov_len: s.len as usize },
                });
            }
            room += self.chains.room(i);
        }
        if room < longest {
            self.iov.push(libc::iovec { iov_base: self.scratch(read).cast(), iov_len: SCRATCH_BYTES });
        }
        self.reads.push(Read { chains: n, room, result: -libc::EAGAIN });
        let op = Op {
            slot: read as u16,
            write: false,
            iov: self.iov[start..].as_ptr(),
            len: (self.iov.len() - start) as u32,
            fixed: fixed.map(|f| f.index),
        };
        // SAFETY: the iovec array does not move (its capacity was checked), guest memory is held by `cx.memory`, and
        // scratch memory is this side's own, a slot for each read.
        unsafe { cx.io.push(op) };
    }
}

fn done_len(reads: usize) -> usize {
    reads.min(READ_BATCH)
}
