//! The comparison of ways to move a stream, or messages, between a guest and a program of the host.

use serde::Serialize;

use super::case::{SocketKind, VsockCase};
use super::variant::VsockSample;
use crate::experiment::floored::{Amounts, Floored, Ledger, Plan};
use crate::experiment::{CellReport, Figure, Subject};

/// The comparison.
#[derive(Debug, Clone)]
pub struct VsockBench;

/// The figures of a case; the first line is the floor's.
pub type CaseReport = CellReport<VsockBench>;

/// What is known of a case besides its figures.
#[derive(Debug, Clone, Serialize)]
pub struct VsockFacts {
    /// The working set in bytes.
    pub working_set_bytes: usize,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Bytes of each run.
    pub bytes: usize,
}

/// What a back end's ledger says of a case.
#[derive(Debug, Clone, Serialize)]
pub struct PacketFacts {
    /// Packets with payload that it moved in all runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// Their length on average, header left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_len: Option<f64>,
    /// System calls that moved payload, for each of these packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_calls_per_packet: Option<f64>,
    /// System calls that moved payload, for each message of SOCK_SEQPACKET.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_calls_per_message: Option<f64>,
    /// The ledger itself, over the warm-up and all rounds.
    #[serde(skip_serializing_if = "Ledger::is_empty")]
    pub ledger: Ledger,
}

impl Subject for VsockBench {
    type Cell = VsockCase;
    type CellFacts = VsockFacts;
    type Variant = String;
    type Facts = PacketFacts;
    type Sample = VsockSample;

    const FIGURES: &'static [Figure<Self>] = &[
        // CPU seconds of the measured side for 10⁹ bytes; then divided by the floor's, and by that
        // of the first of several programs.
        Figure::<Self>::spread("cpu_s_per_gb", |_, s| Some(s.cpu_per_gb())),
        Figure::<Self>::ratio("ratio_to_floor", "floor", |_, s| s.cpu_per_gb()),
        Figure::<Self>::ratio_if_any("ratio_to_before", "before", |_, s| s.cpu_per_gb()),
        Figure::<Self>::spread("host_cpu_s_per_gb", |_, s| Some(s.host_cpu_per_gb())),
        // 10⁶ bytes a second.
        Figure::<Self>::spread("megabytes_per_second", |_, s| Some(s.megabytes_per_second())),
        // How often the measured side went to sleep for 10⁶ bytes.
        Figure::<Self>::spread("sleeps_per_mb", |_, s| Some(s.sleeps_per_mb())),
        Figure::<Self>::spread("messages_per_second", |case, s| {
            let rate = s.megabytes_per_second() * 1e6 / case.write_len as f64;
            (case.socket == SocketKind::Seqpacket).then_some(rate)
        }),
    ];
    const LINES: &'static str = "variants";
    const VARIANT: &'static str = "name";
}

impl Floored for VsockBench {
    /// The warm-up moves some bytes and checks their content.
    fn amounts(case: &VsockCase, plan: Plan) -> Amounts {
        let round = case.sample_bytes(plan.quick);
        Amounts { warm_up: case.warm_up_bytes(), round, rounds: plan.rounds }
    }

    fn cell_facts(case: &VsockCase, amounts: &Amounts) -> VsockFacts {
        let working_set_bytes = case.set_bytes();
        VsockFacts { working_set_bytes, rounds: amounts.rounds, bytes: amounts.round }
    }

    fn facts(case: &VsockCase, ledger: Ledger, amounts: &Amounts) -> PacketFacts {
        let count = |key: &str| ledger.get(key).copied();
        let packets = count("frames").filter(|packets| *packets > 0);
        let per_packet = |key| Some(count(key).unwrap_or(0) as f64 / packets? as f64);
        let calls = count("system_calls").filter(|_| case.socket == SocketKind::Seqpacket);
        let messages = amounts.moved().max(1) as f64 / case.write_len as f64;
        PacketFacts {
            packets,
            packet_len: per_packet("bytes"),
            system_calls_per_packet: per_packet("system_calls"),
            system_calls_per_message: calls.map(|calls| calls as f64 / messages),
            ledger,
        }
    }

    /// Every byte.
    fn accounted(amounts: &Amounts) -> Option<u64> {
        Some(amounts.moved())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use anyhow::Result;

    use super::*;
    use crate::case::{Direction, WorkingSet};
    use crate::experiment::floored::{Variant, compare};
    use crate::interleave::Turn;

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
            let entries =
                [("bytes", self.bytes + self.off), ("frames", self.bytes / 4096), ("system_calls", 7)];
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
        assert!(
            other.spread("messages_per_second").is_none() && other.facts.system_calls_per_message.is_none()
        );
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
}
