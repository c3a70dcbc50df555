//! The report as text.

use super::published::{PUBLISHED, Published};
use super::report::PortReport;
use crate::case::{Direction, WorkingSet};
use crate::compare::{CaseReport, NetBench, RAW, not_copied};
use crate::experiment::{Column, Digits, LeftOut, failed, grid, titled, variants};
use crate::report::{CPU, WHICH, before};
use crate::table::figure;

pub(super) fn text(report: &PortReport) -> String {
    let cpus = report.head.shared_cpu("driver and back end");
    let mut out = report.head.text(&cpus);
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

const REST: [Column<NetBench>; 5] = [
    Column::words("kernel thread", |_, line| {
        line.facts.ledger.get("kernel_thread_ns_per_frame").map(ToString::to_string)
    }),
    Column::spread("/bare XDP", "ratio_to_floor", Digits::Behind(2)),
    Column::median("/tap floor", "cpu_to_tap_floor", Digits::Behind(2)),
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
    let title = "Saturation, one queue (medians; ratios: medians of those round by round; /before: to the first program; \
                 kernel thread: its part of the CPU time)";
    titled(title, &report.cases, &columns, 3)
}

/// What a stream has each way: a figure, and the same divided by the raw socket's.
const STREAM: [Column<NetBench>; 6] = [
    Column::median("Gb/s", "gigabits_per_second", Digits::Three),
    Column::median("/raw", "bandwidth_to_raw_socket", Digits::Behind(2)),
    Column::median("CPU %", "cpu_load_percent", Digits::Three),
    Column::median("/raw", "load_to_raw_socket", Digits::Behind(2)),
    Column::median("Gb/s a CPU", "gigabits_per_cpu", Digits::Three),
    Column::median("/raw", "per_cpu_to_raw_socket", Digits::Behind(2)),
];

/// Bandwidth and load of the ports, beside the raw socket's and the published figures: both ways in
/// one table.
fn bandwidth(report: &PortReport) -> String {
    let streams: Vec<&CaseReport> = report.streams.iter().collect();
    let Some(len) = streams.first().map(|stream| stream.at.frame_len) else { return String::new() };
    let is_measured = |way: &Direction| streams.iter().any(|stream| stream.at.direction == *way);
    let ways: Vec<Direction> = Direction::ALL.into_iter().filter(is_measured).collect();
    let heading = |way: &Direction, column: &Column<NetBench>| match column.heading {
        "/raw" => "/raw".to_owned(),
        heading => format!("{} {heading}", way.short()),
    };
    let headings = ways.iter().flat_map(|way| STREAM.map(|column| heading(way, &column)));
    let columns: Vec<(String, usize)> = headings.enumerate().map(|(at, heading)| (heading, at)).collect();
    let measured = |name: &String, set: WorkingSet| -> Vec<Option<String>> {
        let text = |way: Direction, column: &Column<NetBench>| {
            let stream =
                streams.iter().find(|stream| (stream.at.direction, stream.at.working_set) == (way, set))?;
            column.text.of(stream, stream.line(name)?)
        };
        ways.iter().flat_map(|way| STREAM.map(|column| text(*way, &column))).collect()
    };
    let mut rows = Vec::new();
    for set in WorkingSet::ALL {
        rows.extend(variants(&streams).iter().map(|name| (format!("{name}, {set}"), measured(name, set))));
    }
    for line in &report.published {
        let texts = ways.iter().flat_map(|_| published(line).map(Some)).collect();
        rows.push((format!("published: {}", line.name), texts));
    }
    let table = grid("port, working set", &rows, &columns, LeftOut::Rows, |row, at| row[*at].clone());
    format!(
        "\nBandwidth and CPU load, a stream of {len} B frames (medians; /raw: times the {RAW}'s, round by round; \
         published: a patch set of 2010 against its raw socket, no direction named):\n{}",
        table.map(|table| table.render()).unwrap_or_default()
    )
}

/// What was published, in the columns of a stream.
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
