//! When to let the next front end in. One that fails and connects again at once must cost neither
//! CPU time nor lines of the log.
//!
//! Sessions that end soon after the one before are free up to a number. A longer wait follows each
//! further one. A longer session ends that, and so does time without any.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Quick sessions in a row without a wait.
const FREE: u32 = 128;
/// The first wait; it doubles.
const FIRST: Duration = Duration::from_millis(10);
/// The longest wait: 20 sessions a second cost nothing. Less than [`CALM`], so that waiting is not
/// taken for calm.
const LONGEST: Duration = Duration::from_millis(50);
/// From the end of a session to the end of the next: a session that takes longer is not quick.
const CALM: Duration = Duration::from_secs(1);
/// Front ends in a row that left for one reason when the log says so.
pub(super) const TELLING: u32 = 3;

/// What a front end did when it left by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Progress {
    /// It has asked for features at most.
    #[default]
    Asked,
    /// It has asked how many queues there are, and went no further.
    CountedQueues,
    /// It has shared memory or started a ring.
    SetUp,
}

/// How fast front ends come and go.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the last session ended.
    ended: Option<Instant>,
    /// Quick sessions in a row.
    quick: u32,
    /// Sessions in a row that ended when the queues were counted.
    counted: u32,
}

impl Pace {
    /// A session has ended. Returns how long the next one waits.
    pub(super) fn ended(&mut self, now: Instant) -> Duration {
        let calm = self.ended.replace(now).is_none_or(|before| now.duration_since(before) >= CALM);
        self.quick = if calm { 0 } else { self.quick.saturating_add(1) };
        match self.quick.checked_sub(FREE) {
            None | Some(0) => Duration::ZERO,
            Some(n) => (FIRST * (1 << (n - 1).min(8))).min(LONGEST),
        }
    }

    /// Whether waiting begins with the session that has just ended.
    pub(super) fn begins_to_wait(&self) -> bool {
        self.quick == FREE + 1
    }

    /// Whether the log should say now that front ends leave when the queues are counted. QEMU does
    /// so if it wants more, or if its guest has features that are not offered.
    pub(super) fn leaves_at_queues(&mut self, progress: Progress) -> bool {
        self.counted = if progress == Progress::CountedQueues { self.counted.saturating_add(1) } else { 0 };
        self.counted == TELLING
    }
}

#[cfg(test)]
mod tests;
