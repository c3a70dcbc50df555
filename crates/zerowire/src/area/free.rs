//! The list of free buffers: a stack without a lock, filled once. Leasing and giving back allocate
//! nothing. Any thread may do either: the sending thread reads a notification, another thread took
//! the lease.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The end of the list.
const NONE: u32 = u32::MAX;

/// A stack of indices. The head holds the topmost index (low half) and a count of changes (high
/// half). A thread may be held up between reading the head and swapping it: the count keeps it from
/// putting back a stale successor.
#[derive(Debug)]
pub(super) struct FreeList {
    head: AtomicU64,
    next: Box<[AtomicU32]>,
    len: AtomicUsize,
}

impl FreeList {
    /// All of `0..n` free; the lowest is taken first.
    pub(super) fn new(n: u32) -> Self {
        let next = (1..=n).map(|i| AtomicU32::new(if i == n { NONE } else { i })).collect();
        let top = if n == 0 { NONE } else { 0 };
        Self { head: AtomicU64::new(u64::from(top)), next, len: AtomicUsize::new(n as usize) }
    }

    pub(super) fn pop(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let top = head as u32;
            let next = self.next.get(top as usize)?.load(Ordering::Relaxed);
            let new = bump(head) | u64::from(next);
            match self.head.compare_exchange_weak(head, new, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    self.len.fetch_sub(1, Ordering::Relaxed);
                    return Some(top);
                }
                Err(now) => head = now,
            }
        }
    }

    /// Gives `index` back. Its owner gives it back once: leases see to that.
    pub(super) fn push(&self, index: u32) {
        let Some(slot) = self.next.get(index as usize) else { return };
        // Counted before it can be taken, so that `pop` never counts below zero.
        self.len.fetch_add(1, Ordering::Relaxed);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            slot.store(head as u32, Ordering::Relaxed);
            let new = bump(head) | u64::from(index);
            match self.head.compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }
}

fn bump(head: u64) -> u64 {
    (head >> 32).wrapping_add(1) << 32
}

#[cfg(test)]
mod tests;
