//! A transmit queue.

use crate::frames::{FramePool, FrameShape};
use crate::queue::{DriverQueue, drains, driver_queue};
use crate::{GuestError, GuestMemory};

use super::header::VirtioNetHdr;

/// Marks chains of frames that belong to somebody else's pool.
const FOREIGN: u32 = u32::MAX;

/// A transmit queue. Owned by one thread at a time.
///
/// Frames are sent in one of two ways: [`TxQueue::send`] copies a frame into a
/// buffer of the queue; [`TxQueue::submit_cycle`] sends frames of a
/// [`FramePool`], writing only descriptors. Both are seen by the device at the
/// next [`DriverQueue::publish`].
pub struct TxQueue {
    queue: DriverQueue,
    slots: FramePool,
    free_slots: Vec<u32>,
}

driver_queue!(TxQueue);
drains!(TxQueue);

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
        let added = self.slots.add(&mut self.queue.ring, slot as usize, slot);
        if added {
            self.free_slots.pop();
        }
        Ok(added)
    }

    /// Adds up to `max` frames of `pool` from `cursor` on, going around at its
    /// end, until the queue is full. Returns how many; `cursor` moves on. The
    /// pool must stay alive until the frames were given back.
    #[inline]
    pub fn submit_cycle(&mut self, pool: &FramePool, cursor: &mut usize, max: usize) -> usize {
        let mut count = 0;
        while count < max {
            if *cursor >= pool.len() {
                *cursor = 0;
            }
            if !pool.add(&mut self.queue.ring, *cursor, FOREIGN) {
                break;
            }
            *cursor += 1;
            count += 1;
        }
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
        Ok(count)
    }
}
