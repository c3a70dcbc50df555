//! Rights for a network namespace and a tap, for users who are not root.

use std::fs;

use anyhow::{Context, Result};
use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

const REMEDY: &str = "run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, \
                      kernel.apparmor_restrict_unprivileged_userns=0, user.max_user_namespaces)";

/// Makes a user who is not root the root of a new user namespace, in which network
/// namespaces and taps may be made (user_namespaces(7)). To be called before the first
/// thread is started.
pub(super) fn enter_user_namespace_if_needed() -> Result<()> {
    let (user, group) = (geteuid(), getegid());
    if user.is_root() {
        return Ok(());
    }
    // SAFETY: only the user namespace is left, no descriptor table or address space
    // that other code of this process could rely on.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }
        .with_context(|| format!("no user namespace: {REMEDY}"))?;
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("0 {} 1", user.as_raw())),
        ("gid_map", format!("0 {} 1", group.as_raw())),
    ] {
        let path = format!("/proc/self/{file}");
        fs::write(&path, text).with_context(|| format!("can't write {path}: {REMEDY}"))?;
    }
    Ok(())
}
