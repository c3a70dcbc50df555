//! What a link looks at now and then: whether a device reaches what it was given, and whether memory is still the guest's.

use std::time::{Duration, Instant};

use super::{HOLD, Link};
use crate::net::xdp::trust;

/// When a socket in zero-copy mode is looked at: so long after it was bound, twice as long after each time, and no more behind
/// the last.
const CHECKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

/// While frames pass, the guest's memory is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A busy link asks for the time each so many turns in which frames passed.
const TURNS: u32 = 1024;

/// When what is due.
#[derive(Debug, Default)]
pub(super) struct Care {
    /// The next check of a socket in zero-copy mode, and how long the pause behind it is.
    check: Option<(Instant, Duration)>,
    /// When the memory was looked at last.
    looked: Option<Instant>,
    turns: u32,
    moved: bool,
    attention: bool,
}

impl Link {
    /// A socket was bound.
    pub(super) fn begin_checks(&mut self, zero_copy: bool) {
        self.care.check = zero_copy.then(|| (Instant::now() + CHECKS.0, CHECKS.0));
        self.care.looked.get_or_insert_with(Instant::now);
    }

    /// Frames passed in this turn.
    #[inline]
    pub(in crate::net::xdp) fn moved(&mut self) {
        self.care.moved = true;
        self.care.turns += 1;
        if self.care.turns >= TURNS {
            self.care.turns = 0;
            self.care();
        }
    }

    /// Looks at what is due. Returns how long it is until something is again, where frames need not pass for that.
    pub(super) fn care(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.care.moved && self.care.looked.is_none_or(|at| now >= at + LOOK_EVERY) {
            self.care.moved = false;
            self.care.looked = Some(now);
            self.options.registrar.ask_look();
            self.care.attention = true;
        }
        let held = self.zero_copy() && self.idle_since.is_some_and(|since| now > since + HOLD);
        let (at, pause) = self.care.check?;
        if now >= at || held {
            self.check_trust();
            self.care.check = (pause < CHECKS.1 || held).then(|| (now + pause, (2 * pause).min(CHECKS.1)));
        }
        self.care.check.map(|(at, _)| at.saturating_duration_since(now))
    }

    /// Whether the control thread has to attend to the registration.
    pub fn attention(&mut self) -> bool {
        std::mem::take(&mut self.care.attention)
    }

    #[cold]
    fn check_trust(&mut self) {
        let statistics = self.socket.as_ref().filter(|s| s.zero_copy()).and_then(|s| s.statistics().ok());
        if let Some(why) = statistics.and_then(|s| trust::distrust(&s)) {
            self.options.registrar.set_distrust(&why);
            self.care.attention = true;
        }
    }
}
