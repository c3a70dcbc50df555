//! The report as text.

use std::fmt::Write as _;

use super::case::SinkKind;
use super::column::Column;
use super::report::{Kind, Line, TxCaseReport, TxReport};
use super::{cycles, reference, replay};
use crate::stats::Summary;
use crate::table::{Table, figure};

/// A cell without a figure.
const NONE: &str = "-";

impl TxReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.machine);
        if !self.separate_cpus {
            out.push_str("One CPU only: sender and receiver took turns; rates mean little.\n");
        }
        for note in &self.notes {
            let _ = writeln!(out, "Note: {note}.");
        }
        let _ = writeln!(
            out,
            "Medians of {} interleaved rounds; hot: 256 KiB of payloads, cold: 64 MiB.",
            self.rounds
        );
        let columns = self.columns();
        for column in &columns {
            let _ = writeln!(out, "  {:<14} {}", column.name(), column.meaning());
        }
        for (sink, set, rows) in self.sections() {
            let _ = writeln!(out, "\n=== {}, {set}", sink.meaning());
            section(&mut out, sink, &columns, &rows);
        }
        for failure in self.failures() {
            let _ = writeln!(out, "FAILED: {failure}");
        }
        if !self.auto.is_empty() {
            out.push('\n');
            out.push_str(&self.auto_text());
        }
        if !self.cycles.is_empty() {
            out.push('\n');
            out.push_str(&cycles::text(&self.cycles));
        }
        if let Some(replay) = &self.replay {
            out.push('\n');
            out.push_str(&replay::text(replay));
        }
        out
    }

    fn auto_text(&self) -> String {
        let mut table = Table::new([
            "case",
            "sends",
            "copying ns",
            "lending ns",
            "auto ns",
            "excess",
            "lent, not copied",
            "chose",
        ]);
        for auto in &self.auto {
            table.row([
                auto.case.to_string(),
                auto.sends.to_string(),
                figure(auto.copy_ns),
                figure(auto.zero_copy_ns),
                figure(auto.auto_ns),
                format!("{:+.1} %", auto.excess_percent),
                percent(auto.proof.zero_copied_share()),
                auto.choices.join("; "),
            ]);
        }
        format!(
            "Auto against the better of copying and lending, CPU time of a send, learning included (to reach: +2 %):\n{}",
            table.render()
        )
    }
}

fn section(out: &mut String, sink: SinkKind, columns: &[Column], rows: &[&TxCaseReport]) {
    let mut part = |title: &str, cell: &dyn Fn(&TxCaseReport, Column) -> Option<String>| {
        let kept: Vec<Column> = columns
            .iter()
            .copied()
            .filter(|column| rows.iter().any(|row| cell(row, *column).is_some()))
            .collect();
        if kept.is_empty() {
            return;
        }
        let mut table = Table::new(std::iter::once("payload").chain(kept.iter().map(|column| column.name())));
        for row in rows {
            let cells = kept.iter().map(|column| cell(row, *column).unwrap_or_else(|| NONE.to_owned()));
            table.row(std::iter::once(row.case.payload.to_string()).chain(cells));
        }
        let _ = write!(out, "\n{title}\n{}", table.render());
    };
    let median = |summary: Option<Summary>| Some(figure(summary?.median));
    let ratio = |summary: Option<Summary>| Some(format!("{:.2}", summary?.median));
    part(
        "Thousands of sends a second, by the library (auto and bare-only columns as they are):",
        &|row, column| median(Some(row.shown(column)?.thousands_per_second)),
    );
    part("CPU ns a send, by the library:", &|row, column| median(Some(row.shown(column)?.cpu_ns)));
    part("CPU ns a send, quartiles:", &|row, column| {
        let cpu = row.shown(column)?.cpu_ns;
        Some(format!("{}..{}", figure(cpu.q1), figure(cpu.q3)))
    });
    part("CPU ns a send, bare system calls:", &|row, column| {
        median(Some(row.line(column, Kind::Bare)?.cpu_ns))
    });
    part("Library / bare, CPU (to reach: 1.10):", &|row, column| {
        ratio(row.line(column, Kind::Library)?.cpu_to_bare)
    });
    part("Times less CPU than the copying send of the same kind of socket:", &|row, column| {
        ratio(row.shown(column)?.times_less_than_copying)
    });
    part("CPU ns a send of the receiver:", &|row, column| median(row.shown(column)?.receiver_ns));
    part("CPU ns a send of the kernel's softirq threads:", &|row, column| {
        median(row.shown(column)?.softirq_ns)
    });
    part("Payload bytes not copied, as kernel and ledger say:", &|row, column| {
        let line = row.shown(column)?;
        // A veth copies what left a ring uncopied, and nobody is told.
        Some(match line.kernel_tells || sink == SinkKind::Ifb {
            true => percent(line.proof.zero_copied_share()),
            false => "not told".to_owned(),
        })
    });
    part("Lent, and copied by the kernel all the same (COPIED):", &|row, column| {
        let line = row.shown(column).filter(|line| line.kernel_tells)?;
        line.proof.kernel_copied_share().map(percent)
    });
    published(out, sink, rows);
}

/// Rates against copying, here and as published, where rows and columns match.
fn published(out: &mut String, sink: SinkKind, rows: &[&TxCaseReport]) {
    let columns: Vec<Column> = [Column::Zc, Column::ZcBatched]
        .into_iter()
        .filter(|column| {
            let matches = |row: &&TxCaseReport| {
                row.shown(*column).is_some() && reference::ratio(*column, sink, row.case.payload).is_some()
            };
            rows.iter().any(matches)
        })
        .collect();
    if columns.is_empty() {
        return;
    }
    let headings: Vec<String> = columns
        .iter()
        .flat_map(|column| [column.to_string(), format!("published {}", published_name(*column, sink))])
        .collect();
    let mut table = Table::new(std::iter::once("payload").chain(headings.iter().map(String::as_str)));
    for row in rows {
        let pair = |line: Option<&Line>| {
            let here = line.and_then(|line| line.rate_to_copying).map(|ratio| format!("{:.2}", ratio.median));
            let there =
                line.and_then(|line| line.published_rate_to_copying).map(|ratio| format!("{ratio:.2}"));
            [here, there].map(|cell| cell.unwrap_or_else(|| NONE.to_owned()))
        };
        let cells = columns.iter().flat_map(|column| pair(row.shown(*column)));
        table.row(std::iter::once(row.case.payload.to_string()).chain(cells));
    }
    let _ = write!(out, "\nRate against the copying send, here and as published:\n{}", table.render());
}

fn published_name(column: Column, sink: SinkKind) -> &'static str {
    match (column, sink) {
        (Column::Zc, SinkKind::Veth) => "zc",
        (Column::Zc, SinkKind::Ifb) => "!ubufs",
        _ => "recvmmsg",
    }
}

/// A share in percent.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
