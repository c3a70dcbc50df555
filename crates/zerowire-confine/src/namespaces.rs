//! Namespaces of a process's own.
//!
//! To make one takes CAP_SYS_ADMIN. A process that is started by one without it gets a user
//! namespace, in which it has the right. A PID namespace holds the processes that are started in
//! it, so the one that starts the process makes it.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::BorrowedFd;

use rustix::thread::CapabilitySet;
use zerowire_sys::rights::{Namespace, start, unshare};

use crate::child::ChildProcess;
use crate::{files, user};

/// What a process in a user namespace of its own needs to be confined: namespaces and an empty
/// root; an empty bounding set.
const TO_CONFINE: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SETPCAP);

/// Starts a program with these arguments (its name comes first), without an environment, and with
/// these descriptors as standard input, output and error. It is the first process of a PID
/// namespace. Where this process lacks the right to that, the program has a user namespace as well.
/// Where it can't have one or both it starts without, and [`confine`](crate::confine) reports that.
///
/// # Errors
/// The program can't be started.
pub fn spawn_apart(
    program: &CStr,
    arguments: &[&str],
    standard: [BorrowedFd<'_>; 3],
) -> io::Result<ChildProcess> {
    let arguments: Vec<_> = arguments.iter().map(|text| CString::new(*text)).collect::<Result<_, _>>()?;
    let ways: &[&[Namespace]] = match user::effective().contains(CapabilitySet::SYS_ADMIN) {
        true => &[&[Namespace::Process], &[]],
        false => &[&[Namespace::User, Namespace::Process], &[Namespace::User], &[]],
    };
    let mut outcome = Err(io::ErrorKind::Unsupported.into());
    for way in ways {
        outcome = start(way, program, &arguments, standard, TO_CONFINE).map(ChildProcess::new);
        match &outcome {
            Err(e) if !is_passing(e) => {}
            _ => break,
        }
    }
    outcome
}

/// Whether the same namespaces may be had later. After any other error it tries the next way:
/// security modules refuse namespaces by errors of their own. The last way returns an error that no
/// namespace causes.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE))
}

/// Whether this is the first process of its PID namespace.
pub(crate) fn processes() -> Result<(), String> {
    if std::process::id() == 1 {
        return Ok(());
    }
    Err(format!("a PID namespace takes {RIGHT}"))
}

/// What it takes to make a namespace.
const RIGHT: &str = "CAP_SYS_ADMIN or a user namespace";

/// Whether this process is in a user namespace that was made for it, or another one of one user.
pub(crate) fn has_one_user() -> bool {
    std::fs::read("/proc/self/setgroups").is_ok_and(|text| text.starts_with(b"deny"))
}

fn make(namespace: Namespace) -> Result<(), String> {
    unshare(namespace).map_err(|e| match e.raw_os_error() {
        Some(libc::EPERM) => format!("it takes {RIGHT}"),
        _ => e.to_string(),
    })
}

/// An IPC namespace.
pub(crate) fn ipc() -> Result<(), String> {
    make(Namespace::Ipc)
}

/// A network namespace. Its loopback is down.
pub(crate) fn network() -> Result<(), String> {
    make(Namespace::Network)
}

/// A mount namespace with an empty root.
pub(crate) fn files() -> Result<(), String> {
    make(Namespace::Mount)?;
    files::leave()
}
