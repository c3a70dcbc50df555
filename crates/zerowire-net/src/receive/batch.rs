//! A batch of reads from a port that does not block, each of which takes a frame.
//!
//! What is offered to the port follows what came from it. Chains that a frame did not use serve the
//! next one as they were parsed.
//!
//! **Ownership.** The scratch memory and the scatter lists are the batch's own. The kernel has
//! them, and the chains that they name, only within [`ReadBatch::read`].

use std::io;
use std::ops::Range;

use zerowire::ledger::{Counters, DropReason};
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::ring::RingError;

use super::deliver::InPlace;
use super::inlet::{CopySide, Given, Inlet, Received};
use super::pending::HeldFrame;
use super::shape::{Forecast, Shape};
use super::side::{HEADED, Room};
use super::{ReceiveContext, ReceiveSetup, ReceiveTurn, RxPort};
use crate::io::{Done as ReadResult, Lists, MAX_BATCH, PortIo};
use crate::policy::MAX_IOV;
use crate::{ETH_HEADER_BYTES, MAX_FRAME_BYTES, PathMode, Policy};

/// Most reads in a batch.
pub(super) const READ_BATCH: usize = MAX_BATCH;

/// Scratch memory behind each read, bytes: the longest frame with its header.
pub const SCRATCH_BYTES: usize = (12 + MAX_FRAME_BYTES).next_multiple_of(4096);

/// From one read's scratch memory to the next, bytes. It is not a multiple of the page size, so
/// that their starts don't share the same few lines of the first-level cache.
pub const SCRATCH_STRIDE: usize = SCRATCH_BYTES + 320;

/// Most reads of several chains each in a batch.
pub const LONG_BATCH: usize = 8;

/// Most bytes of a buffer that the CPU fetches ahead, where frames are copied. Those of a batch
/// stay in its second-level cache.
pub(super) const MAX_PREFETCH_BYTES: usize = 2048;

/// The usual order of results.
const IN_ORDER: [u16; READ_BATCH] = {
    let mut order = [0; READ_BATCH];
    let mut i = 0;
    while i < READ_BATCH {
        order[i] = i as u16;
        i += 1;
    }
    order
};

/// A read of the batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Read {
    /// Chains offered, from the front.
    pub chains: usize,
    /// Bytes that they hold.
    pub room: usize,
    /// Bytes read, with the header, or a negated errno.
    pub result: i32,
}

/// What came of a batch of reads.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    reads: usize,
    /// Frames that came.
    pub frames: usize,
    /// Frames that were taken out of the port and could not be put into memory.
    pub refused: usize,
    /// How many frames stayed where they were read to, if all could have.
    in_place: Option<usize>,
    /// The port's interface is gone.
    pub port_gone: bool,
}

/// Reads frames from one queue of a tap, or from any file that does not block and of which a read
/// takes a frame.
#[derive(Debug)]
pub struct ReadBatch {
    /// Scatter or copy.
    pub(super) mode: PathMode,
    pub(super) forecast: Forecast,
    /// Reads of one chain each in the next batch.
    each: usize,
    /// As `each`, for reads of several chains.
    long: usize,
    /// Scatter lists, and reads that wait for the batch to run. Their private memory has a slot for
    /// each read, [`SCRATCH_STRIDE`] apart.
    pub(super) lists: Lists,
    pub(super) reads: Vec<Read>,
    pub(super) scratch_dirty: bool,
}

impl Given for Forecast {
    const AHEAD: bool = false;

    #[inline]
    fn given(&mut self, len: usize, chains: usize) {
        self.note(len, chains);
    }
}

impl ReadBatch {
    /// For a port whose ordinary frames reach `mtu` bytes.
    ///
    /// # Errors
    /// Private memory for the frames can't be had.
    pub fn new(policy: Policy, mtu: usize, setup: ReceiveSetup) -> io::Result<Self> {
        // What an ordinary frame needs, header included.
        let ordinary = setup.header_len + mtu + ETH_HEADER_BYTES + 8;
        Ok(Self {
            mode: policy.mode,
            forecast: Forecast::new(setup.mergeable, ordinary, policy.rx_copybreak_bytes),
            each: 1,
            long: 1,
            lists: Lists::new(READ_BATCH * 4 + LONG_BATCH * MAX_IOV, SCRATCH_STRIDE * READ_BATCH)?,
            reads: Vec::with_capacity(READ_BATCH),
            scratch_dirty: false,
        })
    }

    /// Whether frames go into private memory first.
    #[inline]
    fn is_private(&self, side: &CopySide) -> bool {
        self.mode == PathMode::Copy || self.forecast.shape == Shape::Small || side.rebuilds_most()
    }

    /// Carries out the reads that were offered, and gives the guest what came; the caller publishes
    /// it. None where there were no reads for lack of buffers. A broken chain stops the ring, but
    /// only behind the reads that were queued before it: that error comes beside what they brought.
    #[inline]
    pub fn read(
        &mut self,
        offered: Result<usize, RingError>,
        private: bool,
        side: &mut CopySide,
        io: &mut PortIo,
        cx: &ReceiveContext<'_>,
    ) -> Result<Option<(Done, Option<RingError>)>, RingError> {
        // None may stay queued.
        let (reads, broken) = match offered {
            Ok(n) => (n, None),
            Err(e) if self.reads.is_empty() => return Err(e),
            Err(e) => (self.reads.len(), Some(e)),
        };
        if reads == 0 {
            return Ok(None);
        }
        side.end_wait();
        side.prefetch();
        if private {
            side.chains.prefetch(reads, self.forecast.last_len.min(MAX_PREFETCH_BYTES));
        }
        let (results, calls) = io.run(&mut self.lists);
        cx.counters.system_calls.add(calls);
        let mut done = Done { reads, ..Done::default() };
        let in_order = note_results(&mut self.reads, results, &mut done, cx.counters);
        if cx.memory.log().is_some() {
            note_reads(&self.reads, side, cx.memory);
        }
        let order: [u16; READ_BATCH] = match in_order && !private {
            true => IN_ORDER,
            false => std::array::from_fn(|i| results.get(i).map_or(0, |d| d.slot)),
        };
        let frames = done.frames;
        if private {
            self.deliver_scratch(&order[..reads], side, cx)?;
        } else if !in_order {
            self.deliver_staged(&order[..reads], InPlace::default(), side, cx)?;
        } else {
            let sound = self.sound(frames, side);
            let given = self.deliver_in_place(sound, side, cx);
            if given.frames < frames {
                self.deliver_staged(&order[..frames], given, side, cx)?;
            }
            done.in_place = Some(given.frames);
        }
        Ok(Some((done, broken)))
    }
}

impl Inlet for ReadBatch {
    type Port = PortIo;
    type Waiting = HeldFrame;
    type Given = Forecast;

    fn start(&mut self, _side: &CopySide, _io: &mut PortIo, _memory: &GuestMemory) -> Result<(), String> {
        self.forecast = self.forecast.anew();
        (self.each, self.long) = (1, 1);
        Ok(())
    }

    #[inline]
    fn receive(
        &mut self,
        side: &mut CopySide,
        io: &mut PortIo,
        cx: &ReceiveContext<'_>,
    ) -> Result<Option<Received>, RingError> {
        let private = self.is_private(side);
        let likely = self.forecast.longest_seen.clamp(1, side.longest());
        let (each, long) = (self.each.min(side.most_frames), self.long.min(side.most_frames));
        let offered = match self.forecast.shape {
            _ if private => self.offer_runs(each, |_| likely, true, side, io, cx.memory),
            Shape::Long if side.setup.mergeable => {
                self.offer_runs(long, |_| likely, false, side, io, cx.memory)
            }
            // A guest without mergeable buffers posts chains for the longest frame: parse them only
            // that far, if long frames come.
            Shape::Long => self.offer_each(each, side.longest(), side, io, cx.memory),
            _ => self.offer_each(each, self.forecast.ordinary, side, io, cx.memory),
        };
        let Some((done, broken)) = self.read(offered, private, side, io, cx)? else { return Ok(None) };
        let is_empty = done.frames < done.reads;
        self.each = match is_empty {
            true => (done.frames + 1).min(READ_BATCH),
            false => (self.each * 2).min(READ_BATCH),
        };
        if let Some(in_place) = done.in_place {
            self.long = match in_place {
                d if d < done.frames => 1,
                d if d == self.long => (self.long * 2).min(LONG_BATCH),
                d => d.clamp(1, LONG_BATCH),
            };
        }
        let port = match (done.port_gone, is_empty) {
            (true, _) => RxPort::Gone,
            (false, true) => RxPort::Empty,
            (false, false) => RxPort::More,
        };
        Ok(Some(Received { frames: done.frames, port, short: false, broken }))
    }

    #[inline]
    fn give(
        &mut self,
        frame: &HeldFrame,
        side: &mut CopySide,
        _io: &mut PortIo,
        cx: &ReceiveContext<'_>,
    ) -> Result<Room, RingError> {
        side.copy_out::<HEADED, _>(&frame.bytes, frame.reason, &mut self.forecast, cx)
    }

    #[inline]
    fn end(
        &mut self,
        _side: &mut CopySide,
        io: &mut PortIo,
        turn: &mut ReceiveTurn,
        _cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        if turn.port == RxPort::Gone {
            io.set_lost();
        }
        Ok(())
    }

    fn settle(&mut self) {
        self.forecast.longest_seen = 0;
    }

    #[inline]
    fn given(&mut self) -> &mut Forecast {
        &mut self.forecast
    }

    /// Overflows have touched scratch memory.
    fn trim(&mut self) {
        if std::mem::take(&mut self.scratch_dirty) {
            // No operation is under way.
            self.lists.private().release_pages();
        }
    }
}

/// Notes what became of each read. Returns whether frames came in the order of the reads.
///
/// Frames arrived in the order of `results`; chains were offered in the order of `reads`. Nearly
/// always both are the same, with the reads that found nothing at the end.
#[inline]
fn note_results(reads: &mut [Read], results: &[ReadResult], done: &mut Done, counters: &Counters) -> bool {
    let mut in_order = true;
    for (i, d) in results.iter().enumerate() {
        if let Some(r) = reads.get_mut(usize::from(d.slot)) {
            r.result = d.result;
        }
        if d.result >= 0 {
            in_order &= usize::from(d.slot) == done.frames && i == done.frames;
            done.frames += 1;
        } else if d.result == -libc::EBADFD || d.result == -libc::ENETDOWN {
            done.port_gone = true;
        } else if d.result != -libc::EAGAIN {
            // The frame was taken out of the port and could not be put into the guest's memory.
            counters.dropped(DropReason::PortRefused);
            done.refused += 1;
        }
    }
    in_order
}

/// Where the first `len` bytes behind a read are in scratch memory.
#[inline]
pub(super) fn scratch_range(read: usize, len: usize) -> Range<usize> {
    let at = read * SCRATCH_STRIDE;
    at..at + len
}

/// Notes what a batch of reads wrote to the guest's chains, wherever its frames go afterwards.
#[cold]
fn note_reads(reads: &[Read], side: &CopySide, memory: &GuestMemory) {
    let mut first = 0;
    for r in reads {
        let mut left = match r.result {
            len if len >= 0 => len as usize,
            // Nothing was there to be read.
            e if e == -libc::EAGAIN || e == -libc::EBADFD || e == -libc::ENETDOWN => 0,
            // The kernel failed half-way and does not say where.
            _ => r.room,
        };
        for i in first..first + r.chains {
            let n = side.chains.room(i).min(left);
            memory.wrote(side.chains.segments(i), 0, n);
            left -= n;
        }
        first += r.chains;
    }
}
