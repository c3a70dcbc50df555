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

    /// Chains that are out: no sound driver has more with the device than its ring has entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.taken.len()
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
mod tests {
    use super::*;

    fn give(line: &mut Line, late: Late) -> (Vec<u16>, u64) {
        let mut given = Vec::new();
        let passed = line.give(|| late, |head| given.push(head));
        (given, passed)
    }

    fn pass(now: Instant) -> Late {
        Late::Pass { now, most: 4 }
    }

    #[test]
    fn what_comes_back_in_order_goes_back_at_once() {
        let mut l = Line::default();
        (0..3).for_each(|head| l.lent(head));
        assert_eq!([0, 1, 2].map(|head| l.back(head)), [true; 3]);
        assert!(l.is_empty() && l.due().is_none());
        assert_eq!(give(&mut l, Late::PassAll), (vec![], 0));
    }

    #[test]
    fn what_is_done_waits_for_those_before_it() {
        let (mut l, now) = (Line::default(), Instant::now());
        l.lent(7);
        l.done(8, now);
        l.lent(9);
        l.done(10, now);
        assert!(!l.back(9));
        assert_eq!(give(&mut l, Late::Wait), (vec![], 0));
        assert_eq!(give(&mut l, pass(now)), (vec![], 0));
        assert_eq!(l.due(), Some(now + HOLD));
        assert!(l.back(7));
        assert_eq!(give(&mut l, Late::Wait), (vec![8, 9, 10], 0));
        assert!(l.is_empty() && !l.is_broken() && l.due().is_none());
    }

    #[test]
    fn what_has_waited_long_enough_passes_and_the_order_comes_back_with_the_last_that_was_passed() {
        let (mut l, start) = (Line::default(), Instant::now());
        l.lent(1);
        l.lent(2);
        l.done(3, start);
        l.lent(4);
        assert_eq!(give(&mut l, pass(start + HOLD - Duration::from_nanos(1))), (vec![], 0));
        assert_eq!(give(&mut l, pass(start + HOLD)), (vec![3], 1));
        assert!(l.is_broken() && l.due().is_none());
        assert_eq!(l.len(), 3);
        // There is nothing left to be kept.
        l.done(5, start);
        assert_eq!(give(&mut l, pass(start)), (vec![5], 1));
        assert!(!l.back(4));
        assert_eq!(give(&mut l, pass(start)), (vec![4], 1));
        assert!(l.back(1) && l.is_broken());
        assert!(l.back(2) && !l.is_broken() && l.is_empty());
        l.lent(6);
        l.done(7, start);
        assert_eq!(give(&mut l, pass(start)), (vec![], 0), "as if nothing had been");
    }

    #[test]
    fn chains_behind_those_that_were_passed_keep_their_order() {
        let (mut l, start) = (Line::default(), Instant::now());
        l.lent(1);
        l.done(2, start);
        assert_eq!(give(&mut l, Late::PassAll), (vec![2], 1));
        // Taken later, and not passed by anything.
        l.lent(3);
        assert!(l.back(1) && !l.is_broken());
        l.done(4, start);
        assert_eq!(give(&mut l, pass(start)), (vec![], 0));
    }

    #[test]
    fn no_more_than_so_many_wait() {
        let (mut l, now) = (Line::default(), Instant::now());
        l.lent(0);
        for head in 1..4 {
            l.done(head, now);
            assert_eq!(give(&mut l, pass(now)), (vec![], 0), "{head}");
        }
        l.done(4, now);
        assert_eq!(give(&mut l, pass(now)), (vec![1, 2, 3, 4], 4));
    }

    /// Each waits for `HOLD` at most, whoever went on waiting before.
    #[test]
    fn the_time_is_that_of_each_chain() {
        let (mut l, start) = (Line::default(), Instant::now());
        l.lent(0);
        l.done(1, start);
        l.lent(2);
        let later = start + HOLD / 2;
        l.done(3, later);
        assert!(l.back(0));
        assert_eq!(give(&mut l, pass(later)), (vec![1], 0));
        assert_eq!(give(&mut l, pass(start + HOLD)), (vec![], 0), "3 came later");
        assert_eq!(l.due(), Some(later + HOLD));
        assert_eq!(give(&mut l, pass(later + HOLD)), (vec![3], 1));
    }

    #[test]
    fn a_head_that_is_there_twice_comes_back_twice() {
        let (mut l, now) = (Line::default(), Instant::now());
        l.lent(5);
        l.lent(5);
        l.done(5, now);
        assert!(l.back(5) && l.back(5));
        assert_eq!(give(&mut l, Late::Wait), (vec![5], 0));
        assert!(l.is_empty());
        l.lent(1);
        l.clear();
        assert!(l.is_empty() && !l.is_broken());
    }
}
