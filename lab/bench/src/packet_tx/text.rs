//! The report as text.

use std::fmt::Write as _;

use super::case::SinkKind;
use super::column::Column;
use super::report::{Caller, PacketTx, TxReport};
use super::{auto, cycles, reference};
use crate::experiment::{CellReport, CellText, Digits, LeftOut, ReportLine, Show, failed, grid};
use crate::peers::{ComparedPart, part_text};
use crate::words::meaning;

/// The report as text.
pub(super) fn text(report: &TxReport) -> String {
    let cpus = report.head.shared_cpu("sender and receiver");
    let mut out = report.head.text(&cpus);
    let _ = writeln!(
        out,
        "Medians of {} interleaved rounds; hot: 256 KiB of payloads, cold: 64 MiB.",
        report.rounds
    );
    let columns = report.columns();
    for column in &columns {
        let _ = writeln!(out, "  {column:<14} {}", meaning(column));
    }
    for ((sink, set), rows) in report.sections() {
        let _ = writeln!(out, "\n=== {}, {set}", meaning(&sink));
        section(&mut out, sink, &columns, &rows);
    }
    out.push_str(&failed(&report.failures()));
    out.push_str(&auto::text(&report.auto));
    out.push_str(&cycles::text(&report.cases));
    if !report.replay.is_empty() {
        out.push_str(&part_text(ComparedPart::Replay, &report.replay.iter().collect::<Vec<_>>()));
    }
    out
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
