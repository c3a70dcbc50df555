//! How one ring keeps to the limit of its VM.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Allowance, Grant, Limiter, Unpaid};

/// A wait ends after this long at the latest, to see whether the limit is another one.
const LONGEST_NAP: Duration = Duration::from_millis(100);

/// Turns that one answer of the limiter holds for. In a turn of one frame a reading of the clock
/// and a lock take longer than the rest of the count.
const TURNS: u32 = 32;

/// How one ring keeps to the limit of its VM.
#[derive(Debug, Default)]
pub struct LimitPace {
    /// The turn before was limited.
    on: bool,
    /// What is left of the limiter's last answer.
    grant: Option<Grant>,
    /// Turns that it still holds for, those in which nothing can pass among them.
    turns: u32,
    unpaid: Unpaid,
    /// When the limiter was asked last.
    now: Option<Instant>,
    /// Nothing may pass before.
    until: Option<Instant>,
    /// Since when something waits.
    since: Option<Instant>,
}

impl LimitPace {
    /// A turn begins: what may pass in it. None without a limit, if the turn before had none
    /// either.
    #[inline]
    pub fn begin(&mut self, limiter: &Limiter, now: impl FnOnce() -> Instant) -> Option<Allowance> {
        if !self.on && !limiter.is_on() {
            return None;
        }
        if let Some(grant) = &self.grant
            && self.turns > 0
            && limiter.epoch() == self.unpaid.epoch
        {
            self.turns -= 1;
            return Some(grant.allowed);
        }
        Some(self.allow(limiter, now()))
    }

    /// Asks the limiter what may pass in a turn that begins now.
    pub fn allow(&mut self, limiter: &Limiter, now: Instant) -> Allowance {
        self.now = Some(now);
        self.grant = None;
        self.on = limiter.is_on();
        if !self.on {
            self.unpaid = Unpaid::default();
            self.end(limiter);
            return Allowance::ALL;
        }
        if self.until.is_some_and(|until| now < until) {
            return Allowance::NONE;
        }
        match limiter.ask(&mut self.unpaid, now) {
            Ok(grant) => {
                (self.grant, self.turns, self.until) = (Some(grant), TURNS - 1, None);
                self.stop_waiting(limiter, now);
                grant.allowed
            }
            Err(wait) => {
                self.rest(now, wait);
                Allowance::NONE
            }
        }
    }

    /// Operations and bytes have passed in the turn that was begun last. Of a turn without a limit
    /// they count nowhere.
    #[inline]
    pub fn passed(
        &mut self,
        limiter: &Limiter,
        (operations, bytes): (u64, u64),
        now: impl FnOnce() -> Instant,
    ) {
        if !self.on || (operations == 0 && bytes == 0) {
            return;
        }
        self.unpaid.add(operations, bytes);
        let unpaid = &self.unpaid;
        let grant = self.grant.as_mut();
        if !grant.is_some_and(|grant| grant.holds_behind(operations, bytes, unpaid)) {
            self.pay(limiter, now());
        }
    }

    /// Tells the limiter what has passed. The next turn asks it before more does.
    fn pay(&mut self, limiter: &Limiter, now: Instant) {
        self.grant = None;
        let wait = limiter.take(&mut self.unpaid, now);
        if wait > Duration::ZERO {
            self.rest(now, wait);
        }
    }

    /// Something waits for tokens.
    pub fn hold(&mut self, limiter: &Limiter) {
        if self.since.is_none()
            && let Some(now) = self.now
        {
            self.since = Some(now);
            limiter.waits.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the turn that was begun last is limited.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Whether something waits for tokens.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.since.is_some()
    }

    /// The thread is about to sleep: how long it may because of the limit, None if nothing waits.
    /// Tells the limiter what has passed. The next turn asks it before more does.
    pub fn nap(&mut self, limiter: &Limiter, now: impl Fn() -> Instant) -> Option<Duration> {
        if self.unpaid.is_any() {
            self.pay(limiter, now());
        }
        self.grant = None;
        self.since?;
        Some(self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now())))
    }

    /// The ring is served no more: the limiter hears of what has passed.
    pub fn finish(&mut self, limiter: &Limiter, now: impl FnOnce() -> Instant) {
        if self.unpaid.is_any() {
            self.pay(limiter, now());
        }
        self.end(limiter);
    }

    /// Nothing waits for tokens any more: the ring stopped, or waits for something else. It is a
    /// turn as well.
    #[inline]
    pub fn end(&mut self, limiter: &Limiter) {
        self.turns = self.turns.saturating_sub(1);
        if self.since.is_some() {
            self.stop_waiting(limiter, Instant::now());
        }
    }

    fn stop_waiting(&mut self, limiter: &Limiter, now: Instant) {
        if let Some(since) = self.since.take() {
            limiter.waited(now.saturating_duration_since(since));
        }
    }

    /// Nothing may pass for this long.
    fn rest(&mut self, now: Instant, wait: Duration) {
        self.until = Some(now + wait.min(LONGEST_NAP));
    }
}

#[cfg(test)]
mod tests;
