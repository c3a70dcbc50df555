//! Round trips: how long they take.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

/// Longer round trips count as this one, in nanoseconds.
const LONGEST_NS: u64 = 10_000_000_000;

/// The round trips of one run, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TripSample {
    /// Half of them are faster.
    pub p50_us: f64,
    /// 99 of 100 are faster.
    pub p99_us: f64,
}

/// Makes `count` round trips; `trip` takes the number of each, from 0 on.
pub fn round_trips(count: usize, mut trip: impl FnMut(usize) -> Result<Duration>) -> Result<TripSample> {
    let mut histogram = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, 3)?;
    for number in 0..count {
        histogram.saturating_record(trip(number)?.as_nanos() as u64);
    }
    let micros = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
    Ok(TripSample { p50_us: micros(0.5), p99_us: micros(0.99) })
}
