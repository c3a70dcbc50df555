//! How one ring keeps to the limit of its VM.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Allowance, Limiter};

/// A wait ends after this long at the latest, to see whether the limit is another one.
const LONGEST_NAP: Duration = Duration::from_millis(100);

/// How one ring keeps to the limit of its VM.
#[derive(Debug, Default)]
pub struct LimitPace {
    /// The turn before was limited.
    on: bool,
    /// When this turn began.
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
        Some(self.allow(limiter, now()))
    }

    /// What may pass in a turn that begins now.
    pub fn allow(&mut self, limiter: &Limiter, now: Instant) -> Allowance {
        self.now = Some(now);
        self.on = limiter.is_on();
        if !self.on {
            self.end(limiter);
            return Allowance::ALL;
        }
        if self.until.is_some_and(|until| now < until) {
            return Allowance::NONE;
        }
        match limiter.ask(now) {
            Ok(allowed) => {
                self.until = None;
                self.stop_waiting(limiter, now);
                allowed
            }
            Err(wait) => {
                self.rest(now, wait);
                Allowance::NONE
            }
        }
    }

    /// Operations and bytes have passed in the turn that was begun last. Of a turn without a limit
    /// they count nowhere.
    pub fn passed(&mut self, limiter: &Limiter, (operations, bytes): (u64, u64)) {
        let Some(now) = self.now.filter(|_| self.on && (operations > 0 || bytes > 0)) else { return };
        let wait = limiter.take(operations, bytes);
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

    /// How long the thread may sleep because of it; None if nothing waits.
    pub fn nap(&self, now: impl FnOnce() -> Instant) -> Option<Duration> {
        self.since?;
        Some(self.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now())))
    }

    /// Nothing waits for tokens any more: the ring stopped, or waits for something else.
    #[inline]
    pub fn end(&mut self, limiter: &Limiter) {
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
