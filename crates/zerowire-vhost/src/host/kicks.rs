//! How long kicks take: from the moment epoll reports one until the turn that follows has served
//! the ring.
//!
//! The guest's own write is earlier, and keeps no time. So the wait for a CPU is not in it.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Buckets: each bound is four times the one before, and the last bucket has none.
const BUCKETS: usize = 12;

/// How long the kicks of a ring took. One thread adds, any number read.
#[derive(Debug, Default)]
pub struct KickTimes {
    buckets: [AtomicU64; BUCKETS],
    nanoseconds: AtomicU64,
}

impl KickTimes {
    /// Counts a kick that took this time. Only the one thread that serves the ring may call this.
    pub fn add(&self, took: Duration) {
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let add = |to: &AtomicU64, n| {
            to.store(to.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.buckets[bucket(nanoseconds)], 1);
        add(&self.nanoseconds, nanoseconds);
    }

    /// The values now.
    pub fn snapshot(&self) -> KickHistogram {
        KickHistogram {
            sum: self.nanoseconds.load(Ordering::Relaxed) as f64 / 1e9,
            buckets: array::from_fn(|i| self.buckets[i].load(Ordering::Relaxed)),
        }
    }
}

/// The first bucket whose bound is not below this time.
fn bucket(nanoseconds: u64) -> usize {
    match nanoseconds.div_ceil(1000) {
        0 | 1 => 0,
        microseconds => ((microseconds - 1).ilog2() as usize / 2 + 1).min(BUCKETS - 1),
    }
}

/// A readable copy of [`KickTimes`], or a sum of several.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KickHistogram {
    /// Seconds, of all kicks together.
    pub sum: f64,
    /// Kicks by how long they took: up to 1 µs, 4 µs, 16 µs, …, 1.05 s, and more.
    pub buckets: [u64; BUCKETS],
}

impl KickHistogram {
    /// The bounds of the buckets but the last, seconds.
    pub fn bounds() -> [f64; BUCKETS - 1] {
        array::from_fn(|i| (1u64 << (2 * i)) as f64 / 1e6)
    }

    /// How many kicks there were.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Adds `other` to this sum.
    pub fn add(&mut self, other: &Self) {
        self.sum += other.sum;
        for (sum, n) in self.buckets.iter_mut().zip(other.buckets) {
            *sum += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kick_is_in_the_first_bucket_that_holds_it() {
        for (i, bound) in KickHistogram::bounds().into_iter().enumerate() {
            let nanoseconds = (bound * 1e9).round() as u64;
            assert_eq!((bucket(nanoseconds), bucket(nanoseconds + 1)), (i, i + 1), "{bound}");
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn the_sum_is_that_of_the_kicks() {
        let times = KickTimes::default();
        for us in [3, 5, 2_000_000] {
            times.add(Duration::from_micros(us));
        }
        let mut all = times.snapshot();
        all.add(&times.snapshot());
        assert_eq!(all.buckets, [0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert!((all.sum - 4.000_016).abs() < 1e-9, "{}", all.sum);
    }
}
