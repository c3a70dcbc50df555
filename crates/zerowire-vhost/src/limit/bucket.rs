//! A token bucket. Plain code without a clock: the time is passed in.
//!
//! ```text
//!  size ┌──────┐ ◀─ tokens come at a steady rate until it is full
//!       │      │
//!     0 ├──────┤ ─▶ something may pass while there is a token, and takes as many as it is long
//!       └──────┘    the last one may take more than there are: a debt, which is paid back first
//! ```
//! The length of a frame is known only when it was read. So the bucket goes into debt for the last
//! one, however long that is. In a time `t` at most `size + rate * t` tokens and one frame pass.
//!
//! The level is counted in tokens times nanoseconds a second, in which a rate a second and a time
//! in nanoseconds are whole numbers. So nothing is ever rounded, and nothing drifts.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Nanoseconds of a second: the level's unit is one token divided by this.
const NANOS: i128 = 1_000_000_000;

/// The most of a rate and of a size, tokens. A level then has room for any time.
pub const MAX_TOKENS: u64 = 1 << 50;

/// What a bucket is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketSpec {
    /// Tokens that come in a second, 1 to [`MAX_TOKENS`].
    pub rate: u64,
    /// Tokens that it holds at most, 1 to [`MAX_TOKENS`].
    pub size: u64,
    /// Tokens that it has once, at its begin, beside being full.
    pub one_time_burst: u64,
}

impl BucketSpec {
    /// How many tokens end a wait. A limited ring so has a batch at a time, and its thread does not
    /// wake up for each frame. The bucket never fills up meanwhile.
    fn batch(&self) -> u64 {
        (self.rate / 1000).min(self.size / 2).max(1)
    }
}

/// A token bucket.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    spec: BucketSpec,
    /// Tokens that are there times [`NANOS`]; below 0 it is in debt.
    level: i128,
    /// When the level was this.
    at: Instant,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(spec: BucketSpec, now: Instant) -> Self {
        let rate = spec.rate.clamp(1, MAX_TOKENS);
        let size = spec.size.clamp(1, MAX_TOKENS);
        let one_time_burst = spec.one_time_burst.min(MAX_TOKENS);
        let level = i128::from(size + one_time_burst) * NANOS;
        Self { spec: BucketSpec { rate, size, one_time_burst }, level, at: now }
    }

    /// Tokens that it holds at most.
    pub fn size(&self) -> u64 {
        self.spec.size
    }

    /// Adds what has come by now. A time before the last one adds nothing.
    pub fn refill(&mut self, now: Instant) {
        let Some(passed) = now.checked_duration_since(self.at) else { return };
        self.at = now;
        let full = i128::from(self.spec.size) * NANOS;
        if self.level >= full {
            // The one-time burst is used up first.
            return;
        }
        // 584 years at most: the product then has at most 114 bits.
        let nanos = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        let come = i128::from(nanos) * i128::from(self.spec.rate);
        self.level = self.level.saturating_add(come).min(full);
    }

    /// Whole tokens that are there; 0 in debt.
    pub fn tokens(&self) -> u64 {
        match u64::try_from(self.level) {
            // Up to 18 GB. The other division takes several times as long.
            Ok(level) => level / NANOS as u64,
            Err(_) => u64::try_from(self.level / NANOS).unwrap_or(0),
        }
    }

    /// Takes `tokens`, into debt if need be.
    pub fn take(&mut self, tokens: u64) {
        self.level = self.level.saturating_sub(i128::from(tokens) * NANOS);
    }

    /// How long nothing may pass from the last refill on. Zero if there is a token.
    pub fn wait(&self) -> Duration {
        if self.level >= NANOS {
            return Duration::ZERO;
        }
        let missing = i128::from(self.spec.batch()) * NANOS - self.level;
        let rate = i128::from(self.spec.rate);
        let nanos = (missing + rate - 1) / rate;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
