//! A way of sending, one run of it, and what that yields.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use super::case::{BATCH, TxCase};
use super::lab::TxLab;
use crate::cpu::{ProcessClock, thread_time};

/// One column in one case, bare or by the library.
pub trait TxWay {
    /// Sends `count` payloads and returns when the kernel has given their memory back.
    fn send(&mut self, count: usize) -> Result<()>;

    /// What the kernel and the ledger said so far about all payload bytes.
    fn proof(&self) -> Proof;

    /// How many payloads it takes to warm up.
    fn warm_up(&self) -> usize {
        2 * BATCH
    }

    /// What runs and why, in words; empty for a bare loop.
    fn path(&self) -> String {
        String::new()
    }
}

/// Bytes since the way was opened, by what became of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Proof {
    /// Not copied on the way to the device, as far as the kernel says.
    pub zero_copied_bytes: u64,
    /// Lent, and copied by the kernel all the same (the COPIED flag of a notification).
    pub kernel_copied_bytes: u64,
    /// Copied for any other reason: the way copies by itself, or chose to.
    pub copied_bytes: u64,
}

impl std::ops::AddAssign for Proof {
    fn add_assign(&mut self, other: Self) {
        self.zero_copied_bytes += other.zero_copied_bytes;
        self.kernel_copied_bytes += other.kernel_copied_bytes;
        self.copied_bytes += other.copied_bytes;
    }
}

impl Proof {
    /// All bytes.
    pub fn total(&self) -> u64 {
        self.zero_copied_bytes + self.kernel_copied_bytes + self.copied_bytes
    }

    /// The share of the lent bytes that the kernel copied; `None` when none was lent.
    pub fn kernel_copied_share(&self) -> Option<f64> {
        let lent = self.zero_copied_bytes + self.kernel_copied_bytes;
        (lent > 0).then(|| self.kernel_copied_bytes as f64 / lent as f64)
    }

    /// The share of all bytes that was not copied; 0 when there are none.
    pub fn zero_copied_share(&self) -> f64 {
        self.zero_copied_bytes as f64 / self.total().max(1) as f64
    }
}

/// What one run cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct TxSample {
    /// Payloads sent, every one accounted for.
    pub sends: u64,
    /// CPU time of the sender.
    #[serde(serialize_with = "nanoseconds", rename = "cpu_ns")]
    pub cpu: Duration,
    /// CPU time of the program that receives; 0 when nobody does.
    #[serde(serialize_with = "nanoseconds", rename = "receiver_cpu_ns")]
    pub receiver: Duration,
    /// CPU time of the kernel's softirq threads, which take over from a sender whose frames pile
    /// up.
    #[serde(serialize_with = "nanoseconds", rename = "softirq_cpu_ns")]
    pub softirq: Duration,
    /// Time on the wall.
    #[serde(serialize_with = "nanoseconds", rename = "wall_ns")]
    pub wall: Duration,
}

fn nanoseconds<S: serde::Serializer>(time: &Duration, out: S) -> Result<S::Ok, S::Error> {
    out.serialize_u64(time.as_nanos() as u64)
}

impl TxSample {
    /// Nanoseconds a send of the time that all took.
    pub fn ns_a_send(&self, time: Duration) -> f64 {
        time.as_nanos() as f64 / self.sends.max(1) as f64
    }

    /// Thousands of sends a second.
    pub fn thousands_per_second(&self) -> f64 {
        self.sends as f64 * 1e-3 / self.wall.as_secs_f64().max(1e-9)
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_for_one_send() {
        let sample = TxSample {
            sends: 2000,
            cpu: Duration::from_millis(1),
            receiver: Duration::from_millis(2),
            softirq: Duration::ZERO,
            wall: Duration::from_millis(4),
        };
        let times = [sample.cpu, sample.receiver, sample.softirq];
        assert_eq!(times.map(|time| sample.ns_a_send(time)), [500.0, 1000.0, 0.0]);
        assert!((sample.thousands_per_second() - 500.0).abs() < 1e-9);
        assert!(TxSample::default().thousands_per_second().is_finite());
    }

    #[test]
    fn shares_are_of_what_was_lent() {
        let proof = Proof { zero_copied_bytes: 300, kernel_copied_bytes: 100, copied_bytes: 200 };
        assert_eq!(proof.kernel_copied_share(), Some(0.25));
        assert_eq!(proof.zero_copied_share(), 0.5);
        assert_eq!(Proof { copied_bytes: 5, ..Proof::default() }.kernel_copied_share(), None);
        assert_eq!(Proof::default().zero_copied_share(), 0.0);
    }
}
