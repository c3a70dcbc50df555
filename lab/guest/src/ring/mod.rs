//! The driver's side of a split virtqueue (virtio 1.3 §2.7).
//!
//! The driver keeps its own copy of everything that it must trust: the free list, the length of
//! each chain, both indices. From shared memory it reads only the used ring and the two
//! notification fields, and checks them against its own copy. So it notices at once when a device
//! breaks the ring.

mod chains;
mod layout;

use std::sync::atomic::{Ordering, fence};

use crate::{GuestAddr, GuestError, GuestMemory, GuestSlice, QueueSetup};
pub(crate) use chains::{PostedBuffers, PreparedChains};
pub use layout::{
    AVAIL_NO_INTERRUPT, DESC_INDIRECT, DESC_LEN, DESC_NEXT, DESC_WRITE, MAX_SIZE, RingMemory, USED_NO_NOTIFY,
    write_desc_at,
};

/// One piece of a buffer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BufferPiece {
    /// First byte.
    pub addr: GuestAddr,
    /// Bytes.
    pub len: u32,
    /// Whether the device writes it (else it reads it).
    pub writable: bool,
}

impl BufferPiece {
    /// `len` bytes from `offset` of a slice on, for the device to read.
    #[inline]
    pub fn readable(slice: &GuestSlice, offset: usize, len: usize) -> BufferPiece {
        let addr = GuestAddr(slice.guest_addr().0 + offset as u64);
        BufferPiece { addr, len: len as u32, writable: false }
    }

    /// The same for the device to write.
    pub fn writable(slice: &GuestSlice, offset: usize, len: usize) -> BufferPiece {
        BufferPiece { writable: true, ..BufferPiece::readable(slice, offset, len) }
    }

    /// The flags of its descriptor, which may be the last one of its chain.
    #[inline]
    fn flags(&self, is_last: bool) -> u16 {
        let next = if is_last { 0 } else { DESC_NEXT };
        if self.writable { next | DESC_WRITE } else { next }
    }
}

/// A chain that the device gave back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Used {
    /// The number given to [`DriverRing::add`].
    pub token: u32,
    /// Bytes that the device says it wrote.
    pub len: u32,
}

/// What the driver remembers of a chain, by its head.
#[derive(Clone, Copy, Debug, Default)]
struct ChainState {
    /// Descriptors in the table; 0: not in flight.
    count: u16,
    /// Its entry in the available ring, free-running.
    at: u16,
    token: u32,
    /// Bytes that the device may write.
    writable: u32,
}

/// A split ring as its driver holds it.
#[derive(Debug)]
pub struct DriverRing {
    queue: u16,
    memory: RingMemory,
    event_idx: bool,
    /// Whether IN_ORDER was negotiated.
    in_order: bool,
    /// Links of the free list and of chains in flight. With IN_ORDER each descriptor leads to the
    /// one behind it, and the free ones are a run of the table.
    next: Box<[u16]>,
    free_head: u16,
    free: u16,
    chains: Box<[ChainState]>,
    /// Heads by their entries in the available ring, with IN_ORDER.
    heads: Box<[u16]>,
    /// With IN_ORDER, chains before this available index are used. Of the last one the device wrote
    /// `batch_len` bytes.
    batch_end: u16,
    batch_len: u32,
    /// Available index with all chains added.
    added: u16,
    /// Available index that the device sees.
    published: u16,
    last_used: u16,
    /// Used index as last read.
    used_seen: u16,
}

impl DriverRing {
    /// Allocates a ring of `size` entries for queue number `queue` (for error
    /// messages). `event_idx`: whether RING_EVENT_IDX was negotiated.
    ///
    /// # Errors
    /// As [`RingMemory::new`].
    pub fn new(
        memory: &GuestMemory,
        queue: u16,
        size: u16,
        event_idx: bool,
    ) -> Result<DriverRing, GuestError> {
        let ring = RingMemory::new(memory, size)?;
        Ok(DriverRing {
            queue,
            memory: ring,
            event_idx,
            in_order: false,
            next: (1..=size).map(|next| next & (size - 1)).collect(),
            free_head: 0,
            free: size,
            chains: vec![ChainState::default(); usize::from(size)].into(),
            heads: vec![0; usize::from(size)].into(),
            batch_end: 0,
            batch_len: 0,
            added: 0,
            published: 0,
            last_used: 0,
            used_seen: 0,
        })
    }

    /// The same ring for a device that uses chains in order, if `in_order`: IN_ORDER was negotiated
    /// (§2.7.9). To be said before a chain is added.
    pub fn in_order(mut self, in_order: bool) -> DriverRing {
        self.in_order = in_order;
        self
    }

    /// What a transport needs to start this queue, or to start it again after the device is gone.
    /// The device begins at the used index, so chains that it took but did not give back are handed
    /// out once more. That is right for a device that uses chains in order.
    pub fn setup(&self) -> QueueSetup {
        self.memory.setup(self.memory.used_idx())
    }

    /// The ring's memory.
    pub fn memory(&self) -> &RingMemory {
        &self.memory
    }

    /// Number of the queue.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Free descriptors.
    #[inline]
    pub fn free(&self) -> u16 {
        self.free
    }

    /// Descriptors in flight, or added and not yet published.
    pub fn in_flight(&self) -> u16 {
        self.memory.size() - self.free
    }

    /// Adds a chain; `token` comes back with it. False, and nothing is done,
    /// when the table has too few free descriptors or `segments` is empty.
    /// The device sees it after [`DriverRing::publish`].
    #[inline]
    pub fn add(&mut self, segments: &[BufferPiece], token: u32) -> bool {
        let count = segments.len();
        if count == 0 || count > usize::from(self.free) {
            return false;
        }
        let head = self.free_head;
        let mut at = head;
        let mut writable = 0u32;
        for (number, segment) in segments.iter().enumerate() {
            let next = self.next[usize::from(at)];
            let flags = segment.flags(number + 1 == count);
            if segment.writable {
                writable = writable.saturating_add(segment.len);
            }
            self.memory.write_desc(at, segment.addr.0, segment.len, flags, next);
            at = next;
        }
        self.offer(head, at, count as u16, token, writable);
        true
    }

    /// Adds a chain whose descriptors stand in a table of their own: `len`
    /// bytes at `table` (§2.7.5.3), of which the device may write `writable`
    /// bytes of buffers. False when no descriptor is free.
    #[inline]
    pub fn add_indirect(&mut self, table: GuestAddr, len: u32, writable: u32, token: u32) -> bool {
        if self.free == 0 {
            return false;
        }
        let head = self.free_head;
        let next = self.next[usize::from(head)];
        self.memory.write_desc(head, table.0, len, DESC_INDIRECT, 0);
        self.offer(head, next, 1, token, writable);
        true
    }

    #[inline]
    fn offer(&mut self, head: u16, free_head: u16, count: u16, token: u32, writable: u32) {
        self.free_head = free_head;
        self.free -= count;
        self.chains[usize::from(head)] = ChainState { count, at: self.added, token, writable };
        if self.in_order {
            self.heads[self.slot(self.added)] = head;
        }
        self.memory.write_avail(self.added, head);
        self.added = self.added.wrapping_add(1);
    }

    /// Lets the device see all chains added, with one store of the index.
    /// Returns whether it wants to be notified of them (§2.7.10): with
    /// EVENT_IDX when avail_event lies among them, else by its flag.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.added);
        if old == new {
            return false;
        }
        self.memory.publish_avail_idx(new);
        self.published = new;
        // The store of the index must be visible before the device's wish is
        // read, or both sides can miss each other (§2.7.13.3.1).
        fence(Ordering::SeqCst);
        if self.event_idx {
            crossed(self.memory.avail_event(), new, old)
        } else {
            self.memory.used_flags() & USED_NO_NOTIFY == 0
        }
    }

    /// Takes one chain that the device gave back, and frees its descriptors.
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRing`]; the ring is of no use then.
    #[inline]
    pub fn reap(&mut self) -> Result<Option<Used>, GuestError> {
        if self.last_used == self.used_seen {
            let seen = self.memory.used_idx();
            if seen == self.last_used {
                return Ok(None);
            }
            // Each chain takes at least one descriptor, so more used entries
            // than descriptors in flight can't be.
            if seen.wrapping_sub(self.last_used) > self.in_flight() {
                let rule = "the used index runs past the chains in flight (2.7.8)";
                return Err(self.broken(rule, seen.into()));
            }
            self.used_seen = seen;
        }
        if self.in_order {
            return self.reap_in_order().map(Some);
        }
        let (id, len) = self.memory.used_entry(self.last_used);
        let count = self.in_flight_chain(id)?.count;
        let head = id as u16;
        let used = self.take(head, len)?;
        let mut tail = head;
        for _ in 1..count {
            tail = self.next[usize::from(tail)];
        }
        self.next[usize::from(tail)] = self.free_head;
        self.free_head = head;
        Ok(Some(used))
    }

    /// As [`DriverRing::reap`] with IN_ORDER, where the used index says that there is a chain. An
    /// element names the last chain of a batch; those before it were used completely (§2.7.9).
    #[inline]
    fn reap_in_order(&mut self) -> Result<Used, GuestError> {
        let at = self.last_used;
        if self.batch_end == at {
            let (id, len) = self.memory.used_entry(at);
            let last = self.in_flight_chain(id)?;
            if last.at.wrapping_sub(at) >= self.used_seen.wrapping_sub(at) {
                let rule = "the id is of a chain behind the used index: not in order (2.7.9)";
                return Err(self.broken(rule, id.into()));
            }
            self.batch_end = last.at.wrapping_add(1);
            self.batch_len = len;
        }
        let head = self.heads[self.slot(at)];
        let last = self.batch_end == at.wrapping_add(1);
        self.take(head, if last { self.batch_len } else { self.chains[usize::from(head)].writable })
    }

    /// The chain with this id, which a used element names.
    #[inline]
    fn in_flight_chain(&self, id: u32) -> Result<ChainState, GuestError> {
        let chain = self.chains.get(id as usize).filter(|chain| chain.count > 0);
        let rule = "the id is of no chain in flight (2.7.8)";
        chain.copied().ok_or_else(|| self.broken(rule, id.into()))
    }

    /// Takes the chain that begins at `head`, to which the device says it wrote `len` bytes.
    #[inline]
    fn take(&mut self, head: u16, len: u32) -> Result<Used, GuestError> {
        let ChainState { count, token, writable, .. } = self.chains[usize::from(head)];
        if len > writable {
            let rule = "more bytes were written than the chain takes (2.7.8)";
            return Err(self.broken(rule, len.into()));
        }
        self.chains[usize::from(head)].count = 0;
        self.free += count;
        self.last_used = self.last_used.wrapping_add(1);
        Ok(Used { token, len })
    }

    #[inline]
    fn slot(&self, index: u16) -> usize {
        usize::from(index & (self.memory.size() - 1))
    }

    /// Whether the device gave something back that was not yet reaped.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.last_used != self.used_seen || self.memory.used_idx() != self.last_used
    }

    /// Asks for an interrupt when `after` more chains (at least 1) have been
    /// given back (without EVENT_IDX: at the next one). True when as many are
    /// there already: then reap instead of waiting (§2.7.7, §2.7.10.1).
    pub fn arm(&mut self, after: u16) -> bool {
        let after = after.max(1);
        if self.event_idx {
            let event = self.last_used.wrapping_add(after - 1);
            self.memory.write_used_event(event);
        } else {
            self.memory.write_avail_flags(0);
        }
        fence(Ordering::SeqCst);
        self.is_due(after)
    }

    /// Whether the device owes the interrupt that the driver wanted after `after` chains.
    pub(crate) fn is_due(&self, after: u16) -> bool {
        let ready = self.memory.used_idx().wrapping_sub(self.last_used);
        ready >= if self.event_idx { after.max(1) } else { 1 }
    }

    /// Asks for no interrupts. A few may still come, and with EVENT_IDX one
    /// in 65536 chains.
    pub fn disarm(&mut self) {
        if self.event_idx {
            let event = self.last_used.wrapping_sub(1);
            self.memory.write_used_event(event);
        } else {
            self.memory.write_avail_flags(AVAIL_NO_INTERRUPT);
        }
    }

    pub(crate) fn broken(&self, rule: &'static str, value: u64) -> GuestError {
        GuestError::DeviceBrokeRing { queue: self.queue, rule, index: self.last_used, value }
    }
}

/// Whether `event` lies in `old..new`, modulo 2^16 (§2.7.10.1).
#[inline]
pub fn crossed(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
