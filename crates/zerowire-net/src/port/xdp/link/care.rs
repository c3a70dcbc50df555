//! What a link looks at now and then: whether a device reaches what it was given, and whether
//! memory is still the guest's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zerowire_sys::xdp::Socket;

use crate::port::xdp::registrar::Registrar;
use crate::port::xdp::umem::VmUmem;
use crate::port::xdp::{HOLD, trust};

/// When to check a socket in zero-copy mode, as times after it was bound: the first, and one that
/// ends the checks. Each time is twice the one before. While sent frames don't come back, it is
/// also checked each [`HOLD`].
const CHECKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

/// How often to check the guest's memory while frames pass.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A busy link reads the clock once in this many turns in which frames passed.
const TURNS: u32 = 1024;

/// When what is due.
pub(super) struct Care {
    registrar: Arc<Registrar>,
    schedule: Schedule,
    turns: u32,
    /// True: the control thread has to attend to the registration.
    attention: bool,
}

impl Care {
    /// For memory of which this learns.
    pub(super) fn new(registrar: Arc<Registrar>) -> Self {
        Self { registrar, schedule: Schedule::default(), turns: 0, attention: false }
    }

    /// A socket was bound.
    pub(super) fn begin(&mut self, zero_copy: bool) {
        self.schedule.begin(zero_copy, Instant::now());
    }

    /// Frames passed in this turn. Returns whether to look at what is due.
    #[inline]
    pub(super) fn moved(&mut self) -> bool {
        self.schedule.moved = true;
        self.turns = (self.turns + 1) % TURNS;
        self.turns == 0
    }

    /// Has the control thread look at the memory, if that is due. Returns whether it was.
    pub(super) fn look_at_memory(&mut self, now: Instant) -> bool {
        let due = self.schedule.look_is_due(now);
        if due {
            self.registrar.ask_look();
            self.attention = true;
        }
        due
    }

    /// Checks a socket in zero-copy mode, if that is due; `held`: frames that it sent don't come
    /// back. Returns how long it is until the next check.
    pub(super) fn check(&mut self, socket: &Socket, held: bool, now: Instant) -> Option<Duration> {
        if self.schedule.check_is_due(held && socket.zero_copy(), now) {
            self.check_trust(socket);
        }
        self.schedule.check.map(|(at, _)| at.saturating_duration_since(now))
    }

    #[cold]
    fn check_trust(&mut self, socket: &Socket) {
        let statistics = Some(socket).filter(|s| s.zero_copy()).and_then(|s| s.statistics().ok());
        if let Some(why) = statistics.and_then(|s| trust::distrust(&s)) {
            self.registrar.set_distrust(&why);
            self.attention = true;
        }
    }

    /// The interface has this MTU now, bytes: with a larger one than `umem` was registered for, the
    /// memory is registered anew.
    pub(super) fn check_mtu(&mut self, umem: &VmUmem, mtu: usize) {
        self.attention |= self.registrar.is_outgrown(umem, mtu);
    }

    /// Whether the control thread has to attend to the registration.
    pub(super) fn attention(&mut self) -> bool {
        std::mem::take(&mut self.attention)
    }
}

/// When to look and to check. Plain code.
#[derive(Debug, Default)]
struct Schedule {
    /// The next check of a socket in zero-copy mode, and how long the pause behind it is.
    check: Option<(Instant, Duration)>,
    /// When it was checked last since sent frames did not come back.
    held: Option<Instant>,
    /// When the memory was last checked.
    looked: Option<Instant>,
    /// True: frames have passed since then.
    moved: bool,
}

impl Schedule {
    /// A socket was bound, at this time.
    fn begin(&mut self, zero_copy: bool, now: Instant) {
        self.check = zero_copy.then(|| (now + CHECKS.0, CHECKS.0));
        self.held = None;
        self.looked.get_or_insert(now);
    }

    /// Whether to look at the memory now.
    fn look_is_due(&mut self, now: Instant) -> bool {
        let due = self.moved && self.looked.is_none_or(|at| now >= at + LOOK_EVERY);
        if due {
            (self.moved, self.looked) = (false, Some(now));
        }
        due
    }

    /// Whether to check the socket now; `held`: frames that it sent don't come back.
    fn check_is_due(&mut self, held: bool, now: Instant) -> bool {
        let timed = self.check.filter(|(at, _)| now >= *at);
        if let Some((_, pause)) = timed {
            self.check = (pause < CHECKS.1).then(|| (now + pause, (2 * pause).min(CHECKS.1)));
        }
        let held = held && self.held.is_none_or(|at| now >= at + HOLD);
        if held {
            self.held = Some(now);
        }
        timed.is_some() || held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds after the bind at which the socket is checked; frames don't come back in
    /// `held`.
    fn checks(zero_copy: bool, until: u64, held: std::ops::Range<u64>) -> Vec<u64> {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        schedule.begin(zero_copy, start);
        (0..until)
            .filter(|ms| schedule.check_is_due(held.contains(ms), start + Duration::from_millis(*ms)))
            .collect()
    }

    #[test]
    fn a_socket_is_checked_after_its_bind_and_then_left_alone() {
        assert_eq!(checks(true, 60_000, 0..0), [10, 20, 40, 80, 160, 320, 640, 1280, 2560, 5120]);
        assert!(checks(false, 60_000, 0..0).is_empty());
    }

    #[test]
    fn it_is_checked_whenever_frames_do_not_come_back() {
        let late = checks(true, 60_000, 50_000..50_050);
        assert_eq!(late[late.len() - 4..], [5120, 50_000, 50_020, 50_040], "long after the last one");
        // It puts off none of the others.
        assert_eq!(checks(true, 100, 15..60), [10, 15, 20, 35, 40, 55, 80]);
    }
}
