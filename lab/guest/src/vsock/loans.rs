//! Receive buffers that a program reads in place, and their way back.
//!
//! A lent buffer is neither in the ring nor idle: the device can't write to
//! it, and nobody posts it. Whoever holds it gives its number back here, from
//! any thread; the queue takes the numbers at its next turn.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::GuestSlice;

/// What holders give back, from any thread, until its owner takes it.
#[derive(Debug, Default)]
pub(super) struct Returns<T> {
    list: Mutex<T>,
    /// Whether there is any: spares the lock on each turn.
    any: AtomicBool,
}

impl<T> Returns<T> {
    /// Has `add` put something to the list.
    pub(super) fn add(&self, add: impl FnOnce(&mut T)) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        add(&mut list);
        // After that, and before the lock goes: who sees it finds what was added.
        self.any.store(true, Ordering::Release);
    }

    /// If there is any, has `take` empty the list.
    #[inline]
    pub(super) fn take(&self, take: impl FnOnce(&mut T)) {
        if self.any.load(Ordering::Acquire) {
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            self.any.store(false, Ordering::Relaxed);
            take(&mut list);
        }
    }
}

/// The buffers of a queue, and the numbers of those that came back.
#[derive(Debug)]
pub(super) struct LentBuffers {
    buffers: Box<[GuestSlice]>,
    pub back: Returns<Vec<u32>>,
}

impl LentBuffers {
    pub(super) fn new(buffers: Box<[GuestSlice]>) -> LentBuffers {
        LentBuffers { buffers, back: Returns::default() }
    }

    #[inline]
    pub(super) fn buffer(&self, number: u32) -> &GuestSlice {
        &self.buffers[number as usize]
    }
}
