//! How many lines a VM may have in the log, and all of them together.

use std::collections::HashMap;
use std::time::Instant;

/// Lines of a VM at once.
const BURST: f64 = 100.0;
/// Lines of a VM a second, for longer.
const RATE: f64 = 2.0;
/// Lines at once, of all VMs: more than 256 VMs have at the start.
const BURST_OF_ALL: f64 = 2000.0;
/// Lines a second, of all VMs.
const RATE_OF_ALL: f64 = 50.0;
/// VMs that have a rate of their own: 256, and other names with which lines may begin. Further ones
/// share one.
const MOST: usize = 512;

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    burst: f64,
    rate: f64,
    tokens: f64,
    at: Option<Instant>,
    suppressed: u64,
}

impl Bucket {
    fn new(burst: f64, rate: f64) -> Self {
        Self { burst, rate, tokens: burst, at: None, suppressed: 0 }
    }

    fn fill(&mut self, now: Instant) -> bool {
        let passed = self.at.replace(now).map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.tokens = (self.tokens + passed * self.rate).min(self.burst);
        self.tokens >= 1.0
    }
}

/// Whether a line may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    Yes,
    /// No, and it is the first such line since the log last reported how many there were.
    NoneSince,
    No,
}

/// The rates.
#[derive(Debug)]
pub(super) struct Limits {
    has_suppressed: bool,
    all: Bucket,
    of: HashMap<String, Bucket>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { has_suppressed: false, all: Bucket::new(BURST_OF_ALL, RATE_OF_ALL), of: HashMap::new() }
    }
}

impl Limits {
    /// Whether a line of this VM may be written now. If not, it is counted.
    pub(super) fn admit(&mut self, of: &str, now: Instant) -> Admitted {
        let of = if self.of.len() < MOST || self.of.contains_key(of) { of } else { "" };
        let one = match self.of.get_mut(of) {
            Some(one) => one,
            None => self.of.entry(of.to_owned()).or_insert_with(|| Bucket::new(BURST, RATE)),
        };
        // Lines that its own rate suppresses take nothing from the others'.
        if one.fill(now) && self.all.fill(now) {
            one.tokens -= 1.0;
            self.all.tokens -= 1.0;
            return Admitted::Yes;
        }
        one.suppressed += 1;
        if std::mem::replace(&mut self.has_suppressed, true) { Admitted::No } else { Admitted::NoneSince }
    }

    pub(super) fn has_suppressed(&self) -> bool {
        self.has_suppressed
    }

    /// How many lines of which VMs were suppressed since the last call.
    pub(super) fn take_suppressed(&mut self) -> Vec<(String, u64)> {
        self.has_suppressed = false;
        let some = self.of.iter_mut().filter(|(_, one)| one.suppressed > 0);
        some.map(|(of, one)| (of.clone(), std::mem::take(&mut one.suppressed))).collect()
    }
}

/// The line that says so.
pub(super) fn told(of: &str, count: u64) -> String {
    let of = if of.is_empty() { "log" } else { of };
    format!(
        " WARN {of}: {count} further lines are left out: at most {BURST} at once and {RATE} a second are written\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn each_vm_has_its_rate_and_what_is_beyond_is_counted() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        let mut admit =
            |of: &str, n: usize, at| (0..n).filter(|_| limits.admit(of, at) == Admitted::Yes).count();
        assert_eq!(admit("a", 1000, now), BURST as usize);
        assert_eq!(admit("b", 10, now), 10, "another VM's are not touched");
        assert_eq!(admit("a", 1000, now + Duration::from_secs(10)), 10 * RATE as usize);
        assert!(limits.has_suppressed());
        assert_eq!(limits.take_suppressed(), [("a".to_owned(), 2000 - 100 - 20)]);
        assert!(!limits.has_suppressed() && limits.take_suppressed().is_empty());
    }

    #[test]
    fn all_together_have_a_rate_too() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        let mut admitted = 0;
        for vm in 0..2 * MOST {
            admitted += (0..50).filter(|_| limits.admit(&vm.to_string(), now) == Admitted::Yes).count();
        }
        assert_eq!(admitted, BURST_OF_ALL as usize);
        assert!(limits.of.len() <= MOST + 1, "{} names", limits.of.len());
        let suppressed: u64 = limits.take_suppressed().into_iter().map(|(_, n)| n).sum();
        assert_eq!(suppressed as usize + admitted, 2 * MOST * 50);
    }
}
