//! The figures of a run.

use serde::Serialize;

use super::idle::PortIdle;
use super::published::Published;
use super::text;
use crate::case::Direction;
use crate::chart::{Bars, Better, Series};
use crate::compare::{CaseReport, RAW};
use crate::experiment::{Report, ReportHead, failures, failures_in};
use crate::report::{chart_of_cases, to_floor};
use crate::stats::Summary;

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
        text::text(self)
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

#[cfg(test)]
mod tests;
