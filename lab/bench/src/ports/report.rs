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
mod tests {
    use super::super::bandwidth::RAW;
    use super::*;
    use crate::compare::tests::sample_reports;
    use crate::experiment::charts_into;

    /// Two lengths; the bare loop takes 400 ns in the first round, the port 440, rising with the
    /// rounds alike. Of the longer one there is a stream as well.
    fn report() -> PortReport {
        let named = |mut case: CaseReport, first: &str| {
            case.lines[0].variant = first.to_owned();
            case.lines[1].variant = "zerowire xdp".to_owned();
            case
        };
        let mut cases: Vec<CaseReport> =
            sample_reports().into_iter().map(|case| named(case, "bare AF_XDP")).collect();
        for case in &mut cases {
            let mut tap = case.lines[1].clone();
            tap.variant = super::super::compare::TAP.to_owned();
            case.lines.push(tap);
        }
        let streams = vec![named(sample_reports().swap_remove(1), RAW)];
        let machine = Machine::example();
        let mut report = PortReport::new(machine, true, vec!["busy".into()], cases, streams);
        report.idle.push(PortIdle::new(
            "zerowire xdp",
            std::time::Duration::from_secs(1),
            std::time::Duration::ZERO,
            std::time::Duration::ZERO,
        ));
        report
    }

    #[test]
    fn ratios_to_the_tap_are_of_the_same_round() {
        let report = report();
        assert_eq!(report.comparisons.len(), 6);
        let port = &report.comparisons[1];
        assert_eq!(port.variant, "zerowire xdp");
        assert!((port.cpu_to_tap_floor.unwrap().max - 1.0).abs() < 1e-9);
        assert!(report.comparisons[2].cpu_to_tap_floor.is_none());
    }

    #[test]
    fn text_has_both_tables_and_the_idle_port() {
        let text = report().text();
        for word in [
            "Linux 6.18.0, Some CPU",
            "Note: busy.",
            "tx 60000 B hot",
            "/bare XDP",
            "/tap floor",
            "1.10..1.10",
            "a stream of 60000 B frames",
            "tx Gb/s",
            "tx CPU %",
            "zerowire xdp, hot",
            "0.91",
            "120..140",
            "0.00 %",
            "FAILED: broken (tx 64 B hot)",
            "FAILED: broken (tx 60000 B hot, stream)",
        ] {
            assert!(text.contains(word), "{word:?} is missing in:\n{text}");
        }
        // Only one way was measured.
        assert!(!text.contains("rx Gb/s"));
        // Published figures stand in the columns of the measured ones: 1.7 to 1.1, 150 to 130, and
        // 1.13 to 0.85.
        let cells = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
            line.trim_start_matches(name).split_whitespace().map(str::to_owned).collect()
        };
        assert_eq!(cells("published: raw socket"), ["1.10", "1", "120..140", "1", "0.85", "1"]);
        assert_eq!(cells("published: zero copy"), ["1.70", "1.55", "140..160", "1.15", "1.13", "1.34"]);
    }

    #[test]
    fn json_and_charts_carry_all_variants() {
        let report = report();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cases"][0]["variants"][1]["samples"].as_array().unwrap().len(), 3);
        assert_eq!(json["comparisons"][1]["variant"], "zerowire xdp");
        assert_eq!(json["comparisons"][1]["frame_len"], 64);
        assert_eq!(json["streams"][0]["variants"][0]["name"], RAW);
        let port = &json["bandwidth"][1];
        assert_eq!((&port["variant"], &port["direction"]), (&"zerowire xdp".into(), &"transmit".into()));
        assert!(port["cpu_load_percent"]["median"].as_f64().unwrap() > 0.0);
        assert_eq!(json["published"][1]["gigabits_per_second"], 1.7);
        assert_eq!(json["idle"][0]["cpu_ns"], 0);
        let folder = std::env::temp_dir().join(format!("zerowire-port-charts-{}", std::process::id()));
        let names = charts_into(&folder, report.charts()).unwrap();
        assert_eq!(names, ["port-cpu-tx.svg", "port-ratio-tx.svg", "port-bandwidth.svg", "port-load.svg"]);
        let read = |name: &String| std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(read(&names[0]).contains("zerowire xdp") && read(&names[2]).contains(RAW));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
