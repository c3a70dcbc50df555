//! Waiting for what must come.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use crate::not_run;

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
/// Where programs wait for a CPU much of the time, it says that it could tell nothing.
pub fn measure_until<T: Debug>(what: &str, keeps: impl Fn(&T) -> bool, mut round: impl FnMut() -> T) {
    let (start, mut rounds) = (Instant::now(), Vec::new());
    while !rounds.last().is_some_and(&keeps) {
        if start.elapsed() >= 3 * PATIENCE {
            let waiting = cpu_pressure();
            assert!(waiting < BUSY_PERCENT, "{what}: {rounds:.4?}");
            return not_run(&format!(
                "{what}: programs waited for a CPU {waiting} % of the time: {rounds:.4?}"
            ));
        }
        rounds.push(round());
    }
    eprintln!("{what}: {rounds:.4?}");
}

/// From this share of the time on nothing is told by how long something took.
const BUSY_PERCENT: f64 = 20.0;

/// The share of the last 10 s in which some program waited for a CPU, percent; 0 where the kernel
/// does not say (Documentation/accounting/psi.rst).
fn cpu_pressure() -> f64 {
    let told = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let share = told.split_once("avg10=").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    share.unwrap_or(0.0)
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
