//! When a change of a link counts: plain code, without a clock of its own.

use std::time::{Duration, Instant};

/// A shorter interruption is none: switches and drivers make some.
const DOWN: Duration = Duration::from_millis(200);

/// How long a link must stand before it counts as up: from the first to the second. The time
/// doubles whenever the link goes down again within [`STANDS`]. So guests of a link that flaps
/// seldom connect and register their memory.
const UP: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(16));

/// A link that was up for this long does not flap.
const STANDS: Duration = Duration::from_secs(10);

/// A link's state, without what passes quickly.
#[derive(Debug)]
pub(super) struct Steady {
    up: bool,
    /// Since when the other state stands.
    change: Option<Instant>,
    /// Since when it counts as up.
    up_since: Instant,
    up_hold: Duration,
}

impl Steady {
    /// From a state on that counts at once.
    pub(super) fn new(up: bool, now: Instant) -> Self {
        Self { up, change: None, up_since: now, up_hold: UP.0 }
    }

    /// Whether it counts as up.
    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// Takes what the state is now. Returns whether another one counts from now on.
    pub(super) fn update(&mut self, up: bool, now: Instant) -> bool {
        if up == self.up {
            self.change = None;
            return false;
        }
        let since = *self.change.get_or_insert(now);
        if now < since + self.hold() {
            return false;
        }
        (self.up, self.change) = (up, None);
        if up {
            self.up_since = now;
        } else if now < self.up_since + STANDS {
            self.up_hold = (self.up_hold * 2).min(UP.1);
        } else {
            self.up_hold = UP.0;
        }
        true
    }

    /// How long it is until the state that is there now counts, if it does not yet.
    pub(super) fn due(&self, now: Instant) -> Option<Duration> {
        Some((self.change? + self.hold()).saturating_duration_since(now))
    }

    /// How long the state that does not count yet has to stand.
    fn hold(&self) -> Duration {
        if self.up { DOWN } else { self.up_hold }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_short_interruption_is_none() {
        let start = Instant::now();
        let mut link = Steady::new(true, start);
        for n in 0..100 {
            let at = start + n * 2 * DOWN;
            assert!(!link.update(false, at));
            assert_eq!(link.due(at), Some(DOWN));
            assert!(!link.update(false, at + DOWN - MS));
            assert!(!link.update(true, at + DOWN - MS));
            assert!(link.is_up() && link.due(at).is_none());
        }
    }

    #[test]
    fn a_state_that_stands_counts_once() {
        let start = Instant::now();
        let mut link = Steady::new(true, start);
        let down = start + 2 * STANDS;
        assert!(!link.update(false, down));
        assert!(link.update(false, down + DOWN));
        assert!(!link.is_up() && !link.update(false, down + 2 * DOWN));
        let up = down + STANDS;
        assert!(!link.update(true, up) && !link.update(true, up + UP.0 - MS));
        assert!(link.update(true, up + UP.0));
        assert!(link.is_up() && link.due(up).is_none());
    }

    /// Goes down and up for good, and returns how long up took to count.
    fn down_and_up(link: &mut Steady, at: &mut Instant) -> Duration {
        assert!(!link.update(false, *at) && link.update(false, *at + DOWN));
        *at += DOWN;
        assert!(!link.update(true, *at));
        let took = link.due(*at).expect("a change that is due");
        *at += took;
        assert!(link.update(true, *at));
        took
    }

    #[test]
    fn one_that_flaps_comes_back_more_and_more_seldom_and_one_that_stands_soon() {
        let mut at = Instant::now() + STANDS;
        let mut link = Steady::new(true, at - STANDS);
        let took: Vec<_> = (0..8).map(|_| down_and_up(&mut link, &mut at).as_millis()).collect();
        assert_eq!(took, [500, 1000, 2000, 4000, 8000, 16_000, 16_000, 16_000]);
        at += STANDS;
        assert_eq!(down_and_up(&mut link, &mut at), UP.0);
    }

    #[test]
    fn while_it_flaps_faster_than_it_settles_it_stays_down() {
        let start = Instant::now();
        let mut link = Steady::new(false, start);
        for n in 0..100 {
            let at = start + n * UP.0;
            assert!(!link.update(true, at));
            assert!(!link.update(true, at + UP.0 - MS));
            assert!(!link.update(false, at + UP.0 - MS));
        }
        assert!(!link.is_up());
    }
}
