//! A ring whose chains in flight are marked.

use std::sync::atomic::Ordering;

use super::{SplitRing, UsedOrder};
use crate::ring::RingError;
use crate::ring::inflight::{Left, Recovered, Tracker};

impl SplitRing {
    /// From now on chains in flight are marked in `tracker`, and the ring takes up what a process
    /// that died has left there. Call it once, on a ring of which nothing was taken. The ring's
    /// base counts only where the tracker knows nothing.
    ///
    /// # Errors
    /// A text that says why what lies there can't be this ring's.
    pub fn track(&mut self, mut tracker: Box<Tracker>) -> Result<Recovered, String> {
        let left = match self.left(&mut tracker) {
            Err(text) if tracker.is_own() => {
                tracing::warn!("{text}; this side goes on without it");
                tracker.begin(self.next_used);
                Left { next_avail: self.next_avail, ..Left::default() }
            }
            other => other?,
        };
        let (again, unsure) = (left.again.len(), left.handed_on.len());
        self.next_avail = left.next_avail;
        self.seen_avail = left.next_avail;
        self.tracker = Some(tracker);
        for head in left.handed_on {
            self.push_used(head, 0);
        }
        // Whether the driver wants to hear of it does not matter: it is notified when a ring
        // starts.
        self.publish();
        self.resume(&left.again);
        Ok(Recovered { again, unsure })
    }

    /// What a process that died has left of this ring.
    fn left(&self, tracker: &mut Tracker) -> Result<Left, String> {
        let (queue, used) = (self.queue, self.next_used);
        let in_order = self.order != UsedOrder::Any;
        let left = tracker
            .recover(self.size, used, self.next_avail, in_order)
            .map_err(|text| format!("queue {queue}: {text}"))?;
        let (again, unsure) = (left.again.len(), left.handed_on.len());
        let avail = self.avail.word(1).load(Ordering::Acquire);
        if again + unsure > 0 && avail.wrapping_sub(left.next_avail) > self.size {
            return Err(format!(
                "queue {queue}: {} chains were in flight at used index {used}, but the driver has made available {avail} \
                 in all: the in-flight region is not this ring's; give a new one when the driver has reset the device",
                again + unsure
            ));
        }
        let in_flight = left.handed_on.iter().chain(&left.again).copied();
        if in_order && !in_flight.eq(self.entries(used, (again + unsure) as u16)) {
            return Err(format!(
                "queue {queue}: IN_ORDER was negotiated, and the chains in flight are not those that the driver made \
                 available behind used index {used}: the in-flight region is not this ring's; give a new one when the \
                 driver has reset the device"
            ));
        }
        Ok(left)
    }

    /// The heads in `n` entries of the available ring, from free-running index `from` on.
    fn entries(&self, from: u16, n: u16) -> impl Iterator<Item = u16> {
        let slot = move |i| usize::from(from.wrapping_add(i) & self.mask);
        (0..n).map(move |i| self.avail.word(2 + slot(i)).load(Ordering::Relaxed))
    }

    /// Has the heads `again` given out once more. On paths that use chains in order, they are what
    /// the available ring has behind the used ones. The ring is rewound then, and nothing has to be
    /// remembered.
    fn resume(&mut self, again: &[u16]) {
        let start = self.next_avail.wrapping_sub(again.len() as u16);
        let is_next =
            start == self.next_used && self.entries(start, again.len() as u16).eq(again.iter().copied());
        let Some(tracker) = &mut self.tracker else { return };
        if is_next {
            tracker.forget(again);
            self.next_avail = start;
            self.seen_avail = start;
        } else {
            tracker.give_out_first(again.to_vec());
            self.again = tracker.waiting();
        }
    }

    /// As `take` where there is an entry.
    pub(super) fn take_tracked(&mut self) -> Result<Option<u16>, RingError> {
        if let Some(head) = self.tracker.as_mut().and_then(|t| t.resume()) {
            self.again -= 1;
            return Ok(Some(head));
        }
        let head = self.take_next()?;
        if let Some(t) = &mut self.tracker {
            t.taken(head);
        }
        Ok(Some(head))
    }

    /// The frames of these chains are handed to the kernel next. If this process dies before they
    /// are used, the next one gives them back as they are. It can't know whether the frames went
    /// out, and none may go out twice.
    #[inline]
    pub fn hand_on(&mut self, heads: impl Iterator<Item = u16>) {
        if let Some(t) = &self.tracker {
            heads.for_each(|head| t.hand_on(head));
        }
    }

    /// Whether chains in flight are marked.
    #[inline]
    pub fn is_tracked(&self) -> bool {
        self.tracker.is_some()
    }

    /// Takes the marks out of a ring that is replaced: its memory moves.
    pub fn take_tracker(&mut self) -> Option<Box<Tracker>> {
        self.again = 0;
        self.tracker.take()
    }

    /// Puts the marks of the ring before into this one, which goes on where that was.
    pub fn put_tracker(&mut self, tracker: Option<Box<Tracker>>) {
        self.again = tracker.as_ref().map_or(0, |t| t.waiting());
        self.tracker = tracker;
    }

    /// The ring stops: everything that was taken has been used or given back. A process before may
    /// have taken chains that this one did not come to. These are used as they are, since no place
    /// in the available ring stands for them any more. Returns whether to notify the driver.
    ///
    /// A ring that is `broken` is not touched, and all marks go: the driver resets it.
    pub fn end_tracking(&mut self, broken: bool) -> bool {
        let Some(mut tracker) = self.take_tracker() else { return false };
        if broken {
            tracker.clear();
            return false;
        }
        let rest: Vec<u16> = std::iter::from_fn(|| tracker.resume()).collect();
        self.tracker = Some(tracker);
        for head in rest {
            self.push_used(head, 0);
        }
        let notify = self.publish();
        if let Some(t) = self.tracker.take() {
            t.end();
        }
        notify
    }
}
