//! From many lines to one sentence a job: which path runs.

use super::CheckOutcome::{Degraded, Missing, Ok};
use super::{Check, CheckOutcome, Job, Verdict};

/// One verdict for `only`, or one a job.
pub(super) fn verdicts(checks: &[Check], only: Option<Job>) -> Vec<Verdict> {
    let of = |id: &str| checks.iter().find(|c| c.subject.id == id).map(|c| c.finding.outcome);
    let wanted = Job::ALL.into_iter().filter(|job| only.is_none_or(|o| o == *job));
    let verdict = |job| {
        let (outcome, text) = match job {
            Job::Net => net(&of),
            Job::Send => send(&of),
            Job::Recv => recv(&of),
            Job::Vsock => vsock(&of),
        };
        Verdict { job, outcome, text: text.to_owned() }
    };
    wanted.map(verdict).collect()
}

/// What came of the check of this id, if it was made.
type OutcomeOf<'a> = &'a dyn Fn(&str) -> Option<CheckOutcome>;

fn net(of: OutcomeOf<'_>) -> (CheckOutcome, &'static str) {
    if of("net.tun") != Some(Ok) {
        return (Missing, "can't run: /dev/net/tun can't be opened");
    }
    match of("net.tap") {
        Some(Missing) => (Missing, "can't run: no tap can be made, and this user owns none"),
        Some(Ok) if of("net.offloads") == Some(Ok) && of("net.queues") == Some(Ok) => {
            (Ok, "runs: system calls, a call a frame")
        }
        Some(Ok) => (Degraded, "runs: system calls, a call a frame"),
        _ => (Degraded, "runs, on a tap that is there already: system calls, a call a frame"),
    }
}

fn send(of: OutcomeOf<'_>) -> (CheckOutcome, &'static str) {
    if of("send.uring") == Some(Ok) && of("memory.registered") == Some(Ok) {
        (Ok, "large sends leave without a copy: SEND_ZC from registered memory")
    } else if of("send.zerocopy") == Some(Ok) {
        (Degraded, "large sends leave without a copy: MSG_ZEROCOPY")
    } else {
        (Degraded, "sends are copied once, by the kernel")
    }
}

fn recv(of: OutcomeOf<'_>) -> (CheckOutcome, &'static str) {
    // Degraded zcrx is one for NIC queues only.
    match (of("recv.zcrx"), of("recv.nic")) {
        (Some(Ok | Degraded), Some(Ok)) => (Ok, "no copy: the NIC writes into registered memory (zcrx)"),
        (Some(Ok), _) => (Degraded, "one copy (kernel), into registered memory (zcrx)"),
        _ if of("recv.buffer_ring") == Some(Ok) => (Degraded, "one copy (kernel), into provided buffers"),
        _ => (Degraded, "one copy (kernel), one call a receive"),
    }
}

fn vsock(of: OutcomeOf<'_>) -> (CheckOutcome, &'static str) {
    match (of("vsock.memory"), of("vsock.unix")) {
        (Some(Ok), Some(Missing)) => (Missing, "can't run: no unix sockets"),
        (Some(Ok), Some(Ok)) if of("vsock.descriptors") != Some(Ok) => {
            (Degraded, "runs: with fewer than 1000 connections to host programs")
        }
        (Some(Ok), Some(Ok)) => {
            (Ok, "runs: vectored system calls over guest memory and unix sockets, no privilege needed")
        }
        (Some(Ok), _) => (Degraded, "runs: streams; no messages with host programs"),
        _ => (Missing, "can't run: guest memory can't be mapped"),
    }
}

#[cfg(test)]
mod tests;
