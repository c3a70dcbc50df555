//! Log lines about what can happen all the time.

use std::time::{Duration, Instant};

/// How long nothing more is logged of the same matter.
const AGAIN: Duration = Duration::from_secs(60);

/// Lets one line a minute through.
#[derive(Debug, Default)]
pub struct News {
    told: Option<Instant>,
}

impl News {
    /// It happened. Returns whether that is worth a line in the log.
    pub fn is_due(&mut self, now: Instant) -> bool {
        let due = self.told.is_none_or(|at| now.saturating_duration_since(at) >= AGAIN);
        if due {
            self.told = Some(now);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_hears_of_it_once_a_minute() {
        let (mut news, start) = (News::default(), Instant::now());
        let due = [0, 0, 1, 59, 60, 61, 119, 120].map(|s| news.is_due(start + Duration::from_secs(s)));
        assert_eq!(due, [true, false, false, false, true, false, false, true]);
    }
}
