//! Medians and ratios of interleaved runs, and how long round trips take.
//!
//! Machines drift: clock rates, neighbours, caches. So variants run one after the other in rounds,
//! in an order that rotates. Each run is compared with the floor's run of the same round. The
//! reported ratio is the median of these ratios, never the ratio of two medians.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The spread of a list of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle value.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// A quarter of the values is below.
    pub q1: f64,
    /// A quarter of the values is above.
    pub q3: f64,
}

impl Summary {
    /// Summarises `values`; `None` when there are none. Values that are no number sort last.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&sorted, 0.5)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            q1: quantile(&sorted, 0.25)?,
            q3: quantile(&sorted, 0.75)?,
        })
    }

    /// Summarises `of[i] / base[i]`, pair by pair; pairs with a base of 0 are left out.
    pub fn ratio(of: &[f64], base: &[f64]) -> Option<Self> {
        Self::of(of.iter().zip(base).filter(|(_, base)| **base != 0.0).map(|(of, base)| of / base))
    }
}

/// The value below which the share `q` of sorted values lies, interpolated between neighbours.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = q * last as f64;
    let low = sorted[place.floor() as usize];
    let high = sorted[place.ceil() as usize];
    Some(low + (high - low) * place.fract())
}

/// The order of `count` variants in round `round`: each comes first as often as the others.
pub fn rotation(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |place| (place + round) % count)
}

/// `part` of `whole` in percent; 0 without a whole.
pub fn percent(part: f64, whole: f64) -> f64 {
    if whole == 0.0 { 0.0 } else { part / whole * 100.0 }
}

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

#[cfg(test)]
mod tests;
