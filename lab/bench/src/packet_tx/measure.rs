//! One run of one way.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::case::TxCase;
use super::lab::TxLab;
use super::way::{TxSample, TxWay};
use crate::cpu::{ProcessClock, thread_time};

/// How many bursts the sender may be ahead of the receiver: the receiver always has something to
/// read, and its buffer is never full.
const AHEAD: usize = 8;
/// How long the receiver may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The kernel's softirq threads. They take over from a sender when frames pile up
/// (kernel/softirq.c), on its CPU and not on its account.
#[derive(Debug, Default)]
pub struct Softirq(Vec<ProcessClock>);

impl Softirq {
    /// Finds them; none in a PID namespace that doesn't show them.
    pub fn find() -> Self {
        let Ok(processes) = fs::read_dir("/proc") else {
            return Self::default();
        };
        let clock = |entry: fs::DirEntry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            name.starts_with("ksoftirqd/").then(|| ProcessClock::of(pid).ok())?
        };
        Self(processes.flatten().filter_map(clock).collect())
    }

    /// Whether there are any.
    pub fn seen(&self) -> bool {
        !self.0.is_empty()
    }

    /// Their CPU time so far.
    pub fn now(&self) -> Duration {
        self.0.iter().filter_map(|clock| clock.now().ok()).sum()
    }
}

/// Sends `sends` payloads and accounts for each of them.
pub fn run(
    way: &mut dyn TxWay,
    case: &TxCase,
    lab: &TxLab,
    softirq: &Softirq,
    sends: usize,
) -> Result<TxSample> {
    let before = lab.arrived()?;
    let (softirq_before, receiver_before) = (softirq.now(), receiver_cpu(lab)?);
    let begin = Instant::now();
    let cpu = match lab.receiver() {
        // Nobody else is at work in this process: workers of io_uring count as well.
        None => {
            let clock = ProcessClock::own();
            let cpu = clock.now()?;
            way.send(sends)?;
            clock.now()? - cpu
        }
        Some(receiver) => {
            let mut cpu = Duration::ZERO;
            let mut sent = 0;
            while sent < sends {
                let burst = case.burst().min(sends - sent);
                let start = thread_time();
                way.send(burst)?;
                cpu += thread_time() - start;
                sent += burst;
                let due = sent.saturating_sub(AHEAD * case.burst()) * case.payload;
                receiver.wait_for(before + due as u64, PATIENCE)?;
            }
            cpu
        }
    };
    lab.verify(before, sends, case.payload)?;
    Ok(TxSample {
        sends: sends as u64,
        cpu,
        receiver: receiver_cpu(lab)? - receiver_before,
        softirq: softirq.now() - softirq_before,
        wall: begin.elapsed(),
    })
}

fn receiver_cpu(lab: &TxLab) -> Result<Duration> {
    lab.receiver().map_or(Ok(Duration::ZERO), |receiver| receiver.cpu())
}
