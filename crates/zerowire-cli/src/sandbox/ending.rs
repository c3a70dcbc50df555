//! The end of a child.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use zerowire_confine::ChildProcess;

use super::channel::{died_within, watch};

/// How long a child may take to end once its supervisor has left it. Its threads have 5 s.
pub(crate) const END_PATIENCE: Duration = Duration::from_secs(6);
/// How long a child may take to end that was killed.
const KILL_PATIENCE: Duration = Duration::from_secs(2);
/// The pause between two looks whether the VM stops meanwhile.
const LATE_LOOK: Duration = Duration::from_millis(100);
/// How long a thread that serves a child that has ended, or can't, takes at most. It takes longer
/// only where the kernel holds it up.
const THREAD_PATIENCE: Duration = Duration::from_secs(12);

/// Waits for the end of a child whose supervisor has left it, and kills it if that takes longer
/// than `patience`. One that can't be killed, or does not end by that, is waited for until
/// `gives_up` says so: it has the VM's descriptors.
pub(crate) fn end(
    vm: &str,
    child: &mut ChildProcess,
    patience: Duration,
    gives_up: impl Fn() -> bool,
) -> std::io::Result<ExitStatus> {
    if let Some(status) = ended_within(child, patience)? {
        return Ok(status);
    }
    let (text, why) = match child.kill() {
        Err(refused) => {
            let why =
                format!("can't be killed: {refused} (to kill a process of another user takes CAP_KILL)");
            (why, refused)
        }
        Ok(()) => match ended_within(child, KILL_PATIENCE)? {
            Some(status) => return Ok(status),
            None => {
                let why =
                    "was killed: the kernel holds it up, as when a file system of a user's does not answer";
                (why.to_owned(), std::io::ErrorKind::TimedOut.into())
            }
        },
    };
    tracing::error!(
        "{vm}: its process {} does not end, and {text}; no other one serves the VM until it has ended",
        child.pid()
    );
    while !gives_up() {
        if let Some(status) = ended_within(child, LATE_LOOK)? {
            return Ok(status);
        }
    }
    Err(why)
}

/// Waits until a child has ended, for this long at most.
fn ended_within(child: &mut ChildProcess, patience: Duration) -> std::io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    match watch(child) {
        Ok(process) => died_within(&process, patience),
        // This process has as many descriptors as it may.
        Err(_) => {
            while child.try_wait()?.is_none() && begin.elapsed() < patience {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
    child.try_wait()
}

/// Waits for the end of the thread that serves the child of `vm`. One that the kernel holds up is
/// left behind, which returns false.
pub(crate) fn join(vm: &str, thread: JoinHandle<()>) -> bool {
    let begin = Instant::now();
    while !thread.is_finished() {
        if begin.elapsed() > THREAD_PATIENCE {
            tracing::error!(
                "{vm}: the thread that serves its process does not end: the kernel holds it up or the process, as when a \
                 descriptor of the front end's can't be closed; it is left behind"
            );
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = thread.join();
    true
}

/// Why a child ended.
pub(crate) fn words(status: &ExitStatus) -> String {
    match status.signal() {
        Some(libc::SIGSYS) => {
            "killed by SIGSYS: it made a system call that is not on its list, as an abort does; the kernel's log may name it"
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
        let mut child = Command::new("sleep").arg("100").spawn().expect("a process").into();
        let status = end("vm", &mut child, Duration::ZERO, || false).expect("its end");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
    }

    /// It may still send by what it was handed.
    #[test]
    fn a_child_that_cant_be_killed_is_waited_for() {
        let child = || {
            let mut command = Command::new("sleep");
            command.arg("1").uid(65534).spawn().expect("a process").into()
        };
        let mut children: [ChildProcess; 2] = [child(), child()];
        // This thread's alone.
        let mut sets = capabilities(None).expect("capabilities");
        sets.effective.remove(CapabilitySet::KILL);
        set_capabilities(None, sets).expect("dropped");
        let [first, second] = &mut children;
        let refused = end("vm", first, Duration::ZERO, || true).expect_err("it runs");
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        let status = end("vm", second, Duration::ZERO, || false).expect("its end");
        assert!(status.success(), "it has ended by itself: {status}");
        assert!(first.wait().is_ok());
    }
}
