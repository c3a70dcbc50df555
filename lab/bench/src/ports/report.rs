//! The figures of a run, and its report: text, JSON, charts.

use serde::Serialize;

use super::published::{PUBLISHED, Published};
use crate::case::{Direction, WorkingSet};
use crate::chart::{Bars, Better, Series};
use crate::compare::{CaseReport, NetBench, RAW, not_copied};
use crate::experiment::{
    Column, Digits, LeftOut, Report, ReportHead, failed, failures, failures_in, grid, titled, variants,
};
use crate::idle::PortIdle;
use crate::report::{CPU, WHICH, before, chart_of_cases, to_floor};
use crate::stats::Summary;
use crate::table::figure;

/// The result of `zerowire-bench net --port xdp|packet`.
#[derive(Debug, Clone, Serialize)]
pub struct PortReport {
    /// Where it was measured, and remarks.
    #[serde(flatten)]
    pub head: ReportHead,
    /// Saturation, case by case; the first variant of each is the bare AF_XDP loop, the floor of
    /// its ratios.
    pub cases: Vec<CaseReport>,
    /// Streams of the longest frames, case by case; the first variant of each is a plain raw socket
    /// that copies.
    pub streams: Vec<CaseReport>,
    /// Figures that were published of a raw socket and of zero copy.
    pub published: [Published; 2],
    /// Idle ports.
    pub idle: Vec<PortIdle>,
}

impl PortReport {
    /// Variants that failed, with the case.
    pub fn failures(&self) -> Vec<String> {
        [failures(&self.cases), failures_in(&self.streams, ", stream")].concat()
    }

    /// The charts of one direction's cases.
    fn charts_of(&self, direction: Direction) -> [(String, Bars); 2] {
        let cases: Vec<&CaseReport> =
            self.cases.iter().filter(|case| case.at.direction == direction).collect();
        let x_label =
            "frame length and working set (hot: 256 KiB, where buffers are posted 512 KiB; cold: 64 MiB)";
        let cpu = Bars {
            title: format!("CPU time of a frame over a veth pair, {direction}"),
            y_label: "ns".to_owned(),
            x_label: x_label.to_owned(),
            ..chart_of_cases(&self.head.machine, &cases, |line| line.spread("cpu_ns_per_frame"))
        };
        let ratio = Bars {
            title: format!("CPU time of a frame against the bare AF_XDP loop, {direction}"),
            y_label: "CPU time / CPU time of the loop".to_owned(),
            x_label: x_label.to_owned(),
            reference: Some(1.0),
            ..chart_of_cases(&self.head.machine, &cases, to_floor)
        };
        [("cpu", cpu), ("ratio", ratio)]
            .map(|(kind, bars)| (format!("port-{kind}-{}.svg", direction.short()), bars))
    }

    /// The bars of one figure of the streams, with a group for what was published of it.
    fn stream_bars(&self, key: &'static str, published: fn(&Published) -> Option<Summary>) -> Bars {
        let cases: Vec<&CaseReport> = self.streams.iter().collect();
        let mut bars = chart_of_cases(&self.head.machine, &cases, |line| line.spread(key));
        let [raw, zero_copy] = self.published.each_ref().map(published);
        for series in &mut bars.series {
            series.values.push(raw.filter(|_| series.name == RAW));
        }
        let values = cases.iter().map(|_| None).chain([zero_copy]).collect();
        bars.series.push(Series { name: "published: zero copy".to_owned(), values });
        bars.subtitle.push_str("; published: a patch set of 2010, 10 Gb/s card");
        bars.groups =
            cases.iter().map(|case| format!("{} {}", case.at.direction, case.at.working_set)).collect();
        bars.groups.push("published".to_owned());
        Bars { x_label: "direction and working set".to_owned(), ..bars }
    }
}

impl Report for PortReport {
    fn text(&self) -> String {
        let cpus = self.head.shared_cpu("driver and back end");
        let mut out = self.head.text(&cpus);
        out.push_str(&saturation(self));
        out.push_str(&failed(&self.failures()));
        out.push_str(&bandwidth(self));
        if !self.idle.is_empty() {
            out.push('\n');
        }
        for idle in &self.idle {
            out.push_str(&idle.text());
        }
        out
    }

    fn charts(&self) -> Vec<(String, Bars)> {
        let mut charts: Vec<(String, Bars)> =
            Direction::ALL.into_iter().flat_map(|direction| self.charts_of(direction)).collect();
        if let Some(case) = self.streams.first() {
            let title = |what| format!("{what} of a stream, {} B frames", case.at.frame_len);
            let rate = Bars {
                title: title("Bandwidth"),
                y_label: "Gb/s".to_owned(),
                better: Better::Higher,
                ..self.stream_bars("gigabits_per_second", Published::rate)
            };
            let load = Bars {
                title: title("CPU load"),
                y_label: "percent of one CPU".to_owned(),
                ..self.stream_bars("cpu_load_percent", Published::load)
            };
            charts.extend([("port-bandwidth.svg".to_owned(), rate), ("port-load.svg".to_owned(), load)]);
        }
        charts
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.head.notes
    }
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

#[cfg(test)]
mod tests;
