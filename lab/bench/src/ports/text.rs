//! The report as text.

use super::bandwidth::{Bandwidth, PUBLISHED, Published, RAW};
use super::report::PortReport;
use crate::case::{Direction, WorkingSet};
use crate::report::zero_copied;
use crate::stats::Summary;
use crate::table::{Table, bytes, figure};

pub(super) fn text(report: &PortReport) -> String {
    let mut out = format!("{}\n", report.machine);
    if !report.separate_cpus {
        out.push_str("One CPU only: driver and back end took turns; rates mean little.\n");
    }
    for note in &report.notes {
        out.push_str(&format!("Note: {note}.\n"));
    }
    out.push_str(&saturation(report));
    for failure in report.failures() {
        out.push_str(&format!("FAILED: {failure}\n"));
    }
    out.push_str(&bandwidth(report));
    if !report.idle.is_empty() {
        out.push('\n');
    }
    for idle in &report.idle {
        out.push_str(&idle.text());
    }
    out
}

fn saturation(report: &PortReport) -> String {
    let mut table = Table::new([
        "case",
        "working set",
        "variant",
        "rounds x frames",
        "CPU ns/frame",
        "min..max",
        "kernel thread",
        "/bare XDP",
        "quartiles",
        "/tap floor",
        "frames/s",
        "zero-copied",
    ])
    .labels(3);
    for case in &report.cases {
        for variant in &case.variants {
            let cpu = &variant.cpu_ns_per_frame;
            let to_bare = variant.ratio_to_floor.as_ref();
            let compared =
                report.comparisons.iter().find(|c| c.case == case.case && c.variant == variant.name);
            let to_tap = compared.and_then(|c| c.cpu_to_tap_floor);
            let kernel = variant.ledger.get("kernel_thread_ns_per_frame");
            table.row([
                case.case.to_string(),
                bytes(case.working_set_bytes),
                variant.name.clone(),
                format!("{} x {}", case.rounds, case.frames),
                figure(cpu.median),
                format!("{}..{}", figure(cpu.min), figure(cpu.max)),
                kernel.map_or("-".into(), |ns| ns.to_string()),
                to_bare.map_or("-".into(), |ratio| format!("{:.2}", ratio.median)),
                to_bare.map_or("-".into(), |ratio| format!("{:.2}..{:.2}", ratio.q1, ratio.q3)),
                to_tap.map_or("-".into(), |ratio| format!("{:.2}", ratio.median)),
                // Toward the port the clock stands while bursts are queued.
                match case.case.direction {
                    Direction::Transmit => figure(variant.frames_per_second.median),
                    Direction::Receive => "-".to_owned(),
                },
                zero_copied(variant),
            ]);
        }
    }
    format!(
        "\nSaturation, one queue (medians; ratios: medians of those round by round; kernel thread: its part of the CPU time):\n{}",
        table.render()
    )
}

/// Bandwidth and load of the ports, beside the raw socket's and the published figures: both ways in one table.
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
