//! What is in the fill ring, and in which order chains were taken.
//!
//! Plain code. The kernel takes chunks in the order in which they were posted, and a received frame
//! names its chunk by the address alone. So the search begins where the next one is due, and only
//! then goes everywhere. A driver in zero-copy mode may use a chunk again that it had given to
//! somebody else's frame, and be late with it.

use std::collections::VecDeque;

use zerowire_vhost::memory::Segment;

use super::RING_ENTRIES;

/// A buffer in the fill ring.
#[derive(Clone, Copy, Debug)]
pub enum Buffer {
    /// A guest's.
    Guest {
        /// The chain's head.
        head: u16,
        /// Its number in [`Order`].
        taken: u16,
        /// Where the header, and behind it the frame, lie.
        at: [Option<Segment>; 2],
    },
    /// A place of the slab.
    Place(u16),
}

/// The buffers that the kernel has, in the order of the fill ring.
#[derive(Debug)]
pub struct Posted {
    /// Address and buffer; None for one that came back before those in front of it.
    entries: VecDeque<(u64, Option<Buffer>)>,
    /// Where the next one is due.
    due: usize,
    count: usize,
}

impl Posted {
    /// Nothing.
    pub fn new() -> Self {
        Self { entries: VecDeque::with_capacity(2 * RING_ENTRIES as usize), due: 0, count: 0 }
    }

    /// Buffers that the kernel has.
    #[inline]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether one more can be posted without growing.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.entries.len() < self.entries.capacity()
    }

    /// Notes a buffer that was put into the fill ring with this address.
    #[inline]
    pub fn post(&mut self, address: u64, buffer: Buffer) {
        self.entries.push_back((address, Some(buffer)));
        self.count += 1;
    }

    /// The buffer with this address comes back; None where there is none.
    #[inline]
    pub fn back(&mut self, address: u64) -> Option<Buffer> {
        let due = self.due;
        let is = |e: &(u64, Option<Buffer>)| e.0 == address && e.1.is_some();
        let i = match self.entries.get(due) {
            Some(e) if is(e) => due,
            _ => self.entries.iter().position(is)?,
        };
        let buffer = self.entries[i].1.take();
        self.count -= 1;
        self.due = i + 1;
        while let Some((_, None)) = self.entries.front() {
            self.entries.pop_front();
            self.due = self.due.saturating_sub(1);
        }
        buffer
    }

    /// All buffers, oldest first: the socket is gone.
    pub fn take_all(&mut self) -> impl Iterator<Item = Buffer> + '_ {
        self.due = 0;
        self.count = 0;
        self.entries.drain(..).filter_map(|(_, buffer)| buffer)
    }
}

/// A chain that was taken and has not been used.
#[derive(Clone, Copy, Debug)]
struct Out {
    head: u16,
    /// When it was taken, counted from 1; 0 where there is none.
    taken: u64,
}

/// Chains that are out, and in which order they were taken from the ring.
#[derive(Debug)]
pub struct Order {
    out: Box<[Out]>,
    free: Vec<u16>,
    /// Chains taken so far.
    taken: u64,
    /// When the youngest of those that were used was taken.
    last_used: u64,
}

impl Order {
    /// For a ring of `size` entries.
    pub fn new(size: u16) -> Self {
        let none = Out { head: 0, taken: 0 };
        Self {
            out: vec![none; usize::from(size)].into(),
            free: (0..size).rev().collect(),
            taken: 0,
            last_used: 0,
        }
    }

    /// Whether another chain may be taken. No sound driver has more chains with the device than the
    /// ring has entries.
    #[inline]
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// A chain was taken; there was room for it. Returns its number, which is another one's when it
    /// has been used.
    #[inline]
    pub fn take(&mut self, head: u16) -> u16 {
        let number = self.free.pop().unwrap_or_default();
        self.taken += 1;
        if let Some(out) = self.out.get_mut(usize::from(number)) {
            *out = Out { head, taken: self.taken };
        }
        number
    }

    /// Chain `number` was used.
    #[inline]
    pub fn used(&mut self, number: u16) {
        if let Some(out) = self.out.get_mut(usize::from(number)).filter(|out| out.taken > 0) {
            self.last_used = self.last_used.max(out.taken);
            out.taken = 0;
            self.free.push(number);
        }
    }

    /// Ends: the chains that have others behind them that were used, and those that have none,
    /// oldest first. The first ones have to be used; the others can be put back.
    pub fn end(&mut self) -> (Vec<u16>, Vec<u16>) {
        let mut left: Vec<Out> = self.out.iter().copied().filter(|out| out.taken > 0).collect();
        left.sort_unstable_by_key(|out| out.taken);
        let between = left.partition_point(|out| out.taken < self.last_used);
        let last = left.split_off(between);
        *self = Self::new(self.out.len() as u16);
        let heads = |list: Vec<Out>| list.into_iter().map(|out| out.head).collect();
        (heads(left), heads(last))
    }
}

#[cfg(test)]
mod tests;
