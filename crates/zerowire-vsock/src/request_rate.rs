//! How many connection requests of a guest the device answers with more than RST.
//!
//! A request to the host opens a socket and connects it, which takes as long as many small packets.
//! Requests beyond a rate are answered without any of it.

use std::time::Instant;

use zerowire_vhost::limit::{BucketSpec, TokenBucket};

use zerowire_vhost::news::News;

/// A bucket of as many requests as may come in a second; it fills evenly, and is full at first.
#[derive(Debug)]
pub struct RequestRate {
    /// 0 for no bound.
    a_second: u32,
    /// None before the first request.
    bucket: Option<TokenBucket>,
    /// Refusals, for the log.
    pub(crate) refusals: News,
}

impl RequestRate {
    /// For `a_second` requests a second; 0 for no bound.
    pub fn new(a_second: u32) -> Self {
        Self { a_second, bucket: None, refusals: News::default() }
    }

    /// Whether there is a bound: without one the time need not be known.
    pub fn is_bounded(&self) -> bool {
        self.a_second > 0
    }

    /// Takes a request out of the bucket. Returns whether there was one.
    pub fn take(&mut self, now: Instant) -> bool {
        let rate = u64::from(self.a_second);
        let full = || TokenBucket::new(BucketSpec { rate, size: rate, one_time_burst: 0 }, now);
        let bucket = self.bucket.get_or_insert_with(full);
        bucket.refill(now);
        let is_granted = rate == 0 || bucket.tokens() > 0;
        if is_granted {
            bucket.take(1);
        }
        is_granted
    }
}

#[cfg(test)]
mod tests;
