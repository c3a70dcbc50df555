//! Frames to groups, toward a guest: as many in a second as it shall have to look at.

use std::time::{Duration, Instant};

/// How far ahead of its rate a sender may be.
const BURST: Duration = Duration::from_secs(1);

/// A bound of the rate of frames to groups. Plain code: the caller tells the time.
///
/// A frame takes its share of a second. It passes if all that have passed, one share behind the
/// other, end within `BURST` from now. So a second's worth may come at once, and further ones at
/// the rate.
#[derive(Clone, Debug)]
pub struct StormBound {
    /// The share of a frame.
    share: Duration,
    /// Where the shares of those that passed end; None before the first.
    end: Option<Instant>,
}

impl StormBound {
    /// For this many frames a second, 1 at least.
    pub fn new(rate: u32) -> Self {
        Self { share: Duration::from_secs(1) / rate.max(1), end: None }
    }

    /// Whether a frame passes at `now`. If it does, it counts.
    pub fn passes(&mut self, now: Instant) -> bool {
        let end = self.end.map_or(now, |end| end.max(now)) + self.share;
        let passes = end - now <= BURST;
        if passes {
            self.end = Some(end);
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_the_rate() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut bound = StormBound::new(100);
        assert_eq!((0..500).filter(|_| bound.passes(at(0))).count(), 100, "a second's worth at once");
        assert_eq!((0..10_000).filter(|n| bound.passes(at(n / 10))).count(), 99, "100 in the next second");
        assert!(bound.passes(at(60_000)), "it has rested");
        assert_eq!(
            (0..500).filter(|_| bound.passes(at(60_000))).count(),
            99,
            "nothing is saved beyond a second"
        );
    }

    #[test]
    fn any_rate_lets_one_frame_pass() {
        for rate in [0, 1, 3, 1_000_000, u32::MAX] {
            let mut bound = StormBound::new(rate);
            assert!(bound.passes(Instant::now()), "{rate}");
        }
    }
}
