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
    /// Whether it counts as up.
    pub(super) up: bool,
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
mod tests;
