//! The figures of a run, and its report: text, JSON, charts.

use std::fmt::Write as _;

use serde::Serialize;

use super::cell::{ComparedPart, OURS, PeerCell, Peers};
use crate::chart::{Bars, Better};
use crate::experiment::{
    CellReport, Column, Digits, Report, ReportHead, bars, failed, failures, rows, sections, subtitle,
    variants,
};
use crate::stats::Summary;
use crate::table::{Table, figure};

/// The result of `zerowire-bench peers`.
#[derive(Debug, Clone, Serialize)]
pub struct PeersReport {
    /// Where it was measured, and remarks.
    #[serde(flatten)]
    pub head: ReportHead,
    /// Whether less was measured.
    pub quick: bool,
    /// Rounds of each row.
    pub rounds: usize,
    /// The programs that were there.
    pub programs: Vec<ProgramVersion>,
    /// One entry a peer in a part.
    pub summary: Vec<SummaryRow>,
    /// The figures, row by row.
    pub cases: Vec<CellReport<Peers>>,
}

/// A program, as it names itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProgramVersion {
    /// Its name.
    pub name: String,
    /// The first line of what it says; `None` where it says nothing.
    pub version: Option<String>,
}

/// A peer over all rows of a part.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SummaryRow {
    /// Which part.
    pub part: ComparedPart,
    /// The peer.
    pub name: String,
    /// The least and the largest median of its CPU time divided by ours.
    pub cpu_to_zerowire: [f64; 2],
    /// The same of its rate.
    pub rate_to_zerowire: [f64; 2],
}

/// The summary of `cases`.
pub(super) fn summary(cases: &[CellReport<Peers>]) -> Vec<SummaryRow> {
    let mut rows = Vec::new();
    for (part, cells) in sections(cases, PeerCell::part) {
        for name in variants(&cells).into_iter().filter(|name| name != OURS) {
            let range = |key: &str| {
                let medians = cells.iter().filter_map(|cell| cell.line(&name)?.middle(key));
                Summary::of(medians).map(|all| [all.min, all.max])
            };
            let ratios = range("cpu_to_zerowire").zip(range("rate_to_zerowire"));
            let row = |(cpu_to_zerowire, rate_to_zerowire)| SummaryRow {
                part,
                name: name.clone(),
                cpu_to_zerowire,
                rate_to_zerowire,
            };
            rows.extend(ratios.map(row));
        }
    }
    rows
}

impl PeersReport {
    /// What failed, with the row.
    pub fn failures(&self) -> Vec<String> {
        failures(&self.cases)
    }
}

impl Report for PeersReport {
    fn text(&self) -> String {
        let about = format!(
            "Medians of {} interleaved rounds. CPU: all threads of the program. / ours: divided by zerowire's \
             of the same round.\n{}",
            self.rounds,
            self.head.shared_cpu("driver and measured side")
        );
        let mut out = self.head.text(&about);
        for program in &self.programs {
            // Writing to a String doesn't fail.
            let _ =
                writeln!(out, "  {:<18} {}", program.name, program.version.as_deref().unwrap_or("unknown"));
        }
        for (part, cells) in sections(&self.cases, PeerCell::part) {
            out.push_str(&part_text(part, &cells));
        }
        out.push_str(&failed(&self.failures()));
        if !self.summary.is_empty() {
            let _ = write!(out, "\nOver all rows of a part, medians:\n{}", summary_table(self).render());
        }
        out
    }

    fn charts(&self) -> Vec<(String, Bars)> {
        let all = [
            ("cpu", "CPU time", Better::Lower, "cpu_to_zerowire"),
            ("rate", "Rate", Better::Higher, "rate_to_zerowire"),
        ];
        let mut charts = Vec::new();
        for (part, cells) in sections(&self.cases, PeerCell::part) {
            for (kind, title, better, key) in all {
                let peers = variants(&cells).into_iter().filter(|name| name != OURS);
                let chart = Bars {
                    title: format!("{title}, {part}"),
                    subtitle: subtitle(&self.head.machine, self.rounds),
                    y_label: format!("{title} / that of zerowire"),
                    better,
                    x_label: "what moves".to_owned(),
                    reference: Some(1.0),
                    ..bars(&cells, PeerCell::to_string, peers, |cell, name| cell.line(name)?.spread(key))
                };
                charts.push((format!("peers-{part}-{kind}.svg"), chart));
            }
        }
        charts
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.head.notes
    }
}

const WHICH: [Column<Peers>; 2] = [
    Column::words("row", |cell, _| Some(cell.at.to_string())),
    Column::words("program", |_, line| Some(line.variant.clone())),
];

const FRAMES: [Column<Peers>; 2] = [
    Column::spread("CPU ns/frame", "cpu_ns_per_frame", Digits::Three),
    Column::median("frames/s", "frames_per_second", Digits::Three),
];

const STREAMS: [Column<Peers>; 2] = [
    Column::spread("CPU s/GB", "cpu_s_per_gb", Digits::Behind(3)),
    Column::median("MB/s", "megabytes_per_second", Digits::Three),
];

const RATIOS: [Column<Peers>; 2] = [
    Column::spread("CPU / ours", "cpu_to_zerowire", Digits::Behind(2)),
    Column::spread("rate / ours", "rate_to_zerowire", Digits::Behind(2)),
];

/// The rows of a part.
pub(crate) fn part_text(part: ComparedPart, cells: &[&CellReport<Peers>]) -> String {
    let figures = if part.counts_frames() { FRAMES } else { STREAMS };
    let columns: Vec<Column<Peers>> = WHICH.into_iter().chain(figures).chain(RATIOS).collect();
    let mut out = format!("\n=== {}\n", about(part));
    out.push_str(&rows(cells.iter().copied(), &columns).labels(2).render());
    for absent in cells.first().iter().flat_map(|cell| &cell.absent) {
        let _ = writeln!(out, "not measured: {}", absent.reason);
    }
    out
}

fn about(part: ComparedPart) -> &'static str {
    match part {
        ComparedPart::Net => "net: frames between a guest and a tap (tx: from the guest)",
        ComparedPart::Udp => "udp: a guest's datagrams to a socket of the host, which drops them",
        ComparedPart::Vsock => {
            "vsock: a stream between a guest and a program of the host, by write length (tx: from the guest)"
        }
        ComparedPart::Replay => {
            "replay: a capture as fast as it goes, to an ifb device; CPU time with that of the kernel's softirq threads"
        }
        ComparedPart::Tcp => {
            "tcp: one connection over a veth pair; iperf3 and iperf3 -Z send one buffer of 128 KiB"
        }
    }
}

fn summary_table(report: &PeersReport) -> Table {
    let mut table = Table::new(["part", "peer", "CPU / ours", "rate / ours"]).labels(2);
    let range = |[least, most]: [f64; 2]| match (figure(least), figure(most)) {
        (least, most) if least == most => least,
        (least, most) => format!("{least} to {most}"),
    };
    for row in &report.summary {
        let (cpu, rate) = (range(row.cpu_to_zerowire), range(row.rate_to_zerowire));
        table.row([row.part.to_string(), row.name.clone(), cpu, rate]);
    }
    table
}

#[cfg(test)]
mod tests;
