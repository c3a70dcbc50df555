//! Frames that were read and wait for buffers of the guest.
//!
//! How many frames a turn makes is not this side's to say. A frame that the guest does not take
//! whole becomes as many as its sender chose, up to one a byte of payload. So the frames that wait
//! are bounded, and those beyond the bound are dropped.

use std::collections::VecDeque;

use zerowire::ledger::CopyReason;

use super::batch::{READ_BATCH, SCRATCH_BYTES};

/// Most frames: more than a batch of the longest frames makes at an MTU of 1280.
const MAX_FRAMES: usize = 4096;

/// Most bytes: as many as a batch of the longest frames has.
const MAX_BYTES: usize = READ_BATCH * SCRATCH_BYTES;

/// Entries of a list that is kept while the guest rests.
const KEPT_FRAMES: usize = 256;

/// A frame that waits, wherever it lies.
pub trait Waits {
    /// Frames for which there is an entry before the first comes.
    const AHEAD: usize = 0;

    /// Its bytes.
    fn len(&self) -> usize;
}

/// A frame in memory of its own, its virtio-net header included.
#[derive(Debug)]
pub struct HeldFrame {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Why it did not go straight into the guest's buffers.
    pub reason: CopyReason,
}

impl Waits for HeldFrame {
    #[inline]
    fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// The frames, the oldest first.
#[derive(Debug)]
pub(super) struct Pending<W> {
    frames: VecDeque<W>,
    bytes: usize,
}

impl<W: Waits> Default for Pending<W> {
    fn default() -> Self {
        Self { frames: VecDeque::with_capacity(W::AHEAD), bytes: 0 }
    }
}

impl<W: Waits> Pending<W> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Lets go of the list that a burst has made long.
    pub(super) fn trim(&mut self) {
        if self.frames.is_empty() && self.frames.capacity() > KEPT_FRAMES {
            self.frames = VecDeque::new();
        }
    }

    /// Removes those for which `which` is true. Returns how many.
    pub(super) fn remove(&mut self, mut which: impl FnMut(&W) -> bool) -> usize {
        let before = self.frames.len();
        self.frames.retain(|frame| {
            let goes = which(frame);
            if goes {
                self.bytes -= frame.len();
            }
            !goes
        });
        before - self.frames.len()
    }

    /// Keeps the frame of `len` bytes that `make` makes. Returns false, and has nothing of it, if
    /// it does not fit.
    #[inline]
    pub(super) fn push(&mut self, len: usize, make: impl FnOnce() -> W) -> bool {
        let fits = self.frames.len() < MAX_FRAMES && self.bytes + len <= MAX_BYTES;
        if fits {
            self.bytes += len;
            self.frames.push_back(make());
        }
        fits
    }

    /// The oldest one.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<W> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    /// Takes back what [`Self::pop`] gave.
    #[inline]
    pub(super) fn put_back(&mut self, frame: W) {
        self.bytes += frame.len();
        self.frames.push_front(frame);
    }
}

#[cfg(test)]
mod tests;
