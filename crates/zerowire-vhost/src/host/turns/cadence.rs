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
mod tests {
    use super::*;

    const LINGER: u32 = 32;
    const UNASKED: u32 = 16;

    fn worked(cadence: &mut Cadence) -> Next {
        cadence.worked(LINGER, true, UNASKED)
    }

    fn idled(cadence: &mut Cadence) -> Next {
        cadence.idled(LINGER, None, || false)
    }

    #[test]
    fn a_thread_that_works_asks_for_events_now_and_then() {
        let mut cadence = Cadence::new();
        for _ in 0..3 {
            let skipped = (0..).take_while(|_| worked(&mut cadence) == Next::Turn).count();
            assert_eq!(skipped, UNASKED as usize - 1);
            cadence.asked();
        }
        assert_eq!(cadence.worked(LINGER, false, UNASKED), Next::Ask, "what they say is not known");
        // Turns without work between do not put it off.
        cadence.asked();
        let mut turns = 0;
        while worked(&mut cadence) == Next::Turn {
            assert_eq!(idled(&mut cadence), Next::Turn);
            cadence.blocked();
            turns += 1;
        }
        assert_eq!(turns, UNASKED - 1);
    }

    #[test]
    fn a_thread_without_work_lingers_before_it_rests() {
        let mut cadence = Cadence::new();
        assert_eq!(idled(&mut cadence), Next::Rest);
        for looks in [LINGER, 0] {
            cadence.worked(looks, true, UNASKED);
            let lingered = (0..).take_while(|_| idled(&mut cadence) == Next::Turn).count();
            assert_eq!(lingered, looks as usize);
            assert_eq!(idled(&mut cadence), Next::Rest);
        }
        cadence.linger(LINGER);
        assert_eq!(idled(&mut cadence), Next::Turn);
        cadence.rest();
        assert_eq!(idled(&mut cadence), Next::Rest);
    }

    #[test]
    fn looks_may_ask_for_events_and_a_guest_that_must_wait_is_not_held_up() {
        let mut cadence = Cadence::new();
        worked(&mut cadence);
        let looks: Vec<_> = (0..LINGER).map(|_| cadence.idled(LINGER, Some(8), || false)).collect();
        for (i, look) in looks.iter().enumerate() {
            assert_eq!(*look, if i % 8 == 0 { Next::Ask } else { Next::Turn }, "{i}");
        }
        assert_eq!(cadence.idled(LINGER, Some(8), || false), Next::Rest);
        worked(&mut cadence);
        assert_eq!(cadence.idled(LINGER, Some(8), || true), Next::Rest);
        assert_eq!(idled(&mut cadence), Next::Rest, "it does not begin again");
        // Once the thread has begun to linger, it does not check the guest.
        worked(&mut cadence);
        idled(&mut cadence);
        assert_eq!(cadence.idled(LINGER, None, || panic!("asked")), Next::Turn);
    }

    #[test]
    fn a_port_that_takes_nothing_is_looked_at_ever_less_often() {
        let naps: Vec<_> = (TURNS_BLOCKED..TURNS_BLOCKED + 9).map(blocked_nap).collect();
        assert_eq!(naps[0], BLOCKED_NAP[0]);
        assert!(naps.windows(2).all(|n| n[1] == (n[0] * 2).min(BLOCKED_NAP[1])), "{naps:?}");
        assert_eq!(blocked_nap(u32::MAX), BLOCKED_NAP[1]);
    }

    #[test]
    fn a_thread_is_blocked_until_something_moves_or_nothing_is_left() {
        let mut cadence = Cadence::new();
        let begin: [fn(&mut Cadence); 4] =
            [|_| {}, |c| c.rest(), |c| c.linger(0), |c| _ = c.worked(0, true, UNASKED)];
        for begin in begin {
            begin(&mut cadence);
            for turn in 1..TURNS_BLOCKED {
                assert_eq!(cadence.blocked(), None, "{turn}");
                assert_eq!(idled(&mut cadence), Next::Rest, "its rings are asked again");
            }
            for turns in TURNS_BLOCKED..TURNS_BLOCKED + 5 {
                assert_eq!(cadence.blocked(), Some(blocked_nap(turns)));
            }
        }
    }
}
