//! How two processes that share a flag word sleep and wake, with a system call only when somebody
//! sleeps.
//!
//! One side publishes something in shared memory (a window's `poll_value`). The other side looks
//! for it and sleeps on an eventfd when it finds nothing. The sleeper raises the flag and then
//! looks again; the waker publishes and then looks at the flag. Each side has a sequentially
//! consistent fence between its store and its load. So at least one of them sees what the other one
//! stored (the store-buffering litmus test), and no wake-up is lost.
//!
//! The flag lies in memory that the other process can write. Any value but 0 counts as raised. A
//! wrong value leads to one superfluous or one missing wake-up of the process that wrote it, and to
//! nothing else.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// A flag word, and the fence that goes with it. The tests implement it with a model checker's
/// types.
pub trait Flag {
    /// The value, relaxed.
    fn get(&self) -> u32;
    /// Stores a value, relaxed.
    fn set(&self, value: u32);
    /// Stores a value and returns the former one, relaxed.
    fn swap(&self, value: u32) -> u32;
    /// A sequentially consistent fence.
    fn fence();
}

impl Flag for AtomicU32 {
    #[inline]
    fn get(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, value: u32) {
        self.store(value, Ordering::Relaxed);
    }

    #[inline]
    fn swap(&self, value: u32) -> u32 {
        AtomicU32::swap(self, value, Ordering::Relaxed)
    }

    #[inline]
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// What a flag says that is raised for whatever comes next.
pub const ANY: u32 = 1;

/// What a flag says that is raised for window `window` alone.
#[inline]
pub fn only(window: u32) -> u32 {
    window.wrapping_add(2)
}

/// Announces that the caller is about to sleep, and says whether it may: true if `there` still
/// finds nothing. Otherwise the announcement is taken back.
///
/// `there` has to look at what the other side publishes, with acquire order. After sleeping, call
/// [`awake`].
#[must_use = "true: sleep now; false: there is something"]
#[inline]
pub fn sleep_check<F: Flag>(flag: &F, there: impl FnOnce() -> bool) -> bool {
    let sleeps = announce(flag, ANY, there);
    if !sleeps {
        flag.set(0);
    }
    sleeps
}

/// As [`sleep_check`] with another announcement ([`ANY`] or [`only`]), which stays whatever `there`
/// finds: then it may be answered though nobody sleeps.
#[must_use = "true: sleep now; false: there is something"]
#[inline]
pub fn announce<F: Flag>(flag: &F, what: u32, there: impl FnOnce() -> bool) -> bool {
    flag.set(what);
    F::fence();
    !there()
}

/// Takes the announcement back, after sleeping.
#[inline]
pub fn awake<F: Flag>(flag: &F) {
    flag.set(0);
}

/// To be called after publishing: says whether the other side sleeps, or is about to. Then the
/// caller writes 1 to its eventfd. Each announcement is answered once.
#[must_use = "true: write the eventfd"]
#[inline]
pub fn wake_if_sleeping<F: Flag>(flag: &F) -> bool {
    F::fence();
    // The load spares a locked instruction as long as nobody sleeps.
    flag.get() != 0 && flag.swap(0) != 0
}

/// As [`wake_if_sleeping`], after window `window` was given back: who waits for another one alone
/// is left in peace.
#[must_use = "true: write the eventfd"]
#[inline]
pub fn wake_if_wanted<F: Flag>(flag: &F, window: u32) -> bool {
    F::fence();
    let wanted = flag.get();
    (wanted == ANY || wanted == only(window)) && flag.swap(0) != 0
}
