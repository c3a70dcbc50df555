//! What a run prints and writes: text, JSON, charts.

use serde::Serialize;

use super::attack::AttackReport;
use super::case::{SocketKind, VsockCase};
use super::compare::{CaseReport, VsockBench};
use super::crowd::{self, Crowded};
use super::host::HostCpu;
use super::idle::IdleReport;
use super::latency::{self, Latency};
use super::sibling::{self, Siblings};
use crate::case::Direction;
use crate::chart::{Bars, Better};
use crate::experiment::{
    CellReport, Column, Digits, Report, ReportHead, ReportLine, bars, failed, failures, flat, rows, subtitle,
    variants, zero_copied,
};
use crate::table::bytes;

/// The result of `zerowire-bench vsock`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct VsockReport {
    /// Where it was measured, and remarks.
    #[serde(flatten)]
    pub head: ReportHead,
    /// Bytes of the guest's receive buffers, header included.
    pub rx_buffer: u32,
    /// Where the host's program ran.
    pub host_cpu: HostCpu,
    /// The type of the sockets.
    pub socket: SocketKind,
    /// Streams, case by case.
    pub cases: Vec<CaseReport>,
    /// Round trips.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "flat")]
    pub latency: Vec<CellReport<Latency>>,
    /// From one guest to another.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "flat")]
    pub guest_to_guest: Vec<CellReport<Siblings>>,
    /// Many connections, one of them stalled.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "flat")]
    pub crowd: Vec<CellReport<Crowded>>,
    /// An honest connection beside attackers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attacks: Option<AttackReport>,
    /// Idle connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle: Option<IdleReport>,
    /// Parts beside the cases that failed, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed_parts: Vec<String>,
}

impl VsockReport {
    /// What failed, and why.
    pub fn failures(&self) -> Vec<String> {
        failures(&self.cases).into_iter().chain(self.failed_parts.iter().cloned()).collect()
    }

    fn cases_text(&self, direction: Direction, cases: &[&CaseReport]) -> String {
        let messages = self.socket == SocketKind::Seqpacket;
        let mut columns = Vec::from(COLUMNS);
        if messages {
            columns[0].heading = "messages";
            columns.extend(MESSAGES);
        }
        let lines = || cases.iter().flat_map(|case| &case.lines);
        let before = lines().any(|line| line.spread("ratio_to_before").is_some());
        if before {
            columns.push(Column::spread("/before", "ratio_to_before", Digits::Behind(3)));
        }
        let table = rows(cases.iter().copied(), &columns).labels(4);
        let carries = if messages { "one connection of messages (SOCK_SEQPACKET)" } else { "one connection" };
        let title = match direction {
            Direction::Transmit => format!(
                "Guest to host, {carries}. CPU: the back end, all threads; of the floor the thread that writes \
                 to the unix socket. Host CPU: the program that reads."
            ),
            Direction::Receive => format!(
                "Host to guest, {carries}, receive buffers of {} B. CPU: the back end, all threads; of the floor \
                 the thread that reads from the unix socket. Host CPU: the program that writes.",
                self.rx_buffer
            ),
        };
        format!(
            "{title}\nMedians; GB and MB are 10^9 and 10^6 bytes; calls: those that move payload, without waits, looks and notifications; \
             sleeps: of the measured side; /floor{}: median of the ratios round by round:\n{}",
            if before { ", /before (the first program)" } else { "" },
            table.render()
        )
    }

    fn chart(&self, direction: Direction, credit: u32, cases: &[&CaseReport]) -> Bars {
        let group = |case: &VsockCase| format!("{} {}", bytes(case.write_len), case.working_set);
        let value = |case: &CaseReport, name: &String| case.line(name)?.spread("cpu_s_per_gb");
        let (way, floor) = match direction {
            Direction::Transmit => ("guest to host", "writing to"),
            Direction::Receive => ("host to guest", "reading from"),
        };
        let rounds = cases.first().map_or(0, |case| case.facts.rounds);
        let (what, unit) = match self.socket {
            SocketKind::Stream => ("", "writes"),
            SocketKind::Seqpacket => ("messages, ", "messages"),
        };
        Bars {
            title: format!("CPU time of the vsock back end, {way}, {what}credit {}", bytes(credit as usize)),
            subtitle: subtitle(format_args!("{}; floor: {floor} a unix socket", self.head.machine), rounds),
            y_label: "CPU seconds a GB".to_owned(),
            better: Better::Lower,
            x_label: format!("length of {unit}, and working set (hot: 256 or 512 KiB, cold: 64 MiB)"),
            ..bars(cases, group, variants(cases), value)
        }
    }
}

const COLUMNS: [Column<VsockBench>; 13] = [
    Column::words("writes", |case, _| Some(bytes(case.at.write_len))),
    Column::words("credit", |case, _| Some(bytes(case.at.credit as usize))),
    Column::words("working set", |case, _| {
        Some(format!("{} {}", case.at.working_set, bytes(case.facts.working_set_bytes)))
    }),
    Column::words("variant", |_, line| Some(line.variant.clone())),
    Column::words("rounds x MiB", |case, _| {
        Some(format!("{} x {}", case.facts.rounds, case.facts.bytes >> 20))
    }),
    Column::spread("CPU s/GB", "cpu_s_per_gb", Digits::Behind(3)),
    Column::spread("/floor", "ratio_to_floor", Digits::Behind(2)),
    Column::median("host CPU s/GB", "host_cpu_s_per_gb", Digits::Behind(3)),
    Column::median("MB/s", "megabytes_per_second", Digits::Three),
    Column::words("B/packet", |_, line| line.facts.packet_len.map(|len| format!("{len:.0}"))),
    Column::words("calls/packet", |_, line| {
        line.facts.system_calls_per_packet.map(|calls| format!("{calls:.2}"))
    }),
    Column::median("sleeps/MB", "sleeps_per_mb", Digits::Three),
    Column::words("zero-copied", not_copied),
];

/// Further columns of messages.
const MESSAGES: [Column<VsockBench>; 2] = [
    Column::median("messages/s", "messages_per_second", Digits::Three),
    Column::words("calls/message", |_, line| {
        line.facts.system_calls_per_message.map(|calls| format!("{calls:.2}"))
    }),
];

fn not_copied(_: &CaseReport, line: &ReportLine<VsockBench>) -> Option<String> {
    zero_copied(line, |facts| &facts.ledger)
}

impl Report for VsockReport {
    fn text(&self) -> String {
        let seat = match self.host_cpu {
            HostCpu::Guest => "shares the guest's",
            HostCpu::Backend => "shares the back end's",
            HostCpu::Any => "runs on any",
        };
        let cpus = match self.head.separate_cpus.unwrap_or_default() {
            true => format!("Back end and guest have a CPU each; the host's program {seat}.\n"),
            false => self.head.shared_cpu("driver and back end"),
        };
        let mut out = self.head.text(&cpus);
        for direction in Direction::ALL {
            let cases: Vec<&CaseReport> =
                self.cases.iter().filter(|case| case.at.direction == direction).collect();
            if !cases.is_empty() {
                out.push('\n');
                out.push_str(&self.cases_text(direction, &cases));
            }
        }
        out.push_str(&latency::text(&self.latency));
        out.push_str(&sibling::text(&self.guest_to_guest));
        out.push_str(&crowd::text(&self.crowd));
        if let Some(attacks) = &self.attacks {
            out.push_str(&attacks.text(self.head.separate_cpus.unwrap_or_default()));
        }
        if let Some(idle) = &self.idle {
            out.push_str(&idle.text());
        }
        out.push_str(&failed(&self.failures()));
        out
    }

    fn charts(&self) -> Vec<(String, Bars)> {
        let mut charts = Vec::new();
        for direction in Direction::ALL {
            let mut credits: Vec<u32> = self.cases.iter().map(|case| case.at.credit).collect();
            credits.sort_unstable();
            credits.dedup();
            for credit in credits {
                let of = |case: &&CaseReport| (case.at.direction, case.at.credit) == (direction, credit);
                let cases: Vec<&CaseReport> = self.cases.iter().filter(of).collect();
                let kind = if self.socket == SocketKind::Seqpacket { "-seqpacket" } else { "" };
                let name = format!("vsock{kind}-cpu-{}-{}k.svg", direction.short(), credit >> 10);
                charts.push((name, self.chart(direction, credit, &cases)));
            }
        }
        charts
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.head.notes
    }
}

#[cfg(test)]
mod tests;
