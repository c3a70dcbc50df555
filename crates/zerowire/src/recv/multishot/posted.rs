//! Which buffers lie where in the ring of provided buffers.
//!
//! A completion names one buffer, and a bundle fills it and those behind it in the ring's order.
//! Slots are buffers here; there are at most 32768, so 16 bits name them.

/// See the module.
#[derive(Debug)]
pub(super) struct Posted {
    /// The slot at each position.
    slots: Box<[u16]>,
    /// The position of each slot.
    positions: Box<[u16]>,
    /// Buffers in the ring that no completion has named.
    pub(super) count: usize,
}

impl Posted {
    /// For `slots` buffers and a ring of `entries`, a power of two.
    pub(super) fn new(slots: usize, entries: usize) -> Self {
        Self { slots: vec![0; entries.max(1)].into(), positions: vec![0; slots].into(), count: 0 }
    }

    /// The slot at `position`, which may run on beyond the ring.
    #[cfg(feature = "testing")]
    pub(super) fn slot_at(&self, position: u16) -> u16 {
        self.slots.get(usize::from(position) % self.slots.len().max(1)).copied().unwrap_or(0)
    }

    /// The buffer of `slot` was put at `position`.
    pub(super) fn put(&mut self, slot: u16, position: u16) {
        if let (Some(s), Some(p)) =
            (self.slots.get_mut(position as usize), self.positions.get_mut(slot as usize))
        {
            *s = slot;
            *p = position;
            self.count += 1;
        }
    }

    /// A completion named `first` with `bytes` bytes: `each` gets the slots and their lengths, in
    /// order. With no bytes, the one slot with 0.
    pub(super) fn used(
        &mut self,
        first: u16,
        bytes: usize,
        buffer_bytes: usize,
        len_at: impl Fn(u16) -> u32,
        mut each: impl FnMut(u32, usize),
    ) {
        let Some(mut position) = self.positions.get(first as usize).copied().map(usize::from) else { return };
        let mut left = bytes;
        // Never more than the whole ring, whatever the completion says.
        for _ in 0..self.slots.len() {
            let slot = self.slots[position];
            // The kernel shortens the entry of a buffer that it means to fill in part, and may fill
            // others behind it.
            let len = left.min(buffer_bytes).min(len_at(position as u16) as usize);
            self.count = self.count.saturating_sub(1);
            each(slot.into(), len);
            left -= len;
            if left == 0 || len == 0 {
                return;
            }
            position = (position + 1) % self.slots.len();
        }
    }
}
