//! Bytes that wait because the side that they are for is not ready to take them.

mod pieces;

use std::cell::RefCell;
use std::collections::VecDeque;

use zerowire_vhost::memory::{Segment, access};

pub use pieces::PIECE;
use pieces::Pieces;

/// Bytes of marks beyond those in use, give or take a quarter.
const SPARE_MARKS: usize = 256;

/// What a thread keeps for the connections that are to wait next.
const SPARE: usize = 16;

/// As connections have it, so that none is allocated anew.
type Boxed = Box<Held>;

thread_local!(static KEPT: RefCell<Vec<Boxed>> = const { RefCell::new(Vec::new()) });

/// What waits on one way of a connection. Its owner bounds the bytes; the marks of messages take at
/// most as many bytes again, however short the messages are. Beside both it takes less than 4 KiB,
/// a hundredth of the bytes and a quarter of the marks.
#[derive(Debug, Default)]
pub struct Held {
    bytes: Pieces,
    /// For each whole message: its length and flags, as one number of variable length.
    marks: VecDeque<u8>,
    /// Bytes at the end that belong to a message which is not complete yet.
    partial: u32,
    /// What is left of the first message, and its flags, once a part of it was taken.
    front: Option<(u32, u32)>,
}

impl Held {
    /// What waits at this place of a connection, from now on if nothing did.
    pub fn at(place: &mut Option<Box<Self>>) -> &mut Self {
        let kept = || KEPT.try_with(|kept| kept.borrow_mut().pop()).ok().flatten();
        place.get_or_insert_with(|| kept().unwrap_or_default())
    }

    /// Leaves the place empty where nothing waits any more.
    pub fn settle(place: &mut Option<Box<Self>>) {
        if place.as_ref().is_some_and(|held| held.is_empty())
            && let Some(held) = place.take()
            && held.bytes.is_small()
            && held.marks.capacity() <= 2 * SPARE_MARKS
        {
            let _ = KEPT.try_with(|kept| pieces::keep(&mut kept.borrow_mut(), SPARE, held));
        }
    }

    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing waits, not even an empty message.
    pub fn is_empty(&self) -> bool {
        self.bytes.len() == 0 && self.marks.is_empty() && self.front.is_none()
    }

    /// Appends `len` bytes of guest memory, `skip` bytes into the segments.
    pub fn push(&mut self, mut segments: &[Segment], mut skip: usize, len: usize) {
        self.bytes.append(len, |run| {
            access::pass(&mut segments, &mut skip);
            let n = access::read(segments, skip, run);
            // What the piece had before is another connection's.
            run[n..].fill(0);
            skip += run.len();
        });
    }

    /// Appends `len` bytes that mean nothing until they are written. Returns them, run by run.
    pub fn make_room(&mut self, len: usize) -> impl Iterator<Item = &mut [u8]> {
        let before = self.bytes.len();
        self.bytes.append(len, |_| ());
        self.bytes.runs_mut(before)
    }

    /// Appends private bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        let mut left = bytes;
        self.bytes.append(bytes.len(), |run| {
            let (now, later) = left.split_at(run.len());
            run.copy_from_slice(now);
            left = later;
        });
    }

    /// The `len` bytes appended last belong to a message, which ends with them if `end` gives its
    /// flags.
    pub fn mark(&mut self, len: u32, end: Option<u32>) {
        self.partial += len;
        if let Some(flags) = end {
            let mut n = u64::from(self.partial) << 2 | u64::from(flags & 3);
            self.partial = 0;
            while n >= 0x80 {
                self.put_mark(n as u8 | 0x80);
                n >>= 7;
            }
            self.put_mark(n as u8);
        }
    }

    fn put_mark(&mut self, byte: u8) {
        pieces::grow(&mut self.marks, SPARE_MARKS / 2);
        self.marks.push_back(byte);
    }

    /// Bytes of the marks of whole messages: at least one for each, however short it is.
    pub fn messages(&self) -> usize {
        self.marks.len()
    }

    /// Whether a message is not complete.
    pub fn has_partial(&self) -> bool {
        self.partial > 0
    }

    /// What is left of the first message, and its flags; None while it is not complete.
    pub fn message(&mut self) -> Option<(u32, u32)> {
        if self.front.is_none() {
            let (mut n, mut shift) = (0u64, 0);
            while let Some(b) = self.marks.pop_front() {
                n |= u64::from(b & 0x7f) << shift;
                shift += 7;
                if b & 0x80 == 0 {
                    self.front = Some(((n >> 2) as u32, (n & 3) as u32));
                    break;
                }
            }
            pieces::shrink(&mut self.marks, SPARE_MARKS);
        }
        self.front
    }

    /// The sender ends: what it sent of a message that is not complete goes. Returns how many bytes
    /// that were.
    pub fn drop_partial(&mut self) -> u32 {
        let n = std::mem::take(&mut self.partial);
        self.bytes.drop_last(n as usize);
        n
    }

    /// What is there of a message that is not complete yet; 0 where complete ones come before it.
    pub fn part(&self) -> u32 {
        if self.marks.is_empty() && self.front.is_none() { self.partial } else { 0 }
    }

    /// At most `max` bytes, `skip` bytes in, run by run.
    pub fn runs(&self, skip: usize, max: usize) -> impl Iterator<Item = &[u8]> {
        self.bytes.runs(skip, max)
    }

    /// For tests: the first bytes, at most `max` and what two pieces have.
    #[cfg(any(test, feature = "testing"))]
    pub fn first(&self, max: usize) -> (&[u8], &[u8]) {
        let mut runs = self.runs(0, max);
        (runs.next().unwrap_or_default(), runs.next().unwrap_or_default())
    }

    /// The first `n` bytes were taken; of messages, no more than is left of the first one.
    pub fn consume(&mut self, n: usize) {
        self.bytes.consume(n);
        if let Some((left, flags)) = self.front {
            let left = left - n as u32;
            self.front = (left > 0).then_some((left, flags));
        } else {
            self.partial = self.partial.saturating_sub(n as u32);
        }
    }
}

#[cfg(test)]
mod tests;
