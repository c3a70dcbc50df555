//! When a group reviews credit.

use std::io;
use std::os::fd::OwnedFd;

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use super::SETTLE_AFTER;

/// How often [`SETTLE_AFTER`] passes without a review of credit, in a group that is never idle that
/// long.
const BUSY_REVIEWS: u32 = 16;

/// When to look at credit that guests don't know of. It has a timer of its own. A short timeout of
/// each sleep costs more than the sleep, since the processor's timer is set twice.
pub(super) struct Review {
    /// Readable when it is time to look.
    pub timer: OwnedFd,
    /// True: the timer runs.
    set: bool,
    /// True: something has moved since the timer was set.
    pub moved: bool,
    /// Times in a row that something had moved.
    busy: u32,
}

impl Review {
    /// The timer is not set.
    pub fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Self { timer, set: false, moved: false, busy: 0 })
    }

    /// Sets the timer, if it is not set.
    #[inline]
    pub fn begin(&mut self) {
        if !self.set {
            let after = Timespec { tv_sec: 0, tv_nsec: SETTLE_AFTER.subsec_nanos().into() };
            let once = Itimerspec { it_interval: Timespec::default(), it_value: after };
            self.set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).is_ok();
            self.moved = false;
        }
    }

    /// The timer has ended. Whether it is time: nothing has moved meanwhile, or something moves all
    /// the time.
    pub fn is_due(&mut self) -> bool {
        self.set = false;
        self.busy += 1;
        let due = !self.moved || self.busy == BUSY_REVIEWS;
        if due {
            self.busy = 0;
        }
        due
    }
}
