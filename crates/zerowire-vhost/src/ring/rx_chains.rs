//! Receive chains that were taken from the ring: parsed as far as needed, kept in order, reused as
//! they are.

use std::collections::VecDeque;

use super::{ChainCursor, Descriptor, RingError, RingRule, SplitRing};
use crate::memory::access::{self, Access};
use crate::memory::{GuestMemory, HostPtr, Segment};

/// Chains taken ahead at most.
const MAX_AHEAD: usize = 1024;

/// Segments of a chain that are used at most, give or take those of one descriptor, which may span
/// all regions. One vectored system call takes 1024 with the scratch memory behind. A frame that
/// needs more is dropped and counted.
const MAX_SEGMENTS: usize = 900;

/// Of a chain of at most one segment: it has no list.
const NO_LIST: u16 = u16::MAX;

/// A chain that was taken. Nearly all are one plain descriptor, which lies in one region: what is
/// needed of such a one is here, half a cache line.
#[derive(Clone, Copy, Debug)]
struct Chain {
    /// Its only segment, if it has no list.
    only: Segment,
    /// Bytes of the segments parsed so far.
    room: usize,
    head: u16,
    /// Where its segments are in [`RxChains::lists`], or [`NO_LIST`].
    list: u16,
}

const _: () = assert!(size_of::<Chain>() == 32);

/// The segments of a longer chain, and how far it was parsed.
#[derive(Debug)]
struct List {
    cursor: ChainCursor,
    segments: Vec<Segment>,
}

/// Chains in the order in which they became available.
#[derive(Debug)]
pub struct RxChains {
    ready: VecDeque<Chain>,
    lists: Vec<List>,
    /// Lists that no chain has, kept for reuse.
    spare: Vec<u16>,
    hint: usize,
}

impl Default for RxChains {
    fn default() -> Self {
        Self { ready: VecDeque::with_capacity(64), lists: Vec::new(), spare: Vec::new(), hint: 0 }
    }
}

impl RxChains {
    /// How many are parsed and not given back.
    #[inline]
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// Whether none is.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Whether no more chains can come than are here: the guest has posted its whole ring.
    #[inline]
    pub fn are_all(&self, ring: &SplitRing) -> bool {
        self.ready.len() >= usize::from(ring.size()).min(MAX_AHEAD)
    }

    /// Lets go of segment lists that a guest's long chains have made long.
    pub fn trim(&mut self) {
        for &list in &self.spare {
            let segments = &mut self.lists[usize::from(list)].segments;
            if segments.capacity() > 64 {
                *segments = Vec::new();
            }
        }
    }

    /// Heads of the chains, in order.
    #[inline]
    pub fn heads(&self) -> impl DoubleEndedIterator<Item = u16> {
        self.ready.iter().map(|c| c.head)
    }

    /// Forgets all of them; they are not given back.
    #[inline]
    pub fn clear(&mut self) {
        while self.pop().is_some() {}
        self.hint = 0;
    }

    /// Parsed segments of chain `i`.
    #[inline]
    pub fn segments(&self, i: usize) -> &[Segment] {
        self.ready.get(i).map_or(&[], |c| self.segments_of(c))
    }

    /// Parsed bytes of chain `i`.
    #[inline]
    pub fn room(&self, i: usize) -> usize {
        self.ready.get(i).map_or(0, |c| c.room)
    }

    /// Asks the CPU for the first `bytes` bytes of each of the first `n` chains, to write them.
    /// Called as [`SplitRing::prefetch`].
    #[inline]
    pub fn prefetch(&self, n: usize, bytes: usize) {
        for c in self.ready.iter().take(n).filter(|c| c.list == NO_LIST) {
            access::prefetch_bytes(c.only.ptr, bytes.min(c.only.len as usize), Access::Write);
        }
    }

    /// The same of the first buffer of the chain `ahead` entries behind the next one of the ring,
    /// as [`SplitRing::prefetch_buffer`].
    #[inline]
    pub fn prefetch_ahead(&mut self, ahead: u16, bytes: usize, ring: &SplitRing, memory: &GuestMemory) {
        ring.prefetch_buffer(ahead, memory, &mut self.hint, Access::Write, bytes);
    }

    #[inline]
    fn segments_of<'a>(&'a self, c: &'a Chain) -> &'a [Segment] {
        match self.lists.get(usize::from(c.list)) {
            None => std::slice::from_ref(&c.only),
            Some(list) => &list.segments,
        }
    }

    /// Gives up the first chain: its head, and its parsed bytes.
    #[inline]
    pub fn pop(&mut self) -> Option<(u16, usize)> {
        let c = self.ready.pop_front()?;
        self.free_list(&c);
        Some((c.head, c.room))
    }

    /// Gives up chain `i`: its head.
    #[inline]
    pub fn remove(&mut self, i: usize) -> Option<u16> {
        let c = if i == 0 { self.ready.pop_front()? } else { self.ready.remove(i)? };
        self.free_list(&c);
        Some(c.head)
    }

    #[inline]
    fn free_list(&mut self, c: &Chain) {
        if let Some(list) = self.lists.get_mut(usize::from(c.list)) {
            list.segments.clear();
            self.spare.push(c.list);
        }
    }

    /// Makes sure that chain `i` is there and parsed for `need` bytes, or to its end. Returns false
    /// where the guest has posted no more.
    #[inline(always)]
    pub fn ensure(
        &mut self,
        i: usize,
        need: usize,
        ring: &mut SplitRing,
        memory: &GuestMemory,
        header_len: usize,
    ) -> Result<bool, RingError> {
        match self.ready.get(i) {
            Some(c) if c.room >= need || c.list == NO_LIST => Ok(true),
            _ => self.ensure_more(i, need, ring, memory, header_len),
        }
    }

    /// As [`Self::ensure`] for a chain that is not there, or not far enough.
    fn ensure_more(
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
            self.begin(head, ring, memory, header_len)?;
        }
        let c = &self.ready[i];
        if c.room < need && c.list != NO_LIST {
            self.parse(i, need, ring, memory, header_len)?;
        }
        Ok(true)
    }

    /// Takes at most `most` chains of one segment each in the region used last. It takes them as
    /// long as less than `need` bytes are there and the guest has posted such chains. `each` gets
    /// the place of each. Returns how many it took, and how many bytes they hold. A chain of
    /// another kind behind them is taken as well, and does not count.
    #[inline]
    pub fn take_plain(
        &mut self,
        (need, most): (usize, usize),
        ring: &mut SplitRing,
        memory: &GuestMemory,
        header_len: usize,
        mut each: impl FnMut(HostPtr, usize),
    ) -> Result<(usize, usize), RingError> {
        let most = most.min(MAX_AHEAD - self.ready.len());
        let (mut n, mut room) = (0, 0);
        let mut posted = 0;
        while room < need && n < most {
            if posted == 0 {
                posted = ring.unmarked()?;
                if posted == 0 {
                    break;
                }
            }
            posted -= 1;
            let head = ring.take_next()?;
            let Some((ptr, len)) = self.plain(head, ring, memory, header_len) else {
                self.begin_walked(head, ring, memory, header_len)?;
                break;
            };
            self.push_single(ptr, len, head);
            each(ptr, len as usize);
            n += 1;
            room += len as usize;
        }
        Ok((n, room))
    }

    /// Takes a chain in again that was [given up](Self::remove), as the last one, parsed as by
    /// [`Self::ensure`]. Returns false, and has nothing of it, where it has a mistake now, or there
    /// are too many.
    #[cold]
    pub fn put_back(
        &mut self,
        head: u16,
        need: usize,
        ring: &SplitRing,
        memory: &GuestMemory,
        header_len: usize,
    ) -> bool {
        if self.ready.len() == MAX_AHEAD {
            return false;
        }
        let last = self.ready.len();
        let sound = self.begin(head, ring, memory, header_len).and_then(|()| {
            let short = self.ready[last].room < need && self.ready[last].list != NO_LIST;
            if short { self.parse(last, need, ring, memory, header_len) } else { Ok(()) }
        });
        if sound.is_err() {
            self.remove(last);
        }
        sound.is_ok()
    }

    /// Adds the chain that begins at `head`, with its first segment if that is all of it.
    #[inline(always)]
    fn begin(
        &mut self,
        head: u16,
        ring: &SplitRing,
        memory: &GuestMemory,
        header_len: usize,
    ) -> Result<(), RingError> {
        if let Some((ptr, len)) = self.plain(head, ring, memory, header_len) {
            self.push_single(ptr, len, head);
            return Ok(());
        }
        self.begin_walked(head, ring, memory, header_len)
    }

    /// Where the chain that begins at `head` lies, and how long it is, if it is one segment in the
    /// region used last.
    #[inline(always)]
    fn plain(
        &self,
        head: u16,
        ring: &SplitRing,
        memory: &GuestMemory,
        header_len: usize,
    ) -> Option<(HostPtr, u32)> {
        let d = ChainCursor::single(ring, head)?;
        let ptr = memory.within(d.addr, d.len, self.hint)?;
        (d.is_writable() && d.len as usize >= header_len).then_some((ptr, d.len))
    }

    /// Adds a chain that is one segment, which lies in the region used last.
    #[inline(always)]
    fn push_single(&mut self, ptr: HostPtr, len: u32, head: u16) {
        let only = Segment { ptr, len, region: self.hint as u16 };
        self.ready.push_back(Chain { only, room: len as usize, head, list: NO_LIST });
    }

    /// As [`Self::begin`], by a walk along the chain, whose first segment may lie in any region.
    #[inline(never)]
    fn begin_walked(
        &mut self,
        head: u16,
        ring: &SplitRing,
        memory: &GuestMemory,
        header_len: usize,
    ) -> Result<(), RingError> {
        let mut cursor = ChainCursor::new(ring, head);
        let first = cursor.next(ring, memory, &mut self.hint);
        if let Ok(Some(d)) = &first
            && cursor.is_done()
            && d.is_writable()
            && d.len as usize >= header_len
            && let Some(ptr) = memory.contiguous(d.addr, d.len, &mut self.hint)
        {
            self.push_single(ptr, d.len, head);
            return Ok(());
        }
        self.begin_list(head, cursor, first, ring, memory, header_len)
    }

    /// As [`Self::begin`] for every other chain, whose `first` descriptor was read.
    #[cold]
    fn begin_list(
        &mut self,
        head: u16,
        cursor: ChainCursor,
        first: Result<Option<Descriptor>, RingError>,
        ring: &SplitRing,
        memory: &GuestMemory,
        header_len: usize,
    ) -> Result<(), RingError> {
        let list = match self.spare.pop() {
            Some(list) => {
                self.lists[usize::from(list)].cursor = cursor;
                list
            }
            None => {
                self.lists.push(List { cursor, segments: Vec::new() });
                // At most MAX_AHEAD chains are here at a time.
                (self.lists.len() - 1) as u16
            }
        };
        // A chain with a mistake counts as taken, too: who gives them back counts them here.
        let only = Segment { ptr: HostPtr::NULL, len: 0, region: 0 };
        self.ready.push_back(Chain { only, room: 0, head, list });
        if let Some(d) = first? {
            self.add(self.ready.len() - 1, d, ring, memory)?;
        }
        self.check(self.ready.len() - 1, ring, header_len)
    }

    /// Parses chain `i` on until it holds `need` bytes or ends.
    fn parse(
        &mut self,
        i: usize,
        need: usize,
        ring: &SplitRing,
        memory: &GuestMemory,
        header_len: usize,
    ) -> Result<(), RingError> {
        let list = usize::from(self.ready[i].list);
        while self.ready[i].room < need && self.lists[list].segments.len() < MAX_SEGMENTS {
            let Some(d) = self.lists[list].cursor.next(ring, memory, &mut self.hint)? else { break };
            self.add(i, d, ring, memory)?;
        }
        self.check(i, ring, header_len)
    }

    /// Appends a descriptor to the list of chain `i`.
    fn add(
        &mut self,
        i: usize,
        d: Descriptor,
        ring: &SplitRing,
        memory: &GuestMemory,
    ) -> Result<(), RingError> {
        let c = &mut self.ready[i];
        let segments = &mut self.lists[usize::from(c.list)].segments;
        if !d.is_writable() {
            return Err(ring.error(RingRule::ReadableInReceive));
        }
        if segments.capacity() - segments.len() < 2 {
            segments.reserve(8);
        }
        if !memory.translate(d.addr, d.len, &mut self.hint, segments) {
            return Err(ring.error(RingRule::NotMemory { addr: d.addr, len: d.len }));
        }
        c.room += d.len as usize;
        Ok(())
    }

    /// A chain that ends short of the header can't take any frame.
    fn check(&self, i: usize, ring: &SplitRing, header_len: usize) -> Result<(), RingError> {
        let c = &self.ready[i];
        if c.room < header_len && self.lists[usize::from(c.list)].cursor.is_done() {
            return Err(ring.error(RingRule::BufferTooSmall(c.room as u32)));
        }
        Ok(())
    }
}
