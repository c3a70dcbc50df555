//! The report as text.

use super::bandwidth::{Bandwidth, PUBLISHED, Published, RAW};
use super::compare::to_tap;
use super::report::PortReport;
use crate::case::{Direction, WorkingSet};
use crate::compare::{NetBench, not_copied};
use crate::experiment::{Column, Digits, failed, head, rows, shared_cpu};
use crate::report::{CPU, WHICH, before};
use crate::stats::Summary;
use crate::table::{Table, figure};

pub(super) fn text(report: &PortReport) -> String {
    let cpus = shared_cpu(report.separate_cpus, "driver and back end");
    let mut out = head(&report.machine, &cpus, &report.notes);
    out.push_str(&saturation(report));
    out.push_str(&failed(&report.failures()));
    out.push_str(&bandwidth(report));
    if !report.idle.is_empty() {
        out.push('\n');
    }
    for idle in &report.idle {
        out.push_str(&idle.text());
    }
    out
}

const REST: [Column<NetBench>; 6] = [
    Column::words("kernel thread", |_, line| {
        line.facts.ledger.get("kernel_thread_ns_per_frame").map(ToString::to_string)
    }),
    Column::median("/bare XDP", "ratio_to_floor", Digits::Behind(2)),
    Column::quartiles("quartiles", "ratio_to_floor", Digits::Behind(2)),
    Column::words("/tap floor", |case, line| {
        to_tap(case, line).map(|ratio| Digits::Behind(2).text(ratio.median))
    }),
    // Toward the port the clock stands while bursts are queued.
    Column::words("frames/s", |case, line| {
        let rate = line.middle("frames_per_second").filter(|_| case.at.direction == Direction::Transmit);
        rate.map(figure)
    }),
    Column::words("zero-copied", not_copied),
];

fn saturation(report: &PortReport) -> String {
    let columns: Vec<Column<NetBench>> =
        WHICH.into_iter().chain(CPU).chain(REST).chain(before(&report.cases)).collect();
    format!(
        "\nSaturation, one queue (medians; ratios: medians of those round by round; /before: to the first program; kernel thread: its part of the CPU time):\n{}",
        rows(&report.cases, &columns).labels(3).render()
    )
}

/// Bandwidth and load of the ports, beside the raw socket's and the published figures: both ways in
/// one table.
fn bandwidth(report: &PortReport) -> String {
    let rows = &report.bandwidth;
    let Some(len) = rows.first().map(|row| row.case.frame_len) else {
        return String::new();
    };
    let ways: Vec<Direction> =
        Direction::ALL.into_iter().filter(|way| rows.iter().any(|row| row.case.direction == *way)).collect();
    let headings = ways.iter().flat_map(|way| {
        let way = way.short();
        ["Gb/s", "CPU %", "Gb/s a CPU"].map(|what| format!("{way} {what}"))
    });
    let headings: Vec<String> = headings.flat_map(|heading| [heading, "/raw".to_owned()]).collect();
    let mut table =
        Table::new(std::iter::once("port, working set").chain(headings.iter().map(String::as_str)));
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.variant.as_str()) {
            names.push(&row.variant);
        }
    }
    for set in WorkingSet::ALL {
        for name in &names {
            let of = |way: &Direction| {
                let wanted = |row: &&Bandwidth| {
                    row.variant == *name && (row.case.direction, row.case.working_set) == (*way, set)
                };
                rows.iter().find(wanted)
            };
            if ways.iter().any(|way| of(way).is_some()) {
                let cells = ways.iter().flat_map(|way| measured(of(way)));
                table.row(std::iter::once(format!("{name}, {set}")).chain(cells));
            }
        }
    }
    for line in &PUBLISHED {
        let cells = ways.iter().flat_map(|_| published(line));
        table.row(std::iter::once(format!("published: {}", line.name)).chain(cells));
    }
    format!(
        "\nBandwidth and CPU load, a stream of {len} B frames (medians; /raw: times the {RAW}'s, round by round; \
         published: a patch set of 2010 against its raw socket, no direction named):\n{}",
        table.render()
    )
}

fn measured(row: Option<&Bandwidth>) -> [String; 6] {
    let Some(row) = row else { return std::array::from_fn(|_| "-".to_owned()) };
    let ratio = |ratio: Option<Summary>| match ratio {
        Some(ratio) => format!("{:.2}", ratio.median),
        None if row.variant == RAW => "1".to_owned(),
        None => "-".to_owned(),
    };
    [
        figure(row.gigabits_per_second.median),
        ratio(row.bandwidth_to_raw_socket),
        figure(row.cpu_load_percent.median),
        ratio(row.load_to_raw_socket),
        figure(row.gigabits_per_cpu.median),
        ratio(row.per_cpu_to_raw_socket),
    ]
}

fn published(line: &Published) -> [String; 6] {
    let [raw, _] = PUBLISHED;
    let ratio = |of: fn(&Published) -> f64| match line.name == raw.name {
        true => "1".to_owned(),
        false => format!("{:.2}", of(line) / of(&raw)),
    };
    let [from, to] = line.cpu_load_percent;
    [
        figure(line.gigabits_per_second),
        ratio(|line| line.gigabits_per_second),
        format!("{from:.0}..{to:.0}"),
        ratio(Published::middle_load),
        figure(line.gigabits_per_cpu()),
        ratio(Published::gigabits_per_cpu),
    ]
}
