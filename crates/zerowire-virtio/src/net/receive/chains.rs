//! Receive chains that were taken from the ring: parsed as far as needed, kept in order, reused as they are.

use std::collections::VecDeque;

use crate::memory::{GuestMemory, Segment};
use crate::ring::{ChainCursor, RingError, RingRule, SplitRing};

/// Chains taken ahead at most.
const MAX_AHEAD: usize = 1024;

/// Segments of a chain that are used at most, give or take those of one descriptor, which may span all regions; one
/// vectored system call takes 1024 with the scratch memory behind.
/// A frame that needs more is dropped and counted.
const MAX_SEGMENTS: usize = 900;

#[derive(Debug)]
struct Chain {
    head: u16,
    cursor: ChainCursor,
    segments: Vec<Segment>,
    /// Bytes of the segments parsed so far.
    room: usize,
}

/// Chains in the order in which they became available.
#[derive(Debug)]
pub(crate) struct Chains {
    ready: VecDeque<Chain>,
    /// Emptied chains, whose segment lists are used again.
    spare: Vec<Vec<Segment>>,
    hint: usize,
}

impl Chains {
    pub(crate) fn new() -> Self {
        Self { ready: VecDeque::with_capacity(64), spare: Vec::with_capacity(64), hint: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.ready.len()
    }

    /// Whether no more chains can come than are here: the guest has posted its whole ring.
    pub(crate) fn are_all(&self, ring: &SplitRing) -> bool {
        self.ready.len() >= usize::from(ring.size()).min(MAX_AHEAD)
    }

    /// Lets go of segment lists that a guest's long chains have made long.
    pub(crate) fn trim(&mut self) {
        self.spare.retain(|list| list.capacity() <= 64);
    }

    pub(crate) fn clear(&mut self) {
        while self.pop().is_some() {}
        self.hint = 0;
    }

    /// Parsed segments of chain `i`.
    #[inline]
    pub(crate) fn segments(&self, i: usize) -> &[Segment] {
        self.ready.get(i).map_or(&[], |c| &c.segments)
    }

    /// Parsed bytes of chain `i`.
    #[inline]
    pub(crate) fn room(&self, i: usize) -> usize {
        self.ready.get(i).map_or(0, |c| c.room)
    }

    /// Gives up the first chain: its head.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u16> {
        let mut c = self.ready.pop_front()?;
        c.segments.clear();
        self.spare.push(c.segments);
        Some(c.head)
    }

    /// Makes sure that chain `i` is there and parsed for `need` bytes, or to its end. Returns false where the guest
    /// has posted no more.
    #[inline]
    pub(crate) fn ensure(
        &mut self,
        i: usize,
        need: usize,
        ring: &mut SplitRing,
        memory: &GuestMemory,
        header_len: usize,
    ) -> Result<bool, RingError> {
        while self.ready.len() <= i {
            if self.ready.len() == MAX_AHEAD {
                return Ok(false);
            }
            let Some(head) = ring.take()? else { return Ok(false) };
            let segments = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(4));
            self.ready.push_back(Chain { head, cursor: ChainCursor::new(ring, head), segments, room: 0 });
        }
        if self.ready[i].room < need && !self.ready[i].cursor.is_done() {
            self.parse(i, need, ring, memory, header_len)?;
        }
        Ok(true)
    }

    /// Parses chain `i` on until it holds `need` bytes or ends.
    #[inline]
    fn parse(
        &mut self,
        i: usize,
        need: usize,
        ring: &SplitRing,
        memory: &GuestMemory,
        header_len: usize,
    ) -> Result<(), RingError> {
        let c = &mut self.ready[i];
        while c.room < need && c.segments.len() < MAX_SEGMENTS {
            let Some(d) = c.cursor.next(ring, memory, &mut self.hint)? else { break };
            if !d.is_writable() {
                return Err(ring.error(RingRule::ReadableInReceive));
            }
            if c.segments.capacity() - c.segments.len() < 2 {
                c.segments.reserve(8);
            }
            if !memory.translate(d.addr, d.len, &mut self.hint, &mut c.segments) {
                return Err(ring.error(RingRule::NotMemory { addr: d.addr, len: d.len }));
            }
            c.room += d.len as usize;
        }
        // A chain that ends short of the header can't take any frame.
        if c.room < header_len && c.cursor.is_done() {
            return Err(ring.error(RingRule::BufferTooSmall(c.room as u32)));
        }
        Ok(())
    }
}
