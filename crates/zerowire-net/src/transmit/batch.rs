//! A batch of frames for a port that takes scatter lists. A head of each frame, or all of it, lies
//! in private memory, and the rest in the guest's.
//!
//! **Ownership.** The private slots are the batch's own: each frame has one, from when it is taken
//! until the batch has run. So are the lists: [`Lists`] has both.

use std::io;

use zerowire::ledger::{CopyReason, Counters, DropReason};
use zerowire_vhost::memory::access;

use super::INSPECT_BYTES;
use super::outlet::{Outlet, Pushed, TxFrame, TxPlace, TxSlot, TxState, TxTally};
use crate::io::{Done, Full, Lists, MAX_BATCH, PortIo};
use crate::policy::MAX_IOV;
use crate::{MAX_FRAME_BYTES, Policy};

/// How much of a frame is read into its slot at least, bytes, if the frame is that long.
const START_BYTES: usize = 12 + INSPECT_BYTES;

/// Room for the inspected head of a frame, bytes.
const HEADER_SLOT_BYTES: usize = 512;

/// Room for a whole frame, bytes, where it is gathered.
pub const FRAME_SLOT_BYTES: usize = (12 + MAX_FRAME_BYTES).next_multiple_of(4096);

/// Frames longer than `gather_max_bytes` that may be gathered in one batch; further ones wait for
/// the next.
pub const FRAME_SLOTS: usize = 8;

/// Room for a frame that is gathered, up to `gather_max_bytes`, or for a head, bytes.
pub fn small_slot_bytes(policy: &Policy) -> usize {
    policy.gather_max_bytes.next_multiple_of(64).max(HEADER_SLOT_BYTES)
}

/// Scatter-list entries of one batch.
const IOV_CAPACITY: usize = 4 * MAX_IOV;

/// The frames of a batch, as scatter lists: to one queue of a tap, or to any file of which a write
/// takes a frame.
#[derive(Debug)]
pub struct SendBatch {
    policy: Policy,
    /// Scatter lists, and frames that wait for the batch to run. Their private memory is cut into
    /// slots. First comes a small one for each frame of the batch, for gathered short frames and
    /// for heads. Then come large ones, for gathered longer frames.
    lists: Lists,
    /// Length of a small slot, bytes.
    small_slot: usize,
    /// Large slots that the batch uses.
    large_used: usize,
}

impl SendBatch {
    /// An empty one.
    pub fn new(policy: Policy) -> io::Result<Self> {
        let small_slot = small_slot_bytes(&policy);
        Ok(Self {
            policy,
            lists: Lists::new(IOV_CAPACITY, small_slot * MAX_BATCH + FRAME_SLOT_BYTES * FRAME_SLOTS)?,
            small_slot,
            large_used: 0,
        })
    }

    /// Why to gather a frame; None to scatter it.
    #[inline]
    pub fn gather(&self, frame: &TxFrame<'_>) -> Option<CopyReason> {
        self.policy.gather(frame.len, frame.segments.len())
    }

    /// Finds a place for a frame: for all of it if it is gathered, else for its head.
    #[inline]
    pub fn place_for(&mut self, frame: &TxFrame<'_>, gather: Option<CopyReason>) -> TxPlace {
        let at = match gather {
            Some(_) if frame.len > self.small_slot => self.large_slot(),
            _ => frame.index * self.small_slot,
        };
        let len = match gather {
            Some(_) => frame.len,
            None => head_len(frame.segments.iter().map(|s| s.len as usize), frame.len),
        };
        TxPlace { at, len, gather }
    }

    /// Where a large slot begins; a turn ends before there is none left.
    fn large_slot(&mut self) -> usize {
        self.large_used += 1;
        self.small_slot * MAX_BATCH + (self.large_used - 1) * FRAME_SLOT_BYTES
    }

    /// For a frame whose place has a head, and that goes by a scatter list after all. Gathers it
    /// like any other, if [`Self::gather`] says so. Its head, which was checked, stays as it is:
    /// the guest's memory is read behind it only.
    #[cold]
    pub fn gather_rest(&mut self, frame: &TxFrame<'_>, place: &mut TxPlace) {
        place.gather = self.gather(frame);
        if place.gather.is_none() {
            return;
        }
        let head = place.len;
        if frame.len > self.small_slot {
            let to = self.large_slot();
            self.lists.private().copy_within(place.range(), to);
            place.at = to;
        }
        place.len = frame.len;
        access::read(frame.segments, head, &mut self.lists.private()[place.range()][head..]);
    }

    /// Queues a frame, which goes out when the batch runs; with `now` it is sent at once, and its
    /// result is known.
    ///
    /// # Errors
    /// Its list does not fit.
    #[inline]
    pub fn queue(
        &mut self,
        io: &mut PortIo,
        frame: &TxFrame<'_>,
        place: &TxPlace,
        now: bool,
    ) -> Result<TxTally, DropReason> {
        let first = self.lists.end();
        if self.append(place, frame).is_err() {
            // It is not taken as long as a turn begins no frame with less room than the longest
            // list needs.
            self.lists.truncate(first);
            return Err(DropReason::PortRefused);
        }
        let slot = frame.index as u16;
        if now {
            io.write_now(&mut self.lists, slot, first);
        } else {
            self.lists.queue(slot, true, first);
        }
        Ok(TxTally {
            scattered: (frame.len - place.len) as u32,
            copied: place.len as u32,
            reason: place.gather.unwrap_or(CopyReason::Header),
        })
    }

    /// Sends what is queued. Returns the results of all frames of the batch, and how many system
    /// calls they took.
    #[inline]
    pub fn run<'io>(&mut self, io: &'io mut PortIo) -> (&'io [Done], u64) {
        io.run(&mut self.lists)
    }

    /// Appends the scatter list of a frame in that place: its private part first, then the segments
    /// behind it.
    ///
    /// # Errors
    /// It does not fit.
    #[inline]
    fn append(&mut self, place: &TxPlace, frame: &TxFrame<'_>) -> Result<(), Full> {
        self.lists.add_private(place.range())?;
        if place.len == frame.len {
            return Ok(());
        }
        let mut skip = place.len;
        for s in frame.segments {
            if skip >= s.len as usize {
                skip -= s.len as usize;
                continue;
            }
            self.lists.add(s.ptr.wrapping_add(skip), s.len as usize - skip)?;
            skip = 0;
        }
        Ok(())
    }
}

impl Outlet for SendBatch {
    type Port = PortIo;

    #[inline]
    fn begin(&mut self, io: &mut PortIo, work: bool, _counters: &Counters) -> TxState {
        if work {
            self.lists.clear();
            self.large_used = 0;
            io.clear();
        }
        TxState::Ready
    }

    #[inline]
    fn has_room(&self, _io: &mut PortIo) -> bool {
        self.lists.room() >= MAX_IOV && self.large_used != FRAME_SLOTS
    }

    #[inline]
    fn place(&mut self, _io: &PortIo, frame: &TxFrame<'_>) -> TxPlace {
        let gather = self.gather(frame);
        self.place_for(frame, gather)
    }

    /// All of a gathered frame, at most [`HEADER_SLOT_BYTES`] else.
    #[inline]
    fn bytes(&mut self, place: &TxPlace) -> &mut [u8] {
        &mut self.lists.private()[place.range()]
    }

    #[inline]
    fn push(&mut self, io: &mut PortIo, frame: &TxFrame<'_>, place: TxPlace) -> Result<Pushed, DropReason> {
        self.queue(io, frame, &place, false).map(Pushed::Queued)
    }

    #[inline]
    fn flush(&mut self, io: &mut PortIo, batch: &mut [TxSlot], counters: &Counters) -> usize {
        let (done, calls) = self.run(io);
        let mut lost = false;
        for d in done.iter().filter(|d| d.result < 0) {
            if let Some(slot) = batch.get_mut(usize::from(d.slot)) {
                slot.refuse();
                counters.dropped(DropReason::PortRefused);
                if d.result == -libc::EBADFD {
                    lost = true;
                }
            }
        }
        counters.system_calls.add(calls);
        if lost {
            io.set_lost();
        }
        // What a tap has no room for is lost.
        0
    }

    fn trim(&mut self) {
        self.lists.private().release_pages();
    }
}

/// How many bytes of a scattered frame of `len` bytes, in segments of these lengths, go through the
/// private slot. They are whole segments as long as those fit, so that a driver's separate header
/// segment costs no extra entry. They have at least what is inspected.
#[inline]
pub fn head_len(segments: impl Iterator<Item = usize>, len: usize) -> usize {
    let mut whole = 0;
    for n in segments {
        if whole + n > HEADER_SLOT_BYTES {
            break;
        }
        whole += n;
        if whole >= START_BYTES {
            break;
        }
    }
    // A short tail of headers is worth an entry less; less than the inspected bytes is not enough.
    whole.max(START_BYTES).min(len)
}
