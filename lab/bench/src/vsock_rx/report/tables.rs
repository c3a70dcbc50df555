//! The tables of a report as text.

use super::{RxCell, VsockRx};
use crate::case::{Direction, WorkingSet};
use crate::experiment::{CellText, Column, Digits, LeftOut, Show, grid};
use crate::table::{Table, bytes};
use crate::vsock_rx::variant::RxWay;

/// The tables of one direction and working set.
pub(super) fn section(direction: Direction, working_set: WorkingSet, cases: &[&RxCell]) -> String {
    let sets: Vec<String> = cases.iter().map(|case| bytes(case.facts.working_set_bytes)).collect();
    let mut set = sets.first().cloned().unwrap_or_default();
    if let Some(last) = sets.last().filter(|last| **last != set) {
        set = format!("{set} to {last}");
    }
    let mut out = format!("{}, {working_set} ({set}).\n", capital(direction.from_to()));
    out.push_str(
        "A/B: seconds of the send loop and of the receive loop; C: seconds in dequeue calls; D: nanoseconds in them for each \
         dequeue of the column's length; D+: the same and the program's look at each cache line.\n",
    );
    out.push_str(&times(cases).render());
    out.push_str("\nCPU seconds a GB, back end + program (quartiles of the sum); a polling program's include its waiting.\n");
    out.push_str(&cpu(cases).render());
    out.push_str(
        "\nRatios, round by round (quartiles); published: D / copy of a kernel's mapped receive; floor: memcpy + touch, of direct \
         windows and woken: touch the touch alone; held: copied twice; in place: not copied.\n",
    );
    out.push_str(&ratios(cases).render());
    out
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// A text for each case.
type Row = (String, Box<dyn Fn(&RxCell) -> Option<String>>);

/// A row of a way's text.
fn row(name: String, way: RxWay, text: CellText<VsockRx>) -> Row {
    (name, Box::new(move |case: &RxCell| text.of(case, case.line(&way)?)))
}

/// The rows that have a text, with a column a case.
fn across(cases: &[&RxCell], rows: &[Row]) -> Table {
    let columns: Vec<(String, &RxCell)> = cases.iter().map(|case| (bytes(case.at.len), *case)).collect();
    let table = grid("", rows, &columns, LeftOut::Rows, |text, case| text(case));
    table
        .unwrap_or_else(|| Table::new(std::iter::once("").chain(columns.iter().map(|(len, _)| len.as_str()))))
}

const fn median(key: &'static str, digits: usize) -> CellText<VsockRx> {
    CellText::Of(key, Show::Median, Digits::Behind(digits))
}

fn times(cases: &[&RxCell]) -> Table {
    let mut rows: Vec<Row> = Vec::new();
    for way in RxWay::all().filter(|way| !way.is_floor()) {
        let loops: CellText<VsockRx> = CellText::Words(|_, line| {
            let [send, receive] = ["send_seconds", "loop_seconds"].map(|key| line.middle(key));
            Some(format!("{:.3}/{:.3}", send?, receive?))
        });
        for (what, text) in [
            ("A/B", loops),
            ("C", median("dequeue_seconds", 4)),
            ("D", median("dequeue_ns", 0)),
            ("D+", median("dequeue_and_touch_ns", 0)),
            ("bytes a dequeue", median("dequeue_len", 0)),
        ] {
            rows.push(row(format!("{way}  {what}"), way, text));
        }
    }
    for (index, name) in ["copy", "mapped"].into_iter().enumerate() {
        let cell = move |case: &RxCell| case.facts.published.map(|cells| cells[index]);
        let loops = move |case: &RxCell| {
            let cell = cell(case)?;
            Some(format!("{}/{}", cell.send_seconds, cell.loop_seconds))
        };
        rows.push((format!("published, {name}  A/B"), Box::new(loops)));
        let dequeue = move |case: &RxCell| Some(format!("{:.0}", cell(case)?.dequeue_ns));
        rows.push((format!("published, {name}  D"), Box::new(dequeue)));
    }
    across(cases, &rows)
}

fn cpu(cases: &[&RxCell]) -> Table {
    let mut rows: Vec<Row> = Vec::new();
    for way in RxWay::all() {
        let all = CellText::Of("cpu_s_per_gb", Show::Both, Digits::Behind(3));
        rows.push(row(way.to_string(), way, all));
        let parts: CellText<VsockRx> = CellText::Words(|_, line| {
            let [end, program] = ["backend_cpu_s_per_gb", "program_cpu_s_per_gb"].map(|key| line.middle(key));
            Some(format!("{:.3} + {:.3}", end?, program?))
        });
        rows.push(row("  back end + program".to_owned(), way, parts));
    }
    across(cases, &rows)
}

const RATIOS: [Column<VsockRx>; 8] = [
    Column::words("", |case, line| Some(format!("{}, {}", line.variant, bytes(case.at.len)))),
    Column::both("D / copy", "dequeue_to_copy", Digits::Three),
    Column::words("published", |case, line| {
        let published = case.facts.published_ratio.filter(|_| line.variant == RxWay::Mapped);
        published.map(|ratio| format!("{ratio:.2}"))
    }),
    Column::both("D+ / copy", "time_to_copy", Digits::Three),
    Column::both("CPU / copy", "cpu_to_copy", Digits::Three),
    Column::both("CPU / floor", "cpu_to_floor", Digits::Three),
    Column::words("held", |_, line| {
        let share = line.middle("held_share").filter(|_| !line.variant.is_floor());
        share.map(|share| Digits::Percent(0).text(share))
    }),
    Column::words("in place", |_, line| {
        let share = line.middle("direct_share").filter(|_| line.variant == RxWay::Direct);
        share.map(|share| Digits::Percent(0).text(share))
    }),
];

/// A row for each way of receiving and length, so that what was published stands beside what was
/// measured.
fn ratios(cases: &[&RxCell]) -> Table {
    let mut table = Table::new(Column::headings(&RATIOS));
    for way in RxWay::all() {
        for case in cases {
            // The floors themselves are what others are compared with.
            if let Some(line) = case.line(&way).filter(|line| line.spread("cpu_to_floor").is_some()) {
                table.row(Column::texts(&RATIOS, case, line));
            }
        }
    }
    table
}
