//! The figures of a run.

use serde::Serialize;

use super::bandwidth::{Bandwidth, PUBLISHED, Published, Shown, bandwidths, chart};
use super::compare::{Comparison, comparisons};
use super::idle::PortIdle;
use super::text;
use crate::case::Direction;
use crate::chart::{Bars, Better};
use crate::compare::{CaseReport, NetBench};
use crate::experiment::{Report, ReportLine, failures, failures_in};
use crate::machine::Machine;
use crate::report::{Labels, chart_of_cases};
use crate::stats::Summary;

/// The result of `zerowire-bench net --port xdp|packet`.
#[derive(Debug, Clone, Serialize)]
pub struct PortReport {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether the driver and the measured side had a CPU each.
    pub separate_cpus: bool,
    /// Remarks on what was left out and why.
    pub notes: Vec<String>,
    /// Saturation, case by case; the first variant of each is the bare AF_XDP loop, the floor of
    /// its ratios.
    pub cases: Vec<CaseReport>,
    /// Each variant beside the tap's floor.
    pub comparisons: Vec<Comparison>,
    /// Streams of the longest frames, case by case; the first variant of each is a plain raw socket
    /// that copies.
    pub streams: Vec<CaseReport>,
    /// Their bandwidth and CPU load.
    pub bandwidth: Vec<Bandwidth>,
    /// Figures that were published of a raw socket and of zero copy.
    pub published: [Published; 2],
    /// Idle ports.
    pub idle: Vec<PortIdle>,
}

impl PortReport {
    /// A report of `cases` and `streams`, with what follows from them.
    pub fn new(
        machine: Machine,
        separate_cpus: bool,
        notes: Vec<String>,
        cases: Vec<CaseReport>,
        streams: Vec<CaseReport>,
    ) -> Self {
        Self {
            machine,
            separate_cpus,
            notes,
            comparisons: cases.iter().flat_map(comparisons).collect(),
            cases,
            bandwidth: streams.iter().flat_map(bandwidths).collect(),
            streams,
            published: PUBLISHED,
            idle: Vec::new(),
        }
    }

    /// Variants that failed, with the case.
    pub fn failures(&self) -> Vec<String> {
        [failures(&self.cases), failures_in(&self.streams, ", stream")].concat()
    }

    /// The charts of one direction's cases.
    fn charts_of(&self, direction: Direction) -> [(String, Bars); 2] {
        let cases: Vec<&CaseReport> =
            self.cases.iter().filter(|case| case.at.direction == direction).collect();
        let labels = |title: &str, y, reference| Labels {
            title: format!("{title}, {direction}"),
            y,
            better: Better::Lower,
            x: "frame length and working set (hot: 256 KiB, where buffers are posted 512 KiB; cold: 64 MiB)",
            reference,
        };
        let what = labels("CPU time of a frame over a veth pair", "ns", None);
        let cpu = chart_of_cases(&self.machine, &cases, what, |line| line.spread("cpu_ns_per_frame"));
        let (title, y) =
            ("CPU time of a frame against the bare AF_XDP loop", "CPU time / CPU time of the loop");
        let what = labels(title, y, Some(1.0));
        let to_floor = |line: &ReportLine<NetBench>| line.spread("ratio_to_floor").or(Summary::of([1.0]));
        let ratio = chart_of_cases(&self.machine, &cases, what, to_floor);
        [("cpu", cpu), ("ratio", ratio)]
            .map(|(kind, bars)| (format!("port-{kind}-{}.svg", direction.short()), bars))
    }
}

impl Report for PortReport {
    fn text(&self) -> String {
        text::text(self)
    }

    fn charts(&self) -> Vec<(String, Bars)> {
        let of_streams = |shown: Shown| {
            (format!("port-{}.svg", shown.word()), chart(&self.machine, &self.bandwidth, shown))
        };
        let shown = Shown::ALL.into_iter().filter(|_| !self.bandwidth.is_empty());
        let of_cases = Direction::ALL.into_iter().flat_map(|direction| self.charts_of(direction));
        of_cases.chain(shown.map(of_streams)).collect()
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.notes
    }
}

#[cfg(test)]
mod tests;
