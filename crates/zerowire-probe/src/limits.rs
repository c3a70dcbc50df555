//! Limits of the process.

use rustix::process::{Resource, getrlimit};

use super::{Finding, Group, Job, Subject, Todo};

/// A VM with one queue pair, or with a vsock device without connections, takes 16 or 17
/// descriptors: sockets, guest memory, kicks, calls, rings, tap. This leaves some for further
/// memory regions.
const DESCRIPTORS_A_VM: u64 = 24;

/// VMs that one process serves at most.
pub const MAX_VMS: u64 = 256;

pub(super) fn check(todo: &mut Todo) {
    let names = ["limits.descriptors", "net, vsock: descriptors", "open files"];
    todo.add(Subject::new(Group::Shared, &[Job::Net, Job::Vsock], names), || {
        let limit = getrlimit(Resource::Nofile);
        let nr_open = std::fs::read_to_string("/proc/sys/fs/nr_open").ok();
        translate(limit.current, limit.maximum, nr_open.and_then(|t| t.trim().parse().ok()))
    });
}

/// `None` stands for no limit, of `nr_open` for not known.
fn translate(soft: Option<u64>, hard: Option<u64>, nr_open: Option<u64>) -> Finding {
    let text = |v: Option<u64>| v.map_or("unlimited".to_owned(), |v| v.to_string());
    let ceiling = nr_open.map_or(String::new(), |n| format!("; fs.nr_open {n}"));
    let found = format!("limit {}, can be raised to {}{ceiling}", text(soft), text(hard));
    let vms = hard.map_or(MAX_VMS, |h| h / DESCRIPTORS_A_VM).min(MAX_VMS);
    if vms == MAX_VMS {
        let enough = format!("Enough for {vms} VMs; the program raises its own limit at start.");
        return Finding::ok(found, enough);
    }
    let enough = format!("Enough for about {vms} VMs in one process; connections of vsock take more.");
    Finding::degraded(found, enough)
        .remedy("Raise the hard limit: 'ulimit -Hn 65536' as root, or LimitNOFILE=65536 in the systemd unit.")
}

#[cfg(test)]
mod tests {
    use super::super::CheckOutcome;
    use super::*;

    #[test]
    fn the_hard_limit_counts() {
        assert_eq!(translate(Some(1024), Some(1 << 20), Some(1 << 20)).outcome, CheckOutcome::Ok);
        assert_eq!(translate(Some(1024), None, None).outcome, CheckOutcome::Ok);
        let low = translate(Some(256), Some(1024), None);
        assert_eq!(low.outcome, CheckOutcome::Degraded);
        assert!(low.consequence.contains("42 VMs"), "{}", low.consequence);
        assert!(low.remedy.is_some_and(|r| r.contains("LimitNOFILE")));
    }
}
