//! From many lines to one sentence a job: which path runs.

use super::{Check, CheckOutcome, Job, Verdict};

/// One verdict for `only`, or one a job.
pub(super) fn verdicts(checks: &[Check], only: Option<Job>) -> Vec<Verdict> {
    let is_ok = |id: &str| outcome(checks, id) == Some(CheckOutcome::Ok);
    Job::ALL
        .into_iter()
        .filter(|job| only.is_none_or(|o| o == *job))
        .map(|job| {
            let (outcome, text) = match job {
                Job::Net => net(checks),
                Job::Send => send(&is_ok),
                Job::Recv => recv(checks),
                Job::Vsock => vsock(checks),
            };
            Verdict { job, outcome, text }
        })
        .collect()
}

fn outcome(checks: &[Check], id: &str) -> Option<CheckOutcome> {
    checks.iter().find(|c| c.subject.id == id).map(|c| c.finding.outcome)
}

fn net(checks: &[Check]) -> (CheckOutcome, String) {
    let is = |id: &str, o: CheckOutcome| outcome(checks, id) == Some(o);
    let is_ok = |id: &str| is(id, CheckOutcome::Ok);
    if !is_ok("net.tun") {
        return (CheckOutcome::Missing, "can't run: /dev/net/tun can't be opened".to_owned());
    }
    if is("net.tap", CheckOutcome::Missing) {
        return (CheckOutcome::Missing, "can't run: no tap can be made, and this user owns none".to_owned());
    }
    let taps = if is_ok("net.tap") { "" } else { ", on a tap that is there already" };
    let best = format!("runs{taps}: system calls, a call a frame");
    if is_ok("net.tap") && is_ok("net.offloads") && is_ok("net.queues") {
        (CheckOutcome::Ok, best)
    } else {
        (CheckOutcome::Degraded, best)
    }
}

fn send(is_ok: &dyn Fn(&str) -> bool) -> (CheckOutcome, String) {
    match (is_ok("send.uring") && is_ok("memory.registered"), is_ok("send.zerocopy")) {
        (true, _) => {
            (CheckOutcome::Ok, "large sends leave without a copy: SEND_ZC from registered memory".to_owned())
        }
        (false, true) => {
            (CheckOutcome::Degraded, "large sends leave without a copy: MSG_ZEROCOPY".to_owned())
        }
        (false, false) => (CheckOutcome::Degraded, "sends are copied once, by the kernel".to_owned()),
    }
}

fn recv(checks: &[Check]) -> (CheckOutcome, String) {
    let is_ok = |id: &str| outcome(checks, id) == Some(CheckOutcome::Ok);
    // Degraded zcrx is one for NIC queues only.
    let has_zcrx = outcome(checks, "recv.zcrx").is_some_and(|o| o != CheckOutcome::Missing);
    if has_zcrx && is_ok("recv.nic") {
        return (CheckOutcome::Ok, "no copy: the NIC writes into registered memory (zcrx)".to_owned());
    }
    let text = if is_ok("recv.zcrx") {
        "one copy (kernel), into registered memory (zcrx)"
    } else if is_ok("recv.buffer_ring") {
        "one copy (kernel), into provided buffers"
    } else {
        "one copy (kernel), one call a receive"
    };
    (CheckOutcome::Degraded, text.to_owned())
}

fn vsock(checks: &[Check]) -> (CheckOutcome, String) {
    let is_ok = |id: &str| outcome(checks, id) == Some(CheckOutcome::Ok);
    if !is_ok("vsock.memory") {
        return (CheckOutcome::Missing, "can't run: guest memory can't be mapped".to_owned());
    }
    if outcome(checks, "vsock.unix") == Some(CheckOutcome::Missing) {
        return (CheckOutcome::Missing, "can't run: no unix sockets".to_owned());
    }
    if !is_ok("vsock.unix") {
        return (CheckOutcome::Degraded, "runs: streams; no messages with host programs".to_owned());
    }
    if !is_ok("vsock.descriptors") {
        return (
            CheckOutcome::Degraded,
            "runs: with fewer than 1000 connections to host programs".to_owned(),
        );
    }
    (
        CheckOutcome::Ok,
        "runs: vectored system calls over guest memory and unix sockets, no privilege needed".to_owned(),
    )
}

#[cfg(test)]
mod tests {
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
}
