//! The confined processes that a program has started.

use std::collections::BTreeSet;
use std::path::PathBuf;
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

/// The child that serves a VM, by the name of its process.
pub fn child_of(program: &Program, vm: &str) -> i32 {
    let serves = |pid: &i32| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let vms = line.split('\0').next().and_then(|line| line.strip_prefix("zerowire: "));
        vms.is_some_and(|vms| vms.split(", ").any(|name| name == vm))
    };
    let found = children(program).into_iter().find(serves);
    found.unwrap_or_else(|| panic!("{vm} has no child: {}", program.log()))
}

/// Sum of these sizes of a process's mappings, in KiB (proc_pid_smaps(5)). Mappings count whose
/// first line `is_counted`.
pub fn mapped_kib(pid: i32, sizes: &[&str], is_counted: impl Fn(&str) -> bool) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("its mappings");
    let (mut counts, mut kib) = (false, 0);
    for line in text.lines() {
        match line.split_once(' ').expect("two words") {
            (size, n) if counts && sizes.contains(&size) => {
                kib += n.trim_end_matches("kB").trim().parse::<u64>().expect("a number");
            }
            // A mapping begins with its range of addresses.
            (range, _) if !range.ends_with(':') => counts = is_counted(line),
            _ => {}
        }
    }
    kib
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

/// The processes of a program, and the namespaces that they are in.
#[derive(Debug, PartialEq, Eq)]
pub struct ProcessTree {
    /// The program, and all that have it as an ancestor. Zombies count.
    pub pids: BTreeSet<i32>,
    pub namespaces: BTreeSet<PathBuf>,
}

impl ProcessTree {
    pub fn of(program: &Program) -> Self {
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let parents: Vec<_> = all.filter_map(|pid| Some((pid, parent(pid)?))).collect();
        let mut pids = BTreeSet::from([program.pid()]);
        let mut before = 0;
        while pids.len() > before {
            before = pids.len();
            let more: Vec<_> = parents.iter().filter(|(_, parent)| pids.contains(parent)).collect();
            pids.extend(more.into_iter().map(|(pid, _)| *pid));
        }
        let links = |pid: &i32| std::fs::read_dir(format!("/proc/{pid}/ns")).into_iter().flatten().flatten();
        let links = pids.iter().flat_map(links);
        let namespaces = links.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
        Self { pids, namespaces }
    }
}

/// The parent of a process (proc_pid_stat(5)).
fn parent(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Whether a process that serves a VM of this name runs anywhere: its program may have left it.
pub fn is_served(vm: &str) -> bool {
    let name = format!("zerowire: {vm}\0");
    let serves = |pid: i32| {
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with(name.as_bytes())
            && program.is_ok_and(|file| file.as_os_str() == env!("CARGO_BIN_EXE_zerowire"))
    };
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).any(serves)
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

/// A thread of another process that stands still until this is dropped.
pub struct Frozen(libc::pid_t);

impl Frozen {
    /// Stops the thread of this name.
    pub fn thread(pid: i32, name: &str) -> Self {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
        let comm = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        let named = tasks.flatten().find(|task| comm(task).is_ok_and(|comm| comm.trim() == name));
        let tid: libc::pid_t =
            named.and_then(|task| task.file_name().to_str()?.parse().ok()).expect("the thread");
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: stops a thread of a process of this test's. No memory is read or written.
        unsafe {
            assert_eq!(libc::ptrace(libc::PTRACE_SEIZE, tid, none, none), 0);
            assert_eq!(libc::ptrace(libc::PTRACE_INTERRUPT, tid, none, none), 0);
            assert_eq!(libc::waitpid(tid, std::ptr::null_mut(), libc::__WALL), tid);
        }
        Self(tid)
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: lets the thread that this thread has stopped go on.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, none, none) };
    }
}
