//! The report as text.

use std::fmt::Write as _;

use super::cell::{ComparedPart, PeerCell, Peers};
use super::report::PeersReport;
use crate::experiment::{CellReport, Column, Digits, failed, rows, sections};
use crate::table::{Table, figure};

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

/// The report as text.
pub(super) fn text(report: &PeersReport) -> String {
    let about = format!(
        "Medians of {} interleaved rounds. CPU: all threads of the program. / ours: divided by zerowire's \
         of the same round.\n{}",
        report.rounds,
        report.head.shared_cpu("driver and measured side")
    );
    let mut out = report.head.text(&about);
    for program in &report.programs {
        // Writing to a String doesn't fail.
        let _ = writeln!(out, "  {:<18} {}", program.name, program.version.as_deref().unwrap_or("unknown"));
    }
    for (part, cells) in sections(&report.cases, PeerCell::part) {
        out.push_str(&part_text(part, &cells));
    }
    out.push_str(&failed(&report.failures()));
    if !report.summary.is_empty() {
        let _ = write!(out, "\nOver all rows of a part, medians:\n{}", summary(report).render());
    }
    out
}

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

fn summary(report: &PeersReport) -> Table {
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
