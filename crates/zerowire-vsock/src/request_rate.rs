//! How many connection requests of a guest the device answers with more than RST.
//!
//! A request to the host opens a socket and connects it, which takes as long as many small packets.
//! Requests beyond a rate are answered without any of it.

use std::time::{Duration, Instant};

use super::news::News;

/// A bucket of as many requests as may come in a second; it fills evenly, and is full at first.
#[derive(Debug)]
pub struct RequestRate {
    /// Between two requests of a guest that asks all the time; zero for no bound.
    interval: Duration,
    /// From an empty bucket to one with all but one request.
    most: Duration,
    /// When the bucket will be full, were nothing more taken out; None while it has been full all
    /// the time.
    full_at: Option<Instant>,
    /// Refusals, for the log.
    pub(crate) refusals: News,
}

impl RequestRate {
    /// For `a_second` requests a second; 0 for no bound.
    pub fn new(a_second: u32) -> Self {
        // It is rounded up: not one more than that.
        let interval = match a_second {
            0 => Duration::ZERO,
            n => Duration::from_nanos(1_000_000_000u64.div_ceil(u64::from(n))),
        };
        Self {
            interval,
            most: interval * a_second.saturating_sub(1),
            full_at: None,
            refusals: News::default(),
        }
    }

    /// Whether there is a bound: without one the time need not be known.
    pub fn is_bounded(&self) -> bool {
        !self.interval.is_zero()
    }

    /// Takes a request out of the bucket. Returns whether there was one.
    pub fn take(&mut self, now: Instant) -> bool {
        let full_at = self.full_at.map_or(now, |at| at.max(now));
        if full_at.duration_since(now) > self.most {
            return false;
        }
        self.full_at = Some(full_at + self.interval);
        true
    }
}

#[cfg(test)]
mod tests;
