//! Marks of one ring.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use super::InflightRegion;
use super::region::Place;

/// The layout's version (`QueueRegionSplit.version`).
const VERSION: u16 = 1;

/// What [`Place::handed_on`] holds of a chain whose frame was handed to the kernel. Other back ends
/// leave the byte alone or zero it: no other value means anything.
const HANDED_ON: u8 = 0x5a;

/// What a process that died left in flight, in the order in which it was taken.
#[derive(Debug, Default)]
pub(in crate::ring) struct Left {
    /// Where the available ring goes on.
    pub next_avail: u16,
    /// Heads to be worked on again.
    pub again: Vec<u16>,
    /// Heads that are given back as they are: their frames may have gone out.
    pub handed_on: Vec<u16>,
}

/// The marks of one ring. Belongs to the thread that serves it.
#[derive(Debug)]
pub struct Tracker {
    place: Place,
    counter: u64,
    /// Heads that were used since the used index was stored last.
    batch: Vec<u16>,
    /// Heads that a process before had taken, to be given out first.
    again: VecDeque<u16>,
    /// Those of them that were given out.
    resumed: Vec<u16>,
    /// True: the front end does not know of the region.
    is_own: bool,
}

impl Tracker {
    /// For the ring of this queue; None where the region has no place for it.
    pub fn new(region: &Arc<InflightRegion>, queue: u16) -> Option<Self> {
        Some(Self {
            place: Place::new(region, queue)?,
            counter: 0,
            batch: Vec::new(),
            again: VecDeque::new(),
            resumed: Vec::new(),
            is_own: false,
        })
    }

    /// The region is this side's own: no front end can give a new one. So marks that can't be the
    /// ring's are forgotten, as of a ring whose memory went and whose driver began anew.
    #[must_use]
    pub fn of_this_side(self) -> Self {
        Self { is_own: true, ..self }
    }

    /// Whether it is.
    pub(in crate::ring) fn is_own(&self) -> bool {
        self.is_own
    }

    /// What a process that died has left in flight of a ring of `size` entries whose used index is
    /// `used`. The front end said that the ring goes on at `base`; that counts where nothing is
    /// known.
    ///
    /// A ring that is used `in_order` may have chains before one whose frame was handed on. They
    /// are given back with it: the process that died had dropped their frames, or kept them for
    /// itself.
    pub(in crate::ring) fn recover(
        &mut self,
        size: u16,
        used: u16,
        base: u16,
        in_order: bool,
    ) -> Result<Left, String> {
        let p = &self.place;
        if size > p.size() {
            return Err(format!("the ring has {size} entries, its in-flight region {}", p.size()));
        }
        self.batch.reserve(usize::from(size));
        match p.version().load(Ordering::Relaxed) {
            0 => {
                self.begin(used);
                return Ok(Left { next_avail: base, ..Left::default() });
            }
            VERSION => {}
            other => {
                return Err(format!(
                    "the in-flight region has version {other}; only 1 is known: give a new one"
                ));
            }
        }
        let (features, entries) =
            (p.features().load(Ordering::Relaxed), p.desc_num().load(Ordering::Relaxed));
        if features != 0 || entries != p.size() {
            return Err(format!(
                "the in-flight region has features {features:#x} and {entries} entries, where it must have 0 and {}: \
                 give a new one",
                p.size()
            ));
        }
        self.settle_last_batch(size, used)?;
        let p = &self.place;
        let mut heads: Vec<(u64, u16)> = (0..size)
            .filter(|head| p.inflight(*head).load(Ordering::Relaxed) != 0)
            .map(|head| (p.counter(head).load(Ordering::Relaxed), head))
            .collect();
        heads.sort_unstable();
        self.counter = heads.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        // At most `size` heads: no overflow but that of the index itself.
        let next_avail = used.wrapping_add(heads.len() as u16);
        let mut heads: Vec<u16> = heads.into_iter().map(|(_, head)| head).collect();
        let was_handed_on = |head: &u16| p.handed_on(*head).load(Ordering::Relaxed) == HANDED_ON;
        let (handed_on, again) = if in_order {
            let again = heads.split_off(heads.iter().rposition(was_handed_on).map_or(0, |last| last + 1));
            (heads, again)
        } else {
            heads.into_iter().partition(was_handed_on)
        };
        Ok(Left { next_avail, again, handed_on })
    }

    /// The used index was stored, and the process died before it had told the region so.
    fn settle_last_batch(&self, size: u16, used: u16) -> Result<(), String> {
        let p = &self.place;
        let known = p.used_idx().load(Ordering::Relaxed);
        let batch = used.wrapping_sub(known);
        if batch > size {
            return Err(format!(
                "the in-flight region was left at used index {known}, and the ring is at {used}: it is not this ring's; \
                 give a new one when the driver has reset the device"
            ));
        }
        // A list that loops ends with its count.
        let mut head = p.last_batch_head().load(Ordering::Relaxed);
        for _ in 0..batch {
            if head >= size {
                return Err(format!(
                    "the last batch in the in-flight region names head {head} of a ring of {size}: give a new region"
                ));
            }
            p.inflight(head).store(0, Ordering::Relaxed);
            head = p.next(head).load(Ordering::Relaxed);
        }
        p.used_idx().store(used, Ordering::Release);
        Ok(())
    }

    /// The place gets its meaning: nothing is in flight.
    pub(in crate::ring) fn begin(&self, used: u16) {
        let p = &self.place;
        for head in 0..p.size() {
            p.inflight(head).store(0, Ordering::Relaxed);
        }
        p.features().store(0, Ordering::Relaxed);
        p.desc_num().store(p.size(), Ordering::Relaxed);
        p.last_batch_head().store(0, Ordering::Relaxed);
        p.used_idx().store(used, Ordering::Relaxed);
        p.version().store(VERSION, Ordering::Release);
    }

    /// The ring has stopped: where it goes on is the front end's knowledge now. With chains still
    /// out nothing changes, and the next one to start this ring has them.
    pub(in crate::ring) fn end(&self) {
        let p = &self.place;
        if (0..p.size()).all(|head| p.inflight(head).load(Ordering::Relaxed) == 0) {
            p.version().store(0, Ordering::Release);
        }
    }

    /// The ring is of no more use: nothing of it is in flight.
    pub(in crate::ring) fn clear(&self) {
        self.place.version().store(0, Ordering::Release);
    }

    /// All marks go, in the order that leaves the first ones of the available ring until last.
    pub(in crate::ring) fn forget(&self, heads: &[u16]) {
        for head in heads.iter().rev() {
            self.unmark(*head);
        }
    }

    /// These are given out before what the available ring has.
    pub(in crate::ring) fn give_out_first(&mut self, heads: Vec<u16>) {
        self.again = heads.into();
    }

    /// How many of these wait.
    pub(in crate::ring) fn waiting(&self) -> u16 {
        self.again.len() as u16
    }

    /// The next one of these.
    pub(in crate::ring) fn resume(&mut self) -> Option<u16> {
        let head = self.again.pop_front()?;
        self.resumed.push(head);
        Some(head)
    }

    /// A head was taken back that was not used. Returns whether it waits to be given out again, so
    /// that it is not in the available ring.
    pub(in crate::ring) fn untaken(&mut self, head: u16) -> bool {
        if let Some(i) = self.resumed.iter().position(|h| *h == head) {
            self.resumed.swap_remove(i);
            self.again.push_front(head);
            // Its frame, if it was handed on, was refused.
            self.place.handed_on(head).store(0, Ordering::Release);
            return true;
        }
        self.unmark(head);
        false
    }

    /// A head was taken from the available ring.
    #[inline]
    pub(in crate::ring) fn taken(&mut self, head: u16) {
        let p = &self.place;
        p.counter(head).store(self.counter, Ordering::Relaxed);
        p.handed_on(head).store(0, Ordering::Relaxed);
        p.inflight(head).store(1, Ordering::Release);
        self.counter = self.counter.wrapping_add(1);
        compiler_fence(Ordering::SeqCst);
    }

    fn unmark(&self, head: u16) {
        self.place.inflight(head).store(0, Ordering::Release);
    }

    /// The frame of a head is about to be handed to the kernel.
    #[inline]
    pub(in crate::ring) fn hand_on(&self, head: u16) {
        self.place.handed_on(head).store(HANDED_ON, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
    }

    /// A used element was written, which the guest does not see yet.
    #[inline]
    pub(in crate::ring) fn used(&mut self, head: u16) {
        let p = &self.place;
        // What the field holds is this side's own of before, or harms the front end that changed
        // it.
        let before = p.last_batch_head().load(Ordering::Relaxed);
        p.next(head).store(before, Ordering::Relaxed);
        p.last_batch_head().store(head, Ordering::Release);
        self.batch.push(head);
        if !self.resumed.is_empty()
            && let Some(i) = self.resumed.iter().position(|h| *h == head)
        {
            self.resumed.swap_remove(i);
        }
    }

    /// The used index was stored.
    #[inline]
    pub(in crate::ring) fn published(&mut self, used: u16) {
        compiler_fence(Ordering::SeqCst);
        let p = &self.place;
        for head in self.batch.drain(..) {
            p.inflight(head).store(0, Ordering::Relaxed);
        }
        p.used_idx().store(used, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }
}
