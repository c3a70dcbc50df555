//! The network namespace: which one it is, whether it may be administered, whether another can be
//! made.

use std::fs::read_link;
use std::io;

use super::errno;
use super::{Finding, Group, Job, MachineFacts, Subject, Todo};
use zerowire_sys::socket::set_int;
use zerowire_sys::trial::{socket, unshare_in_child};

/// Inode number of the initial network namespace since Linux 6.18 (include/uapi/linux/nsfs.h).
const INITIAL: &str = "net:[4026531833]";

pub(super) fn check(todo: &mut Todo, machine: &MachineFacts) {
    let names = ["netns.identity", "net, send, recv: network namespace", "network namespace"];
    todo.add(Subject::new(Group::Shared, &[Job::Net, Job::Send, Job::Recv], names), || {
        let link = |path: &str| read_link(path).map(|p| p.to_string_lossy().into_owned());
        translate_identity(link("/proc/thread-self/ns/net").ok(), link("/proc/1/ns/net").ok())
    });
    let names = ["netns.admin", "net, recv: CAP_NET_ADMIN", "CAP_NET_ADMIN"];
    todo.add(Subject::new(Group::Shared, &[Job::Net, Job::Recv], names), || {
        translate_admin(administer().map_err(errno::number), machine.has("CAP_NET_ADMIN"))
    });
    let names = ["netns.unshare", "net: own network namespace", "new namespaces"];
    todo.add(Subject::new(Group::Shared, &[Job::Net], names), || {
        let alone = unshare_in_child(libc::CLONE_NEWNET).map_err(errno::number);
        let with_user = match alone {
            Ok(()) => Ok(()),
            Err(_) => unshare_in_child(libc::CLONE_NEWUSER | libc::CLONE_NEWNET).map_err(errno::number),
        };
        translate_unshare(alone, with_user)
    });
}

fn translate_identity(own: Option<String>, first: Option<String>) -> Finding {
    let here = "Taps are opened and made in this namespace.";
    let Some(own) = own else {
        return Finding::degraded("not known: /proc is not mounted or hidden", here)
            .remedy("Mount /proc: 'mount -t proc proc /proc'.");
    };
    let whose = match first {
        _ if own == INITIAL => "the machine's first",
        Some(f) if f == own => "the same as process 1's",
        Some(_) => "not that of process 1",
        None => "process 1's can't be read by this user",
    };
    Finding::ok(format!("{own}, {whose}"), here)
}

/// Asks for something that only an administrator of the thread's network namespace may do, on a
/// socket of its own: TCP_REPAIR (net/ipv4/tcp.c, `tcp_can_repair_sock`). The socket is never
/// connected.
fn administer() -> io::Result<()> {
    let tcp = socket(libc::AF_INET, libc::SOCK_STREAM, 0)?;
    set_int(tcp, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1)
}

fn translate_admin(allowed: Result<(), i32>, is_effective: bool) -> Finding {
    let lost = "No tap can be made here; a tap that an administrator made for this user works all the same.";
    let remedy = "Run as root, or 'sudo setcap cap_net_admin+ep PROGRAM', or AmbientCapabilities=CAP_NET_ADMIN in the \
                  systemd unit, or --cap-add NET_ADMIN for a container. Without any of these an administrator makes the \
                  tap: 'ip tuntap add dev NAME mode tap user USER vnet_hdr'.";
    match (allowed, is_effective) {
        (Ok(()), _) => Finding::ok("held in this network namespace", "Taps can be made, and set up."),
        (Err(libc::EPERM), true) => Finding::missing(
            "held, but not over this network namespace: that belongs to another user namespace",
            lost,
        )
        .remedy(
            "Make both namespaces together ('unshare --user --map-root-user --net'), or run in the user namespace \
             that owns this one.",
        ),
        (Err(libc::EPERM), false) => Finding::missing("not held", lost).remedy(remedy),
        (Err(e), _) => Finding::degraded(
            errno::said("could not be tried", e),
            "The line on taps says what works.",
        ),
    }
}

fn translate_unshare(alone: Result<(), i32>, with_user: Result<(), i32>) -> Finding {
    let e = match (alone, with_user) {
        (Ok(()), _) => {
            return Finding::ok("can be made", "'zerowire-bench' and the tests make their own.");
        }
        (Err(e), Ok(())) => {
            return Finding::degraded(
                format!("only together with a user namespace (alone: {})", errno::words(e)),
                "'zerowire-bench' can't make its own by itself.",
            )
            .remedy("Put 'unshare --user --map-root-user --net' in front of the command.");
        }
        (Err(_), Err(e)) => e,
    };
    let f = Finding::missing(
        errno::said("refused", e),
        "'zerowire-bench' and the tests can't run here; zerowire net needs none.",
    );
    match e {
        libc::ENOSPC => f.remedy("Raise the sysctls user.max_net_namespaces and user.max_user_namespaces."),
        libc::EINVAL => f.remedy("Boot a kernel with CONFIG_NET_NS and CONFIG_USER_NS."),
        _ => f.remedy(
            "Grant CAP_SYS_ADMIN, or let users make user namespaces: sysctl kernel.unprivileged_userns_clone=1 \
             (Debian), kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); in a container the seccomp profile \
             must allow unshare.",
        ),
    }
}

#[cfg(test)]
mod tests;
