//! Namespaces of a process's own.
//!
//! To make one takes CAP_SYS_ADMIN. A process without it makes a user namespace first, in which it
//! has all capabilities. A PID namespace holds the processes that are started in it, so the one
//! that starts the process makes it.

use std::io;
use std::process::{Child, Command};

use rustix::thread::CapabilitySet;
use zerowire_sys::rights::{Namespace, unshare};

use crate::{files, user};

/// Starts a program as the first process of a PID namespace. Where none can be had it starts in
/// this process's own, and [`confine`](crate::confine) reports that.
///
/// # Errors
/// The program can't be started.
pub fn spawn_apart(command: &mut Command) -> io::Result<Child> {
    // A thread starts its processes in the namespace that it has made. This one is there for one
    // process alone.
    let start = || {
        // What went wrong is seen from within: the process is not the first one.
        let _ = unshare(Namespace::Process);
        command.spawn()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("spawn".to_owned()).spawn_scoped(scope, start)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that starts processes has failed")))
    })
}

/// Whether this is the first process of its PID namespace.
pub(crate) fn processes() -> Result<(), String> {
    if std::process::id() == 1 {
        return Ok(());
    }
    Err("a PID namespace takes CAP_SYS_ADMIN".to_owned())
}

/// The right to make namespaces.
pub(crate) struct Rights {
    /// Why there is none.
    missing: Option<String>,
}

impl Rights {
    /// Has it, or makes a user namespace.
    pub(crate) fn acquire() -> Self {
        if user::effective().contains(CapabilitySet::SYS_ADMIN) {
            return Self { missing: None };
        }
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let made = unshare(Namespace::User);
        if made.is_ok() {
            // Without these the process goes on as nobody, which does as well.
            for (file, text) in [
                ("uid_map", format!("{user} {user} 1")),
                ("setgroups", "deny".to_owned()),
                ("gid_map", format!("{group} {group} 1")),
            ] {
                let _ = std::fs::write(format!("/proc/self/{file}"), text);
            }
        }
        Self { missing: made.err().map(|e| format!("it takes CAP_SYS_ADMIN or a user namespace: {e}")) }
    }

    fn check(&self) -> Result<(), String> {
        self.missing.clone().map_or(Ok(()), Err)
    }

    /// An IPC namespace.
    pub(crate) fn ipc(&self) -> Result<(), String> {
        self.check()?;
        unshare(Namespace::Ipc).map_err(|e| e.to_string())
    }

    /// A network namespace. Its loopback is down.
    pub(crate) fn network(&self) -> Result<(), String> {
        self.check()?;
        unshare(Namespace::Network).map_err(|e| e.to_string())
    }

    /// A mount namespace with an empty root.
    pub(crate) fn files(&self) -> Result<(), String> {
        self.check()?;
        unshare(Namespace::Mount).map_err(|e| e.to_string())?;
        files::leave()
    }
}
