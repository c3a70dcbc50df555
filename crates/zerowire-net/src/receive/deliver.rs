//! From a finished batch of reads to used buffers.

use zerowire::ledger::CopyReason;
use zerowire_vhost::memory::access;
use zerowire_vhost::ring::RingError;

use super::batch::{ReadBatch, SCRATCH_BYTES, scratch_range};
use super::inlet::CopySide;
use super::{ReceiveContext, fit};
use crate::PathMode;

/// Slots of scratch memory that took no longer frames have a page or two each, and keep them while
/// the guest rests.
const KEPT_BYTES: usize = 1024;

/// The frames of a batch that were given back as they are.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InPlace {
    /// How many they are.
    pub frames: usize,
    /// Chains that they took.
    pub chains: usize,
    /// True: the next one is not what the guest takes. Those behind it may have fitted where they
    /// were.
    pub unsound: bool,
}

impl ReadBatch {
    /// How many of the first `frames` reads are what the guest takes.
    #[inline]
    pub(super) fn sound(&self, frames: usize, side: &CopySide) -> usize {
        match side.fit.accepts {
            None => frames,
            Some(_) => self.first_unsound(frames, side).unwrap_or(frames),
        }
    }

    #[inline]
    fn first_unsound(&self, frames: usize, side: &CopySide) -> Option<usize> {
        let accepts = side.fit.accepts?;
        let mut chain = 0;
        self.reads[..frames].iter().position(|read| {
            // Read once: the guest may write its own buffers, and harms nobody but itself.
            let mut header = [0; fit::HEADER_BYTES];
            access::read(side.chains.segments(chain), 0, &mut header);
            chain += read.chains;
            !fit::passes(&header, accepts) || read.result as usize > side.longest()
        })
    }

    /// Gives the first `sound` reads back as they are. Stops before a frame that does not lie
    /// wholly in its own chains, and before one that goes beyond the bound of those to groups.
    /// Stops behind one that left some of its chains unused, since the next frame's chains would
    /// come out of order then.
    #[inline]
    pub(super) fn deliver_in_place(
        &mut self,
        sound: usize,
        side: &mut CopySide,
        cx: &ReceiveContext<'_>,
    ) -> InPlace {
        let mut bytes = 0u64;
        let mut given = InPlace::default();
        for read in &self.reads[..sound] {
            let len = read.result as usize;
            if len > read.room || len < side.setup.header_len {
                break;
            }
            if side.bounds_groups() && is_storm(read.chains, side) {
                given.unsound = true;
                break;
            }
            side.capture_front(len, read.chains);
            let used = side.give_front(len, read.chains, cx.memory);
            self.forecast.note(len, used);
            bytes += len as u64;
            given.frames += 1;
            given.chains += used;
            if used < read.chains {
                break;
            }
        }
        given.unsound |= given.frames == sound;
        cx.counters.frames.add(given.frames as u64);
        cx.counters.zero_copied_frames.add(given.frames as u64);
        cx.counters.zero_copied_bytes.add(bytes);
        given
    }

    /// The slow way, for the reads behind those that were `given`, in the order in which frames
    /// arrived: copies them out, then into chains in order. It serves the copying path, frames
    /// longer than their offer, and frames that arrived behind a read that found none.
    #[cold]
    pub(super) fn deliver_staged(
        &mut self,
        order: &[u16],
        given: InPlace,
        side: &mut CopySide,
        cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let mut staged = Vec::new();
        for &i in &order[given.frames..] {
            let i = usize::from(i);
            let read = self.reads[i];
            if read.result < side.setup.header_len as i32 {
                continue;
            }
            let before: usize = self.reads[..i].iter().map(|r| r.chains).sum();
            let len = read.result as usize;
            let reason = match given.unsound && len <= read.room {
                true => CopyReason::Behind,
                false => CopyReason::Overflow,
            };
            staged.push((self.stage(i, before - given.chains, len, side), reason));
        }
        for (mut frame, reason) in staged {
            side.fit_or_hold(&mut frame, reason, &mut self.forecast, cx)?;
        }
        self.scratch_dirty = true;
        Ok(())
    }

    /// Copies the frame of read `i` out of its chains, which start at `chain`, and its scratch
    /// memory.
    fn stage(&mut self, i: usize, chain: usize, len: usize, side: &CopySide) -> Vec<u8> {
        let read = self.reads[i];
        let mut frame = vec![0u8; len];
        let mut at = 0;
        for c in chain..chain + read.chains {
            let n = side.chains.room(c).min(len - at);
            at += access::read(side.chains.segments(c), 0, &mut frame[at..at + n]);
        }
        let rest = (len - at).min(SCRATCH_BYTES);
        frame[at..at + rest].copy_from_slice(&self.lists.private()[scratch_range(i, rest)]);
        frame
    }

    /// Copies frames from scratch memory to the guest.
    #[inline]
    pub(super) fn deliver_scratch(
        &mut self,
        order: &[u16],
        side: &mut CopySide,
        cx: &ReceiveContext<'_>,
    ) -> Result<(), RingError> {
        let asked = self.mode == PathMode::Copy;
        for &i in order {
            let len = self.reads[usize::from(i)].result;
            if len < side.setup.header_len as i32 {
                continue;
            }
            let len = (len as usize).min(SCRATCH_BYTES);
            let frame = &mut self.lists.private()[scratch_range(usize::from(i), len)];
            let reason = match (asked, self.forecast.is_small(len)) {
                (true, _) => CopyReason::Asked,
                (false, true) => CopyReason::Small,
                (false, false) if side.rebuilds_most() => CopyReason::NoChecksums,
                (false, false) => CopyReason::Overflow,
            };
            self.scratch_dirty |= len > KEPT_BYTES;
            side.fit_or_hold(frame, reason, &mut self.forecast, cx)?;
        }
        Ok(())
    }
}

/// Whether the frame in the first chains goes beyond the bound of those to groups. If not it
/// counts. The guest may write its own buffers, and harms nobody but itself.
#[cold]
fn is_storm(chains: usize, side: &mut CopySide) -> bool {
    let mut first = [0];
    let mut skip = side.setup.header_len;
    for c in 0..chains {
        if side.chains.room(c) > skip {
            access::read(side.chains.segments(c), skip, &mut first);
            break;
        }
        skip -= side.chains.room(c);
    }
    side.is_beyond_bound(first[0])
}
