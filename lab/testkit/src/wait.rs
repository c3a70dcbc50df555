//! Waiting for what must come.

use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::not_run;

/// How long anything may take before a test gives up. Only what the documents promise is asserted:
/// by [`measure_until`].
pub const PATIENCE: Duration = Duration::from_secs(40);

/// How long [`measure_until`] tries.
const MEASURED: Duration = Duration::from_secs(60);

/// Sets a flag when it goes, also where the test fails: a scope waits for its threads even then.
pub struct SetAtEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

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
/// Where programs waited for a CPU much of that minute, it says that it could tell nothing.
pub fn measure_until<T: Debug>(what: &str, keeps: impl Fn(&T) -> bool, mut round: impl FnMut() -> T) {
    let (start, waited, mut rounds) = (Instant::now(), waited_for_cpu(), Vec::new());
    while !rounds.last().is_some_and(&keeps) {
        let took = start.elapsed();
        if took >= MEASURED {
            let share = 100 * (waited_for_cpu() - waited).as_millis() / took.as_millis();
            assert!(share >= BUSY_PERCENT, "{what}: {rounds:.4?}");
            return not_run(&format!(
                "{what}: some program waited for a CPU {share} % of the time: {rounds:.4?}"
            ));
        }
        rounds.push(round());
    }
    eprintln!("{what}: {rounds:.4?}");
}

/// From this share of the time on, how long something took says nothing.
const BUSY_PERCENT: u128 = 10;

/// How long some program waited for a CPU since the start of the machine; 0 where the kernel does
/// not say (Documentation/accounting/psi.rst).
fn waited_for_cpu() -> Duration {
    let told = std::fs::read_to_string("/proc/pressure/cpu").unwrap_or_default();
    let total = told.lines().next().and_then(|some| some.rsplit_once("total=")?.1.parse().ok());
    Duration::from_micros(total.unwrap_or(0))
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
