//! How fast children follow each other, and how much time it may take to hear one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// So many children in [`WINDOW`] follow each other at once.
const AT_ONCE: usize = 5;
const WINDOW: Duration = Duration::from_secs(10);
/// How long the next one waits then.
const WAIT: Duration = Duration::from_secs(1);

/// Waits, unless somebody `stops` the child that comes next.
pub(crate) fn wait_unless(stops: &AtomicBool, wait: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < wait && !stops.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// When the last children died.
#[derive(Debug, Default)]
pub(crate) struct RestartPace(VecDeque<Instant>);

impl RestartPace {
    /// A child has died. How long the next one waits.
    pub(crate) fn died(&mut self, now: Instant) -> Duration {
        self.0.retain(|before| now.duration_since(*before) < WINDOW);
        self.0.push_back(now);
        if self.0.len() <= AT_ONCE {
            return Duration::ZERO;
        }
        self.0.pop_front();
        WAIT
    }
}

/// The thread that hears a child may use one of this many parts of the time, beyond a [`BURST`].
const PARTS: u32 = 4;
/// CPU time that it may use at once.
const BURST: Duration = Duration::from_millis(250);

/// How long a thread that has used CPU time waits, so that a child which talks all the time takes
/// a part of a CPU alone. Other threads have CPUs of their own, or their turn.
#[derive(Debug, Default)]
pub(crate) struct HearingPace {
    /// Used beyond what was free, by the last look.
    used: Duration,
    /// When that was, and the thread's CPU time then.
    last: Option<(Instant, Duration)>,
}

impl HearingPace {
    /// By now this thread has used `cpu` in all. How long it waits.
    pub(crate) fn heard(&mut self, now: Instant, cpu: Duration) -> Duration {
        let (before, used) = self.last.replace((now, cpu)).unwrap_or((now, cpu));
        self.used += cpu.saturating_sub(used);
        self.used = self.used.saturating_sub(now.duration_since(before) / PARTS);
        self.used.saturating_sub(BURST) * PARTS
    }
}

/// The CPU time of the calling thread.
pub(crate) fn thread_cpu_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hears_all_the_time_waits_most_of_it() {
        let (mut pace, begin) = (HearingPace::default(), Instant::now());
        let (mut time, mut cpu) = (Duration::ZERO, Duration::ZERO);
        while time < Duration::from_secs(10) {
            let wait = pace.heard(begin + time, cpu);
            let work = Duration::from_millis(1);
            (time, cpu) = (time + wait + work, cpu + work);
        }
        let most = time / PARTS + BURST + Duration::from_millis(1);
        assert!(cpu <= most && cpu > most / 2, "{cpu:?} of {time:?}");
        assert_eq!(pace.heard(begin + time * 2, cpu), Duration::ZERO, "it was quiet");
    }

    #[test]
    fn children_that_die_one_behind_the_other_wait() {
        let (mut pace, begin) = (RestartPace::default(), Instant::now());
        let waits: Vec<_> = (0..7).map(|n| pace.died(begin + Duration::from_millis(n))).collect();
        assert_eq!(waits[..5], [Duration::ZERO; 5]);
        assert_eq!(waits[5..], [WAIT; 2]);
        assert_eq!(pace.died(begin + WINDOW * 2), Duration::ZERO, "that is long ago");
    }
}
