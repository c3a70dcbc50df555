//! Waits for the time at which a frame is due.

use rustix::thread::{ClockId as Sleeper, clock_nanosleep_absolute};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Gaps longer than this are slept through, up to this long before their end; the rest is spent
/// looking at the clock. The kernel wakes a thread some 50 µs late, which this covers.
pub const SPIN_NANOSECONDS: u64 = 100_000;

/// Longest sleep at once, so that the program sees signals and shows progress meanwhile.
const NAP_NANOSECONDS: u64 = 50_000_000;

/// Nanoseconds since it was made.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    begin: Timespec,
}

impl Clock {
    /// Starts at 0.
    pub fn start() -> Self {
        Self { begin: clock_gettime(ClockId::Monotonic) }
    }

    /// Nanoseconds since then.
    #[inline]
    pub fn now(&self) -> u64 {
        let now = clock_gettime(ClockId::Monotonic);
        let nanoseconds =
            (now.tv_sec - self.begin.tv_sec) * 1_000_000_000 + (now.tv_nsec - self.begin.tv_nsec);
        u64::try_from(nanoseconds).unwrap_or(0)
    }

    /// Waits until `due`, or a while less: a sleep is at most 50 ms, so that the caller looks
    /// around meanwhile. Returns the time. Sleeps end at an absolute time: that a sleep begins or
    /// ends late adds nothing to the next one.
    pub fn wait(&self, due: u64) -> u64 {
        let now = self.now();
        if now >= due {
            return now;
        }
        if due - now > SPIN_NANOSECONDS {
            self.sleep_until((due - SPIN_NANOSECONDS).min(now + NAP_NANOSECONDS));
        }
        loop {
            let now = self.now();
            if now >= due || due - now > SPIN_NANOSECONDS {
                return now;
            }
            std::hint::spin_loop();
        }
    }

    fn sleep_until(&self, at: u64) {
        let nanoseconds = self.begin.tv_nsec + (at % 1_000_000_000) as i64;
        let until = Timespec {
            tv_sec: self.begin.tv_sec + (at / 1_000_000_000) as i64 + nanoseconds / 1_000_000_000,
            tv_nsec: nanoseconds % 1_000_000_000,
        };
        // A signal ends it early, and the caller looks at the clock.
        let _ = clock_nanosleep_absolute(Sleeper::Monotonic, &until);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_at_the_time_or_for_a_look_around_before() {
        let clock = Clock::start();
        for due in [1_000, 90_000, 3_000_000] {
            let mut now = 0;
            while now < due {
                now = clock.wait(due);
            }
            assert!(clock.now() >= due);
        }
        // An hour is not waited for at once.
        let hour = 3_600_000_000_000;
        assert!(clock.wait(hour) < hour);
        assert_eq!(clock.wait(0).cmp(&0), std::cmp::Ordering::Greater);
    }
}
