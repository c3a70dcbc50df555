//! How buffers come back: a list that any thread adds to and one receiver empties. It wakes the
//! receiver when it sleeps until a buffer is free.
//!
//! One word holds all of it: the number of the slot that came back last, or NONE, or, while the
//! receiver sleeps, SLEEPS. Each slot's successor lies in an array beside it. Slots are only ever
//! taken all at once. So a slot can't come back between a look at the word and the exchange of it,
//! and the word needs no counter.
//!
//! The memory around the list lives as long as the receiver or any lease. A lease holds no count of
//! it, since counting costs as much as all the rest. Instead the receiver, which knows how many
//! slots are lent, says so when it goes ([`Returns::close`]). From then on the leases count
//! themselves down, and the last one frees the memory.
//!
//! Nothing here touches a buffer's bytes. What a program did with them happens before
//! [`Returns::push`], and what comes after [`Returns::take`] sees it: the exchanges release and
//! acquire.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// No slot.
const NONE: u32 = u32::MAX;
/// No slot, and the receiver sleeps: wake it.
const SLEEPS: u32 = u32::MAX - 1;

/// The receiver is gone.
const CLOSED: u32 = u32::MAX - 2;

/// The most slots of one list.
pub const MAX_SLOTS: usize = CLOSED as usize;

/// Slots of the first block that is added; each further one is twice as long as the one before.
const FIRST_BLOCK: usize = 64;
/// As many blocks as [`MAX_SLOTS`] can need.
const BLOCKS: usize = 27;

/// What came of giving a slot back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a receiver that sleeps has to be woken, and the last lease frees the memory"]
pub enum Back<H> {
    /// The receiver will find it. The memory must not be touched any more.
    Listed,
    /// The same, and the receiver sleeps: wake it, with what was held for that.
    Wake(H),
    /// The receiver is gone, and other leases are not back. The memory must not be touched any
    /// more.
    Late,
    /// The receiver is gone, and this was the last lease: nobody else touches the memory any more.
    Last,
}

/// A 32-bit atomic. A type parameter so that tests can try every order of the operations.
pub trait Word {
    /// A word with a value.
    fn new(value: u32) -> Self;
    /// Reads it.
    fn load(&self, order: Ordering) -> u32;
    /// Writes it.
    fn store(&self, value: u32, order: Ordering);
    /// Adds, wrapping around, and returns what it was.
    fn fetch_add(&self, more: u32, order: Ordering) -> u32;
    /// Writes it and returns what it was.
    fn swap(&self, value: u32, order: Ordering) -> u32;
    /// Writes it if it is `now`.
    ///
    /// # Errors
    /// What it is, otherwise or for no reason.
    fn compare_exchange_weak(&self, now: u32, new: u32, ok: Ordering, err: Ordering) -> Result<u32, u32>;
    /// Writes it if it is `now`.
    ///
    /// # Errors
    /// What it is, otherwise.
    fn compare_exchange(&self, now: u32, new: u32, ok: Ordering, err: Ordering) -> Result<u32, u32>;
}

impl Word for AtomicU32 {
    fn new(value: u32) -> Self {
        Self::new(value)
    }
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }
    fn store(&self, value: u32, order: Ordering) {
        self.store(value, order);
    }
    fn fetch_add(&self, more: u32, order: Ordering) -> u32 {
        self.fetch_add(more, order)
    }
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        self.swap(value, order)
    }
    fn compare_exchange_weak(&self, now: u32, new: u32, ok: Ordering, err: Ordering) -> Result<u32, u32> {
        self.compare_exchange_weak(now, new, ok, err)
    }
    fn compare_exchange(&self, now: u32, new: u32, ok: Ordering, err: Ordering) -> Result<u32, u32> {
        self.compare_exchange(now, new, ok, err)
    }
}

/// Block and place of the slot that was added as number `at`.
fn block_of(at: usize) -> (usize, usize) {
    let block = (at / FIRST_BLOCK + 1).ilog2() as usize;
    (block, at - FIRST_BLOCK * ((1 << block) - 1))
}

/// The list of slots that came back.
#[derive(Debug)]
pub struct Returns<W: Word = AtomicU32> {
    head: W,
    next: Box<[W]>,
    /// Successors of slots that were added later.
    more: [OnceLock<Box<[W]>>; BLOCKS],
    /// After [`Returns::close`]: leases that are not back. Below zero (it wraps) while the receiver
    /// is about to say how many.
    left: W,
}

impl<W: Word> Returns<W> {
    /// For the slots `0..slots`, none of which has come back.
    pub fn new(slots: usize) -> Self {
        let next = (0..slots.min(MAX_SLOTS)).map(|_| W::new(NONE)).collect();
        Self { head: W::new(NONE), next, more: [const { OnceLock::new() }; BLOCKS], left: W::new(0) }
    }

    /// From now on for the slots `0..slots`, at least. The receiver's thread only, before it hands
    /// out the first of them.
    pub fn grow(&self, slots: usize) {
        let Some(last) = slots.min(MAX_SLOTS).checked_sub(self.next.len() + 1) else { return };
        for (block, more) in self.more.iter().enumerate().take(block_of(last).0 + 1) {
            more.get_or_init(|| (0..FIRST_BLOCK << block).map(|_| W::new(NONE)).collect());
        }
    }

    /// Where the successor of `slot` is.
    #[inline]
    fn next(&self, slot: u32) -> Option<&W> {
        self.next.get(slot as usize).or_else(|| self.next_added(slot))
    }

    #[cold]
    fn next_added(&self, slot: u32) -> Option<&W> {
        if slot as usize >= MAX_SLOTS {
            return None;
        }
        let (block, at) = block_of(slot as usize - self.next.len());
        self.more.get(block)?.get()?.get(at)
    }

    /// Gives `slot` back; its holder does so once. Any thread. If the receiver sleeps, `hold` is
    /// called before it can find the slot: it keeps alive what the wake-up needs.
    pub fn push<H>(&self, slot: u32, hold: impl Fn() -> H) -> Back<H> {
        let Some(next) = self.next(slot) else { return Back::Late };
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == CLOSED {
                // Released, so that whoever frees the memory does so after all that was done with
                // it.
                return match self.left.fetch_add(u32::MAX, Ordering::AcqRel) {
                    1 => Back::Last,
                    _ => Back::Late,
                };
            }
            let wake = (head == SLEEPS).then(&hold);
            next.store(if head == SLEEPS { NONE } else { head }, Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, slot, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return wake.map_or(Back::Listed, Back::Wake),
                Err(now) => head = now,
            }
        }
    }

    /// The receiver goes; `lent` slots are not collected. When some of them are not back either,
    /// `leave` is called, after which leases may be the only ones to keep the memory alive. True:
    /// all of them came back meanwhile, none will learn that it is the last, and what was left is
    /// the receiver's again.
    pub fn close(&self, lent: u32, leave: impl FnOnce()) -> bool {
        let mut slot = self.head.swap(CLOSED, Ordering::AcqRel);
        let mut away = lent;
        while let Some(next) = self.next(slot) {
            away = away.saturating_sub(1);
            slot = next.load(Ordering::Relaxed);
        }
        if away == 0 {
            return false;
        }
        leave();
        self.left.fetch_add(away, Ordering::AcqRel).wrapping_add(away) == 0
    }

    /// Takes all slots that came back, the last one first; returns how many. The receiver's thread
    /// only.
    pub fn take(&self, mut each: impl FnMut(u32)) -> usize {
        // The common case costs no exchange. A slot that comes back right now is taken the next
        // time; a receiver that wants to sleep asks with an exchange.
        if self.head.load(Ordering::Relaxed) >= CLOSED {
            return 0;
        }
        let mut slot = self.head.swap(NONE, Ordering::Acquire);
        let mut count = 0;
        while let Some(next) = self.next(slot) {
            // Before the slot is handed on: it may come back at once, and overwrite its successor.
            let below = next.load(Ordering::Relaxed);
            each(slot);
            count += 1;
            slot = below;
        }
        count
    }

    /// Tells that the receiver is about to sleep until a slot comes back. False: one came back
    /// meanwhile, and it must not.
    pub fn sleep(&self) -> bool {
        match self.head.compare_exchange(NONE, SLEEPS, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(now) => now == SLEEPS,
        }
    }

    /// Tells that the receiver doesn't sleep any more, for whatever reason.
    pub fn awake(&self) {
        // Failing means that a slot has come back, which woke the receiver, or that it didn't
        // sleep.
        let _ = self.head.compare_exchange(SLEEPS, NONE, Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
