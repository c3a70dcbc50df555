//! Sleeping until the device has done something.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::VsockQueues;
use crate::GuestError;

impl VsockQueues {
    /// Sleeps until a packet came, or, `for_room`, one was given back.
    pub(super) fn sleep(&mut self, for_room: bool, timeout: Duration) -> Result<(), GuestError> {
        let mut ready = self.rx.ring.arm(1);
        if for_room {
            ready |= self.tx.ring.arm(1);
        }
        let slept = if ready { Ok(()) } else { self.sleep_armed(timeout) };
        self.rx.ring.disarm();
        self.tx.ring.disarm();
        slept
    }

    fn sleep_armed(&self, timeout: Duration) -> Result<(), GuestError> {
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
