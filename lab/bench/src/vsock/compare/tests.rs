use std::time::Duration;

use anyhow::Result;

use super::*;
use crate::case::{Direction, WorkingSet};
use crate::experiment::{Turn, Variant, compare};

/// A variant that costs a fixed time a byte, times the number of its run.
struct Fixed {
    name: &'static str,
    cost: u64,
    runs: u64,
    bytes: u64,
    /// What its ledger adds to the truth.
    off: u64,
}

impl Variant<VsockBench> for Fixed {
    fn name(&self) -> &str {
        self.name
    }

    fn prepare(&mut self, _: &VsockCase) -> Result<()> {
        (self.runs, self.bytes) = (0, 0);
        Ok(())
    }

    fn run(&mut self, _: &VsockCase, bytes: usize, turn: Turn) -> Result<VsockSample> {
        assert_eq!(turn == Turn::WarmUp, self.runs == 0);
        self.runs += 1;
        self.bytes += bytes as u64;
        let time = Duration::from_nanos(self.cost * self.runs * bytes as u64 / 10);
        Ok(VsockSample::new(time, time / 2, time, bytes))
    }

    fn ledger(&mut self) -> Result<Ledger> {
        if self.name == "floor" {
            return Ok(Ledger::new());
        }
        let entries = [("bytes", self.bytes + self.off), ("frames", self.bytes / 4096), ("system_calls", 7)];
        Ok(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }
}

/// A report of two cases and two variants with invented figures.
pub(crate) fn sample_reports() -> Vec<CaseReport> {
    reports_of(SocketKind::Stream)
}

pub(crate) fn reports_of(socket: SocketKind) -> Vec<CaseReport> {
    let (ways, writes) = ([Direction::Transmit], [4096, 65_536]);
    let cases = VsockCase::all(socket, &ways, &writes, &[65_536], &[WorkingSet::Hot]).unwrap();
    let variant = |name, cost, off| Box::new(Fixed { name, cost, runs: 0, bytes: 0, off });
    let mut variants: Vec<Box<dyn Variant<VsockBench>>> =
        vec![variant("floor", 10, 0), variant("zerowire", 12, 0), variant("broken", 11, 1)];
    compare(&cases, &mut variants, Plan { rounds: 3, quick: true }, |_| Vec::new()).unwrap()
}

#[test]
fn ratios_are_of_the_same_round_and_lost_bytes_are_a_failure() {
    let reports = sample_reports();
    let [floor, other] = &reports[0].lines[..] else {
        panic!("two variants expected");
    };
    assert!(floor.spread("ratio_to_floor").is_none() && floor.facts.packets.is_none());
    let ratio = other.spread("ratio_to_floor").unwrap();
    assert!((ratio.min - 1.2).abs() < 1e-6 && (ratio.max - 1.2).abs() < 1e-6);
    assert_eq!(other.samples.len(), 3);
    assert_eq!(other.facts.packet_len, Some(4096.0));
    assert!(other.spread("messages_per_second").is_none() && other.facts.system_calls_per_message.is_none());
    assert_eq!(reports[0].failures[0].variant, "broken");
    assert!(reports[0].failures[0].reason.contains("ledger has"));
}

#[test]
fn messages_have_a_rate_and_calls_of_their_own() {
    let reports = reports_of(SocketKind::Seqpacket);
    let [floor, other] = &reports[0].lines[..] else {
        panic!("two variants expected");
    };
    // 1 ns a byte in the first run, which warms up, 2 to 4 in the rounds.
    assert!((floor.spread("messages_per_second").unwrap().max - 1e9 / (2.0 * 4096.0)).abs() < 1.0);
    assert_eq!(floor.facts.system_calls_per_message, None);
    let messages = reports[0].at.warm_up_bytes() / 4096 + 3 * reports[0].facts.bytes / 4096;
    assert!((other.facts.system_calls_per_message.unwrap() - 7.0 / messages as f64).abs() < 1e-12);
}

#[test]
fn rates_follow_from_the_counts() {
    let time = Duration::from_millis;
    let sample = VsockSample::new(time(50), time(20), time(100), 100_000_000);
    assert!((sample.cpu_per_gb() - 0.5).abs() < 1e-9);
    assert!((sample.host_cpu_per_gb() - 0.2).abs() < 1e-9);
    assert!((sample.megabytes_per_second() - 1000.0).abs() < 1e-9);
    assert!(VsockSample::default().cpu_per_gb().is_finite());
}
