//! Whom a process belongs to, and its capabilities.

use rustix::io::Errno;
use rustix::process::{Gid, Pid, Resource, Rlimit, Uid, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_bounding_set, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

use zerowire_sys::rights::{Namespace, unshare};

use crate::{Owner, namespaces};

/// The capabilities that this thread has.
pub(crate) fn effective() -> CapabilitySet {
    capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective)
}

/// The capabilities of this thread, by which it may become another user. Those of a user namespace
/// with one user are none. None where this user namespace knows no user, since the kernel did not
/// let one be mapped.
pub(crate) fn rights_to_change() -> Option<CapabilitySet> {
    if std::fs::read("/proc/self/uid_map").is_ok_and(|map| map.is_empty()) {
        return None;
    }
    Some(if namespaces::has_one_user() { CapabilitySet::empty() } else { effective() })
}

/// This thread, and those that it starts, keep these capabilities, as far as they have them. No
/// program that they become gets others.
///
/// # Errors
/// A text that names the system call and why it failed.
pub fn keep_capabilities(kept: CapabilitySet) -> Result<(), String> {
    bound_capabilities(kept)?;
    let CapabilitySets { effective, permitted, inheritable } =
        capabilities(None).map_err(|e| format!("capget: {e}"))?;
    let (effective, permitted, inheritable) = (effective & kept, permitted & kept, inheritable & kept);
    // The ambient set follows.
    set_capabilities(None, CapabilitySets { effective, permitted, inheritable })
        .map_err(|e| format!("capset: {e}"))?;
    set_no_new_privs(true).map_err(|e| format!("no new privileges: {e}"))
}

/// No program that this process becomes has another capability than these, not even as root.
fn bound_capabilities(kept: CapabilitySet) -> Result<(), String> {
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(capability) {
            continue;
        }
        match capability_is_in_bounding_set(capability) {
            Ok(false) => continue,
            Ok(true) => {}
            // The kernel knows no further one.
            Err(_) => break,
        }
        match remove_capability_from_bounding_set(capability) {
            // Without CAP_SETPCAP the set stays. What it allows takes new privileges.
            Ok(()) | Err(Errno::PERM) => {}
            Err(e) => return Err(format!("bounding set: {e}")),
        }
    }
    Ok(())
}

/// No program that this process becomes gets a capability.
pub(crate) fn forbid_capabilities() -> Result<(), String> {
    clear_ambient_capability_set().map_err(|e| format!("ambient set: {e}"))?;
    bound_capabilities(CapabilitySet::empty())
}

/// Gives all capabilities up.
pub(crate) fn drop_capabilities() -> Result<(), String> {
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    set_capabilities(None, sets).map_err(|e| format!("capset: {e}"))
}

/// Has the kernel count the threads of this process alone: it does that for a user of a user
/// namespace.
pub(crate) fn count_apart() -> Result<(), String> {
    unshare(Namespace::User).map_err(|e| format!("its own count of threads: {e}"))
}

/// Lets this process have this many threads, which are counted apart.
pub(crate) fn bound_threads(most: u64) -> Result<(), String> {
    let most = Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::Nproc, most).map_err(|e| format!("RLIMIT_NPROC: {e}"))
}

/// The user namespace of this process, as /proc names it.
pub fn user_namespace() -> Option<String> {
    std::fs::read_link("/proc/self/ns/user").ok()?.into_os_string().into_string().ok()
}

/// Whether this process can [`map_users`]: it is root, has the capabilities, and finds processes by
/// the ids that it knows.
pub fn can_map_users() -> bool {
    let takes =
        CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::SETFCAP;
    let own = std::process::id().to_string();
    let is_found = std::fs::read_link("/proc/self").is_ok_and(|found| found.as_os_str() == own.as_str());
    is_found && rustix::process::geteuid().is_root() && effective().contains(takes)
}

/// Has a process in a new user namespace know the users and groups that this process knows, by the
/// same numbers.
///
/// # Errors
/// A text that names the file and why it can't be written.
pub fn map_users(process: Pid) -> Result<(), String> {
    for file in ["uid_map", "gid_map"] {
        let known = std::fs::read_to_string(format!("/proc/self/{file}"));
        let known = known.map_err(|e| format!("/proc/self/{file}: {e}"))?;
        // Each line has the first number here, the first one outside, and how many there are.
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            Some(format!("{0} {0} {1}\n", words.next()?, words.nth(1)?))
        };
        let same: String = known.lines().filter_map(line).collect();
        let to = format!("/proc/{}/{file}", process.as_raw_nonzero());
        std::fs::write(&to, same).map_err(|e| format!("{to}: {e}"))?;
    }
    Ok(())
}

/// Changes the user and the group of this process, which has one thread, and leaves all other
/// groups. `had` are its [`rights_to_change`] at the beginning.
pub(crate) fn change(owner: Owner, had: Option<CapabilitySet>) -> Result<(), String> {
    let denied = |e: Errno| match e {
        Errno::PERM | Errno::INVAL => stays(owner, had),
        e => format!("user {}: {e}", owner.user),
    };
    let (uid, gid) = (Uid::from_raw(owner.user), Gid::from_raw(owner.group));
    set_thread_groups(&[]).map_err(denied)?;
    set_thread_res_gid(gid, gid, gid).map_err(denied)?;
    set_thread_res_uid(uid, uid, uid).map_err(denied)
}

/// Why this process stays the user that it is, and what that means. Started by one without
/// CAP_SYS_ADMIN it is in a user namespace of its own, which has no other user. Where that one is
/// not mapped either, its number here is nobody's.
fn stays(owner: Owner, had: Option<CapabilitySet>) -> String {
    let user = match had {
        Some(_) => format!("user {}", rustix::process::getuid().as_raw()),
        None => "the user that started it, which its user namespace could not map".to_owned(),
    };
    let takes = CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID;
    let lacks = takes - had.unwrap_or(CapabilitySet::empty());
    let lacks: Vec<_> = lacks.iter_names().map(|(name, _)| format!("CAP_{name}")).collect();
    let why = match lacks.is_empty() {
        true => format!("this user namespace has no user {} with group {}", owner.user, owner.group),
        false => format!("another one takes {}", lacks.join(", ")),
    };
    format!("it stays {user}, and only the other layers protect that user's files and processes: {why}")
}
