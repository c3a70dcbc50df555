//! Turns: take what came, give what waits, and sleep when there is neither.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{VsockEvent, VsockStack};
use crate::GuestError;

/// Packets that may wait for room in the transmit queue. With more, nothing
/// is received, so that a device that floods makes itself wait.
const MOST_WAITING: usize = 1024;
/// Packets received in one turn.
const BUDGET: usize = 256;

impl VsockStack {
    /// Makes a turn and returns what happened since the last call. It sleeps
    /// up to `timeout` when there is nothing to do.
    ///
    /// # Errors
    /// As [`VsockStack::turn`].
    pub fn poll(&mut self, timeout: Duration) -> Result<Vec<VsockEvent>, GuestError> {
        let events = self.core.take_events();
        if !events.is_empty() {
            return Ok(events);
        }
        self.turn(timeout)?;
        Ok(self.core.take_events())
    }

    /// Makes a turn: received packets are handled, packets that wait go out,
    /// and the device sees both. When there is nothing to do it sleeps up to
    /// `timeout`, once. Returns how many packets came or were given back.
    ///
    /// # Errors
    /// [`GuestError::DeviceBrokeRule`] for packets that no sound device passes
    /// on, and when the device reports an error of a queue; what a peer does
    /// wrong on its connection resets that connection alone; [`GuestError::DeviceBrokeRing`];
    /// [`GuestError::Io`].
    pub fn turn(&mut self, timeout: Duration) -> Result<usize, GuestError> {
        let count = self.work()?;
        if count > 0 || timeout.is_zero() {
            return Ok(count);
        }
        self.sleep(timeout)?;
        self.work()
    }

    fn work(&mut self) -> Result<usize, GuestError> {
        let reaped = self.queues.tx.reap()?;
        if reaped > 0 && std::mem::take(&mut self.wants_room) {
            self.core.note_room();
        }
        self.core.take_returns();
        let budget = BUDGET.min(MOST_WAITING.saturating_sub(self.core.outbox.len()));
        let core = &mut self.core;
        let received = self.queues.rx.try_harvest(budget, |packet| core.input(&packet))?;
        self.flush_outbox()?;
        for _ in 0..self.unsent.len() {
            let Some(id) = self.unsent.pop_front() else { break };
            self.send_rest(id)?;
            if self.core.get(id).is_some_and(|conn| conn.outgoing.is_some()) {
                self.unsent.push_back(id);
            }
        }
        self.queues.rx.publish()?;
        self.queues.tx.publish()?;
        Ok(reaped + received)
    }

    /// Sleeps until a packet came, or, if somebody waits for room, one was
    /// given back.
    fn sleep(&mut self, timeout: Duration) -> Result<(), GuestError> {
        let (rx, tx) = (&mut self.queues.rx, &mut self.queues.tx);
        let for_room = self.wants_room || !self.core.outbox.is_empty();
        let mut ready = rx.ring_mut().arm(1);
        if for_room {
            ready |= tx.ring_mut().arm(1);
        }
        let slept = if ready { Ok(()) } else { self.sleep_armed(timeout) };
        self.queues.rx.ring_mut().disarm();
        self.queues.tx.ring_mut().disarm();
        slept
    }

    fn sleep_armed(&self, timeout: Duration) -> Result<(), GuestError> {
        let limit = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let handles = [self.queues.rx.handle(), self.queues.tx.handle()];
        let interrupts = handles.map(|handle| Some(&handle.interrupt));
        let errors = handles.map(|handle| handle.error.as_ref());
        let all = || interrupts.iter().chain(&errors).copied().flatten();
        let mut fds: Vec<PollFd<'_>> =
            all().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(GuestError::io("waiting for the device's interrupts", error)),
        }
        for interrupt in interrupts.into_iter().flatten() {
            interrupt.clear().map_err(|e| GuestError::io("reading an interrupt", e))?;
        }
        for (queue, error) in errors.into_iter().enumerate() {
            let count = error.map_or(Ok(0), |error| error.clear());
            if count.map_err(|e| GuestError::io("reading a queue's error descriptor", e))? > 0 {
                let rule = format!("it stopped queue {queue} and reported an error of the driver's");
                return Err(GuestError::DeviceBrokeRule(rule));
            }
        }
        Ok(())
    }
}
