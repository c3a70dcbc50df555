//! Whether to notify the other side of a ring, and how to ask it to notify (virtio 1.3 §2.7.7,
//! §2.7.10).
//!
//! The side that gives entries stores the index and then looks at what the other side wishes. The
//! side that is about to sleep stores its wish and then looks at the index. Each has a sequentially
//! consistent fence between its store and its load. So at least one of them sees what the other one
//! stored (the store-buffering litmus test), and no wake-up is lost.

use std::sync::atomic::{AtomicU16, Ordering, fence};

/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY` (virtio 1.3 §2.7.6, §2.7.8).
pub const NO_NOTIFICATION: u16 = 1;

/// A word that one side of a ring writes and the other reads, and the fence that goes with it. The
/// tests implement it with a model checker's types.
pub trait Word {
    /// The value, relaxed.
    fn get(&self) -> u16;
    /// Stores a value, relaxed.
    fn set(&self, value: u16);
    /// The value, and with it what was written before it was shown: acquire.
    fn seen(&self) -> u16;
    /// Stores a value, which shows what was written before: release.
    fn show(&self, value: u16);
    /// A sequentially consistent fence.
    fn fence();
}

impl Word for AtomicU16 {
    #[inline]
    fn get(&self) -> u16 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, value: u16) {
        self.store(value, Ordering::Relaxed);
    }

    #[inline]
    fn seen(&self) -> u16 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn show(&self, value: u16) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Where the driver says when it wants to be notified.
#[derive(Clone, Copy, Debug)]
pub enum Wish<'a, W> {
    /// `used_event`, with EVENT_IDX.
    Event(&'a W),
    /// The available ring's flags, without.
    Flags(&'a W),
}

/// Whether to notify the driver. Call this after the used index was shown, which went from `old` to
/// `new`.
#[inline]
pub fn wants<W: Word>(wish: Wish<'_, W>, new: u16, old: u16) -> bool {
    // The driver arms its event and then looks at the index; the index must be visible before the
    // event is read.
    W::fence();
    match wish {
        Wish::Event(event) => need_event(event.get(), new, old),
        Wish::Flags(flags) => flags.get() & NO_NOTIFICATION == 0,
    }
}

/// Asks the driver for notifications: `value` is the event index, or the flags. Look at the
/// available index after that, and before sleeping.
#[inline]
pub fn ask<W: Word>(wish: &W, value: u16) {
    wish.set(value);
    W::fence();
}

/// Whether the step from `old` to `new` passed `event` (virtio 1.3 §2.7.7.2, `vring_need_event`).
#[inline]
fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

#[cfg(test)]
mod tests;
