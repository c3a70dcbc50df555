//! A transmit queue.

use std::time::Duration;

use crate::queue::{DriverQueue, driver_queue};
use crate::ring::DriverRing;
use crate::{GuestError, GuestMemory};

use super::frames::{FramePool, FrameShape};
use super::header::VirtioNetHdr;

/// Marks chains of frames that belong to somebody else's pool.
const FOREIGN: u32 = u32::MAX;

/// What a queue has done so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TxCounters {
    /// Frames added.
    pub added: u64,
    /// Frames that the device gave back.
    pub completed: u64,
    /// Notifications of the device.
    pub kicks: u64,
}

/// A transmit queue. Owned by one thread at a time.
///
/// Frames are sent in one of two ways: [`TxQueue::send`] copies a frame into a
/// buffer of the queue; [`TxQueue::submit`] sends a frame of a [`FramePool`],
/// writing only descriptors. Both are seen by the device at the next
/// [`DriverQueue::publish`].
pub struct TxQueue {
    queue: DriverQueue,
    slots: FramePool,
    free_slots: Vec<u32>,
    counters: TxCounters,
}

driver_queue!(TxQueue);

impl TxQueue {
    pub(super) fn new(
        queue: DriverQueue,
        memory: &GuestMemory,
        shape: FrameShape,
        slots: usize,
    ) -> Result<TxQueue, GuestError> {
        Ok(TxQueue {
            queue,
            slots: FramePool::new(memory, shape, slots)?,
            free_slots: (0..slots as u32).rev().collect(),
            counters: TxCounters::default(),
        })
    }

    /// Copies a frame into a buffer of the queue and adds it. False when the
    /// queue is full: reap, or wait.
    ///
    /// # Errors
    /// [`GuestError::FrameTooLong`].
    pub fn send(&mut self, header: &VirtioNetHdr, frame: &[u8]) -> Result<bool, GuestError> {
        let Some(&slot) = self.free_slots.last() else {
            return Ok(false);
        };
        self.slots.set(slot as usize, header, frame)?;
        let added = add(&mut self.queue.ring, &self.slots, slot as usize, slot);
        if added {
            self.free_slots.pop();
            self.counters.added += 1;
        }
        Ok(added)
    }

    /// Adds frame `index` of `pool`, which must stay alive until the frame
    /// was given back. False when the queue is full.
    ///
    /// # Panics
    /// When `index` is not below [`FramePool::len`].
    #[inline]
    pub fn submit(&mut self, pool: &FramePool, index: usize) -> bool {
        let added = add(&mut self.queue.ring, pool, index, FOREIGN);
        self.counters.added += u64::from(added);
        added
    }

    /// Adds up to `max` frames of `pool` from `cursor` on, going around at its
    /// end, until the queue is full. Returns how many; `cursor` moves on.
    #[inline]
    pub fn submit_cycle(&mut self, pool: &FramePool, cursor: &mut usize, max: usize) -> usize {
        let mut count = 0;
        while count < max {
            if *cursor >= pool.len() {
                *cursor = 0;
            }
            if !add(&mut self.queue.ring, pool, *cursor, FOREIGN) {
                break;
            }
            *cursor += 1;
            count += 1;
        }
        self.counters.added += count as u64;
        count
    }

    /// Takes all frames that the device gave back; returns how many.
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRing`].
    #[inline]
    pub fn reap(&mut self) -> Result<usize, GuestError> {
        let mut count = 0;
        while let Some(used) = self.queue.ring.reap()? {
            if used.token != FOREIGN {
                self.free_slots.push(used.token);
            }
            count += 1;
        }
        self.counters.completed += count as u64;
        Ok(count)
    }

    /// Publishes, then waits and reaps until nothing is in flight. False when
    /// that takes longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`TxQueue::reap`] and [`DriverQueue::wait`].
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, GuestError> {
        let start = std::time::Instant::now();
        self.publish()?;
        self.reap()?;
        while self.queue.ring.in_flight() > 0 {
            let Some(left) = timeout.checked_sub(start.elapsed()) else {
                return Ok(false);
            };
            self.wait(1, left)?;
            self.reap()?;
        }
        Ok(true)
    }

    /// What was done so far.
    pub fn counters(&self) -> TxCounters {
        TxCounters { kicks: self.queue.kicks(), ..self.counters }
    }
}

#[inline]
fn add(ring: &mut DriverRing, pool: &FramePool, index: usize, token: u32) -> bool {
    let prepared = pool.prepared(index);
    match prepared.table {
        Some((addr, len)) => ring.add_indirect(addr, len, 0, token),
        None => ring.add(prepared.segments, token),
    }
}
