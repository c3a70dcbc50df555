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
mod tests;
