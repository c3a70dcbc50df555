//! A queue that runs: its ring, and how driver and device notify each other.

use std::time::{Duration, Instant};

use zerowire_vhost_user::features;

use crate::ring::DriverRing;
use crate::{GuestError, GuestMemory, QueueHandle, Transport};

/// How long a device may take from a used index that it owes an interrupt for to that interrupt: a
/// busy machine may not let it run for a while.
pub(crate) const OWED_WITHIN: Duration = Duration::from_secs(5);

/// The error for a device that kept an interrupt to itself.
pub(crate) fn not_told(queue: u16) -> GuestError {
    let rule = "the used index passed what the driver asked for, and no interrupt came (virtio 1.3 §2.7.7.2)";
    GuestError::DeviceBrokeRule(format!("queue {queue}: {rule}"))
}

/// What all queues of a driver have. Owned by one thread at a time.
pub struct DriverQueue {
    pub(crate) ring: DriverRing,
    handle: QueueHandle,
    kicks: u64,
}

impl DriverQueue {
    /// Makes queue `index` of `size` entries with the features `in_force`, and
    /// tells the device of it. Interrupts are off: the driver polls, or
    /// [waits](DriverQueue::wait).
    ///
    /// # Errors
    /// Those of [`DriverRing::new`] and of the transport.
    pub fn start(
        transport: &mut impl Transport,
        memory: &GuestMemory,
        index: u16,
        size: u16,
        in_force: u64,
    ) -> Result<DriverQueue, GuestError> {
        let has = |feature| in_force & feature != 0;
        let ring = DriverRing::new(memory, index, size, has(features::RING_EVENT_IDX))?;
        let mut ring = ring.in_order(has(features::IN_ORDER));
        ring.disarm();
        let handle = transport.start_queue(index, &ring.setup())?;
        Ok(DriverQueue { ring, handle, kicks: 0 })
    }

    /// Tells a device again of the queue, which goes on where the device stopped.
    pub(crate) fn restart(&mut self, transport: &mut impl Transport) -> Result<(), GuestError> {
        self.handle = transport.start_queue(self.ring.queue(), &self.ring.setup())?;
        Ok(())
    }

    /// Lets the device see all chains added, and notifies it if it asks for
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
        self.kicks += 1;
        let result = self.handle.doorbell.ring();
        result.map_err(|e| GuestError::io("notifying the device", e))
    }

    /// Notifications of the device.
    pub(crate) fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Sleeps until `count` chains have been given back (with EVENT_IDX; else
    /// one), or `timeout` is over. True when there is something to reap. (An
    /// interrupt alone says little: it may be of chains that were reaped before
    /// it came.)
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRule`] when as many have been given back, and the device does not
    /// say so within 5 s: other drivers would wait for ever. [`GuestError::Io`].
    pub fn wait(&mut self, count: u16, timeout: Duration) -> Result<bool, GuestError> {
        let failed = |e| GuestError::io("waiting for the device's interrupt", e);
        let start = Instant::now();
        let mut left = timeout;
        loop {
            let interrupt = &self.handle.interrupt;
            if !self.ring.arm(count) {
                let mut told = interrupt.wait(left).map_err(failed)?;
                if !told && interrupt.is_own() && self.ring.is_due(count) {
                    let begin = Instant::now();
                    // A signal ends a wait, too.
                    while !told && begin.elapsed() < OWED_WITHIN {
                        told = interrupt.wait(OWED_WITHIN).map_err(failed)?;
                    }
                    if !told {
                        return Err(not_told(self.ring.queue()));
                    }
                }
                if told {
                    interrupt.clear().map_err(failed)?;
                }
            }
            self.ring.disarm();
            if self.ring.has_used() {
                return Ok(true);
            }
            match timeout.checked_sub(start.elapsed()) {
                Some(rest) if !rest.is_zero() => left = rest,
                _ => return Ok(false),
            }
        }
    }

    /// Descriptors not given back yet.
    pub fn in_flight(&self) -> u16 {
        self.ring.in_flight()
    }

    /// The ring.
    pub fn ring(&self) -> &DriverRing {
        &self.ring
    }

    /// The ring, to add and reap chains.
    #[inline]
    pub fn ring_mut(&mut self) -> &mut DriverRing {
        &mut self.ring
    }

    /// Doorbell and interrupt.
    pub fn handle(&self) -> &QueueHandle {
        &self.handle
    }
}

/// Gives a queue the verbs of the [`DriverQueue`] in its field `queue`.
macro_rules! driver_queue {
    ($queue:ty) => {
        impl std::ops::Deref for $queue {
            type Target = $crate::DriverQueue;

            fn deref(&self) -> &$crate::DriverQueue {
                &self.queue
            }
        }

        impl std::ops::DerefMut for $queue {
            fn deref_mut(&mut self) -> &mut $crate::DriverQueue {
                &mut self.queue
            }
        }
    };
}
pub(crate) use driver_queue;
