//! Walks a descriptor chain, a descriptor at a time.

use super::{RingError, RingRule, SplitRing};
use crate::memory::GuestMemory;

/// One entry of a descriptor table (virtio 1.3 §2.7.5), as it lies in guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
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

/// A descriptor as two words.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Raw(u64, u64);

/// Reads descriptor `index` once.
///
/// # Safety
/// The table lies in guest memory, and has such an entry.
#[inline(always)]
unsafe fn read(table: *const Descriptor, index: u16) -> Descriptor {
    // SAFETY: the caller's promise. The guest may write at the same time: a torn value is as good
    // as any other hostile value. The read is volatile, so that it happens once; the type is
    // packed, since indirect tables may lie at any address.
    let Raw(addr, rest) = unsafe { table.cast::<Raw>().add(usize::from(index)).read_volatile() };
    Descriptor {
        addr: u64::from_le(addr),
        len: u64::from_le(rest) as u32,
        flags: (u64::from_le(rest) >> 32) as u16,
        next: (u64::from_le(rest) >> 48) as u16,
    }
}

/// At most this many descriptors in an indirect table: the most that QEMU's `VIRTQUEUE_MAX_SIZE`
/// and one vectored system call (`UIO_MAXIOV`) take.
pub const MAX_INDIRECT: u32 = 1024;

impl Descriptor {
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
    table: *const Descriptor,
    table_len: u32,
    next: u16,
    /// Descriptors that may still come.
    left: u32,
    indirect: bool,
    done: bool,
}

// SAFETY: see SplitRing.
unsafe impl Send for ChainCursor {}

impl ChainCursor {
    /// The chain that begins at `head`, an index that [`SplitRing::take`] gave.
    #[inline]
    pub fn new(ring: &SplitRing, head: u16) -> Self {
        let (table, table_len) = ring.table();
        Self { table, table_len, next: head, left: table_len, indirect: false, done: false }
    }

    /// The whole chain that begins at `head`, if it is one plain descriptor, without a walk: what
    /// nearly all receive chains are, and short frames. Every other one, and one with a mistake, is
    /// for a cursor, which reads it anew.
    #[inline(always)]
    pub fn single(ring: &SplitRing, head: u16) -> Option<Descriptor> {
        let (table, table_len) = ring.table();
        if u32::from(head) >= table_len {
            return None;
        }
        // SAFETY: the index was checked against the table, the table against guest memory.
        let d = unsafe { read(table, head) };
        (d.flags & (NEXT | INDIRECT) == 0 && d.len > 0).then_some(d)
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
        self.indirect
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
        if u32::from(self.next) >= self.table_len {
            let rule = RingRule::IndexOutOfTable { index: self.next, len: self.table_len };
            return Err(ring.error(rule));
        }
        if self.left == 0 {
            let most = if self.indirect { MAX_INDIRECT } else { u32::from(ring.size()) };
            return Err(ring.error(RingRule::ChainTooLong(most)));
        }
        self.left -= 1;
        // SAFETY: the index was checked against the table, the table against guest memory.
        Ok(unsafe { read(self.table, self.next) })
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
        if self.indirect {
            return Err(ring.error(RingRule::NestedIndirect));
        }
        if d.flags & NEXT != 0 {
            return Err(ring.error(RingRule::IndirectAndNext));
        }
        let entries = d.len / 16;
        if !d.len.is_multiple_of(16) || entries == 0 || entries > MAX_INDIRECT {
            return Err(ring.error(RingRule::IndirectLength(d.len)));
        }
        let table = memory
            .contiguous(d.addr, d.len, hint)
            .ok_or_else(|| ring.error(RingRule::NotMemory { addr: d.addr, len: d.len }))?;
        *self = Self {
            table: table.cast(),
            table_len: entries,
            next: 0,
            left: entries,
            indirect: true,
            done: false,
        };
        Ok(())
    }
}
