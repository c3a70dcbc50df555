//! The report as text.

use std::fmt::Write as _;

use super::options::Client;
use super::report::{MemoryTraffic, TcpRx, TcpRxReport};
use crate::experiment::{CellReport, Column, Digits, ReportLine, failed, rows};
use crate::table::bytes;
use crate::words::meaning;
use zerowire::recv::ZeroCopied;

const COLUMNS: [Column<TcpRx>; 9] = [
    Column::words("way", |_, line| Some(line.variant.to_string())),
    Column::median("Gbit/s", "gigabits_per_second", Digits::Three),
    Column::spread("CPU s/GB", "cpu_seconds_a_gigabyte", Digits::Behind(3)),
    Column::median("CPU / recv", "cpu_to_recv", Digits::Behind(2)),
    Column::median("CPU / epoll", "cpu_to_epoll", Digits::Behind(2)),
    Column::median("calls/MB", "calls_a_megabyte", Digits::Three),
    Column::median("completions/MB", "pieces_a_megabyte", Digits::Three),
    Column::median("memory B/B", "memory_a_byte", Digits::Behind(2)),
    Column::words("not copied", not_copied),
];

/// The report as text.
pub(super) fn text(report: &TcpRxReport) -> String {
    let memory = match &report.memory {
        MemoryTraffic::Measured(what) => what.clone(),
        MemoryTraffic::NotMeasured(why) => format!("not measured: {why}"),
    };
    let about = format!(
        "Sender: {}. Medians of {} interleaved rounds; reads of {}; {}.\n{}Memory traffic: {memory}.\n",
        match report.client {
            Client::Own => "a thread of this process, over the loopback interface",
            Client::External => "iperf3 elsewhere",
        },
        report.rounds,
        bytes(report.read_bytes),
        if report.touch { "every byte was looked at" } else { "no byte was looked at" },
        match report.client {
            Client::Own => report.head.shared_cpu("sender and receiver"),
            Client::External => String::new(),
        }
    );
    let mut out = report.head.text(&about);
    // Writing to a String doesn't fail.
    for way in report.ways() {
        let _ = writeln!(out, "  {way:<11} {}", meaning(&way));
    }
    for case in &report.cases {
        let connections = case.at.connections;
        let unit = if connections == 1 { "connection" } else { "connections" };
        let _ = write!(out, "\n=== {connections} {unit}\n{}", rows([case], &COLUMNS).render());
        for absent in &case.absent {
            let _ = writeln!(out, "not measured: {}: {}", absent.variant, absent.reason);
        }
    }
    out.push_str(&failed(&report.failures()));
    let paths = paths(report);
    if !paths.is_empty() {
        let _ = writeln!(out, "\nWhat ran: {}.", paths.join("; "));
    }
    out
}

/// What the library says that ran, once.
fn paths(report: &TcpRxReport) -> Vec<&str> {
    let mut paths = Vec::new();
    for path in report.cases.iter().flat_map(|case| &case.lines).map(|line| line.facts.path.as_str()) {
        if !path.is_empty() && !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
}

/// The part that wasn't copied, as far as the kernel tells.
fn not_copied(_: &CellReport<TcpRx>, line: &ReportLine<TcpRx>) -> Option<String> {
    let share = Digits::Percent(1).text(line.middle("zero_copied_share")?);
    Some(match line.samples.first().map(|s| s.tally.zero_copied_is).unwrap_or_default() {
        ZeroCopied::Exact => share,
        ZeroCopied::AtMost => format!("at most {share}"),
        ZeroCopied::Unknown => "unknown".to_owned(),
    })
}
