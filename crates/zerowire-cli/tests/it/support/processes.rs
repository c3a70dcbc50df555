//! The confined processes that a program has started.

use std::time::Duration;

use super::{Program, wait_until};

/// Processes that this program has started and that run.
pub fn children(program: &Program) -> Vec<i32> {
    let pids = zerowire_testkit::process::children(program.pid() as u32);
    pids.into_iter().map(|pid| pid as i32).collect()
}

/// The only child.
pub fn child(program: &Program) -> i32 {
    let all = children(program);
    assert_eq!(all.len(), 1, "{}", program.log());
    all[0]
}

/// Whether a process has not ended. Whoever reaps it may be late.
pub fn runs(pid: &i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    status.is_ok_and(|status| !status.contains("\nState:\tZ"))
}

/// Sends a child a signal.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: the process is a child of a program that this test has started and that has not
    // reaped it: the id is its own.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// A line of `/proc/PID/status`.
pub fn status(pid: i32, key: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {key}")).split_whitespace().next().unwrap_or_default().to_owned()
}

/// Descriptors and threads of a process.
pub fn held(pid: i32) -> [usize; 2] {
    ["fd", "task"].map(|what| std::fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count))
}

/// Waits until no thread of a process runs: it has told what there is to tell.
pub fn wait_idle(pid: i32) {
    let mut idle = 0;
    wait_until("it is idle", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("/proc").flatten();
        let mut stats = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        let sleeps = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'));
        idle = if stats.all(sleeps) { idle + 1 } else { 0 };
        std::thread::sleep(Duration::from_millis(5));
        idle == 10
    });
}
