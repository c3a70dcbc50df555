//! The figures of a run, and its report: text, JSON, charts.

use std::fmt::{self, Write as _};

use clap::ValueEnum;
use serde::Serialize;
use zerowire::recv::ZeroCopied;

use super::options::Client;
use super::way::{Tally, WayName};
use crate::chart::{Bars, Better};
use crate::experiment::{
    Base, CellReport, Column, Digits, Figure, Report, ReportHead, ReportLine, Subject, bars, failed,
    failures, rows, subtitle,
};
use crate::table::bytes;
use crate::words::meaning;

/// The comparison of ways to receive TCP.
#[derive(Debug, Clone)]
pub struct TcpRx;

/// How many connections there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Connections {
    /// All together.
    pub connections: usize,
}

impl fmt::Display for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} connections", self.connections)
    }
}

/// What is known of a way besides its figures.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TcpFacts {
    /// What runs, as the library says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
}

impl Subject for TcpRx {
    type Cell = Connections;
    type CellFacts = ();
    type Variant = WayName;
    type Facts = TcpFacts;
    type Sample = TcpSample;

    const FIGURES: &'static [Figure<Self>] = &[
        // 10⁹ bits a second.
        Figure::<Self>::spread("gigabits_per_second", |_, s| {
            Some(s.tally.bytes as f64 * 8e-9 / s.seconds.max(1e-9))
        }),
        // Of the receiving thread; then divided by that of recv (one connection only) and of epoll.
        Figure::<Self>::spread("cpu_seconds_a_gigabyte", |_, s| Some(s.cpu_a_gigabyte())),
        Figure::<Self>::ratio("cpu_to_recv", "recv", |_, s| s.cpu_a_gigabyte()),
        Figure::<Self>::ratio("cpu_to_epoll", "epoll", |_, s| s.cpu_a_gigabyte()),
        // Of 10⁶ bytes: system calls; then completions, reads or leases.
        Figure::<Self>::spread("calls_a_megabyte", |_, s| Some(1e6 * s.a_byte(s.tally.calls))),
        Figure::<Self>::spread("pieces_a_megabyte", |_, s| Some(1e6 * s.a_byte(s.tally.pieces))),
        // Bytes of memory traffic a payload byte.
        Figure::<Self>::spread("memory_a_byte", |_, s| Some(s.a_byte(s.memory_bytes?))),
        // The part of the bytes that was not copied by the kernel.
        Figure::<Self>::spread("zero_copied_share", |_, s| Some(s.a_byte(s.tally.zero_copied))),
    ];
    const VARIANT: &'static str = "way";
    const EMPTY_LISTS: bool = true;
}

/// What each way is compared with.
pub(super) fn bases() -> Vec<Base<WayName>> {
    [("recv", WayName::Recv), ("epoll", WayName::Epoll)]
        .map(|(label, variant)| Base { label, variant })
        .into()
}

/// The result of `zerowire-bench tcp-rx`.
#[derive(Debug, Clone, Serialize)]
pub struct TcpRxReport {
    /// Where it was measured, and remarks.
    #[serde(flatten)]
    pub head: ReportHead,
    /// Who sent.
    pub client: Client,
    /// Whether it was a quick run.
    pub quick: bool,
    /// Whether every byte was looked at.
    pub touch: bool,
    /// Bytes of a read() or recv() of the ways without the library.
    pub read_bytes: usize,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// What memory traffic counts, or why it is not measured.
    pub memory: MemoryTraffic,
    /// Row by row.
    pub cases: Vec<CellReport<TcpRx>>,
}

/// Memory traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryTraffic {
    /// What is counted.
    Measured(String),
    /// Why it isn't.
    NotMeasured(String),
}

/// One run.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct TcpSample {
    /// What was received and how.
    #[serde(flatten)]
    pub tally: Tally,
    /// How long the run took.
    pub seconds: f64,
    /// CPU time of the receiving thread.
    pub cpu_seconds: f64,
    /// Memory traffic, where it is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl TcpSample {
    fn a_byte(&self, count: u64) -> f64 {
        count as f64 / self.tally.bytes.max(1) as f64
    }

    /// CPU seconds a gigabyte (10⁹ bytes).
    fn cpu_a_gigabyte(&self) -> f64 {
        self.cpu_seconds * 1e9 / self.tally.bytes.max(1) as f64
    }
}

impl TcpRxReport {
    /// What failed, with the row.
    pub fn failures(&self) -> Vec<String> {
        failures(&self.cases)
    }

    /// The ways that were measured, in order.
    pub fn ways(&self) -> Vec<WayName> {
        let measured = |way: &WayName| self.cases.iter().any(|case| case.line(way).is_some());
        WayName::value_variants().iter().copied().filter(measured).collect()
    }

    fn chart(&self, title: &str, (y_label, better): (&str, Better), key: &str) -> Bars {
        let cases: Vec<_> = self.cases.iter().collect();
        Bars {
            title: title.to_owned(),
            subtitle: subtitle(&self.head.machine, self.rounds),
            y_label: y_label.to_owned(),
            better,
            x_label: "connections".to_owned(),
            ..bars(
                &cases,
                |at| at.connections.to_string(),
                self.ways(),
                |case, way| case.line(way)?.spread(key),
            )
        }
    }
}

impl Report for TcpRxReport {
    fn text(&self) -> String {
        let memory = match &self.memory {
            MemoryTraffic::Measured(what) => what.clone(),
            MemoryTraffic::NotMeasured(why) => format!("not measured: {why}"),
        };
        let about = format!(
            "Sender: {}. Medians of {} interleaved rounds; reads of {}; {}.\n{}Memory traffic: {memory}.\n",
            match self.client {
                Client::Own => "a thread of this process, over the loopback interface",
                Client::External => "iperf3 elsewhere",
            },
            self.rounds,
            bytes(self.read_bytes),
            if self.touch { "every byte was looked at" } else { "no byte was looked at" },
            match self.client {
                Client::Own => self.head.shared_cpu("sender and receiver"),
                Client::External => String::new(),
            }
        );
        let mut out = self.head.text(&about);
        // Writing to a String doesn't fail.
        for way in self.ways() {
            let _ = writeln!(out, "  {way:<11} {}", meaning(&way));
        }
        for case in &self.cases {
            let connections = case.at.connections;
            let unit = if connections == 1 { "connection" } else { "connections" };
            let _ = write!(out, "\n=== {connections} {unit}\n{}", rows([case], &COLUMNS).render());
            for absent in &case.absent {
                let _ = writeln!(out, "not measured: {}: {}", absent.variant, absent.reason);
            }
        }
        out.push_str(&failed(&self.failures()));
        let paths = paths(self);
        if !paths.is_empty() {
            let _ = writeln!(out, "\nWhat ran: {}.", paths.join("; "));
        }
        out
    }

    fn charts(&self) -> Vec<(String, Bars)> {
        let all = [
            ("cpu", "CPU time of receiving TCP", ("CPU s a GB", Better::Lower), "cpu_seconds_a_gigabyte"),
            ("rate", "Bandwidth of receiving TCP", ("Gbit/s", Better::Higher), "gigabits_per_second"),
            (
                "calls",
                "System calls of receiving TCP",
                ("system calls a MB", Better::Lower),
                "calls_a_megabyte",
            ),
        ];
        all.map(|(kind, title, y, key)| (format!("tcp-rx-{kind}.svg"), self.chart(title, y, key))).into()
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.head.notes
    }
}

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

#[cfg(test)]
mod tests;
