//! Waiting for what must come.

use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Only what the documents promise is asserted:
/// by [`measure_until`].
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `done`; fails with `what` where that takes too long.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Measures until a round `keeps` what is promised, and fails with `what` after a minute. What else
/// the machine does spoils some rounds. A program that breaks its promise does so in each of them.
pub fn measure_until<T: Debug>(what: &str, keeps: impl Fn(&T) -> bool, mut round: impl FnMut() -> T) {
    let (start, mut rounds) = (Instant::now(), Vec::new());
    while !rounds.last().is_some_and(&keeps) {
        assert!(start.elapsed() < 3 * PATIENCE, "{what}: {rounds:.4?}");
        rounds.push(round());
    }
    eprintln!("{what}: {rounds:.4?}");
}

/// The same for the median of each round, which is at most `bound`.
pub fn median_within(what: &str, bound: Duration, mut round: impl FnMut() -> Vec<Duration>) {
    let median = || {
        let mut took = round();
        took.sort_unstable();
        took[took.len() / 2]
    };
    measure_until(&format!("{what}, median"), |median| *median <= bound, median);
}
