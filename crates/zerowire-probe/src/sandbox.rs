//! What confines the processes that serve VMs.

use std::io;

use zerowire_sys::rights::landlock_version;
use zerowire_sys::trial::{change_user_in_child, unshare_in_child};

use super::errno;
use super::machine::MachineFacts;
use super::{Finding, Group, Job, Subject, Todo};

/// The answers of seccomp that this kernel knows.
const ACTIONS: &str = "/proc/sys/kernel/seccomp/actions_avail";

/// Whom the process of a VM belongs to if nobody else is named: user and group.
const NOBODY: u32 = 65534;

const NAMESPACES: libc::c_int = libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWNET;

pub(super) fn check(todo: &mut Todo, machine: &MachineFacts) {
    let subject =
        |id, path, title| Subject { id, group: Group::Shared, jobs: &[Job::Net, Job::Vsock], path, title };
    let other_user = || change_user_in_child(NOBODY, NOBODY).map_err(errno::number);
    let may_change = machine.has("CAP_SETUID") && machine.has("CAP_SETGID");
    let namespaces = subject("sandbox.namespaces", "net, vsock: sandbox: namespaces", "sandbox: namespaces");
    todo.add(namespaces, move || {
        let all = unshare_in_child(NAMESPACES | libc::CLONE_NEWPID).map_err(errno::number);
        let with_user = |more| match all {
            Ok(()) => Ok(()),
            Err(_) => unshare_in_child(NAMESPACES | libc::CLONE_NEWUSER | more).map_err(errno::number),
        };
        match all.and(other_user()) {
            Err(e) if all.is_ok() => translate_user(e, may_change),
            _ => translate_namespaces(all, with_user(libc::CLONE_NEWPID), with_user(0)),
        }
    });
    let kill = subject("sandbox.kill", "net, vsock: sandbox: kill", "sandbox: kill");
    let kills = machine.has("CAP_KILL");
    todo.add(kill, move || translate_kill(other_user().is_ok(), kills));
    let seccomp = subject("sandbox.seccomp", "net, vsock: sandbox: seccomp", "sandbox: system calls");
    todo.add(seccomp, || translate_seccomp(std::fs::read_to_string(ACTIONS)));
    let landlock = subject("sandbox.landlock", "net, vsock: sandbox: Landlock", "sandbox: Landlock");
    todo.add(landlock, || translate_landlock(landlock_version().map_err(errno::number)));
}

/// `all` of them alone; `with_user`: with a user namespace. `but_processes`: so, and without one of
/// processes.
fn translate_namespaces(
    all: Result<(), i32>,
    with_user: Result<(), i32>,
    but_processes: Result<(), i32>,
) -> Finding {
    let remedy = "Run as root, or grant CAP_SYS_ADMIN, CAP_SETUID and CAP_SETGID.";
    match (all, with_user, but_processes) {
        (Ok(()), ..) => Finding::ok(
            "of processes, IPC, network and files can be made",
            "The process of a VM sees none of the host's.",
        ),
        (Err(e), Ok(()), _) => Finding::degraded(
            format!("all, with a user namespace (alone: {})", errno::words(e)),
            "The process of a VM keeps its user.",
        )
        .remedy(remedy),
        (Err(_), Err(e), Ok(())) => Finding::degraded(
            format!("all but that of processes, with a user namespace (that of processes: {})", errno::words(e)),
            "The process of a VM keeps its user, and stands among the other processes.",
        )
        .remedy(remedy),
        (Err(_), Err(_), Err(e)) => Finding::missing(
            errno::said("refused", e),
            "Capabilities and system calls alone confine the process of a VM.",
        )
        .remedy(
            "Run as root, or let users make user namespaces ('zerowire doctor --path net', 'new namespaces')."),
    }
}

/// There are all namespaces, and no other user for the process of a VM. `may_change`: this process
/// has the capabilities to become one.
fn translate_user(errno: i32, may_change: bool) -> Finding {
    let found = Finding::degraded(
        errno::said("all; another user can't be had", errno),
        "The process of a VM keeps its user: only the other layers protect that user's files and processes.",
    );
    if may_change {
        let text = format!("Map user and group {NOBODY} in this user namespace, or run outside of it.");
        return found.remedy(text);
    }
    found.remedy("Run as root, or grant CAP_SETUID and CAP_SETGID.")
}

/// `changes_user`: the process of a VM gets another user. `kills`: that user's processes can be
/// killed.
fn translate_kill(changes_user: bool, kills: bool) -> Finding {
    if changes_user && !kills {
        return Finding::degraded(
            "CAP_SETUID without CAP_KILL",
            "The process of a VM has another user: where it hangs it can't be killed, and no other one \
             takes its place.",
        )
        .remedy("Grant CAP_KILL.");
    }
    Finding::ok("a process can be killed", "Another process takes the place of one that hangs.")
}

fn translate_seccomp(actions: io::Result<String>) -> Finding {
    match actions {
        Ok(actions) if actions.split_whitespace().any(|a| a == "kill_process") => Finding::ok(
            "filters are there",
            "A system call that is not on the list ends the process of a VM.",
        ),
        Ok(_) => Finding::missing(
            "filters can't end a process (before Linux 4.14)",
            "VMs are not confined, and --sandbox on is refused.",
        )
        .remedy("Boot a newer kernel."),
        Err(e) => Finding::degraded(
            format!("{ACTIONS} can't be read ({})", errno::words(errno::number(e))),
            "The log says at the start whether VMs are confined.",
        )
        .remedy("Boot a kernel with CONFIG_SECCOMP_FILTER, and mount /proc."),
    }
}

fn translate_landlock(version: Result<usize, i32>) -> Finding {
    match version {
        Ok(version) => Finding::ok(
            format!("version {version}"),
            "It forbids files and TCP behind the list of system calls.",
        ),
        Err(e) => {
            let without = "The sandbox does without: files are out of reach by a namespace.";
            let found = Finding::degraded(errno::said("not there", e), without);
            match e {
                libc::EOPNOTSUPP => found.remedy("Boot with 'lsm=landlock,…' on the kernel's command line."),
                _ => found.remedy("Boot a kernel with CONFIG_SECURITY_LANDLOCK."),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::CheckOutcome;
    use super::*;

    #[test]
    fn each_limit_of_a_platform_has_its_words() {
        let outcome = |f: &Finding| (f.outcome, f.remedy.is_some());
        let all = translate_namespaces(Ok(()), Ok(()), Ok(()));
        assert_eq!(outcome(&all), (CheckOutcome::Ok, false));
        let with_user = translate_namespaces(Err(libc::EPERM), Ok(()), Ok(()));
        assert_eq!(outcome(&with_user), (CheckOutcome::Degraded, true));
        let one_user = translate_user(libc::EPERM, true);
        assert_eq!(outcome(&one_user), (CheckOutcome::Degraded, true));
        assert!(one_user.remedy.is_some_and(|r| r.contains("Map user and group 65534")));
        let no_rights = translate_user(libc::EPERM, false);
        assert!(no_rights.remedy.is_some_and(|r| r.contains("CAP_SETUID and CAP_SETGID")));
        let some = translate_namespaces(Err(libc::EPERM), Err(libc::ENOSPC), Ok(()));
        assert_eq!(outcome(&some), (CheckOutcome::Degraded, true));
        assert!(some.found.contains("ENOSPC"), "{}", some.found);
        let none = translate_namespaces(Err(libc::EPERM), Err(libc::EPERM), Err(libc::ENOSPC));
        assert_eq!(outcome(&none), (CheckOutcome::Missing, true));
        assert!(none.found.contains("ENOSPC"), "{}", none.found);
        assert_eq!(outcome(&translate_kill(true, true)), (CheckOutcome::Ok, false));
        assert_eq!(outcome(&translate_kill(false, false)), (CheckOutcome::Ok, false));
        assert_eq!(outcome(&translate_kill(true, false)), (CheckOutcome::Degraded, true));
        assert_eq!(outcome(&translate_landlock(Ok(6))), (CheckOutcome::Ok, false));
        let booted = translate_landlock(Err(libc::EOPNOTSUPP));
        assert!(booted.remedy.is_some_and(|r| r.contains("lsm=landlock")));
        let seccomp = |actions: &str| translate_seccomp(Ok(actions.to_owned())).outcome;
        assert_eq!(seccomp("kill_process kill_thread trap errno log allow\n"), CheckOutcome::Ok);
        assert_eq!(seccomp("kill trap errno allow\n"), CheckOutcome::Missing);
        let unread = translate_seccomp(Err(io::Error::from_raw_os_error(libc::ENOENT)));
        assert_eq!(outcome(&unread), (CheckOutcome::Degraded, true));
    }
}
