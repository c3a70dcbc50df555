//! How fast children follow each other.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many children in [`WINDOW`] follow each other at once.
const AT_ONCE: usize = 5;
const WINDOW: Duration = Duration::from_secs(10);
/// How long the next one waits then.
const WAIT: Duration = Duration::from_secs(1);

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_that_die_one_behind_the_other_wait() {
        let (mut pace, begin) = (RestartPace::default(), Instant::now());
        let waits: Vec<_> = (0..7).map(|n| pace.died(begin + Duration::from_millis(n))).collect();
        assert_eq!(waits[..5], [Duration::ZERO; 5]);
        assert_eq!(waits[5..], [WAIT; 2]);
        assert_eq!(pace.died(begin + WINDOW * 2), Duration::ZERO, "that is long ago");
    }
}
