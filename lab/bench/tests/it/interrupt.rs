//! `zerowire-bench …` ended by a signal that it alone gets, as from kill(1): what it started ends
//! with it. The benchmark of the net device needs root.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use zerowire_testkit::wait_until;

use crate::support::program;

/// Its children, by number.
fn children(of: u32) -> Vec<String> {
    let is_child = |pid: &String| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{of}"))
    };
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    processes.filter_map(|entry| entry.file_name().into_string().ok()).filter(is_child).collect()
}

/// Whether a process runs one of our programs.
fn is_ours(pid: &str) -> bool {
    let program = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("zerowire"))
}

/// A benchmark that has started its back end: the folder is there, and the VM's socket in it.
fn started(arguments: &[&str], folder: &Path) -> Child {
    assert!(program().is_file());
    // It leaves a signal ignored that is ignored when it starts, as in a shell's background.
    let mut child = Command::new("env")
        .arg("--default-signal=INT,TERM")
        .arg(env!("CARGO_BIN_EXE_zerowire-bench"))
        .args(arguments)
        .env("TMPDIR", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let listens = |entry: fs::DirEntry| entry.path().join("vm0.sock").exists();
    wait_until("the back end listens", || {
        assert!(child.try_wait().expect("its status").is_none(), "it ended by itself");
        fs::read_dir(folder).expect("the folder").flatten().any(listens)
    });
    child
}

/// By SIGTERM it ends its benchmark; by SIGKILL the kernel does.
#[test]
fn a_comparison_leaves_no_benchmark_behind() {
    let bench = env!("CARGO_BIN_EXE_zerowire-bench");
    let long = "vsock-rx --table --floor-only -m 60000 --sizes 4096 --direction tx --working-set hot";
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut ab = Command::new("env")
            .args(["--default-signal=INT,TERM", bench, "ab", bench, bench, "--"])
            .args(long.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the program starts");
        let mut run = Vec::new();
        wait_until("a benchmark runs", || {
            assert!(ab.try_wait().expect("its status").is_none(), "it ended by itself");
            run = children(ab.id());
            run.iter().any(|pid| is_ours(pid))
        });
        // SAFETY: the call takes numbers, and the child was not waited for.
        assert_eq!(unsafe { libc::kill(ab.id() as libc::pid_t, signal) }, 0);
        assert_eq!(ab.wait().expect("its status").signal(), Some(signal));
        wait_until("its benchmark has ended", || !run.iter().any(|pid| is_ours(pid)));
    }
}

#[test]
fn a_benchmark_that_is_killed_leaves_no_back_end_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let vsock = ["vsock", "--quick", "--rounds", "100000", "--writes", "4096", "--no-extras"];
    let mut child = started(&vsock, folder.path());
    let mut left = children(child.id());
    left.extend(left.clone().iter().flat_map(|pid| children(pid.parse().expect("a number"))));
    assert!(left.iter().any(|pid| is_ours(pid)), "{left:?}");
    child.kill().expect("it runs");
    child.wait().expect("its status");
    wait_until("the back end has ended", || !left.iter().any(|pid| is_ours(pid)));
}

#[test]
fn a_signal_leaves_no_process_and_no_file_behind() {
    // Enough rounds that the run doesn't end before the signal, however slow this test is.
    let net = ["net", "--quick", "--rounds", "100000", "--sizes", "64", "--vms", "0"];
    let vsock = ["vsock", "--quick", "--rounds", "100000", "--writes", "4096", "--no-extras"];
    for (arguments, signal) in [(&net[..], libc::SIGINT), (&net, libc::SIGTERM), (&vsock, libc::SIGINT)] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = started(arguments, folder.path());
        let back_ends = children(child.id());
        assert!(!back_ends.is_empty(), "{arguments:?}");
        // SAFETY: the call takes numbers, and the child was not waited for.
        assert_eq!(unsafe { libc::kill(child.id() as libc::pid_t, signal) }, 0);
        let mut status = None;
        wait_until("the benchmark ends", || {
            status = child.try_wait().expect("its status");
            status.is_some()
        });
        let status = status.expect("it has ended");
        assert_eq!(status.signal(), Some(signal), "{arguments:?}: {status}");
        for pid in back_ends {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            assert!(!name.starts_with("zerowire"), "{arguments:?}: {pid} goes on");
        }
        let left: Vec<_> = fs::read_dir(folder.path()).expect("the folder").flatten().collect();
        assert!(left.is_empty(), "{arguments:?}: {left:?}");
    }
}
