//! The report as text.

use std::fmt::Write as _;

use super::report::{Line, Memory, TcpRxCase, TcpRxReport};
use crate::stats::Summary;
use crate::table::{Table, bytes, figure};
use zerowire::recv::ZeroCopied;

/// A cell without a figure.
const NONE: &str = "-";

impl TcpRxReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.machine);
        // Writing to a String doesn't fail.
        let _ = writeln!(
            out,
            "Sender: {}. Medians of {} interleaved rounds; reads of {}; {}.",
            match self.client {
                "own" => "a thread of this process, over the loopback interface",
                _ => "iperf3 elsewhere",
            },
            self.rounds,
            bytes(self.read_bytes),
            if self.touch { "every byte was looked at" } else { "no byte was looked at" }
        );
        if self.client == "own" && !self.separate_cpus {
            out.push_str("One CPU only: sender and receiver took turns; rates mean little.\n");
        }
        let _ = match &self.memory {
            Memory::Measured(what) => writeln!(out, "Memory traffic: {what}."),
            Memory::NotMeasured(why) => writeln!(out, "Memory traffic: not measured: {why}."),
        };
        for note in &self.notes {
            let _ = writeln!(out, "Note: {note}.");
        }
        for way in self.ways() {
            let _ = writeln!(out, "  {:<11} {}", way.name(), way.meaning());
        }
        for case in &self.cases {
            let unit = if case.connections == 1 { "connection" } else { "connections" };
            let _ = write!(out, "\n=== {} {unit}\n{}", case.connections, table(case));
            for absent in &case.absent {
                let _ = writeln!(out, "not measured: {}: {}", absent.variant, absent.reason);
            }
        }
        for failure in self.failures() {
            let _ = writeln!(out, "FAILED: {failure}");
        }
        let paths = self.paths();
        if !paths.is_empty() {
            let _ = writeln!(out, "\nWhat ran: {}.", paths.join("; "));
        }
        out
    }

    /// What the library says that ran, once.
    fn paths(&self) -> Vec<&str> {
        let mut paths = Vec::new();
        for line in self.cases.iter().flat_map(|c| &c.lines).filter(|l| !l.path.is_empty()) {
            if !paths.contains(&line.path.as_str()) {
                paths.push(&line.path);
            }
        }
        paths
    }
}

fn table(case: &TcpRxCase) -> String {
    let mut table = Table::new([
        "way",
        "Gbit/s",
        "CPU s/GB",
        "quartiles",
        "CPU / recv",
        "CPU / epoll",
        "calls/MB",
        "completions/MB",
        "memory B/B",
        "not copied",
    ]);
    let ratio = |summary: Option<Summary>| summary.map_or(NONE.to_owned(), |s| format!("{:.2}", s.median));
    for line in &case.lines {
        let Line { cpu_seconds_a_gigabyte: cpu, .. } = line;
        table.row([
            line.way.to_string(),
            figure(line.gigabits_per_second.median),
            format!("{:.3}", cpu.median),
            format!("{:.3}..{:.3}", cpu.q1, cpu.q3),
            ratio(line.cpu_to_recv),
            ratio(line.cpu_to_epoll),
            figure(line.calls_a_megabyte.median),
            figure(line.pieces_a_megabyte.median),
            ratio(line.memory_a_byte),
            not_copied(line),
        ]);
    }
    table.render()
}

/// The part that wasn't copied, as far as the kernel tells.
fn not_copied(line: &Line) -> String {
    let share = format!("{:.1} %", line.zero_copied_share.median * 100.0);
    match line.samples.first().map(|s| s.tally.zero_copied_is).unwrap_or_default() {
        ZeroCopied::Exact => share,
        ZeroCopied::AtMost => format!("at most {share}"),
        ZeroCopied::Unknown => "unknown".to_owned(),
    }
}
