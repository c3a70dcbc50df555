//! The comparison of ways to move a stream, or messages, between a guest and a program of the host.

use std::time::Duration;

use serde::Serialize;

use super::case::{SocketKind, VsockCase};
use crate::experiment::{Amounts, CellReport, Figure, Floored, Ledger, Plan, Subject};

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
pub(crate) mod tests;

/// What one run cost.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct VsockSample {
    /// CPU time of the measured side: of a back end all its threads, of a floor the thread in the
    /// back end's place.
    pub cpu_ns: u64,
    /// CPU time of the host's program; of a floor the other thread's.
    pub host_cpu_ns: u64,
    /// From the start until the last byte was read.
    pub wall_ns: u64,
    /// Bytes moved, every one accounted for.
    pub bytes: u64,
    /// How often the measured side went to sleep.
    pub sleeps: u64,
}

impl VsockSample {
    /// A sample of these times.
    pub fn new(cpu: Duration, host: Duration, wall: Duration, bytes: usize) -> Self {
        let ns = |time: Duration| time.as_nanos() as u64;
        Self { cpu_ns: ns(cpu), host_cpu_ns: ns(host), wall_ns: ns(wall), bytes: bytes as u64, sleeps: 0 }
    }

    /// The sample with this number of sleeps of the measured side.
    pub fn with_sleeps(self, sleeps: u64) -> Self {
        Self { sleeps, ..self }
    }

    /// How often the measured side slept for 10⁶ bytes.
    pub fn sleeps_per_mb(&self) -> f64 {
        self.sleeps as f64 * 1e6 / self.bytes.max(1) as f64
    }

    /// CPU seconds of the measured side for 10⁹ bytes: the same as nanoseconds a byte.
    pub fn cpu_per_gb(&self) -> f64 {
        self.cpu_ns as f64 / self.bytes.max(1) as f64
    }

    /// CPU seconds of the host's program for 10⁹ bytes.
    pub fn host_cpu_per_gb(&self) -> f64 {
        self.host_cpu_ns as f64 / self.bytes.max(1) as f64
    }

    /// 10⁶ bytes a second.
    pub fn megabytes_per_second(&self) -> f64 {
        self.bytes as f64 * 1e3 / self.wall_ns.max(1) as f64
    }
}
