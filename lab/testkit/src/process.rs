//! Processes of their own for tests whose state is the process's.
//!
//! The tests of a crate are threads of one process. Limits, the user, counts of descriptors and
//! mappings, and lists that a library keeps for the whole process belong to all of them. A test
//! that has to do with these begins with [`own_process!`](crate::own_process).
//!
//! So does a test for which a descriptor must be closed as soon as it closes it. When another test
//! starts a program, the new process has copies of all descriptors until it becomes that program.
//!
//! The lab's programs have the rest in common: children that die with them, and signals.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

/// Set in a test's own process: the path of the test.
const ALONE: &str = "ZEROWIRE_TEST_ALONE";

/// Runs the test in a process of its own. This process starts the test program again for this test
/// alone, and returns from the test when that has passed. What follows runs in the new process.
///
/// Call it in the test function itself: it finds the test's path there.
#[macro_export]
macro_rules! own_process {
    () => {
        if !$crate::process::is_own($crate::this_test!()) {
            return;
        }
    };
}

/// The path of the test in whose function this stands.
#[macro_export]
macro_rules! this_test {
    () => {{
        fn here() {}
        $crate::process::test_around(here)
    }};
}

/// The path of the test in whose function `here` stands, without the program's name.
pub fn test_around<T>(_here: T) -> &'static str {
    let place = std::any::type_name::<T>();
    let path = place.split_once("::").and_then(|(_program, path)| path.strip_suffix("::here"));
    path.filter(|path| !path.contains('{')).unwrap_or_else(|| panic!("{place} is not in a test function"))
}

/// This program again, with one test.
pub fn only(test: &str) -> Command {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program.args(["--exact", test, "--nocapture"]).stdin(Stdio::null());
    program
}

/// Whether this process is the test's own; if not, the test has run in one, and has passed.
pub fn is_own(test: &str) -> bool {
    if std::env::var_os(ALONE).is_some_and(|name| name == test) {
        return true;
    }
    let out = only(test).env(ALONE, test).output().expect("a process");
    let (said, error) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    // A path without a test runs nothing, and the test program does not fail then.
    let passed = said.lines().any(|line| line.starts_with("test result: ok. 1 passed;"));
    assert!(out.status.success() && passed, "{test}, alone: {}\n{said}\n{error}", out.status);
    // Seen with --nocapture, like what tests of this process say.
    eprint!("{error}");
    false
}

/// Lowers RLIMIT_MEMLOCK to `locked_bytes`, and gives root up for a user that nobody else is. This
/// is the whole process's, which must be the test's own.
pub fn become_ordinary(uid: u32, locked_bytes: u64) {
    assert!(std::env::var_os(ALONE).is_some(), "own_process! comes first");
    // SAFETY: getuid takes nothing and changes nothing.
    assert_eq!(unsafe { libc::getuid() }, 0, "this test becomes an ordinary user: run it as root");
    limit(libc::RLIMIT_MEMLOCK, locked_bytes, locked_bytes).expect("a lower limit");
    // SAFETY: the calls take numbers. glibc changes all threads.
    unsafe {
        assert_eq!(libc::setresgid(uid, uid, uid), 0);
        assert_eq!(libc::setresuid(uid, uid, uid), 0);
    }
}

/// CAP_NET_ADMIN (linux/capability.h).
pub const NET_ADMIN: libc::c_ulong = 12;
/// CAP_NET_RAW.
pub const NET_RAW: libc::c_ulong = 13;
/// CAP_IPC_LOCK.
pub const IPC_LOCK: libc::c_ulong = 14;

/// The program that this process becomes does not have `capability`. Makes a system call only, so
/// that a child may call it before it becomes a program.
///
/// # Errors
/// The process may not do that.
pub fn drop_capability(capability: libc::c_ulong) -> io::Result<()> {
    // SAFETY: takes numbers only. An exec gives nothing that is not in the bounding set.
    check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) })
}

/// Sets a limit of this process (RLIMIT_MEMLOCK and others). As [`drop_capability`] for a child.
///
/// # Errors
/// The hard limit is raised without the right to that.
pub fn limit(resource: libc::__rlimit_resource_t, soft: u64, hard: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: soft, rlim_max: hard };
    // SAFETY: the limit is a value of this function.
    check(unsafe { libc::setrlimit(resource, &raw const limit) })
}

/// What `command` starts is killed when the thread that starts it ends, as it is when this process
/// is killed.
pub fn kill_with_thread(command: &mut Command) -> &mut Command {
    kill_with(command, getpid())
}

fn kill_with(command: &mut Command, parent: Pid) -> &mut Command {
    let set = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // If the parent has ended before that, nobody will say so.
        if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
    };
    // SAFETY: between fork and exec these are two system calls: no memory is allocated, no lock
    // taken.
    unsafe { command.pre_exec(set) }
}

/// The processes that `parent` has started and that run: with `--sandbox on` those that serve its
/// VMs. Zombies are left out.
pub fn children(parent: u32) -> Vec<u32> {
    // PID (COMMAND) STATE PPID … (proc_pid_stat(5))
    let is_child = |pid: &u32| -> Option<bool> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let state = fields.next()?;
        Some(state != "Z" && fields.next()?.parse() == Ok(parent))
    };
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_child(pid) == Some(true)).collect()
}

/// Where [`catch`] writes the numbers of signals.
static SIGNALS: OnceLock<OwnedFd> = OnceLock::new();

/// From now on each of `signals` is written to `pipe` as a byte, once the first call has set it.
/// A program that this process starts doesn't inherit that.
///
/// # Errors
/// A number is not that of a signal that can be caught.
pub fn catch(signals: &[libc::c_int], pipe: OwnedFd) -> io::Result<()> {
    let _ = SIGNALS.set(pipe);
    // SAFETY: all zeroes is a valid sigaction: no flags, and no signal is blocked.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    for signal in signals {
        // SAFETY: the handler takes a signal's number, and does only what a handler may do.
        check(unsafe { libc::sigaction(*signal, &raw const action, std::ptr::null_mut()) })?;
    }
    Ok(())
}

extern "C" fn on_signal(signal: libc::c_int) {
    let Some(pipe) = SIGNALS.get() else { return };
    // SAFETY: write is safe in a handler (signal-safety(7)); errno is this thread's, and is put
    // back.
    unsafe {
        let errno = *libc::__errno_location();
        let byte = signal as u8;
        libc::write(pipe.as_raw_fd(), (&raw const byte).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

/// Ends this process by `signal`, as if it had not been caught.
pub fn end_by(signal: libc::c_int) -> ! {
    // SAFETY: the calls take numbers; no handler runs from here on.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    std::process::exit(128 + signal)
}

/// Whether a unix socket listens at `path` in the network namespace of a task, a folder in /proc.
/// Its name alone is there a moment before, and a connection would use up a session.
///
/// # Errors
/// No task has that folder.
pub fn is_listening(task: &str, path: &Path) -> io::Result<bool> {
    let table = format!("/proc/{task}/net/unix");
    let lines = std::fs::read_to_string(&table)
        .map_err(|error| io::Error::new(error.kind(), format!("read {table}: {error}")))?;
    let path = format!(" {}", path.display());
    // Num RefCount Protocol Flags Type St Inode Path; of the flags that is __SO_ACCEPTCON
    // (net/unix/af_unix.c, `unix_seq_show`).
    let listens = |line: &str| line.split_whitespace().nth(3) == Some("00010000");
    Ok(lines.lines().any(|line| line.ends_with(&path) && listens(line)))
}

fn check(r: libc::c_int) -> io::Result<()> {
    if r < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
