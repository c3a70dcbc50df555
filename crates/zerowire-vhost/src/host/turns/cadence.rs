//! How a thread comes to rest. Plain code.

use std::time::Duration;

/// Turns in which rings had entries and nothing could be moved, since a port takes none for now.
/// After this many the thread sleeps between turns. It takes commands meanwhile.
const TURNS_BLOCKED: u32 = 16;

/// How long such a thread sleeps at first, and at most. The sleep doubles each time: a port that
/// takes nothing for long costs next to nothing.
const BLOCKED_NAP: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(10)];

/// How long a thread sleeps that has been blocked for `turns`.
fn blocked_nap(turns: u32) -> Duration {
    let doubled = turns.saturating_sub(TURNS_BLOCKED).min(16);
    (BLOCKED_NAP[0] * (1 << doubled)).min(BLOCKED_NAP[1])
}

/// What follows a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another turn, without a request for events before it.
    Turn,
    /// Another turn, behind the events that have come.
    Ask,
    /// The thread may sleep, if the rings agree.
    Rest,
}

/// How a thread comes to rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cadence {
    /// Turns since events were asked for.
    unasked: u32,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Looks at the rings that are left before it may sleep.
    Linger(u32),
    /// Turns in which a ring had entries and nothing could be moved.
    Blocked(u32),
}

impl Cadence {
    pub(super) fn new() -> Self {
        Self { unasked: 0, phase: Phase::Linger(0) }
    }

    /// So many looks at the rings follow.
    #[inline]
    pub(super) fn linger(&mut self, looks: u32) {
        self.phase = Phase::Linger(looks);
    }

    /// A turn moved something: up to `looks` looks follow the last turn that does. The next request
    /// for events comes after `turns_unasked` turns if what they say is known, and at once else.
    #[inline]
    pub(super) fn worked(&mut self, looks: u32, knows_events: bool, turns_unasked: u32) -> Next {
        self.linger(looks);
        self.unasked = if knows_events { self.unasked + 1 } else { turns_unasked };
        if self.unasked < turns_unasked { Next::Turn } else { Next::Ask }
    }

    /// A turn moved nothing. Of the `all` looks one in `looks_unasked` asks for events. No looks
    /// follow if the guest must wait.
    #[inline]
    pub(super) fn idled(
        &mut self,
        all: u32,
        looks_unasked: Option<u32>,
        guest_must_wait: impl FnOnce() -> bool,
    ) -> Next {
        match &mut self.phase {
            Phase::Linger(left) if *left > 0 && !(*left == all && guest_must_wait()) => {
                *left -= 1;
                let asks = looks_unasked.is_some_and(|n| *left % n == n - 1);
                if asks { Next::Ask } else { Next::Turn }
            }
            Phase::Linger(left) => {
                *left = 0;
                Next::Rest
            }
            Phase::Blocked(_) => Next::Rest,
        }
    }

    /// Rings have entries, and the turn before moved nothing: how long the thread sleeps, if it
    /// does.
    pub(super) fn blocked(&mut self) -> Option<Duration> {
        let turns = match self.phase {
            Phase::Blocked(turns) => turns.saturating_add(1),
            Phase::Linger(_) => 1,
        };
        self.phase = Phase::Blocked(turns);
        (turns >= TURNS_BLOCKED).then(|| blocked_nap(turns))
    }

    /// Rings have no entries: the thread sleeps.
    pub(super) fn rest(&mut self) {
        self.phase = Phase::Linger(0);
    }

    /// The thread asks for events.
    #[inline]
    pub(super) fn asked(&mut self) {
        self.unasked = 0;
    }
}

#[cfg(test)]
mod tests;
