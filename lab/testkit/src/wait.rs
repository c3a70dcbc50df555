//! Waiting for what must come.

use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. No test asserts how long anything took.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `done`; fails with `what` where that takes too long.
pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "still not: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
