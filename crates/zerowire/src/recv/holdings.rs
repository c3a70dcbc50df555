//! Who has which buffer: the receiver's own book, plain code without I/O.
//!
//! A *slot* is the right to one lease. In most back ends a slot is a buffer; where the kernel puts
//! several arrivals into one buffer (zcrx), a slot is one arrival. A *place* is a connection's
//! index in the receiver.

/// Owner of a slot that is free.
const FREE: u32 = u32::MAX;
/// Owner of a slot that is taken and not lent: the kernel may write its buffer.
const TAKEN: u32 = u32::MAX - 1;

/// See the module.
#[derive(Debug)]
pub(crate) struct SlotBook {
    owner: Vec<u32>,
    /// The slot that came back last is used first: its buffer may still be in the cache.
    free: Vec<u32>,
    held: Vec<u32>,
    share: u32,
}

impl SlotBook {
    /// All of `0..slots` free; a connection that holds `share` of them is paused.
    pub(crate) fn new(slots: usize, share: usize) -> Self {
        let slots = slots.min(super::refill::MAX_SLOTS);
        Self {
            owner: vec![FREE; slots],
            free: (0..slots as u32).rev().collect(),
            held: Vec::new(),
            share: share.clamp(1, slots.max(1)) as u32,
        }
    }

    /// Makes the book know the places below `places`.
    pub(crate) fn grow(&mut self, places: usize) {
        if self.held.len() < places {
            self.held.resize(places, 0);
        }
    }

    /// Makes `slots` more, all free; a connection that holds `share` of all is paused from now on.
    /// Returns how many there are.
    pub(crate) fn add_slots(&mut self, slots: usize, share: usize) -> usize {
        let before = self.owner.len();
        let all = before.saturating_add(slots).min(super::refill::MAX_SLOTS);
        self.owner.resize(all, FREE);
        // Below those that are free now, which may be in the cache.
        self.free.splice(0..0, (before as u32..all as u32).rev());
        self.share = share.clamp(1, all.max(1)) as u32;
        all
    }

    /// Slots in all.
    pub(crate) fn slots(&self) -> usize {
        self.owner.len()
    }

    /// Slots that are free.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Slots that are lent and were not collected.
    pub(crate) fn lent(&self) -> u32 {
        self.held.iter().sum()
    }

    /// Takes a free slot.
    pub(crate) fn take(&mut self) -> Option<u32> {
        let slot = self.free.pop()?;
        self.owner[slot as usize] = TAKEN;
        Some(slot)
    }

    /// Gives a slot back that was taken and not lent.
    pub(crate) fn untake(&mut self, slot: u32) {
        if let Some(owner) = self.owner.get_mut(slot as usize).filter(|o| **o == TAKEN) {
            *owner = FREE;
            self.free.push(slot);
        }
    }

    /// Lends a taken slot to the connection at `place`. False, and nothing changes, when it was not
    /// taken.
    pub(crate) fn lend(&mut self, slot: u32, place: u32) -> bool {
        let Some(held) = self.held.get_mut(place as usize) else { return false };
        match self.owner.get_mut(slot as usize) {
            Some(owner) if *owner == TAKEN => {
                *owner = place;
                *held += 1;
                true
            }
            _ => false,
        }
    }

    /// A lent slot has come back: it is free. The place that held it, and what that place still
    /// holds.
    pub(crate) fn give_back(&mut self, slot: u32) -> Option<(u32, u32)> {
        let owner = self.owner.get_mut(slot as usize)?;
        let held = self.held.get_mut(*owner as usize)?;
        let place = std::mem::replace(owner, FREE);
        *held -= 1;
        self.free.push(slot);
        Some((place, *held))
    }

    /// Slots that the connection at `place` holds.
    pub(crate) fn held(&self, place: u32) -> u32 {
        self.held.get(place as usize).copied().unwrap_or(0)
    }

    /// How many more slots the connection may be lent before it is paused.
    pub(crate) fn room(&self, place: u32) -> u32 {
        self.share.saturating_sub(self.held(place))
    }

    /// Whether a paused connection that holds `held` may go on: below three quarters, so that it
    /// isn't paused and resumed with every buffer.
    pub(crate) fn may_resume(&self, held: u32) -> bool {
        held <= self.share - self.share.div_ceil(4)
    }
}

#[cfg(test)]
mod tests;
