use super::super::{Finding, Group, Subject};
use super::*;

/// Checks that are all ok but the listed ones.
fn checks(bad: &[(&str, CheckOutcome)]) -> Vec<Check> {
    const IDS: [&str; 15] = [
        "net.tun",
        "net.tap",
        "net.queues",
        "net.offloads",
        "uring.setup",
        "memory.registered",
        "send.uring",
        "send.zerocopy",
        "recv.zcrx",
        "recv.nic",
        "recv.buffer_ring",
        "vsock.memory",
        "vsock.unix",
        "vsock.descriptors",
        "vsock.sealed",
    ];
    IDS.into_iter()
        .map(|id| {
            let outcome = bad.iter().find(|b| b.0 == id).map_or(CheckOutcome::Ok, |b| b.1);
            Check {
                subject: Subject { id, group: Group::Net, jobs: &Job::ALL, path: "", title: "" },
                finding: Finding { outcome, ..Finding::ok("x", "y") },
            }
        })
        .collect()
}

fn of(job: Job, bad: &[(&str, CheckOutcome)]) -> (CheckOutcome, String) {
    let v = verdicts(&checks(bad), Some(job));
    assert_eq!(v.len(), 1);
    (v[0].outcome, v[0].text.clone())
}

#[test]
fn net_can_not_run_without_a_tap() {
    use CheckOutcome::{Degraded, Missing, Ok};
    assert_eq!(of(Job::Net, &[]).0, Ok);
    assert_eq!(of(Job::Net, &[("net.tun", Missing), ("net.tap", Missing)]).0, Missing);
    assert_eq!(of(Job::Net, &[("net.tap", Missing)]).0, Missing);
    let owned = of(Job::Net, &[("net.tap", Degraded)]);
    assert_eq!(owned.0, Degraded);
    assert!(owned.1.contains("there already") && owned.1.contains("system calls"), "{}", owned.1);
}

#[test]
fn net_needs_neither_registered_memory_nor_io_uring() {
    for id in ["memory.registered", "uring.setup"] {
        assert_eq!(of(Job::Net, &[(id, CheckOutcome::Degraded)]).0, CheckOutcome::Ok, "{id}");
    }
}

#[test]
fn the_other_jobs_always_have_a_path() {
    use CheckOutcome::{Degraded, Missing, Ok};
    assert_eq!(of(Job::Send, &[]).0, Ok);
    assert!(of(Job::Send, &[("send.uring", Missing)]).1.contains("MSG_ZEROCOPY"));
    assert_eq!(of(Job::Send, &[("send.uring", Missing), ("send.zerocopy", Missing)]).0, Degraded);
    assert_eq!(of(Job::Recv, &[("recv.zcrx", Degraded)]).0, Ok);
    assert!(of(Job::Recv, &[("recv.nic", Degraded)]).1.contains("registered memory"));
    let plain = of(Job::Recv, &[("recv.zcrx", Missing)]);
    assert_eq!(plain.0, Degraded);
    assert!(plain.1.contains("provided buffers"));
    assert_eq!(verdicts(&checks(&[]), None).len(), 4);
}

#[test]
fn vsock_needs_memory_and_unix_sockets_and_nothing_else() {
    use CheckOutcome::{Degraded, Missing, Ok};
    let best = of(Job::Vsock, &[]);
    assert_eq!(best.0, Ok);
    assert!(best.1.contains("no privilege"), "{}", best.1);
    let elsewhere = [("vsock.sealed", Missing), ("net.tun", Missing), ("uring.setup", Degraded)];
    assert_eq!(of(Job::Vsock, &elsewhere).0, Ok);
    for id in ["vsock.memory", "vsock.unix"] {
        assert_eq!(of(Job::Vsock, &[(id, Missing)]).0, Missing, "{id}");
    }
    assert!(of(Job::Vsock, &[("vsock.unix", Degraded)]).1.contains("streams"));
    assert!(of(Job::Vsock, &[("vsock.descriptors", Degraded)]).1.contains("1000"));
}
