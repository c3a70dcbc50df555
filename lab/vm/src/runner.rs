//! Runs named tests, some at once, and reports.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};

use crate::lab::Lab;
use crate::machine::Machine;

/// Lines of each log that a failed test shows.
const SHOWN_LINES: usize = 15;

/// Characters of each of these lines.
const SHOWN_CHARACTERS: usize = 2000;

/// How often a test runs again whose emulated machine broke. A hundred plugs and unplugs meet that
/// in one run of three on a busy machine.
const MOST_AGAIN: u32 = 3;

/// The error of a test that can say nothing here; everything else is a failure.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Skip(String);

/// Makes the error by which a test says that it does not apply.
pub fn skip(reason: impl Into<String>) -> anyhow::Error {
    Skip(reason.into()).into()
}

/// Marks the error of a test whose guest never reached its shell. The emulated machine hung while
/// its kernel started, which a busy machine makes more likely. Such a test runs again, and both the
/// run and its summary say so.
#[derive(Debug, thiserror::Error)]
#[error("the guest did not boot")]
pub struct NeverBooted;

/// Marks the error of a test whose emulated machine broke, whatever was under test. Such a test
/// runs again, too.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EmulatorBroke(&'static str);

impl EmulatorBroke {
    /// Devices that are plugged and unplugged meet this assertion now and then (system/physmem.c of
    /// QEMU 10.0).
    pub const ASSERTION: Self = Self("QEMU ended by an assertion, iotlb_to_section");
    /// The guest's kernel takes no interrupt of the serial line any more. QEMU 7.2 and 10.0 without
    /// KVM do this now and then, at the plugging of a device mostly.
    pub const STANDS_STILL: Self = Self("the emulated machine stands still: not even its kernel answers");
    /// The guest's kernel says that a timer which it has set never fired (kernel/rcu/tree_stall.h),
    /// which comes before the end above.
    pub const LOST_TIMER: Self = Self("the emulated machine has lost a timer of its CPU");
}

/// What a test gets.
#[derive(Debug)]
pub struct Env<'a> {
    /// Files of the run.
    pub lab: &'a Lab,
    /// The machine to test on.
    pub machine: Machine,
    /// A folder of its own; `*.log` and `*.out` files below it are shown on failure.
    pub dir: &'a Path,
}

/// The body of a test. The text it returns is printed behind its name.
pub type Body = fn(&Env<'_>) -> Result<String>;

/// A test on one machine.
#[derive(Clone, Debug)]
pub struct Test {
    /// What it tests.
    pub name: &'static str,
    /// Where.
    pub machine: Machine,
    /// The test itself.
    pub body: Body,
    /// It waits most of the time.
    pub waits: bool,
}

impl Test {
    /// The name with the machine, as filters see it.
    pub fn full_name(&self) -> String {
        format!("{}/{}/{}", self.name, self.machine.kernel, self.machine.qemu)
    }
}

/// What came of a run.
#[derive(Debug, Default)]
pub struct TestSummary {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<(String, String)>,
    again: Vec<(String, String)>,
}

impl TestSummary {
    /// Whether nothing failed.
    pub fn is_success(&self) -> bool {
        self.failed.is_empty()
    }

    /// Names what failed or was skipped, and ends with the line of totals.
    pub fn print(&self) {
        for (name, reason) in &self.skipped {
            println!("skipped: {name}: {reason}");
        }
        for (name, reason) in &self.again {
            println!("tried again: {name}: {reason}");
        }
        for name in &self.failed {
            println!("failed: {name}");
        }
        println!(
            "vm-tests: {} passed, {} failed, {} skipped",
            self.passed,
            self.failed.len(),
            self.skipped.len()
        );
    }
}

/// Runs the tests with `jobs` at once, printing a line for each. One of several is always a test
/// that waits, as long as there are some.
///
/// Each test gets a folder of its own below `folder`.
pub fn run(lab: &Lab, tests: Vec<Test>, jobs: usize, folder: &Path) -> TestSummary {
    let total = tests.len();
    let (waiting, busy): (VecDeque<_>, VecDeque<_>) = tests.into_iter().partition(|test| test.waits);
    let lane = jobs > 1 && !waiting.is_empty();
    let [waiting, busy] = [waiting, busy].map(Mutex::new);
    let summary = Mutex::new(TestSummary::default());
    // Popped in a function of its own: the lock must not be held in a test.
    let pop =
        |queue: &Mutex<VecDeque<Test>>| queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = |queues: &[&Mutex<VecDeque<Test>>]| {
        while let Some(test) = queues.iter().find_map(|queue| pop(queue)) {
            run_one(lab, &test, total, &summary, folder);
        }
    };
    let (only_waiting, all) = ([&waiting], [&waiting, &busy]);
    std::thread::scope(|scope| {
        scope.spawn(|| work(if lane { &only_waiting } else { &all }));
        for _ in 1..jobs {
            scope.spawn(|| work(&[&busy, &waiting]));
        }
    });
    summary.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn run_one(lab: &Lab, test: &Test, total: usize, summary: &Mutex<TestSummary>, folder: &Path) {
    let name = test.full_name();
    let begin = Instant::now();
    let mut logs = String::new();
    let mut result = in_own_dir(lab, test, folder, &mut logs);
    for _ in 0..MOST_AGAIN {
        let Err(error) = &result else { break };
        if error.downcast_ref::<NeverBooted>().is_none() && error.downcast_ref::<EmulatorBroke>().is_none() {
            break;
        }
        let reason = format!("{error:#}");
        println!("  {name} is tried again after {}: {reason}\n{logs}", seconds(begin.elapsed()));
        summary.lock().unwrap_or_else(PoisonError::into_inner).again.push((name.clone(), reason));
        result = in_own_dir(lab, test, folder, &mut logs);
    }
    let took = begin.elapsed();
    let mut summary = summary.lock().unwrap_or_else(PoisonError::into_inner);
    let number = summary.passed + summary.failed.len() + summary.skipped.len() + 1;
    let say = |verdict: &str, text: &str| {
        println!("[{number:3}/{total}] {verdict} {name} ({}) {text}", seconds(took));
    };
    match result {
        Ok(text) => {
            say("ok  ", &text);
            summary.passed += 1;
        }
        Err(error) => match error.downcast_ref::<Skip>() {
            Some(reason) => {
                say("skip", &reason.0);
                summary.skipped.push((name, reason.0.clone()));
            }
            None => {
                say("FAIL", &format!("{error:#}"));
                print!("{logs}");
                summary.failed.push(name);
            }
        },
    }
}

fn in_own_dir(lab: &Lab, test: &Test, folder: &Path, logs: &mut String) -> Result<String> {
    let dir = tempfile::Builder::new().prefix("t").tempdir_in(folder).context("create a folder")?;
    let env = Env { lab, machine: test.machine, dir: dir.path() };
    let result = catch_unwind(AssertUnwindSafe(|| (test.body)(&env)));
    let result = result.unwrap_or_else(|panic| Err(anyhow!("panicked: {}", panic_text(&*panic))));
    result.map_err(|error| {
        *logs = tails(dir.path()).unwrap_or_else(|error| format!("no logs: {error:#}\n"));
        match broke(logs) {
            Some(cause) => error.context(cause),
            None => error,
        }
    })
}

/// What the logs' last words, QEMU's or a guest's kernel's, say of the emulated machine's end.
fn broke(logs: &str) -> Option<EmulatorBroke> {
    logs.lines().find_map(|line| {
        if line.contains("qemu-system") && line.contains("iotlb_to_section") && line.contains("Assertion") {
            Some(EmulatorBroke::ASSERTION)
        } else if line.contains("rcu") && line.contains("timer wakeup didn't happen") {
            Some(EmulatorBroke::LOST_TIMER)
        } else {
            None
        }
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text")
}

/// The ends of all logs in a folder.
fn tails(dir: &Path) -> Result<String> {
    let mut paths = Vec::new();
    let mut folders = vec![dir.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "log" || extension == "out") {
                paths.push(path);
            }
        }
    }
    paths.sort();
    let mut text = String::new();
    for path in paths {
        let bytes = std::fs::read(&path)?;
        let log = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        let start = lines.len().saturating_sub(SHOWN_LINES);
        let name = path.strip_prefix(dir).unwrap_or(&path).display();
        text.push_str(&format!("  --- {name}, last {} lines\n", lines.len() - start));
        for line in &lines[start..] {
            let line: String = line.trim_end().chars().take(SHOWN_CHARACTERS).collect();
            text.push_str(&format!("  | {line}\n"));
        }
    }
    Ok(text)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_emulated_machines_own_words_blame_it() {
        let cause =
            |line: &str| broke(&format!("  --- qemu.log, last 1 lines\n  | {line}\n")).map(|cause| cause.0);
        let assertion =
            "qemu-system-x86_64: ../system/physmem.c:2413: iotlb_to_section: Assertion `index < n' failed.";
        assert_eq!(cause(assertion), Some(EmulatorBroke::ASSERTION.0));
        let stall =
            "[ 27.2] rcu: rcu_preempt kthread timer wakeup didn't happen for 5247 jiffies! g-475 f0x0";
        assert_eq!(cause(stall), Some(EmulatorBroke::LOST_TIMER.0));
        for innocent in [
            "qemu-system-x86_64: system/physmem.c:2678: vhost_user_write: Assertion `n < m' failed.",
            "iotlb_to_section",
            "",
            "[ 27.2] rcu: INFO: rcu_preempt detected stalls",
        ] {
            assert_eq!(cause(innocent), None, "{innocent}");
        }
    }
}
