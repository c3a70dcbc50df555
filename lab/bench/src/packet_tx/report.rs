//! The figures of a run, and its report: text, JSON, charts.

use std::fmt::{self, Write as _};

use clap::ValueEnum;
use serde::Serialize;

use super::auto::AutoChoice;
use super::case::{Column, SinkKind, TxCase};
use super::cycles::CopyShares;
use super::reference::{self, Row};
use super::way::{Proof, TxSample};
use super::{auto, cycles};
use crate::case::WorkingSet;
use crate::chart::Bars;
use crate::experiment::{
    Base, CellReport, CellText, Digits, Figure, LeftOut, Report, ReportHead, ReportLine, Show, Subject, bars,
    failed, failures, failures_in, grid, sections, subtitle,
};
use crate::peers::cell::Peers;
use crate::peers::{ComparedPart, part_text};
use crate::stats::Summary;
use crate::words::{by_words, meaning};

/// The comparison of ways to send to a network device.
#[derive(Debug, Clone)]
pub struct PacketTx;

/// A column, bare or by the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TxVariant {
    /// Which column.
    pub column: Column,
    /// Whose calls.
    pub kind: Caller,
}

/// Who makes the system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Caller {
    /// A loop with nothing around it.
    Bare,
    /// The library.
    Library,
}

by_words!(Caller);

impl fmt::Display for TxVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.column, self.kind)
    }
}

impl TxVariant {
    /// What it is compared with: the bare loop of its column, and its copying column, bare
    /// where that was measured.
    pub(super) fn bases(self) -> Vec<Base<Self>> {
        let Self { column, kind } = self;
        let mut bases = Vec::new();
        if kind == Caller::Library {
            bases.push(Base { label: "bare", variant: Self { column, kind: Caller::Bare } });
        }
        let copying = column.copying();
        if column != copying {
            let of = |kind| Base { label: "copying", variant: Self { column: copying, kind } };
            bases.extend([Caller::Bare, Caller::Library].map(of));
        }
        bases
    }
}

/// What is known of a row besides its figures.
#[derive(Debug, Clone, Serialize)]
pub struct RowFacts {
    /// The working set in bytes.
    pub working_set_bytes: usize,
    /// Sends of each round.
    pub sends: usize,
    /// The published row of this payload, in thousands a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<Row>,
}

/// What is known of a sender in a row besides its figures.
#[derive(Debug, Clone, Serialize)]
pub struct TxFacts {
    /// What kernel and ledger say about the bytes of the warm-up and all rounds.
    pub proof: Proof,
    /// See [`Column::kernel_tells`].
    pub kernel_tells: bool,
    /// What runs and why, as the library says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// With `--cycles`, in the row of the longest payload with the largest working set.
    #[serde(flatten)]
    pub cycles: Option<CopyShares>,
}

impl Subject for PacketTx {
    type Cell = TxCase;
    type CellFacts = RowFacts;
    type Variant = TxVariant;
    type Facts = TxFacts;
    type Sample = TxSample;

    const FIGURES: &'static [Figure<Self>] = &[
        Figure::<Self>::spread("thousands_per_second", |_, s| Some(s.thousands_per_second())),
        // CPU nanoseconds a send: of the sender; of the receiver, where there is one; of the
        // kernel's softirq threads, where they ran in most rounds.
        Figure::<Self>::spread("cpu_ns", |_, s| Some(s.ns_a_send(s.cpu))),
        Figure::<Self>::positive("receiver_ns", |_, s| s.ns_a_send(s.receiver)),
        Figure::<Self>::positive("softirq_ns", |_, s| s.ns_a_send(s.softirq)),
        Figure::<Self>::ratio("cpu_to_bare", "bare", |_, s| s.ns_a_send(s.cpu)),
        Figure::<Self>::times("times_less_than_copying", "copying", |_, s| s.ns_a_send(s.cpu)),
        Figure::<Self>::ratio("rate_to_copying", "copying", |_, s| s.thousands_per_second()),
        // As published, where a column for such a sink was.
        Figure::<Self>::known("published_rate_to_copying", |case, sender| {
            reference::ratio(sender.column, case.sink, case.payload)
        }),
    ];
}

/// The result of `zerowire-bench packet-tx`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TxReport {
    /// Where it was measured, and remarks.
    #[serde(flatten)]
    pub head: ReportHead,
    /// Whether it was a quick run.
    pub quick: bool,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Row by row.
    pub cases: Vec<CellReport<PacketTx>>,
    /// Auto beside copying and lending.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub auto: Vec<CellReport<AutoChoice>>,
    /// With `--replay`, `zerowire replay` beside tcpreplay.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub replay: Vec<CellReport<Peers>>,
}

impl CellReport<PacketTx> {
    /// The line of a column and kind.
    pub fn variant(&self, column: Column, kind: Caller) -> Option<&ReportLine<PacketTx>> {
        self.line(&TxVariant { column, kind })
    }

    /// The library's line of a column, or the bare one where only that was measured.
    pub fn shown(&self, column: Column) -> Option<&ReportLine<PacketTx>> {
        self.variant(column, Caller::Library).or_else(|| self.variant(column, Caller::Bare))
    }
}

/// Sinks with a working set, and their rows.
type Sections<'a> = Vec<((SinkKind, WorkingSet), Vec<&'a CellReport<PacketTx>>)>;

impl TxReport {
    /// What failed, with the row.
    pub fn failures(&self) -> Vec<String> {
        let auto = failures_in(&self.auto, ", auto beside copying and lending");
        [failures(&self.cases), auto, failures(&self.replay)].concat()
    }

    /// The sections of the table: a sink with a working set, and its rows.
    pub(super) fn sections(&self) -> Sections<'_> {
        sections(&self.cases, |case| (case.sink, case.working_set))
    }

    /// The columns that were measured, in order.
    pub fn columns(&self) -> Vec<Column> {
        let measured = |column: &Column| self.cases.iter().any(|case| case.shown(*column).is_some());
        Column::value_variants().iter().copied().filter(measured).collect()
    }

    fn chart(
        &self,
        title: String,
        y_label: &str,
        rows: &[&CellReport<PacketTx>],
        value: impl Fn(&CellReport<PacketTx>, Column) -> Option<Summary>,
    ) -> Bars {
        Bars {
            title,
            subtitle: subtitle(&self.head.machine, self.rounds),
            y_label: y_label.to_owned(),
            x_label: "payload".to_owned(),
            reference: Some(1.0),
            ..bars(
                rows,
                |case| format!("{} B", case.payload),
                self.columns(),
                |row, column| value(row, *column),
            )
        }
    }
}

/// CPU of a column against copying: less CPU is a shorter bar.
fn cpu_to_copying(row: &CellReport<PacketTx>, column: Column) -> Option<Summary> {
    let line = row.shown(column)?;
    if column == column.copying() {
        return Summary::of([1.0]);
    }
    let times = line.spread("times_less_than_copying")?;
    Summary::of([times.q1, times.median, times.q3].map(|value| 1.0 / value))
}

impl Report for TxReport {
    fn text(&self) -> String {
        let cpus = self.head.shared_cpu("sender and receiver");
        let mut out = self.head.text(&cpus);
        let _ = writeln!(
            out,
            "Medians of {} interleaved rounds; hot: 256 KiB of payloads, cold: 64 MiB.",
            self.rounds
        );
        let columns = self.columns();
        for column in &columns {
            let _ = writeln!(out, "  {column:<14} {}", meaning(column));
        }
        for ((sink, set), rows) in self.sections() {
            let _ = writeln!(out, "\n=== {}, {set}", meaning(&sink));
            section(&mut out, sink, &columns, &rows);
        }
        out.push_str(&failed(&self.failures()));
        out.push_str(&auto::text(&self.auto));
        out.push_str(&cycles::text(&self.cases));
        if !self.replay.is_empty() {
            out.push_str(&part_text(ComparedPart::Replay, &self.replay.iter().collect::<Vec<_>>()));
        }
        out
    }

    fn charts(&self) -> Vec<(String, Bars)> {
        let of = |((sink, set), rows): ((SinkKind, WorkingSet), Vec<_>)| {
            let cpu = self.chart(
                format!("CPU time of a send against copying, {sink}, {set}"),
                "CPU time / CPU time of a copying send",
                &rows,
                cpu_to_copying,
            );
            let floor = self.chart(
                format!("CPU time of the library against bare system calls, {sink}, {set}"),
                "CPU time / CPU time of the bare loop",
                &rows,
                |row, column| row.variant(column, Caller::Library)?.spread("cpu_to_bare"),
            );
            [("cpu", cpu), ("floor", floor)]
                .map(|(kind, chart)| (format!("packet-tx-{kind}-{sink}-{set}.svg"), chart))
        };
        self.sections().into_iter().flat_map(of).collect()
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.head.notes
    }
}

/// How shares are written.
pub(super) const PERCENT: Digits = Digits::Percent(0);

/// Which line of a column a table shows.
#[derive(Clone, Copy)]
enum Which {
    /// The library's, or the bare one where only that was measured.
    Shown,
    /// That of one kind alone.
    Only(Caller),
}

/// A table of a section: its title, the lines in it, and the text of each.
struct Part {
    title: &'static str,
    which: Which,
    text: CellText<PacketTx>,
}

const fn median(title: &'static str, which: Which, key: &'static str, digits: Digits) -> Part {
    Part { title, which, text: CellText::Of(key, Show::Median, digits) }
}

const PARTS: &[Part] = &[
    median(
        "Thousands of sends a second, by the library (auto and bare-only columns as they are):",
        Which::Shown,
        "thousands_per_second",
        Digits::Three,
    ),
    median("CPU ns a send, by the library:", Which::Shown, "cpu_ns", Digits::Three),
    Part {
        title: "CPU ns a send, quartiles:",
        which: Which::Shown,
        text: CellText::Of("cpu_ns", Show::Quartiles, Digits::Three),
    },
    median("CPU ns a send, bare system calls:", Which::Only(Caller::Bare), "cpu_ns", Digits::Three),
    median(
        "Library / bare, CPU (to reach: 1.10):",
        Which::Only(Caller::Library),
        "cpu_to_bare",
        Digits::Behind(2),
    ),
    median(
        "Times less CPU than the copying send of the same kind of socket:",
        Which::Shown,
        "times_less_than_copying",
        Digits::Behind(2),
    ),
    median("CPU ns a send of the receiver:", Which::Shown, "receiver_ns", Digits::Three),
    median("CPU ns a send of the kernel's softirq threads:", Which::Shown, "softirq_ns", Digits::Three),
    Part {
        title: "Payload bytes not copied, as kernel and ledger say:",
        which: Which::Shown,
        text: CellText::Words(not_copied),
    },
    Part {
        title: "Lent, and copied by the kernel all the same (COPIED):",
        which: Which::Shown,
        text: CellText::Words(copied_by_kernel),
    },
];

fn not_copied(row: &CellReport<PacketTx>, line: &ReportLine<PacketTx>) -> Option<String> {
    // A veth copies what left a ring uncopied, and says so to nobody.
    Some(match line.facts.kernel_tells || row.at.sink == SinkKind::Ifb {
        true => PERCENT.text(line.facts.proof.zero_copied_share()),
        false => "not told".to_owned(),
    })
}

fn copied_by_kernel(_: &CellReport<PacketTx>, line: &ReportLine<PacketTx>) -> Option<String> {
    let share = line.facts.proof.kernel_copied_share().filter(|_| line.facts.kernel_tells);
    share.map(|share| PERCENT.text(share))
}

/// The rows of a table by their payload.
fn named<'a>(rows: &[&'a CellReport<PacketTx>]) -> Vec<(String, &'a CellReport<PacketTx>)> {
    rows.iter().map(|row| (row.at.payload.to_string(), *row)).collect()
}

fn section(out: &mut String, sink: SinkKind, columns: &[Column], rows: &[&CellReport<PacketTx>]) {
    let (named, columns) = (named(rows), columns.iter().map(|column| (column.to_string(), *column)));
    let columns: Vec<_> = columns.collect();
    for part in PARTS {
        let text = |row: &&CellReport<PacketTx>, column: &Column| {
            let line = match part.which {
                Which::Shown => row.shown(*column),
                Which::Only(kind) => row.variant(*column, kind),
            };
            part.text.of(row, line?)
        };
        if let Some(table) = grid("payload", &named, &columns, LeftOut::Columns, text) {
            let _ = write!(out, "\n{}\n{}", part.title, table.render());
        }
    }
    published(out, sink, rows);
}

/// Rates against copying, here and as published, where rows and columns match.
fn published(out: &mut String, sink: SinkKind, rows: &[&CellReport<PacketTx>]) {
    let matches = |column: &Column, row: &&CellReport<PacketTx>| {
        row.shown(*column).is_some() && reference::ratio(*column, sink, row.at.payload).is_some()
    };
    let columns = [Column::Zc, Column::ZcBatched].into_iter();
    let columns = columns.filter(|column| rows.iter().any(|row| matches(column, row)));
    let columns: Vec<(String, (Column, &str))> = columns
        .flat_map(|column| {
            let published = format!("published {}", published_name(column, sink));
            [
                (column.to_string(), (column, "rate_to_copying")),
                (published, (column, "published_rate_to_copying")),
            ]
        })
        .collect();
    let text = |row: &&CellReport<PacketTx>, (column, key): &(Column, &str)| {
        Some(Digits::Behind(2).text(row.shown(*column)?.middle(key)?))
    };
    // Columns without a figure stay: they are pairs.
    if let Some(table) = grid("payload", &named(rows), &columns, LeftOut::Nothing, text) {
        let _ = write!(out, "\nRate against the copying send, here and as published:\n{}", table.render());
    }
}

fn published_name(column: Column, sink: SinkKind) -> &'static str {
    match (column, sink) {
        (Column::Zc, SinkKind::Veth) => "zc",
        (Column::Zc, SinkKind::Ifb) => "!ubufs",
        _ => "recvmmsg",
    }
}
