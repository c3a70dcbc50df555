//! The end of a child.

use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a child may take to end once its supervisor has left it. Its threads have 5 s.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(6);
/// The pause between two looks meanwhile.
const LOOK: Duration = Duration::from_millis(1);
/// The same for a child that can't be killed.
const LATE_LOOK: Duration = Duration::from_millis(100);

/// Waits for the end of a child whose supervisor has left it, and kills it if that takes longer
/// than `patience`. One that can't be killed is waited for until the VM `stops`: it has the VM's
/// descriptors.
pub(crate) fn end(
    vm: &str,
    child: &mut Child,
    patience: Duration,
    stops: &AtomicBool,
) -> std::io::Result<ExitStatus> {
    let begin = Instant::now();
    while begin.elapsed() < patience {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(LOOK);
    }
    let Err(refused) = child.kill() else { return child.wait() };
    tracing::error!(
        "{vm}: its process {} does not end, and can't be killed: {refused}; no other one serves the VM until it has \
         ended (to kill a process of another user takes CAP_KILL)",
        child.id()
    );
    while !stops.load(Ordering::Acquire) {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(LATE_LOOK);
    }
    Err(refused)
}

/// Why a child ended.
pub(crate) fn words(status: &ExitStatus) -> String {
    match status.signal() {
        Some(libc::SIGSYS) => {
            "killed by SIGSYS: it made a system call that is not on its list, which the kernel's log may name"
                .to_owned()
        }
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("{status}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    #[test]
    fn the_log_says_why_a_child_ended() {
        let text = |wait_status| words(&ExitStatus::from_raw(wait_status));
        assert_eq!(text(libc::SIGKILL), "killed by signal 9");
        assert!(text(libc::SIGSYS).contains("not on its list"));
        assert_eq!(text(1 << 8), "exit status: 1");
    }

    #[test]
    fn a_child_that_takes_too_long_is_killed() {
        let mut child = Command::new("sleep").arg("100").spawn().expect("a process");
        let status = end("vm", &mut child, LOOK, &AtomicBool::new(false)).expect("its end");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }

    /// It may still send by what it was handed.
    #[test]
    fn a_child_that_cant_be_killed_is_waited_for() {
        let child = || {
            let mut command = Command::new("sleep");
            command.arg("1").uid(65534).spawn().expect("a process")
        };
        let mut children = [child(), child()];
        // This thread's alone.
        let mut sets = capabilities(None).expect("capabilities");
        sets.effective.remove(CapabilitySet::KILL);
        set_capabilities(None, sets).expect("dropped");
        let [first, second] = &mut children;
        let refused = end("vm", first, LOOK, &AtomicBool::new(true)).expect_err("it runs");
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        let status = end("vm", second, LOOK, &AtomicBool::new(false)).expect("its end");
        assert!(status.success(), "it has ended by itself: {status}");
        assert!(first.wait().is_ok());
    }
}
