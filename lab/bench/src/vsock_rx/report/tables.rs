//! The tables of a report as text.

use super::{LineReport, RxCaseReport, way};
use crate::case::{Direction, WorkingSet};
use crate::stats::Summary;
use crate::table::{Table, bytes, figure};
use crate::vsock_rx::variant::Line;

/// The tables of one direction and working set.
pub(super) fn section(direction: Direction, working_set: WorkingSet, cases: &[&RxCaseReport]) -> String {
    let sets: Vec<String> = cases.iter().map(|report| bytes(report.working_set_bytes)).collect();
    let mut set = sets.first().cloned().unwrap_or_default();
    if let Some(last) = sets.last().filter(|last| **last != set) {
        set = format!("{set} to {last}");
    }
    let mut out = format!("{}, {working_set} ({set}).\n", capital(way(direction)));
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

fn headings(first: &str, cases: &[&RxCaseReport]) -> Table {
    let lens: Vec<String> = cases.iter().map(|report| bytes(report.case.len)).collect();
    Table::new(std::iter::once(first).chain(lens.iter().map(String::as_str)))
}

/// Adds a row with a cell a case; none if all are empty.
fn row(
    table: &mut Table,
    name: String,
    cases: &[&RxCaseReport],
    cell: impl Fn(&RxCaseReport) -> Option<String>,
) {
    let cells: Vec<Option<String>> = cases.iter().map(|report| cell(report)).collect();
    if cells.iter().any(Option::is_some) {
        table.row(
            std::iter::once(name).chain(cells.into_iter().map(|cell| cell.unwrap_or_else(|| "-".into()))),
        );
    }
}

fn times(cases: &[&RxCaseReport]) -> Table {
    let mut table = headings("", cases);
    for line in Line::ALL.into_iter().filter(|line| line.mode().is_some()) {
        let name = line.name();
        let of =
            |figure: fn(&LineReport) -> String| move |report: &RxCaseReport| report.line(line).map(figure);
        row(
            &mut table,
            format!("{name}  A/B"),
            cases,
            of(|l| format!("{:.3}/{:.3}", l.send_seconds.median, l.loop_seconds.median)),
        );
        row(&mut table, format!("{name}  C"), cases, of(|l| format!("{:.4}", l.dequeue_seconds.median)));
        row(&mut table, format!("{name}  D"), cases, of(|l| format!("{:.0}", l.dequeue_ns.median)));
        row(
            &mut table,
            format!("{name}  D+"),
            cases,
            of(|l| format!("{:.0}", l.dequeue_and_touch_ns.median)),
        );
        row(&mut table, format!("{name}  bytes a dequeue"), cases, of(|l| format!("{:.0}", l.dequeue_len)));
    }
    for (index, name) in ["copy", "mapped"].into_iter().enumerate() {
        row(&mut table, format!("published, {name}  A/B"), cases, |report| {
            report
                .published
                .map(|cells| format!("{}/{}", cells[index].send_seconds, cells[index].loop_seconds))
        });
        row(&mut table, format!("published, {name}  D"), cases, |report| {
            report.published.map(|cells| format!("{:.0}", cells[index].dequeue_ns))
        });
    }
    table
}

fn cpu(cases: &[&RxCaseReport]) -> Table {
    let mut table = headings("", cases);
    for line in Line::ALL {
        row(&mut table, line.name().to_owned(), cases, |report| {
            let l = report.line(line)?;
            let all = &l.cpu_s_per_gb;
            Some(format!("{:.3} ({:.3}..{:.3})", all.median, all.q1, all.q3))
        });
        row(&mut table, "  back end + program".to_owned(), cases, |report| {
            let l = report.line(line)?;
            Some(format!("{:.3} + {:.3}", l.backend_cpu_s_per_gb.median, l.program_cpu_s_per_gb.median))
        });
    }
    table
}

/// A row for each way of receiving and length, so that what was published stands beside what was measured.
fn ratios(cases: &[&RxCaseReport]) -> Table {
    let mut table = Table::new([
        "",
        "D / copy",
        "published",
        "D+ / copy",
        "CPU / copy",
        "CPU / floor",
        "held",
        "in place",
    ]);
    let none = || "-".to_owned();
    let shown = |ratio: &Option<Summary>| match ratio {
        Some(ratio) => format!("{} ({}..{})", figure(ratio.median), figure(ratio.q1), figure(ratio.q3)),
        None => none(),
    };
    let share = |part: f64| format!("{:.0} %", 100.0 * part);
    for line in Line::ALL {
        for report in cases {
            // The floors themselves are what others are compared with.
            let Some(l) = report.line(line).filter(|l| l.cpu_to_floor.is_some()) else { continue };
            let published = report.published_ratio.filter(|_| line == Line::Mapped);
            table.row([
                format!("{}, {}", line.name(), bytes(report.case.len)),
                shown(&l.dequeue_to_copy),
                published.map_or_else(none, |ratio| format!("{ratio:.2}")),
                shown(&l.time_to_copy),
                shown(&l.cpu_to_copy),
                shown(&l.cpu_to_floor),
                if line.is_floor() { none() } else { share(l.held_share) },
                if line == Line::Direct { share(l.direct_share) } else { none() },
            ]);
        }
    }
    table
}
