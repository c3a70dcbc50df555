//! Frames that were read and wait for buffers of the guest.
//!
//! How many frames a turn makes is not this side's to say: a frame that the guest does not take whole becomes as many as its sender
//! chose, up to one a byte of payload. So what waits is bounded, and what comes beyond is dropped.

use std::collections::VecDeque;

use super::{READ_BATCH, SCRATCH_BYTES};

/// Most frames: more than a batch of the longest frames makes at an MTU of 1280.
const MAX_FRAMES: usize = 4096;

/// Most bytes: as many as a batch of the longest frames has.
const MAX_BYTES: usize = READ_BATCH * SCRATCH_BYTES;

/// The frames, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Pending {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Pending {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Keeps a frame; returns false, and has nothing of it, where there is no room.
    pub(super) fn push(&mut self, frame: &[u8]) -> bool {
        let fits = self.frames.len() < MAX_FRAMES && self.bytes + frame.len() <= MAX_BYTES;
        if fits {
            self.bytes += frame.len();
            self.frames.push_back(frame.to_vec());
        }
        fits
    }

    /// The oldest one.
    pub(super) fn pop(&mut self) -> Option<Vec<u8>> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    /// Takes back what [`Self::pop`] gave.
    pub(super) fn put_back(&mut self, frame: Vec<u8>) {
        self.bytes += frame.len();
        self.frames.push_front(frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_is_bounded_in_frames_and_bytes() {
        for (len, most) in [(67, MAX_FRAMES), (SCRATCH_BYTES, READ_BATCH), (SCRATCH_BYTES - 1, READ_BATCH)] {
            let mut pending = Pending::default();
            let frame = vec![1; len];
            let taken = (0..2 * MAX_FRAMES).filter(|_| pending.push(&frame)).count();
            assert_eq!((taken, pending.len()), (most, most), "frames of {len} bytes");
            // Room comes back with each that goes, and one that is put back takes it again.
            let first = pending.pop().expect("a frame");
            pending.put_back(first);
            assert!(!pending.push(&frame));
            assert!(pending.pop().is_some() && pending.push(&frame) && !pending.push(&frame));
            while pending.pop().is_some() {}
            assert_eq!((pending.bytes, pending.is_empty()), (0, true));
        }
        let mut pending = Pending::default();
        assert!(pending.push(&[1; 100]));
        pending.clear();
        assert_eq!((pending.len(), pending.bytes), (0, 0));
    }
}
