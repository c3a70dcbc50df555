//! Waiting for what must come.

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Only what the documents promise is asserted:
/// by [`median_within`].
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `done`; fails with `what` where that takes too long.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Measures rounds until the median of one is at most `bound`, and fails with `what` after a
/// minute. What else the machine does lengthens some rounds. A program that is slower than it
/// promises is slower in each of them.
pub fn median_within(what: &str, bound: Duration, mut round: impl FnMut() -> Vec<Duration>) {
    let (start, mut medians) = (Instant::now(), Vec::new());
    loop {
        let mut took = round();
        took.sort_unstable();
        let (median, worst) = (took[took.len() / 2], took[took.len() - 1]);
        eprintln!("{what}: median {median:.1?} of {}, at most {worst:.1?}", took.len());
        if median <= bound {
            return;
        }
        medians.push(median);
        assert!(start.elapsed() < 3 * PATIENCE, "{what}: medians {medians:.1?}, {bound:?} at most");
    }
}
