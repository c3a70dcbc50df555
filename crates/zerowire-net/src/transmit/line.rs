//! Chains of the transmit ring in the order in which they were taken, so that they go back in that
//! order.
//!
//! Plain code. Where the front end keeps no in-flight region, the used index is all that the next
//! process finds of a ring, should this one die. It says how many chains came back. It says which
//! ones, too, as long as they come back in the order in which they became available. Hence a chain
//! that is done waits for those before it. Not for long: a driver may be late with a frame, and
//! must not hold the guest's memory ([`HOLD`], half of the ring). What goes back then is out of
//! order, and counted; the order is there again when all chains that were passed are back.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long a chain that is done waits for those before it.
const HOLD: Duration = Duration::from_millis(20);

/// Initial capacity, chains, if the ring has that many.
const ROOM: usize = 2048;

/// A chain that was taken and has not been given back.
#[derive(Clone, Copy, Debug)]
struct Taken {
    head: u16,
    /// Since when it is done, and waits for those before it.
    done: Option<Instant>,
}

/// What to do with chains that are done while others before them are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// They wait.
    Wait,
    /// They wait, and pass when they have waited long enough at `now`, or when too many wait.
    Pass {
        /// The time.
        now: Instant,
        /// As many wait at most.
        most: usize,
    },
    /// They pass.
    PassAll,
}

/// The chains that are out.
#[derive(Debug, Default)]
pub struct Line {
    taken: VecDeque<Taken>,
    /// Chains that are done.
    done: usize,
    /// None of those that are done is so for longer.
    since: Option<Instant>,
    /// So many, from the first on, were passed by others.
    passed: usize,
}

impl Line {
    /// With room for as many chains as a ring of `size` entries has, as a rule.
    pub fn new(size: u16) -> Self {
        Self { taken: VecDeque::with_capacity(usize::from(size).min(ROOM)), ..Self::default() }
    }

    /// Whether another chain may be taken from a ring of `size` entries. A driver that breaks the
    /// rules can't have more of them wait than that.
    #[inline]
    pub fn has_room(&self, size: u16) -> bool {
        self.taken.len() < usize::from(size)
    }

    /// Nobody waits for anything.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }

    /// Whether chains that are out have been passed by others: the used index does not tell which
    /// are out.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.passed > 0
    }

    /// When chains that wait now may pass.
    #[inline]
    pub fn due(&self) -> Option<Instant> {
        self.since.map(|since| since + HOLD)
    }

    /// A chain was taken, and is lent.
    #[inline]
    pub fn lent(&mut self, head: u16) {
        self.taken.push_back(Taken { head, done: None });
    }

    /// A chain was taken, and is done at once, `now`.
    pub fn done(&mut self, head: u16, now: Instant) {
        self.taken.push_back(Taken { head, done: Some(now) });
        self.note_done(now);
    }

    /// A chain that was lent is back. Returns whether it goes back to the guest next: then it is
    /// not here any more.
    #[inline]
    pub fn back(&mut self, head: u16) -> bool {
        match self.taken.front() {
            Some(first) if first.head == head && first.done.is_none() => {
                self.remove(0);
                true
            }
            _ => self.back_late(head),
        }
    }

    #[cold]
    fn back_late(&mut self, head: u16) -> bool {
        let Some(chain) = self.taken.iter_mut().find(|c| c.head == head && c.done.is_none()) else {
            // Every chain that was lent is here.
            return true;
        };
        let now = Instant::now();
        chain.done = Some(now);
        self.note_done(now);
        false
    }

    fn note_done(&mut self, now: Instant) {
        self.done += 1;
        self.since.get_or_insert(now);
    }

    /// Gives back what is done: `each` gets the chains. Returns how many of them passed others.
    #[inline]
    pub fn give(&mut self, late: impl FnOnce() -> Late, mut each: impl FnMut(u16)) -> u64 {
        if self.done == 0 {
            return 0;
        }
        while let Some(Taken { head, done: Some(_) }) = self.taken.front().copied() {
            self.remove(0);
            each(head);
        }
        if self.done == 0 { 0 } else { self.pass(late(), each) }
    }

    #[cold]
    fn pass(&mut self, late: Late, mut each: impl FnMut(u16)) -> u64 {
        match late {
            Late::Wait => return 0,
            Late::PassAll => {}
            Late::Pass { now, most } => {
                let over = |since: &Instant| now.saturating_duration_since(*since) >= HOLD;
                if !self.is_broken() && self.done < most {
                    if !self.since.as_ref().is_some_and(over) {
                        return 0;
                    }
                    // That one may have gone since.
                    self.since = self.taken.iter().filter_map(|c| c.done).min();
                    if !self.since.as_ref().is_some_and(over) {
                        return 0;
                    }
                }
            }
        }
        let mut count = 0;
        let mut i = 0;
        while self.done > 0 && i < self.taken.len() {
            match self.taken[i] {
                Taken { head, done: Some(_) } => {
                    self.remove(i);
                    each(head);
                    count += 1;
                }
                Taken { done: None, .. } => i += 1,
            }
        }
        count
    }

    /// Chain `i` is given back, before the `i` chains that were taken before it.
    #[inline]
    fn remove(&mut self, i: usize) {
        if let Some(Taken { done: Some(_), .. }) = self.taken.remove(i) {
            self.done -= 1;
            if self.done == 0 {
                self.since = None;
            }
        }
        let left = if i < self.passed { self.passed - 1 } else { self.passed };
        self.passed = left.max(i);
    }

    /// Forgets all: nobody reads the ring any more.
    pub fn clear(&mut self) {
        self.taken.clear();
        (self.done, self.since, self.passed) = (0, None, 0);
    }
}

#[cfg(test)]
mod tests;
