//! Rights that a process gives up, or does not begin with: namespaces of its own, descriptors,
//! files by Landlock.
//!
//! # Errors
//! Those of the system calls.

use std::ffi::{CStr, CString};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::null;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Gid, Pid, Uid, WaitOptions, set_dumpable_behavior, waitpid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, configure_capability_in_ambient_set, set_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use crate::check;
use crate::syscall::{call, checked};

/// A namespace that a process can have for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Users and capabilities.
    User,
    /// Mounts, and so files.
    Mount,
    /// System V IPC and POSIX message queues.
    Ipc,
    /// Interfaces, addresses and abstract unix sockets.
    Network,
    /// Process ids, of the processes that the calling thread starts from now on.
    Process,
}

impl Namespace {
    const fn flag(self) -> libc::c_int {
        match self {
            Self::User => libc::CLONE_NEWUSER,
            Self::Mount => libc::CLONE_NEWNS,
            Self::Ipc => libc::CLONE_NEWIPC,
            Self::Network => libc::CLONE_NEWNET,
            Self::Process => libc::CLONE_NEWPID,
        }
    }
}

/// Gives the calling thread a new namespace (unshare(2)).
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN, which a user namespace gives; EINVAL for a user namespace in a
/// process of several threads, and where the kernel has no such namespaces.
pub fn unshare(namespace: Namespace) -> io::Result<()> {
    // SAFETY: takes a number. None of these flags touches memory or descriptors.
    check(unsafe { libc::unshare(namespace.flag()) }).map(drop)
}

/// Starts a program as the first process of these namespaces (clone(2), execve(2)). It has these
/// arguments, no environment, and the `standard` descriptors. In a user namespace it keeps the user
/// and the group of this process, which are all that this namespace has, and of the capabilities
/// those that are `kept`.
///
/// # Errors
/// EPERM without CAP_SYS_ADMIN, which a user namespace gives. ENOSPC where there may be no further
/// namespace. EINVAL where the kernel has no such namespaces. EACCES, or any other error, where a
/// security module refuses them. Those of execve(2).
pub fn start(
    namespaces: &[Namespace],
    program: &CStr,
    arguments: &[CString],
    standard: [BorrowedFd<'_>; 3],
    kept: CapabilitySet,
) -> io::Result<Pid> {
    // None of them is a standard one that takes the place of another.
    let [input, output, error] = standard.map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, 3));
    let (failed, fails) = pipe_with(PipeFlags::CLOEXEC)?;
    let arguments: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).chain([null()]).collect();
    let new = NewProcess {
        program,
        arguments: &arguments,
        standard: [input?, output?, error?],
        one_user: namespaces.contains(&Namespace::User).then(OneUser::of_this_process),
        kept,
    };
    let flags = namespaces.iter().fold(libc::SIGCHLD, |flags, namespace| flags | namespace.flag());
    // SAFETY: the new process has copies of this one's memory and descriptors, as by fork(2). It
    // has this thread alone, and another one may have held a lock: so it makes system calls on what
    // lies ready, until it becomes the program or ends.
    let pid = unsafe { call(libc::SYS_clone, [flags as usize, 0, 0, 0, 0, 0]) };
    if pid == Ok(0) {
        let Err(errno) = new.become_program();
        let _ = rustix::io::write(&fails, &errno.raw_os_error().to_ne_bytes());
        // SAFETY: ends the new process, and runs nothing of the one that it is a copy of.
        unsafe { libc::_exit(127) }
    }
    drop(fails);
    let pid = pid.map_err(io::Error::from_raw_os_error)?;
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let mut errno = [0; size_of::<i32>()];
    // The pipe is closed as the program starts.
    if std::fs::File::from(failed).read_exact(&mut errno).is_err() {
        return Ok(pid);
    }
    retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()))?;
    Err(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
}

/// What a new process does before it becomes the program. It takes no memory and no lock.
struct NewProcess<'a> {
    program: &'a CStr,
    /// Addresses of texts, and null at the end.
    arguments: &'a [*const libc::c_char],
    standard: [OwnedFd; 3],
    /// None outside of a user namespace of its own.
    one_user: Option<OneUser>,
    kept: CapabilitySet,
}

impl NewProcess<'_> {
    fn become_program(&self) -> Result<std::convert::Infallible, Errno> {
        if let Some(one_user) = &self.one_user {
            one_user.map();
            keep(self.kept)?;
        }
        let [input, output, error] = self.standard.each_ref().map(AsFd::as_fd);
        rustix::stdio::dup2_stdin(input)?;
        rustix::stdio::dup2_stdout(output)?;
        rustix::stdio::dup2_stderr(error)?;
        let (no_signals, environment) = (0_u64, [null::<libc::c_char>()]);
        let mask = [libc::SIG_SETMASK as usize, &raw const no_signals as usize, 0, size_of::<u64>(), 0, 0];
        // SAFETY: the kernel reads the set, which lives until it returns.
        unsafe { call(libc::SYS_rt_sigprocmask, mask) }.map_err(Errno::from_raw_os_error)?;
        let (program, arguments) = (self.program.as_ptr() as usize, self.arguments.as_ptr() as usize);
        let run = [program, arguments, environment.as_ptr() as usize, 0, 0, 0];
        // SAFETY: the kernel reads texts that end with a zero, by lists of their addresses that end
        // with null. All of them live longer than the call.
        let refused = unsafe { call(libc::SYS_execve, run) };
        Err(Errno::from_raw_os_error(refused.err().unwrap_or(libc::ENOEXEC)))
    }
}

/// The user and the group that a user namespace has, as lines for the files in /proc/self.
struct OneUser([(&'static CStr, String); 3]);

impl OneUser {
    fn of_this_process() -> Self {
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        Self([
            (c"/proc/self/uid_map", format!("{user} {user} 1")),
            (c"/proc/self/setgroups", "deny".to_owned()),
            (c"/proc/self/gid_map", format!("{group} {group} 1")),
        ])
    }

    /// Without these lines the process goes on as nobody, which does as well.
    fn map(&self) {
        // The files of a process that is not dumpable belong to root.
        let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
        for (path, line) in &self.0 {
            let file = rustix::fs::open(*path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty());
            let _ = file.and_then(|file| rustix::io::write(file, line.as_bytes()));
        }
    }
}

/// The program that this process becomes has these capabilities, whoever its user is.
fn keep(kept: CapabilitySet) -> Result<(), Errno> {
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: kept })?;
    kept.iter().try_for_each(|capability| configure_capability_in_ambient_set(capability, true))
}

/// Whether a child process could `unshare` these namespaces. The child does nothing else and is
/// reaped here.
///
/// # Errors
/// Those of unshare(2) in the child, and of fork(2).
pub fn unshare_in_child(flags: libc::c_int) -> io::Result<()> {
    let arguments = [flags as usize, 0, 0, 0, 0, 0];
    // SAFETY: takes numbers only. It is a system call, and so async-signal-safe.
    in_child(|| unsafe { call(libc::SYS_unshare, arguments) }.map(drop).map_err(Errno::from_raw_os_error))
}

/// Whether a child process could become this user, with this group and no others.
///
/// # Errors
/// Those of the system calls in the child, and of fork(2).
pub fn change_user_in_child(user: u32, group: u32) -> io::Result<()> {
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    // Three system calls of one thread, which are async-signal-safe.
    in_child(|| {
        set_thread_groups(&[])?;
        set_thread_res_gid(group, group, group)?;
        set_thread_res_uid(user, user, user)
    })
}

/// What `attempt` gives in a child process. It is async-signal-safe.
fn in_child(attempt: impl FnOnce() -> Result<(), Errno>) -> io::Result<()> {
    // SAFETY: the child calls only `attempt` and _exit, which are async-signal-safe.
    let pid = check(unsafe { libc::fork() })?;
    if pid == 0 {
        let errno = attempt().err().map_or(0, Errno::raw_os_error);
        // SAFETY: as above; the errno fits the exit status.
        unsafe { libc::_exit(errno) };
    }
    let status = retry_on_intr(|| waitpid(Pid::from_raw(pid), WaitOptions::empty()))?;
    match status.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(errno) => Err(io::Error::from_raw_os_error(errno)),
        None => Err(io::Error::other("the child was killed")),
    }
}

/// Closes all descriptors of this process but these (close_range(2), Linux 5.9).
///
/// # Safety
/// Nothing in this process uses or owns a descriptor that is not among `kept`.
///
/// # Errors
/// ENOSYS before Linux 5.9.
pub unsafe fn close_others(kept: &[RawFd]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().filter_map(|fd| u32::try_from(*fd).ok()).collect();
    kept.sort_unstable();
    let mut next = 0;
    for fd in kept {
        if fd > next {
            close_range(next, fd - 1)?;
        }
        next = next.max(fd.saturating_add(1));
    }
    close_range(next, u32::MAX)
}

fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: the caller of `close_others` answers for what is closed.
    unsafe { checked(libc::SYS_close_range, [first as usize, last as usize, 0, 0, 0, 0]) }.map(drop)
}

/// `LANDLOCK_CREATE_RULESET_VERSION` (include/uapi/linux/landlock.h).
const CREATE_RULESET_VERSION: usize = 1;

/// `struct landlock_ruleset_attr`, which grew at its end with the versions.
#[repr(C)]
#[derive(Debug, PartialEq, Eq)]
struct RulesetAttributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

impl RulesetAttributes {
    /// All that this version can forbid, and how many bytes of the structure it knows.
    fn all(version: usize) -> (Self, usize) {
        // LANDLOCK_ACCESS_FS_EXECUTE to _MAKE_SYM; then _REFER, _TRUNCATE and _IOCTL_DEV.
        let files = match version {
            ..=1 => 13,
            2 => 14,
            3 | 4 => 15,
            _ => 16,
        };
        // LANDLOCK_ACCESS_NET_BIND_TCP and _CONNECT_TCP.
        let network = if version >= 4 { 0b11 } else { 0 };
        // LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET and _SIGNAL.
        let scoped = if version >= 6 { 0b11 } else { 0 };
        let bytes = match version {
            ..=3 => 8,
            4 | 5 => 16,
            _ => 24,
        };
        (Self { handled_access_fs: (1 << files) - 1, handled_access_net: network, scoped }, bytes)
    }
}

/// The version of Landlock.
///
/// # Errors
/// ENOSYS: the kernel was built without it. EOPNOTSUPP: it was booted without it.
pub fn landlock_version() -> io::Result<usize> {
    // SAFETY: with this flag the call takes no memory.
    unsafe { checked(libc::SYS_landlock_create_ruleset, [0, 0, CREATE_RULESET_VERSION, 0, 0, 0]) }
}

/// Forbids the calling thread, and threads that it starts, all that Landlock can forbid: to open,
/// make and remove files, to bind and connect TCP sockets, to reach abstract unix sockets and to
/// signal processes outside. Open descriptors stay as they are. It takes `no_new_privs`.
///
/// # Errors
/// As for [`landlock_version`]; EPERM without `no_new_privs`.
pub fn landlock_all() -> io::Result<()> {
    let (attributes, bytes) = RulesetAttributes::all(landlock_version()?);
    let at = std::ptr::from_ref(&attributes) as usize;
    // SAFETY: the kernel reads at most `bytes` of the structure, which lives until it returns.
    let fd = unsafe { checked(libc::SYS_landlock_create_ruleset, [at, bytes, 0, 0, 0, 0]) }?;
    // SAFETY: takes numbers.
    let restricted = unsafe { checked(libc::SYS_landlock_restrict_self, [fd, 0, 0, 0, 0, 0]) };
    // SAFETY: this function made the descriptor, and nobody else knows it.
    unsafe { libc::close(fd as RawFd) };
    restricted.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_of_landlock_is_asked_for_what_it_knows() {
        let all = |version| {
            let (attributes, bytes) = RulesetAttributes::all(version);
            let RulesetAttributes { handled_access_fs: files, handled_access_net: net, scoped } = attributes;
            (files, net, scoped, bytes)
        };
        assert_eq!(all(1), (0x1fff, 0, 0, 8));
        assert_eq!(all(3), (0x7fff, 0, 0, 8));
        assert_eq!(all(4), (0x7fff, 3, 0, 16));
        assert_eq!(all(5), (0xffff, 3, 0, 16));
        assert_eq!(all(9), (0xffff, 3, 3, 24));
    }
}
