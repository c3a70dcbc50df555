//! A transmit queue.

use std::time::Duration;

use crate::ring::DriverRing;
use crate::{GuestError, GuestMemory, QueueHandle, QueueSetup};

use super::frames::{FramePool, FrameShape};
use super::header::VirtioNetHdr;
use crate::wait::wait_used;

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
/// [`TxQueue::publish`].
pub struct TxQueue {
    ring: DriverRing,
    handle: QueueHandle,
    slots: FramePool,
    free_slots: Vec<u32>,
    counters: TxCounters,
}

impl TxQueue {
    pub(super) fn new(
        mut ring: DriverRing,
        handle: QueueHandle,
        memory: &GuestMemory,
        shape: FrameShape,
        slots: usize,
    ) -> Result<TxQueue, GuestError> {
        ring.disarm();
        Ok(TxQueue {
            ring,
            handle,
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
        let added = add(&mut self.ring, &self.slots, slot as usize, slot);
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
        let added = add(&mut self.ring, pool, index, FOREIGN);
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
            if !add(&mut self.ring, pool, *cursor, FOREIGN) {
                break;
            }
            *cursor += 1;
            count += 1;
        }
        self.counters.added += count as u64;
        count
    }

    /// Lets the device see all frames added, and notifies it if it asks for
    /// that. Returns whether it was notified.
    ///
    /// # Errors
    /// [`GuestError::Io`] when the device can't be notified.
    #[inline]
    pub fn publish(&mut self) -> Result<bool, GuestError> {
        let kick = self.ring.publish();
        if kick {
            self.kick()?;
        }
        Ok(kick)
    }

    /// Notifies the device whether or not it asks for that.
    ///
    /// # Errors
    /// [`GuestError::Io`].
    pub fn kick(&mut self) -> Result<(), GuestError> {
        self.counters.kicks += 1;
        let result = self.handle.doorbell.ring();
        result.map_err(|e| GuestError::io("notifying the device", e))
    }

    /// Takes all frames that the device gave back; returns how many.
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRing`].
    #[inline]
    pub fn reap(&mut self) -> Result<usize, GuestError> {
        let mut count = 0;
        while let Some(used) = self.ring.reap()? {
            if used.token != FOREIGN {
                self.free_slots.push(used.token);
            }
            count += 1;
        }
        self.counters.completed += count as u64;
        Ok(count)
    }

    /// Sleeps until `count` frames have been given back (with EVENT_IDX; else
    /// one), or `timeout` is over. True when there are frames to reap.
    ///
    /// # Errors
    /// [`GuestError::Io`].
    pub fn wait(&mut self, count: u16, timeout: Duration) -> Result<bool, GuestError> {
        wait_used(&mut self.ring, &self.handle, count, timeout)
    }

    /// Publishes, then waits and reaps until nothing is in flight. False when
    /// that takes longer than `timeout`.
    ///
    /// # Errors
    /// Those of [`TxQueue::reap`] and [`TxQueue::wait`].
    pub fn drain(&mut self, timeout: Duration) -> Result<bool, GuestError> {
        let start = std::time::Instant::now();
        self.publish()?;
        self.reap()?;
        while self.ring.in_flight() > 0 {
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
        self.counters
    }

    /// Descriptors not given back yet.
    pub fn in_flight(&self) -> u16 {
        self.ring.in_flight()
    }

    /// The ring.
    pub fn ring(&self) -> &DriverRing {
        &self.ring
    }

    /// Doorbell and interrupt.
    pub fn handle(&self) -> &QueueHandle {
        &self.handle
    }

    pub(super) fn setup(&self) -> QueueSetup {
        self.ring.setup()
    }

    pub(super) fn reattach(&mut self, handle: QueueHandle) {
        self.handle = handle;
    }

    /// Takes ring and handle out, for misuse.
    pub fn into_parts(self) -> (DriverRing, QueueHandle) {
        (self.ring, self.handle)
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
