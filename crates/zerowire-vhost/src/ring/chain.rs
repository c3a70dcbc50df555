//! Walks a descriptor chain, a descriptor at a time.

use super::{RingError, RingRule, SplitRing};
use crate::memory::access::read_pair;
use crate::memory::{GuestMemory, Segment};

/// Bytes of a descriptor in guest memory.
pub(super) const DESCRIPTOR_BYTES: usize = 16;

/// One entry of a descriptor table (virtio 1.3 §2.7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Guest-physical address, or that of an indirect table.
    pub addr: u64,
    /// Length, bytes.
    pub len: u32,
    /// NEXT, WRITE, INDIRECT.
    pub flags: u16,
    /// The next descriptor if NEXT is set.
    pub next: u16,
}

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// At most this many descriptors in an indirect table: the most that QEMU's `VIRTQUEUE_MAX_SIZE`
/// and one vectored system call (`UIO_MAXIOV`) take.
pub const MAX_INDIRECT: u32 = 1024;

impl Descriptor {
    /// Of the two words that it has in guest memory.
    #[inline(always)]
    pub(super) fn of([addr, rest]: [u64; 2]) -> Self {
        Self { addr, len: rest as u32, flags: (rest >> 32) as u16, next: (rest >> 48) as u16 }
    }

    /// Whether the device may write it, and only write.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.flags & WRITE != 0
    }
}

/// A position in a chain. It holds no borrow, so a caller can parse a chain as far as it needs now
/// and further later. A frame of 60 bytes costs the same in a chain of one descriptor as in one of
/// forty.
#[derive(Clone, Copy, Debug)]
pub struct ChainCursor {
    /// The indirect table that the cursor is in.
    indirect: Option<Segment>,
    next: u16,
    /// Descriptors that may still come.
    left: u32,
    done: bool,
}

impl ChainCursor {
    /// The chain that begins at `head`, an index that [`SplitRing::take`] gave.
    #[inline]
    pub fn new(ring: &SplitRing, head: u16) -> Self {
        Self { indirect: None, next: head, left: u32::from(ring.size()), done: false }
    }

    /// The whole chain that begins at `head`, if it is one plain descriptor, without a walk: what
    /// nearly all receive chains are, and short frames. Every other one, and one with a mistake, is
    /// for a cursor, which reads it anew.
    #[inline(always)]
    pub fn single(ring: &SplitRing, head: u16) -> Option<Descriptor> {
        ring.descriptor(head).filter(|d| d.flags & (NEXT | INDIRECT) == 0 && d.len > 0)
    }

    /// Whether the chain has been walked to its end.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Whether it has entered an indirect table, with which a chain ends: all of it takes one
    /// descriptor of the ring.
    #[inline]
    pub fn is_indirect(&self) -> bool {
        self.indirect.is_some()
    }

    /// The next descriptor that holds data; indirect tables are entered on the way.
    #[inline]
    pub fn next(
        &mut self,
        ring: &SplitRing,
        memory: &GuestMemory,
        hint: &mut usize,
    ) -> Result<Option<Descriptor>, RingError> {
        if self.done {
            return Ok(None);
        }
        let d = self.fetch(ring)?;
        if d.flags & INDIRECT == 0 {
            return self.data(ring, d).map(Some);
        }
        self.enter(ring, d, memory, hint)?;
        let d = self.fetch(ring)?;
        if d.flags & INDIRECT != 0 {
            return Err(ring.error(RingRule::NestedIndirect));
        }
        self.data(ring, d).map(Some)
    }

    /// Reads the descriptor at the cursor once.
    #[inline]
    fn fetch(&mut self, ring: &SplitRing) -> Result<Descriptor, RingError> {
        let found = match &self.indirect {
            None => ring.descriptor(self.next),
            Some(table) => read_pair(table, DESCRIPTOR_BYTES * usize::from(self.next)).map(Descriptor::of),
        };
        let entries = |table: Segment| table.len / DESCRIPTOR_BYTES as u32;
        let Some(d) = found else {
            let len = self.indirect.map_or(u32::from(ring.size()), entries);
            return Err(ring.error(RingRule::IndexOutOfTable { index: self.next, len }));
        };
        if self.left == 0 {
            let most = if self.is_indirect() { MAX_INDIRECT } else { u32::from(ring.size()) };
            return Err(ring.error(RingRule::ChainTooLong(most)));
        }
        self.left -= 1;
        Ok(d)
    }

    /// Accepts a data descriptor and moves on.
    #[inline]
    fn data(&mut self, ring: &SplitRing, d: Descriptor) -> Result<Descriptor, RingError> {
        if d.flags & NEXT != 0 {
            self.next = d.next;
        } else {
            self.done = true;
        }
        if d.len == 0 {
            return Err(ring.error(RingRule::ZeroLength));
        }
        Ok(d)
    }

    /// Enters the indirect table that `d` describes (virtio 1.3 §2.7.5.3).
    fn enter(
        &mut self,
        ring: &SplitRing,
        d: Descriptor,
        memory: &GuestMemory,
        hint: &mut usize,
    ) -> Result<(), RingError> {
        if self.is_indirect() {
            return Err(ring.error(RingRule::NestedIndirect));
        }
        if d.flags & NEXT != 0 {
            return Err(ring.error(RingRule::IndirectAndNext));
        }
        let entries = d.len / DESCRIPTOR_BYTES as u32;
        if !d.len.is_multiple_of(DESCRIPTOR_BYTES as u32) || entries == 0 || entries > MAX_INDIRECT {
            return Err(ring.error(RingRule::IndirectLength(d.len)));
        }
        let ptr = memory
            .contiguous(d.addr, d.len, hint)
            .ok_or_else(|| ring.error(RingRule::NotMemory { addr: d.addr, len: d.len }))?;
        let table = Segment { ptr, len: d.len, region: *hint as u16 };
        *self = Self { indirect: Some(table), next: 0, left: entries, done: false };
        Ok(())
    }
}
