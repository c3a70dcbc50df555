//! How many lines a VM may have in the log, and all of them together. The key of a line says whose
//! it is: the name of a VM, or the first word of another line.

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
    /// True: some lines were suppressed since the log said so last.
    pub(super) has_suppressed: bool,
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

    /// How many lines of which VMs were suppressed since the last call.
    pub(super) fn take_suppressed(&mut self) -> Vec<(String, u64)> {
        self.has_suppressed = false;
        let some = self.of.iter_mut().filter(|(_, one)| one.suppressed > 0);
        some.map(|(of, one)| (of.clone(), std::mem::take(&mut one.suppressed))).collect()
    }
}

/// What the log says of lines that were left out.
pub(super) fn report(count: u64) -> String {
    format!("{count} further lines are left out: at most {BURST} at once and {RATE} a second are written")
}

#[cfg(test)]
mod tests;
