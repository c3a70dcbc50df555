//! A way of sending, and what one run of it yields.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::case::BATCH;

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
