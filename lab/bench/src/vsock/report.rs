//! What a run prints and writes: text, JSON, charts.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::attack::AttackReport;
use super::case::SocketKind;
use super::compare::{CaseReport, VariantReport};
use super::crowd::CrowdReport;
use super::host::HostCpu;
use super::idle::IdleReport;
use super::latency::{self, TripRow};
use super::sibling::{self, SiblingRow};
use crate::case::Direction;
use crate::chart::{Bars, Better, Series};
use crate::machine::Machine;
use crate::report::beside;
use crate::stats::Summary;
use crate::table::{Table, bytes, figure};

/// The result of `zerowire-bench vsock`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct VsockReport {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether driver and measured side had a CPU each.
    pub separate_cpus: bool,
    /// Bytes of the guest's receive buffers, header included.
    pub rx_buffer: u32,
    /// Where the host's program ran.
    pub host_cpu: HostCpu,
    /// The type of the sockets.
    pub socket: SocketKind,
    /// Remarks on what was left out and why.
    pub notes: Vec<String>,
    /// Streams, case by case.
    pub cases: Vec<CaseReport>,
    /// Round trips.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<TripRow>,
    /// From one guest to another.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub guest_to_guest: Vec<SiblingRow>,
    /// Many connections, one of them stalled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub crowd: Option<CrowdReport>,
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
    /// The report as text.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.machine);
        if self.separate_cpus {
            let seat = match self.host_cpu {
                HostCpu::Guest => "shares the guest's",
                HostCpu::Backend => "shares the back end's",
                HostCpu::Any => "runs on any",
            };
            out.push_str(&format!("Back end and guest have a CPU each; the host's program {seat}.\n"));
        } else {
            out.push_str("One CPU only: driver and back end took turns; rates mean little.\n");
        }
        for note in &self.notes {
            out.push_str(&format!("Note: {note}.\n"));
        }
        for direction in Direction::ALL {
            let cases: Vec<&CaseReport> =
                self.cases.iter().filter(|report| report.case.direction == direction).collect();
            if !cases.is_empty() {
                out.push('\n');
                out.push_str(&self.cases_text(direction, &cases));
            }
        }
        let parts = [
            latency::text(&self.latency),
            sibling::text(&self.guest_to_guest),
            self.crowd.as_ref().map(CrowdReport::text).unwrap_or_default(),
            self.attacks.as_ref().map(|attacks| attacks.text(self.separate_cpus)).unwrap_or_default(),
            self.idle.as_ref().map(IdleReport::text).unwrap_or_default(),
        ];
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            out.push('\n');
            out.push_str(&part);
        }
        for failure in self.failures() {
            out.push_str(&format!("FAILED: {failure}\n"));
        }
        out
    }

    /// What failed, and why.
    pub fn failures(&self) -> Vec<String> {
        let of = |report: &CaseReport| -> Vec<String> {
            let lines = report.failures.iter();
            lines.map(|f| format!("{} ({}): {}", f.variant, report.case, f.reason)).collect()
        };
        let parts = self.failed_parts.iter().cloned();
        self.cases.iter().flat_map(of).chain(parts).collect()
    }

    fn cases_text(&self, direction: Direction, cases: &[&CaseReport]) -> String {
        let messages = self.socket == SocketKind::Seqpacket;
        let mut headings = vec![
            if messages { "messages" } else { "writes" },
            "credit",
            "working set",
            "variant",
            "rounds x MiB",
            "CPU s/GB",
            "quartiles",
            "/floor",
            "quartiles",
            "host CPU s/GB",
            "MB/s",
            "B/packet",
            "calls/packet",
            "sleeps/MB",
            "zero-copied",
        ];
        if messages {
            headings.extend(["messages/s", "calls/message"]);
        }
        let before =
            cases.iter().flat_map(|case| &case.variants).any(|variant| variant.ratio_to_before.is_some());
        if before {
            headings.extend(["/before", "quartiles"]);
        }
        let mut table = Table::new(headings).labels(4);
        for report in cases {
            for variant in &report.variants {
                let (cpu, ratio) = (&variant.cpu_s_per_gb, variant.ratio_to_floor.as_ref());
                let mut cells = vec![
                    bytes(report.case.write_len),
                    bytes(report.case.credit as usize),
                    format!("{} {}", report.case.working_set, bytes(report.working_set_bytes)),
                    variant.name.clone(),
                    format!("{} x {}", report.rounds, report.bytes >> 20),
                    format!("{:.3}", cpu.median),
                    format!("{:.3}..{:.3}", cpu.q1, cpu.q3),
                    ratio.map_or("-".into(), |ratio| format!("{:.2}", ratio.median)),
                    ratio.map_or("-".into(), |ratio| format!("{:.2}..{:.2}", ratio.q1, ratio.q3)),
                    format!("{:.3}", variant.host_cpu_s_per_gb.median),
                    figure(variant.megabytes_per_second.median),
                    variant.packet_len.map_or("-".into(), |len| format!("{len:.0}")),
                    variant.system_calls_per_packet.map_or("-".into(), |calls| format!("{calls:.2}")),
                    figure(variant.sleeps_per_mb.median),
                    zero_copied(variant),
                ];
                if messages {
                    let calls = variant.system_calls_per_message;
                    cells.push(variant.messages_per_second.map_or("-".into(), |rate| figure(rate.median)));
                    cells.push(calls.map_or("-".into(), |calls| format!("{calls:.2}")));
                }
                if before {
                    cells.extend(beside(variant.ratio_to_before.as_ref()));
                }
                table.row(cells);
            }
        }
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

    /// Writes the charts into the folder `folder`, which is made if it isn't there. Returns the
    /// names of the files.
    pub fn write_charts(&self, folder: &Path) -> Result<Vec<String>> {
        fs::create_dir_all(folder).with_context(|| format!("can't make the folder {}", folder.display()))?;
        let mut names = Vec::new();
        for direction in Direction::ALL {
            let mut credits: Vec<u32> = self.cases.iter().map(|report| report.case.credit).collect();
            credits.sort_unstable();
            credits.dedup();
            for credit in credits {
                let of =
                    |report: &&CaseReport| report.case.direction == direction && report.case.credit == credit;
                let cases: Vec<&CaseReport> = self.cases.iter().filter(of).collect();
                if cases.is_empty() {
                    continue;
                }
                let kind = if self.socket == SocketKind::Seqpacket { "-seqpacket" } else { "" };
                let name = format!("vsock{kind}-cpu-{}-{}k.svg", direction.short(), credit >> 10);
                self.chart(direction, credit, &cases).write(&folder.join(&name))?;
                names.push(name);
            }
        }
        Ok(names)
    }

    fn chart(&self, direction: Direction, credit: u32, cases: &[&CaseReport]) -> Bars {
        let mut names: Vec<&str> = Vec::new();
        for variant in cases.iter().flat_map(|case| &case.variants) {
            if !names.contains(&variant.name.as_str()) {
                names.push(&variant.name);
            }
        }
        let value = |case: &CaseReport, name: &str| -> Option<Summary> {
            case.variants.iter().find(|variant| variant.name == name).map(|variant| variant.cpu_s_per_gb)
        };
        let series = names.iter().map(|name| Series {
            name: (*name).to_owned(),
            values: cases.iter().map(|case| value(case, name)).collect(),
        });
        let (way, floor) = match direction {
            Direction::Transmit => ("guest to host", "writing to"),
            Direction::Receive => ("host to guest", "reading from"),
        };
        let rounds = cases.first().map_or(0, |case| case.rounds);
        let (what, unit) = match self.socket {
            SocketKind::Stream => ("", "writes"),
            SocketKind::Seqpacket => ("messages, ", "messages"),
        };
        Bars {
            title: format!("CPU time of the vsock back end, {way}, {what}credit {}", bytes(credit as usize)),
            subtitle: format!(
                "{}; floor: {floor} a unix socket; medians of {rounds} interleaved rounds, whiskers: quartiles",
                self.machine
            ),
            y_label: "CPU seconds a GB".to_owned(),
            better: Better::Lower,
            x_label: format!("length of {unit}, and working set (hot: 256 or 512 KiB, cold: 64 MiB)"),
            groups: cases
                .iter()
                .map(|report| format!("{} {}", bytes(report.case.write_len), report.case.working_set))
                .collect(),
            series: series.collect(),
            reference: None,
        }
    }
}

/// The share of the bytes that the back end's ledger counts as not copied in user space.
fn zero_copied(variant: &VariantReport) -> String {
    let of = |key| variant.ledger.get(key).copied().unwrap_or(0) as f64;
    match of("bytes") {
        0.0 => "-".to_owned(),
        bytes => format!("{:.0} %", 100.0 * of("zero_copied_bytes") / bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vsock::compare::tests::{reports_of, sample_reports};

    fn report() -> VsockReport {
        VsockReport {
            machine: Machine {
                kernel: "6.18.0".into(),
                cpu: "Some CPU".into(),
                cores: 2,
                virtualised: true,
                memory_bytes: 1 << 30,
            },
            separate_cpus: true,
            rx_buffer: 4096,
            notes: vec!["the machine was busy".into()],
            cases: sample_reports(),
            failed_parts: vec!["round trips: no answer".into()],
            ..VsockReport::default()
        }
    }

    #[test]
    fn text_names_machine_case_working_set_and_ratio() {
        let text = report().text();
        for word in [
            "Linux 6.18.0, Some CPU, 2 CPUs (virtual)",
            "Note: the machine was busy.",
            "Guest to host",
            "hot 256 KiB",
            "1.20..1.20",
            "FAILED: broken (guest -> host, 4 KiB writes, 64 KiB credit, hot)",
            "FAILED: round trips: no answer",
        ] {
            assert!(text.contains(word), "{word:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn messages_have_columns_and_charts_of_their_own() {
        assert!(!report().text().contains("calls/message"));
        let socket = SocketKind::Seqpacket;
        let report = VsockReport { socket, cases: reports_of(socket), ..report() };
        let text = report.text();
        for word in ["of messages (SOCK_SEQPACKET)", "messages/s", "calls/message", "4 KiB messages"] {
            assert!(text.contains(word), "{word:?} is missing in:\n{text}");
        }
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(
            (&json["socket"], &json["cases"][0]["socket"]),
            (&"seqpacket".into(), &"seqpacket".into())
        );
        assert!(json["cases"][0]["variants"][1]["system_calls_per_message"].as_f64().unwrap() > 0.0);
        let cases: Vec<&CaseReport> = report.cases.iter().collect();
        let svg = report.chart(Direction::Transmit, 65_536, &cases).render().unwrap();
        assert!(svg.contains("length of messages"));
    }

    #[test]
    fn json_carries_every_run() {
        let json = serde_json::to_value(report()).unwrap();
        let case = &json["cases"][0];
        assert_eq!(case["direction"], "transmit");
        assert_eq!(case["write_len"], 4096);
        assert_eq!(case["variants"][1]["samples"].as_array().unwrap().len(), 3);
        assert!(case["variants"][0]["ratio_to_floor"].is_null());
    }

    #[test]
    fn charts_name_the_machine() {
        let report = report();
        let cases: Vec<&CaseReport> = report.cases.iter().collect();
        let svg = report.chart(Direction::Transmit, 65_536, &cases).render().unwrap();
        for word in ["Linux 6.18.0", "64 KiB hot", "zerowire"] {
            assert!(svg.contains(word), "{word} is missing");
        }
    }
}
