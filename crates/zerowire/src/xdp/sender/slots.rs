//! The places in which frames are built: which are free, and what lies in the others. Plain code
//! without memory or system calls.

/// A place whose frame is with the kernel.
#[derive(Clone, Copy, Debug, Default)]
struct XdpSlot {
    /// Number of the frame.
    number: u64,
    /// Bytes of the frame.
    len: u32,
    /// Pieces that are not back.
    pieces: u32,
}

#[derive(Debug)]
pub(super) struct XdpSlots {
    slots: Vec<XdpSlot>,
    /// Used as a stack: the place that came back last is still in the cache.
    free: Vec<u32>,
    /// Taken from there, and not lent yet: a caller that has its number may be building in it.
    next: Option<u32>,
}

impl XdpSlots {
    pub(super) fn new(count: u32) -> Self {
        Self { slots: vec![XdpSlot::default(); count as usize], free: (0..count).rev().collect(), next: None }
    }

    /// A free place, which stays free, and the next one, until [`lend`](Self::lend).
    #[inline]
    pub(super) fn next(&mut self) -> Option<u32> {
        if self.next.is_none() {
            self.next = self.free.pop();
        }
        self.next
    }

    /// Gives the place of [`next`](Self::next) to the kernel.
    #[inline]
    pub(super) fn lend(&mut self, number: u64, len: u32, pieces: u32) {
        if let Some(slot) = self.next.take() {
            self.slots[slot as usize] = XdpSlot { number, len, pieces };
        }
    }

    /// One piece is back: the length of the frame if it was the last one, which frees the place.
    #[inline]
    pub(super) fn piece_back(&mut self, slot: u32) -> Option<u32> {
        let XdpSlot { len, pieces, .. } = self.slots.get_mut(slot as usize)?;
        let len = *len;
        // A piece that was not lent: nothing to give back.
        *pieces = pieces.checked_sub(1)?;
        if *pieces > 0 {
            return None;
        }
        self.free.push(slot);
        Some(len)
    }

    /// Whether the place's frame is with the kernel.
    pub(super) fn is_out(&self, slot: usize) -> bool {
        self.slots.get(slot).is_some_and(|s| s.pieces > 0)
    }

    /// Number and length of the oldest frame that is with the kernel.
    pub(super) fn oldest(&self) -> Option<(u64, u32)> {
        self.slots.iter().filter(|s| s.pieces > 0).map(|s| (s.number, s.len)).min()
    }
}

#[cfg(test)]
mod tests;
