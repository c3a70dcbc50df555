//! A queue that runs: its ring, and how driver and device notify each other.

use std::ops::DerefMut;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use zerowire_vhost_user::features;

use crate::ring::DriverRing;
use crate::{GuestError, GuestMemory, QueueHandle, Transport};

/// How long a device may take from a used index that it owes an interrupt for to that interrupt: a
/// busy machine may not let it run for a while.
const OWED_WITHIN: Duration = Duration::from_secs(5);

/// What all queues of a driver have. Owned by one thread at a time.
pub struct DriverQueue {
    pub(crate) ring: DriverRing,
    handle: QueueHandle,
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
        Ok(DriverQueue { ring, handle })
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
        let result = self.handle.doorbell.ring();
        result.map_err(|e| GuestError::io("notifying the device", e))
    }

    /// Sleeps until `count` chains have been given back (with EVENT_IDX; else
    /// one), or `timeout` is over. True when there is something to reap. (An
    /// interrupt alone says little: it may be of chains that were reaped before
    /// it came.)
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRule`] when as many have been given back, and the device does not
    /// say so within 5 s: other drivers would wait for ever. Also when the device reports an error
    /// of the queue. [`GuestError::Io`].
    pub fn wait(&mut self, count: u16, timeout: Duration) -> Result<bool, GuestError> {
        let start = Instant::now();
        loop {
            sleep(&mut [(&mut *self, Some(count))], timeout.saturating_sub(start.elapsed()))?;
            if self.ring.has_used() {
                return Ok(true);
            }
            if start.elapsed() >= timeout {
                return Ok(false);
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

/// A queue of a device, and how many chains a sleep waits for to come back to it; None: for none.
type Awaited<'q> = (&'q mut DriverQueue, Option<u16>);

/// Sleeps until one of these queues of a device has as many chains back as are waited for (without
/// EVENT_IDX: one), or `timeout` is over. It may end before.
///
/// # Errors
/// As [`DriverQueue::wait`].
pub(crate) fn sleep(queues: &mut [Awaited<'_>], timeout: Duration) -> Result<(), GuestError> {
    let mut ready = false;
    for (queue, count) in &mut *queues {
        ready |= count.is_some_and(|count| queue.ring.arm(count));
    }
    let slept = if ready { Ok(()) } else { sleep_armed(queues, timeout) };
    for (queue, _) in queues {
        queue.ring.disarm();
    }
    slept
}

/// Sleeps until the device signals. If it owes an interrupt then, sleeps on for that.
fn sleep_armed(queues: &[Awaited<'_>], timeout: Duration) -> Result<(), GuestError> {
    if is_signalled(queues, timeout)? {
        return Ok(());
    }
    let owed = queues.iter().find(|(queue, count)| {
        queue.handle.interrupt.is_own() && count.is_some_and(|count| queue.ring.is_due(count))
    });
    let Some(number) = owed.map(|(queue, _)| queue.ring.queue()) else { return Ok(()) };
    if is_signalled(queues, OWED_WITHIN)? {
        return Ok(());
    }
    let rule = "the used index passed what the driver asked for, and no interrupt came (virtio 1.3 §2.7.7.2)";
    Err(GuestError::DeviceBrokeRule(format!("queue {number}: {rule}")))
}

/// Waits for a signal of the device, or of anybody to this thread, and takes it.
fn is_signalled(queues: &[Awaited<'_>], timeout: Duration) -> Result<bool, GuestError> {
    let handles = queues.iter().map(|(queue, _)| &queue.handle);
    let signals = handles.flat_map(|handle| [Some(&handle.interrupt), handle.error.as_ref()]);
    let mut fds: Vec<PollFd<'_>> =
        signals.flatten().map(|signal| PollFd::from_borrowed_fd(signal.as_fd(), PollFlags::IN)).collect();
    match poll(&mut fds, Timespec::try_from(timeout).ok().as_ref()) {
        Ok(0) => return Ok(false),
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(true),
        Err(error) => return Err(GuestError::io("waiting for the device's interrupts", error)),
    }
    for (queue, _) in queues {
        queue.handle.interrupt.clear().map_err(|e| GuestError::io("reading an interrupt", e))?;
        let errors = queue.handle.error.as_ref().map_or(Ok(0), |error| error.clear());
        if errors.map_err(|e| GuestError::io("reading a queue's error descriptor", e))? > 0 {
            let number = queue.ring.queue();
            let rule = format!("it stopped queue {number} and reported an error of the driver's");
            return Err(GuestError::DeviceBrokeRule(rule));
        }
    }
    Ok(true)
}

/// Has `step` look at a queue, again each time that the device has given a chain back, until there
/// is a result. None when `timeout` is over first.
pub(crate) fn until<Q: DerefMut<Target = DriverQueue>, R>(
    queue: &mut Q,
    timeout: Duration,
    mut step: impl FnMut(&mut Q) -> Result<Option<R>, GuestError>,
) -> Result<Option<R>, GuestError> {
    let start = Instant::now();
    loop {
        if let Some(result) = step(queue)? {
            return Ok(Some(result));
        }
        let Some(left) = timeout.checked_sub(start.elapsed()) else { return Ok(None) };
        queue.wait(1, left)?;
    }
}

/// Gives a queue that reaps the verb `drain`.
macro_rules! drains {
    ($queue:ty) => {
        impl $queue {
            /// Publishes, then waits and reaps until nothing is in flight. False when that takes
            /// longer than `timeout`.
            ///
            /// # Errors
            /// Those of its `reap` and of [`DriverQueue::wait`]($crate::DriverQueue::wait).
            pub fn drain(&mut self, timeout: std::time::Duration) -> Result<bool, $crate::GuestError> {
                self.publish()?;
                let drained = $crate::queue::until(self, timeout, |queue| {
                    queue.reap()?;
                    Ok((queue.in_flight() == 0).then_some(()))
                });
                Ok(drained?.is_some())
            }
        }
    };
}
pub(crate) use drains;

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
