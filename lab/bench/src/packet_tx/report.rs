//! The figures of a run.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::auto::AutoReport;
use super::case::{SinkKind, TxCase};
use super::column::Column;
use super::cycles::CyclesReport;
use super::reference::{self, Row};
use super::replay::ReplayReport;
use super::way::{Proof, TxSample};
use crate::case::WorkingSet;
use crate::chart::{Bars, Better, Series};
use crate::machine::Machine;
use crate::record::Failure;
use crate::stats::Summary;

/// The result of `zerowire-bench packet-tx`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TxReport {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether sender and receiver had a CPU each.
    pub separate_cpus: bool,
    /// Whether it was a quick run.
    pub quick: bool,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Remarks on what was left out and why.
    pub notes: Vec<String>,
    /// Row by row.
    pub cases: Vec<TxCaseReport>,
    /// Auto beside copying and lending.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub auto: Vec<AutoReport>,
    /// Comparisons of Auto that failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub auto_failures: Vec<Failure>,
    /// Shares of CPU time in copy routines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cycles: Vec<CyclesReport>,
    /// Replay beside tcpreplay.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay: Option<ReplayReport>,
}

/// The figures of one row.
#[derive(Debug, Clone, Serialize)]
pub struct TxCaseReport {
    /// What was measured.
    #[serde(flatten)]
    pub case: TxCase,
    /// The working set in bytes.
    pub working_set_bytes: usize,
    /// Sends of each round.
    pub sends: usize,
    /// One entry a column and kind that succeeded.
    pub lines: Vec<Line>,
    /// The published row of this payload, in thousands a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<Row>,
    /// What failed, and why; it is not measured further in this row.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

/// Who makes the system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A loop with nothing around it.
    Bare,
    /// The library.
    Library,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bare => "bare",
            Self::Library => "library",
        })
    }
}

/// A column in a row, bare or by the library.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Which column.
    pub column: Column,
    /// Whose calls.
    pub kind: Kind,
    /// Thousands of sends a second.
    pub thousands_per_second: Summary,
    /// CPU nanoseconds of the sender a send.
    pub cpu_ns: Summary,
    /// CPU nanoseconds of the receiver a send; only where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub receiver_ns: Option<Summary>,
    /// CPU nanoseconds of the kernel's softirq threads a send; only where they ran in most rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub softirq_ns: Option<Summary>,
    /// `cpu_ns` divided by the bare loop's of the same round.
    pub cpu_to_bare: Option<Summary>,
    /// The CPU of the copying column of the same family divided by `cpu_ns`, round by round: how many times less.
    pub times_less_than_copying: Option<Summary>,
    /// The rate divided by the copying column's of the same round.
    pub rate_to_copying: Option<Summary>,
    /// The same ratio as published, where a column for such a sink was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_rate_to_copying: Option<f64>,
    /// What kernel and ledger say about the bytes of the warm-up and all rounds.
    pub proof: Proof,
    /// See [`Column::kernel_tells`].
    pub kernel_tells: bool,
    /// What runs and why, as the library says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Every run, in order.
    pub samples: Vec<TxSample>,
}

impl Line {
    /// The figures of `samples`; `None` when there are none.
    pub fn of(
        case: &TxCase,
        column: Column,
        kind: Kind,
        samples: &[TxSample],
        bare: &[TxSample],
        copying: &[TxSample],
        (proof, path): (Proof, String),
    ) -> Option<Self> {
        let summary = |figure: fn(&TxSample) -> f64| Summary::of(samples.iter().map(figure));
        let some = |figure: fn(&TxSample) -> f64| summary(figure).filter(|summary| summary.median > 0.0);
        let figures = |samples: &[TxSample], figure: fn(&TxSample) -> f64| -> Vec<f64> {
            samples.iter().map(figure).collect()
        };
        let (cpu, rate) = (TxSample::cpu_ns, TxSample::thousands_per_second);
        let is_copying = column == column.copying();
        let copying = if is_copying { &[] } else { copying };
        Some(Self {
            column,
            kind,
            thousands_per_second: summary(rate)?,
            cpu_ns: summary(cpu)?,
            receiver_ns: some(TxSample::receiver_ns),
            softirq_ns: some(TxSample::softirq_ns),
            cpu_to_bare: Summary::ratio(&figures(samples, cpu), &figures(bare, cpu)),
            times_less_than_copying: Summary::ratio(&figures(copying, cpu), &figures(samples, cpu)),
            rate_to_copying: Summary::ratio(&figures(samples, rate), &figures(copying, rate)),
            published_rate_to_copying: reference::ratio(column, case.sink, case.payload),
            proof,
            kernel_tells: column.kernel_tells(),
            path,
            samples: samples.to_vec(),
        })
    }
}

impl TxCaseReport {
    /// The line of a column and kind.
    pub fn line(&self, column: Column, kind: Kind) -> Option<&Line> {
        self.lines.iter().find(|line| (line.column, line.kind) == (column, kind))
    }

    /// The library's line of a column, or the bare one where only that was measured.
    pub fn shown(&self, column: Column) -> Option<&Line> {
        self.line(column, Kind::Library).or_else(|| self.line(column, Kind::Bare))
    }
}

impl TxReport {
    /// What failed, with the row.
    pub fn failures(&self) -> Vec<String> {
        let of_case = |report: &TxCaseReport| -> Vec<String> {
            let line =
                |failure: &Failure| format!("{} ({}): {}", failure.variant, report.case, failure.reason);
            report.failures.iter().map(line).collect()
        };
        let mut all: Vec<String> = self.cases.iter().flat_map(of_case).collect();
        all.extend(
            self.auto_failures.iter().map(|failure| format!("{}: {}", failure.variant, failure.reason)),
        );
        all
    }

    /// The sections of the table: a sink with a working set, and its rows.
    pub fn sections(&self) -> Vec<(SinkKind, WorkingSet, Vec<&TxCaseReport>)> {
        let mut sections: Vec<(SinkKind, WorkingSet, Vec<&TxCaseReport>)> = Vec::new();
        for report in &self.cases {
            let key = (report.case.sink, report.case.working_set);
            match sections.iter_mut().find(|(sink, set, _)| (*sink, *set) == key) {
                Some((_, _, rows)) => rows.push(report),
                None => sections.push((key.0, key.1, vec![report])),
            }
        }
        sections
    }

    /// The columns that were measured, in order.
    pub fn columns(&self) -> Vec<Column> {
        let measured = |column: &Column| self.cases.iter().any(|case| case.shown(*column).is_some());
        Column::ALL.into_iter().filter(measured).collect()
    }

    /// Writes the charts into `folder`, which is made if it isn't there; the names of the files.
    pub fn write_charts(&self, folder: &Path) -> Result<Vec<String>> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("can't make the folder {}", folder.display()))?;
        let mut names = Vec::new();
        for (sink, set, rows) in self.sections() {
            for (kind, chart) in
                [("cpu", self.cpu_chart(sink, set, &rows)), ("floor", self.floor_chart(sink, set, &rows))]
            {
                if chart.series.iter().all(|series| series.values.iter().all(Option::is_none)) {
                    continue;
                }
                let name = format!("packet-tx-{kind}-{sink}-{set}.svg");
                chart.write(&folder.join(&name))?;
                names.push(name);
            }
        }
        Ok(names)
    }

    /// CPU of each column against copying, by payload.
    fn cpu_chart(&self, sink: SinkKind, set: WorkingSet, rows: &[&TxCaseReport]) -> Bars {
        let one = Summary::of([1.0]);
        let value = |row: &TxCaseReport, column: Column| {
            let line = row.shown(column)?;
            match column == column.copying() {
                true => one,
                false => {
                    // Less CPU is a shorter bar.
                    let times = line.times_less_than_copying?;
                    Summary::of([times.q1, times.median, times.q3].map(|value| 1.0 / value))
                }
            }
        };
        let title = format!("CPU time of a send against copying, {sink}, {set}");
        self.chart(title, "CPU time / CPU time of a copying send", rows, value)
    }

    /// The library against the bare loop, by payload.
    fn floor_chart(&self, sink: SinkKind, set: WorkingSet, rows: &[&TxCaseReport]) -> Bars {
        let title = format!("CPU time of the library against bare system calls, {sink}, {set}");
        let value = |row: &TxCaseReport, column| row.line(column, Kind::Library)?.cpu_to_bare;
        self.chart(title, "CPU time / CPU time of the bare loop", rows, value)
    }

    fn chart(
        &self,
        title: String,
        y_label: &str,
        rows: &[&TxCaseReport],
        value: impl Fn(&TxCaseReport, Column) -> Option<Summary>,
    ) -> Bars {
        let series = self.columns().into_iter().map(|column| Series {
            name: column.to_string(),
            values: rows.iter().map(|row| value(row, column)).collect(),
        });
        Bars {
            title,
            subtitle: format!(
                "{}; medians of {} interleaved rounds, whiskers: quartiles",
                self.machine, self.rounds
            ),
            y_label: y_label.to_owned(),
            better: Better::Lower,
            x_label: "payload".to_owned(),
            groups: rows.iter().map(|row| format!("{} B", row.case.payload)).collect(),
            series: series.filter(|series| series.values.iter().any(Option::is_some)).collect(),
            reference: Some(1.0),
        }
    }
}
