//! Where the bytes lie of a frame that goes to the port's socket: a head of it, or all, in private
//! memory, and the rest in the guest's.
//!
//! **Ownership.** The private slots are this side's own: each frame of a batch has one, from when
//! it is taken until the batch has run.

use std::ops::Range;

use zerowire::ledger::CopyReason;

use super::{FRAME_SLOT_BYTES, HEADER_SLOT_BYTES, INSPECT_BYTES, Transmit};
use crate::io::{Full, MAX_BATCH};
use crate::memory::access;

/// Where the private part of a frame is.
pub(super) struct Place {
    /// Where its slot begins in the private memory, bytes.
    at: usize,
    /// Bytes of the frame that are copied there, its virtio-net header included.
    pub len: usize,
    /// Why that is all of it; None for a head.
    pub gather: Option<CopyReason>,
}

impl Place {
    /// What is filled of the slot: all of a gathered frame, at most [`HEADER_SLOT_BYTES`] else.
    #[inline]
    pub(super) fn range(&self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

impl Transmit {
    /// Finds a place for frame `index` of the batch, which has `len` bytes in `self.segments`; with
    /// `rings` it is to go by a ring, for which a head is enough: the rest is copied into that.
    #[inline]
    pub(super) fn place(&mut self, index: usize, len: usize, rings: bool) -> Place {
        let gather = match rings {
            true => None,
            false => self.policy.gather(len, self.segments.len()),
        };
        let at = match gather {
            Some(_) if len > self.small_slot => self.large_slot(),
            _ => index * self.small_slot,
        };
        let head = match gather {
            Some(_) => len,
            None => head_len(self.segments.iter().map(|s| s.len as usize), len),
        };
        Place { at, len: head, gather }
    }

    /// Where a large slot begins; a turn ends before there is none left.
    fn large_slot(&mut self) -> usize {
        self.large_used += 1;
        self.small_slot * MAX_BATCH + (self.large_used - 1) * FRAME_SLOT_BYTES
    }

    /// For a frame that was to go by a ring and goes by the socket: gathers it as any other, if it
    /// is to be. Its head, which was checked, stays as it is: the guest's memory is read behind it
    /// only.
    #[cold]
    pub(super) fn gather_rest(&mut self, place: &mut Place, len: usize) {
        place.gather = self.policy.gather(len, self.segments.len());
        if place.gather.is_none() {
            return;
        }
        let head = place.len;
        if len > self.small_slot {
            let to = self.large_slot();
            self.private.copy_within(place.range(), to);
            place.at = to;
        }
        place.len = len;
        access::read(&self.segments, head, &mut self.private[place.range()][head..]);
    }

    /// Appends the scatter list of a frame in that place: its private part first, then the segments
    /// behind it.
    ///
    /// # Errors
    /// There is no room for it.
    #[inline]
    pub(super) fn append(&mut self, place: &Place, len: usize) -> Result<(), Full> {
        let iov_base = self.private[place.range()].as_mut_ptr().cast();
        self.lists.push(libc::iovec { iov_base, iov_len: place.len })?;
        if place.len == len {
            return Ok(());
        }
        let mut skip = place.len;
        for s in &self.segments {
            if skip >= s.len as usize {
                skip -= s.len as usize;
                continue;
            }
            let iov_base = s.ptr.wrapping_add(skip).cast();
            self.lists.push(libc::iovec { iov_base, iov_len: s.len as usize - skip })?;
            skip = 0;
        }
        Ok(())
    }
}

/// How many bytes of a scattered frame of `len` bytes, in segments of these lengths, go through the
/// private slot. These are whole segments as long as they fit, so that a driver's separate header
/// segment costs no extra entry, and at least what is inspected.
#[inline]
pub fn head_len(segments: impl Iterator<Item = usize>, len: usize) -> usize {
    let mut whole = 0;
    for n in segments {
        if whole + n > HEADER_SLOT_BYTES {
            break;
        }
        whole += n;
        if whole >= INSPECT_BYTES {
            break;
        }
    }
    // A short tail of headers is worth an entry less; less than the inspected bytes is not enough.
    whole.max(INSPECT_BYTES).min(len)
}
