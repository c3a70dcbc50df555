//! The programs by which interfaces are made.

use std::process::Command;

/// Runs a command in this thread's namespace; it must succeed.
pub fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap_or_else(|e| {
        panic!("{program} can't be run: {e}; install iproute2 (scripts/install.sh does)")
    });
    assert!(
        done.status.success(),
        "{program} {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&done.stderr).trim()
    );
}

/// Runs `ip` with these arguments in this thread's namespace; it must succeed.
pub fn ip(arguments: &[&str]) {
    run("ip", arguments);
}
