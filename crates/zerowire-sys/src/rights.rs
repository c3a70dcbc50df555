//! Rights that a process gives up: namespaces of its own, descriptors, files by Landlock.
//!
//! # Errors
//! Those of the system calls.

use std::io;
use std::os::fd::RawFd;

use crate::check;
use crate::syscall::checked;

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
