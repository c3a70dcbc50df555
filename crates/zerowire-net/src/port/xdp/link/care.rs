//! What a link looks at now and then: whether a device reaches what it was given, whether memory is
//! still the guest's, and how long frames from the guest may be.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::Link;
use super::state::BoundSocket;
use crate::port::xdp::geometry::Geometry;
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
#[derive(Debug, Default)]
pub(super) struct Care {
    /// The next check of a socket in zero-copy mode, and how long the pause behind it is.
    check: Option<(Instant, Duration)>,
    /// When it was checked last since sent frames did not come back.
    held: Option<Instant>,
    /// When the memory was last checked.
    looked: Option<Instant>,
    turns: u32,
    moved: bool,
    pub(super) attention: bool,
}

impl Care {
    /// A socket was bound, at this time.
    fn begin(&mut self, zero_copy: bool, now: Instant) {
        self.check = zero_copy.then(|| (now + CHECKS.0, CHECKS.0));
        self.held = None;
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

impl Link {
    /// [`Self::events`] became readable. Where the interface is gone, so is the socket. With a
    /// larger MTU than the memory was registered for, the memory is registered anew. With a smaller
    /// one, longer frames from the guest are dropped here. The kernel doesn't check: it would send
    /// them.
    #[cold]
    pub fn notice(&mut self) {
        let Some(BoundSocket { watch, interface, .. }) = &self.bound else { return };
        watch.drain();
        let Ok(mtu) = interface.mtu() else { return self.lost(Errno::NODEV) };
        if let Some(umem) = &self.registered.umem {
            self.care.attention |= self.options.registrar.is_outgrown(umem, mtu);
        }
        self.limit(mtu);
    }

    /// The interface has this MTU now.
    pub(super) fn limit(&mut self, mtu: usize) {
        let Some(registered) = self.geometry() else { return };
        let allows = Geometry::new(mtu, registered.zero_copy()).frame_bytes().min(registered.frame_bytes());
        if std::mem::replace(&mut self.registered.mtu_allows, allows) != allows {
            tracing::info!(
                "interface {}, queue {}: MTU {mtu} now: frames from the guest may have {allows} bytes",
                self.options.interface,
                self.options.queue
            );
        }
    }

    /// A socket was bound.
    pub(super) fn begin_checks(&mut self, zero_copy: bool) {
        self.care.begin(zero_copy, Instant::now());
        self.care.looked.get_or_insert_with(Instant::now);
    }

    /// Frames passed in this turn.
    #[inline]
    pub(in crate::port::xdp) fn moved(&mut self) {
        self.care.moved = true;
        self.care.turns += 1;
        if self.care.turns >= TURNS {
            self.care.turns = 0;
            self.care();
        }
    }

    /// Looks at what is due. Returns how long it is until something is again, where frames need not
    /// pass for that.
    pub(super) fn care(&mut self) -> Option<Duration> {
        let now = Instant::now();
        if self.care.moved && self.care.looked.is_none_or(|at| now >= at + LOOK_EVERY) {
            self.care.moved = false;
            self.care.looked = Some(now);
            self.options.registrar.ask_look();
            self.care.attention = true;
            self.look_at_missed();
        }
        let held = self.zero_copy() && self.sending.idle_since.is_some_and(|since| now > since + HOLD);
        if self.care.check_is_due(held, now) {
            self.check_trust();
        }
        self.care.check.map(|(at, _)| at.saturating_duration_since(now))
    }

    /// Whether the control thread has to attend to the registration.
    pub fn attention(&mut self) -> bool {
        std::mem::take(&mut self.care.attention)
    }

    /// Asks how many frames were dropped before they came here.
    #[cold]
    pub(super) fn look_at_missed(&mut self) {
        let Some(statistics) = self.socket().and_then(|s| s.statistics().ok()) else { return };
        let by_program = self.interface.steering.as_ref().and_then(|s| s.dropped(self.options.queue).ok());
        self.missed.look(&statistics, by_program);
    }

    #[cold]
    fn check_trust(&mut self) {
        let statistics = self.socket().filter(|s| s.zero_copy()).and_then(|s| s.statistics().ok());
        if let Some(why) = statistics.and_then(|s| trust::distrust(&s)) {
            self.options.registrar.set_distrust(&why);
            self.care.attention = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds after the bind at which the socket is checked; frames don't come back in
    /// `held`.
    fn checks(zero_copy: bool, until: u64, held: std::ops::Range<u64>) -> Vec<u64> {
        let start = Instant::now();
        let mut care = Care::default();
        care.begin(zero_copy, start);
        (0..until)
            .filter(|ms| care.check_is_due(held.contains(ms), start + Duration::from_millis(*ms)))
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
