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
    pub refusals: News,
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn granted(rate: &mut RequestRate, now: Instant, asked: u32) -> u32 {
        (0..asked).map(|_| u32::from(rate.take(now))).sum()
    }

    #[test]
    fn a_second_s_worth_at_once_and_then_one_an_interval() {
        // Also of rates that don't divide a second.
        for n in [1, 3, 7, 1000, 9999, 10_000, 1_000_000] {
            let (mut rate, start) = (RequestRate::new(n), Instant::now());
            assert_eq!(granted(&mut rate, start, 2 * n), n, "{n} a second");
            let interval = Duration::from_secs(1) / n + Duration::from_nanos(1);
            assert!(!rate.take(start + interval / 2), "{n} a second");
            assert_eq!(granted(&mut rate, start + interval, 10), 1, "{n} a second");
            // However long the pause: no more than the bucket holds.
            let later = start + Duration::from_secs(3600);
            assert_eq!(granted(&mut rate, later, 2 * n), n, "{n} a second");
        }
    }

    #[test]
    fn what_is_refused_takes_nothing() {
        let (mut rate, start) = (RequestRate::new(10), Instant::now());
        assert_eq!(granted(&mut rate, start, 1_000_000), 10);
        assert_eq!(granted(&mut rate, start + Duration::from_millis(500), 1_000_000), 5);
        assert_eq!(granted(&mut rate, start + Duration::from_millis(1500), 1_000_000), 10);
    }

    #[test]
    fn without_a_bound_all_are_granted() {
        let (mut rate, start) = (RequestRate::new(0), Instant::now());
        assert!(!rate.is_bounded() && RequestRate::new(1).is_bounded());
        assert_eq!(granted(&mut rate, start, 1_000_000), 1_000_000);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn no_interval_has_more_than_the_bucket_and_its_rate(
            n in 1..5000u32,
            steps in prop::collection::vec((0..400_000u64, 0..600u32), 1..40),
        ) {
            let mut rate = RequestRate::new(n);
            let start = Instant::now();
            let (mut at, mut log) = (Duration::ZERO, Vec::new());
            for (micros, asked) in steps {
                at += Duration::from_micros(micros);
                let got = granted(&mut rate, start + at, asked);
                log.push((at, asked, got));
            }
            for (first, (from, ..)) in log.iter().enumerate() {
                let mut sum = 0u64;
                for (to, asked, got) in &log[first..] {
                    sum += u64::from(*got);
                    let filled = u128::from(n) * (*to - *from).as_nanos() / 1_000_000_000;
                    prop_assert!(u128::from(sum) <= u128::from(n) + filled, "{sum} from {from:?} to {to:?}");
                    // A guest below its rate is refused nothing.
                    let all: u64 = log.iter().filter(|l| l.0 <= *to).map(|l| u64::from(l.1)).sum();
                    prop_assert!(all > u64::from(n) || got == asked);
                }
            }
        }
    }
}
