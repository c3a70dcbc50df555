//! The interfaces of this network namespace, by driver: which can receive without a copy.

use super::{Finding, Group, Job, Subject, Todo};
use zerowire_sys::netdevice::{driver, socket};

/// Drivers whose queues io_uring can take over, with headers split from data (as of Linux 7.3).
pub(super) const SPLITTING: [&str; 4] = ["bnxt_en", "mlx5_core", "gve", "fbnic"];

pub(super) fn check(todo: &mut Todo) {
    let names = ["recv.nic", "recv: NIC", "NICs"];
    todo.add(Subject::new(Group::Recv, &[Job::Recv], names), || {
        let Ok(socket) = socket() else { return translate(&[]) };
        let list: Vec<_> = interfaces()
            .into_iter()
            .filter(|name| name != "lo")
            .map(|name| {
                let driver = driver(&socket, &name).map_or_else(|_| "no driver name".to_owned(), |d| d.name);
                (name, driver)
            })
            .collect();
        translate(&list)
    });
}

/// Names of the interfaces of the calling thread's network namespace, from procfs: sysfs shows the
/// namespace of whoever mounted it.
pub(super) fn interfaces() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    text.lines().skip(2).filter_map(|l| Some(l.split_once(':')?.0.trim().to_owned())).collect()
}

/// More interfaces than this are counted, not listed.
const LISTED: usize = 4;

fn translate(interfaces: &[(String, String)]) -> Finding {
    let text = |list: &[(String, String)]| -> String {
        let names: Vec<_> = list.iter().take(LISTED).map(|(n, d)| format!("{n} ({d})")).collect();
        let more = list.len().saturating_sub(LISTED);
        names.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() }
    };
    let (able, others): (Vec<_>, Vec<_>) =
        interfaces.iter().cloned().partition(|(_, d)| SPLITTING.contains(&d.as_str()));
    if !able.is_empty() {
        return Finding::ok(
            text(&able),
            "Its driver can hand a queue to io_uring: receive without a copy, once header split is on ('ethtool -G IF \
             tcp-data-split on'). Not tried here, since it restarts the queue: 'zerowire doctor -i IF' says what is \
             missing.",
        );
    }
    let found = if others.is_empty() { "none but lo".to_owned() } else { text(&others) };
    Finding::degraded(
        found,
        "The kernel copies received bytes once: no driver here splits headers from data.",
    )
    .remedy(format!("A NIC with one of the drivers {}.", SPLITTING.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::super::CheckOutcome;
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
    }

    #[test]
    fn the_driver_decides() {
        let good = translate(&list(&[("eth0", "virtio_net"), ("eth1", "gve")]));
        assert_eq!((good.outcome, good.found.as_str()), (CheckOutcome::Ok, "eth1 (gve)"));
        let bad = translate(&list(&[("eth0", "virtio_net")]));
        assert_eq!((bad.outcome, bad.found.as_str()), (CheckOutcome::Degraded, "eth0 (virtio_net)"));
        assert_eq!(translate(&[]).found, "none but lo");
    }

    #[test]
    fn many_interfaces_are_counted() {
        let many: Vec<_> = (0..7).map(|i| (format!("v{i}"), "veth".to_owned())).collect();
        assert!(translate(&many).found.ends_with("and 3 more"));
    }

    #[test]
    fn loopback_is_listed() {
        assert!(interfaces().contains(&"lo".to_owned()));
    }
}
