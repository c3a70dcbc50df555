//! Sleeping until the device has done something.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::VsockQueues;
use crate::queue::{OWED_WITHIN, not_told};
use crate::{DriverQueue, GuestError};

impl VsockQueues {
    /// Sleeps until a packet came, or, `for_room`, one was given back.
    pub(super) fn sleep(&mut self, for_room: bool, timeout: Duration) -> Result<(), GuestError> {
        let mut ready = self.rx.ring.arm(1);
        if for_room {
            ready |= self.tx.ring.arm(1);
        }
        let slept = if ready { Ok(()) } else { self.sleep_told(for_room, timeout) };
        self.rx.ring.disarm();
        self.tx.ring.disarm();
        slept
    }

    /// As [`Self::sleep_armed`]. A device that owes an interrupt is waited for.
    fn sleep_told(&self, for_room: bool, timeout: Duration) -> Result<(), GuestError> {
        if self.sleep_armed(timeout)? {
            return Ok(());
        }
        let owes = |queue: &DriverQueue| queue.handle().interrupt.is_own() && queue.ring.is_due(1);
        let owed =
            if owes(&self.rx) { Some(&*self.rx) } else { Some(&*self.tx).filter(|q| for_room && owes(q)) };
        match owed {
            Some(queue) if !self.sleep_armed(OWED_WITHIN)? => Err(not_told(queue.ring.queue())),
            _ => Ok(()),
        }
    }

    /// Returns whether anything was said.
    fn sleep_armed(&self, timeout: Duration) -> Result<bool, GuestError> {
        let limit = Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let handles = [self.rx.handle(), self.tx.handle()];
        let interrupts = handles.map(|handle| Some(&handle.interrupt));
        let errors = handles.map(|handle| handle.error.as_ref());
        let all = || interrupts.iter().chain(&errors).copied().flatten();
        let mut fds: Vec<PollFd<'_>> =
            all().map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)).collect();
        let mut told = match poll(&mut fds, Some(&limit)) {
            Ok(n) => n > 0,
            Err(Errno::INTR) => true,
            Err(error) => return Err(GuestError::io("waiting for the device's interrupts", error)),
        };
        for interrupt in interrupts.into_iter().flatten() {
            // It may have come since.
            told |= interrupt.clear().map_err(|e| GuestError::io("reading an interrupt", e))? > 0;
        }
        for (queue, error) in errors.into_iter().enumerate() {
            let count = error.map_or(Ok(0), |error| error.clear());
            if count.map_err(|e| GuestError::io("reading a queue's error descriptor", e))? > 0 {
                let rule = format!("it stopped queue {queue} and reported an error of the driver's");
                return Err(GuestError::DeviceBrokeRule(rule));
            }
        }
        Ok(told)
    }
}
