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
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug)]
    enum BookStep {
        Take,
        Untake(u32),
        Lend(u32, u32),
        Back(u32),
    }

    fn step() -> impl Strategy<Value = BookStep> {
        prop_oneof![
            3 => Just(BookStep::Take),
            1 => (0..9u32).prop_map(BookStep::Untake),
            3 => (0..9u32, 0..4u32).prop_map(|(s, p)| BookStep::Lend(s, p)),
            3 => (0..9u32).prop_map(BookStep::Back),
        ]
    }

    proptest! {
        /// Against a model with a set a state: no slot is ever in two, whatever the requests, wrong
        /// ones included.
        #[test]
        fn every_slot_is_in_one_state(steps in prop::collection::vec(step(), 0..200)) {
            const SLOTS: u32 = 8;
            let mut book = SlotBook::new(SLOTS as usize, 3);
            book.grow(3);
            let mut model: Vec<Option<Option<u32>>> = vec![None; SLOTS as usize];
            for step in steps {
                match step {
                    BookStep::Take => match book.take() {
                        Some(slot) => {
                            prop_assert_eq!(model[slot as usize], None);
                            model[slot as usize] = Some(None);
                        }
                        None => prop_assert!(model.iter().all(Option::is_some)),
                    },
                    BookStep::Untake(slot) => {
                        book.untake(slot);
                        if let Some(m) = model.get_mut(slot as usize).filter(|m| **m == Some(None)) {
                            *m = None;
                        }
                    }
                    BookStep::Lend(slot, place) => {
                        let may = place < 3 && model.get(slot as usize) == Some(&Some(None));
                        prop_assert_eq!(book.lend(slot, place), may);
                        if may {
                            model[slot as usize] = Some(Some(place));
                        }
                    }
                    BookStep::Back(slot) => match (book.give_back(slot), model.get(slot as usize)) {
                        (Some((place, held)), Some(&Some(Some(p)))) => {
                            prop_assert_eq!(place, p);
                            model[slot as usize] = None;
                            prop_assert_eq!(held, book.held(place));
                        }
                        (None, Some(&Some(Some(_)))) => prop_assert!(false, "a lent slot was refused"),
                        (answer, _) => prop_assert_eq!(answer, None),
                    },
                }
                prop_assert_eq!(book.free(), model.iter().filter(|m| m.is_none()).count());
                for place in 0..3 {
                    let held = model.iter().filter(|m| **m == Some(Some(place))).count() as u32;
                    prop_assert_eq!(book.held(place), held);
                    prop_assert_eq!(book.room(place), 3u32.saturating_sub(held));
                }
            }
        }
    }

    #[test]
    fn a_paused_connection_resumes_below_three_quarters() {
        let book = SlotBook::new(64, 16);
        assert!(book.may_resume(12) && !book.may_resume(13));
        assert!(SlotBook::new(1, 1).may_resume(0), "a share of one resumes when it is given back");
        assert_eq!(SlotBook::new(4, 100).share, 4);
    }

    #[test]
    fn slots_that_are_added_are_taken_last() {
        let mut book = SlotBook::new(2, 1);
        book.grow(1);
        let first = book.take().unwrap();
        assert!(book.lend(first, 0));
        assert_eq!((book.room(0), book.add_slots(3, 4), book.slots(), book.free()), (0, 5, 5, 4));
        assert_eq!(book.room(0), 3);
        assert_eq!(std::iter::from_fn(|| book.take()).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(book.give_back(first), Some((0, 0)));
        assert_eq!((book.take(), book.take()), (Some(first), None));
    }
}
