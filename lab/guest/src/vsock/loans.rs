//! Receive buffers that a program reads in place, and their way back.
//!
//! A lent buffer is neither in the ring nor idle: the device can't write to
//! it, and nobody posts it. Whoever holds it gives its number back here, from
//! any thread; the queue takes the numbers at its next turn.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::GuestSlice;

/// The buffers of a queue, and the numbers of those that came back.
#[derive(Debug)]
pub(super) struct LentBuffers {
    buffers: Box<[GuestSlice]>,
    back: Mutex<Vec<u32>>,
    /// Whether `back` has any: spares the lock on each turn.
    any: AtomicBool,
}

impl LentBuffers {
    pub(super) fn new(buffers: Box<[GuestSlice]>) -> LentBuffers {
        let back = Mutex::new(Vec::with_capacity(buffers.len()));
        LentBuffers { buffers, back, any: AtomicBool::new(false) }
    }

    #[inline]
    pub(super) fn buffer(&self, number: u32) -> &GuestSlice {
        &self.buffers[number as usize]
    }

    /// Gives buffers back.
    pub(super) fn give_back(&self, numbers: impl Iterator<Item = u32>) {
        let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
        back.extend(numbers);
        // After the numbers, and before the lock goes: who sees it finds them.
        self.any.store(true, Ordering::Release);
    }

    /// Moves what came back to the end of `idle`.
    #[inline]
    pub(super) fn take_back(&self, idle: &mut VecDeque<u32>) {
        if self.any.load(Ordering::Acquire) {
            let mut back = self.back.lock().unwrap_or_else(PoisonError::into_inner);
            self.any.store(false, Ordering::Relaxed);
            idle.extend(back.drain(..));
        }
    }
}
