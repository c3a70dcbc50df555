//! How fast a child is answered about its port.

use std::time::{Duration, Instant};

use zerowire_net::port::KeptPort;

/// So that a child has 100 answers a second at most.
pub(super) const EACH: Duration = Duration::from_millis(10);

/// When the next answer is due.
#[derive(Debug)]
pub(super) struct AnswerPace {
    each: Duration,
    /// How much earlier than that it may come.
    early: Duration,
    due: Instant,
}

impl AnswerPace {
    /// How fast who serves this port is answered.
    pub(super) fn of(port: &dyn KeptPort) -> Self {
        port.asking_pairs().map_or_else(Self::steady, Self::in_bursts)
    }

    /// 100 answers a second, one behind the other.
    fn steady() -> Self {
        Self::new(EACH, Duration::ZERO)
    }

    /// 100 answers a second for each of these queue pairs, half of them at once: to start a ring
    /// takes some.
    fn in_bursts(pairs: usize) -> Self {
        let each = 2 * EACH / u32::try_from(pairs).unwrap_or(u32::MAX).max(1);
        Self::new(each, Duration::from_secs(1))
    }

    fn new(each: Duration, early: Duration) -> Self {
        Self { each, early, due: before(Instant::now(), early) }
    }

    /// The child was answered. Returns how long it has to wait.
    pub(super) fn answered(&mut self, now: Instant) -> Duration {
        self.due = self.due.max(before(now, self.early)) + self.each;
        self.due.saturating_duration_since(now)
    }
}

fn before(now: Instant, early: Duration) -> Instant {
    now.checked_sub(early).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers in `time` to a child that asks all the time.
    fn answers(mut pace: AnswerPace, time: Duration) -> usize {
        let begin = Instant::now();
        let mut now = begin;
        let wait = || {
            now += pace.answered(now);
            now < begin + time
        };
        std::iter::repeat_with(wait).take_while(|goes_on| *goes_on).count()
    }

    #[test]
    fn there_are_100_answers_a_second() {
        let second = Duration::from_secs(1);
        assert!((98..=100).contains(&answers(AnswerPace::steady(), second)));
        for pairs in [1, 2, 128] {
            let most = 100 * pairs;
            let first = answers(AnswerPace::in_bursts(pairs), second);
            assert!((most - 2..=most).contains(&first), "{first} of {most}");
            let further = answers(AnswerPace::in_bursts(pairs), 11 * second) - first;
            assert!(further <= 5 * most + 1, "{further} in ten seconds");
        }
    }

    #[test]
    fn half_of_a_second_s_answers_come_at_once() {
        let at_once = |mut pace: AnswerPace| {
            let now = Instant::now();
            std::iter::repeat_with(|| pace.answered(now)).take_while(Duration::is_zero).count()
        };
        assert_eq!(at_once(AnswerPace::steady()), 0);
        for pairs in [1, 2, 128] {
            assert_eq!(at_once(AnswerPace::in_bursts(pairs)), 50 * pairs);
        }
    }
}
