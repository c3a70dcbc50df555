//! The figures of a run.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::compare::{Comparison, comparisons};
use super::idle::PortIdle;
use super::text;
use crate::case::Direction;
use crate::compare::CaseReport;
use crate::machine::Machine;
use crate::report::{Labels, chart_of_cases};
use crate::stats::Summary;

/// The result of `zerowire bench net --port xdp|packet`.
#[derive(Debug, Clone, Serialize)]
pub struct PortReport {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether the driver and the measured side had a CPU each.
    pub separate_cpus: bool,
    /// Remarks on what was left out and why.
    pub notes: Vec<String>,
    /// Saturation, case by case; the first variant of each is the bare AF_XDP loop, the floor of its ratios.
    pub cases: Vec<CaseReport>,
    /// Bandwidth, CPU load, and ratios to the tap's floor and to a packet socket that copies.
    pub comparisons: Vec<Comparison>,
    /// Idle ports.
    pub idle: Vec<PortIdle>,
}

impl PortReport {
    /// A report of `cases`, with what follows from them.
    pub fn new(machine: Machine, separate_cpus: bool, notes: Vec<String>, cases: Vec<CaseReport>) -> Self {
        let comparisons = cases.iter().flat_map(comparisons).collect();
        Self { machine, separate_cpus, notes, cases, comparisons, idle: Vec::new() }
    }

    /// The report as text.
    pub fn text(&self) -> String {
        text::text(self)
    }

    /// Variants that failed, with the case.
    pub fn failures(&self) -> Vec<String> {
        let lines = self.cases.iter().flat_map(|report| {
            report.failures.iter().map(|f| format!("{} ({}): {}", f.variant, report.case, f.reason))
        });
        lines.collect()
    }

    /// Writes the charts into the folder `folder`, which is made if it isn't there. Returns the names of the files.
    pub fn write_charts(&self, folder: &Path) -> Result<Vec<String>> {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let mut names = Vec::new();
        for direction in Direction::ALL {
            let cases: Vec<&CaseReport> =
                self.cases.iter().filter(|report| report.case.direction == direction).collect();
            if cases.is_empty() {
                continue;
            }
            let labels = |title: &str, y, reference| Labels {
                title: format!("{title}, {direction}"),
                y,
                x: "frame length and working set (hot: 256 KiB, where buffers are posted 512 KiB; cold: 64 MiB)",
                reference,
            };
            let what = labels("CPU time of a frame over a veth pair", "ns", None);
            let cpu = chart_of_cases(&self.machine, &cases, what, |v| Some(v.cpu_ns_per_frame));
            let (title, y) =
                ("CPU time of a frame against the bare AF_XDP loop", "CPU time / CPU time of the loop");
            let what = labels(title, y, Some(1.0));
            let ratio =
                chart_of_cases(&self.machine, &cases, what, |v| v.ratio_to_floor.or(Summary::of([1.0])));
            for (kind, chart) in [("cpu", cpu), ("ratio", ratio)] {
                let name = format!("port-{kind}-{}.svg", direction.short());
                chart.write(&folder.join(&name))?;
                names.push(name);
            }
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::sample_reports;

    /// Two lengths; the bare loop takes 400 ns in the first round, the port 440, rising with the rounds alike.
    fn report() -> PortReport {
        let mut cases = sample_reports();
        for case in &mut cases {
            case.variants[0].name = "bare AF_XDP".to_owned();
            case.variants[1].name = "zerowire xdp".to_owned();
            let mut tap = case.variants[1].clone();
            tap.name = super::super::compare::TAP.to_owned();
            let mut raw = case.variants[0].clone();
            raw.name = super::super::compare::RAW.to_owned();
            case.variants.extend([tap, raw]);
        }
        let machine = Machine { kernel: "6.18.0".into(), cpu: "Some CPU".into(), ..Machine::default() };
        let mut report = PortReport::new(machine, true, vec!["busy".into()], cases);
        report.idle.push(PortIdle::new(
            "zerowire xdp",
            std::time::Duration::from_secs(1),
            std::time::Duration::ZERO,
            std::time::Duration::ZERO,
        ));
        report
    }

    #[test]
    fn ratios_to_the_tap_and_to_the_raw_socket_are_of_the_same_round() {
        let report = report();
        assert_eq!(report.comparisons.len(), 8);
        let port = &report.comparisons[1];
        assert_eq!(port.variant, "zerowire xdp");
        assert!((port.cpu_to_tap_floor.unwrap().max - 1.0).abs() < 1e-9);
        assert!((port.bandwidth_to_raw_socket.unwrap().median - 400.0 / 440.0).abs() < 1e-9);
        let (tap, raw) = (&report.comparisons[2], &report.comparisons[3]);
        assert!(tap.cpu_to_tap_floor.is_none() && tap.load_to_raw_socket.is_some());
        assert!(raw.cpu_to_tap_floor.is_some() && raw.load_to_raw_socket.is_none());
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
            "against a packet socket that copies, 60000 B",
            "CPU load %",
            "Gb/s a CPU",
            "0.91",
            "0.00 %",
            "FAILED: broken (tx 64 B hot)",
        ] {
            assert!(text.contains(word), "{word:?} is missing in:\n{text}");
        }
        assert!(!text.contains("copies, 64 B"));
    }

    #[test]
    fn json_and_charts_carry_all_variants() {
        let report = report();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cases"][0]["variants"][1]["samples"].as_array().unwrap().len(), 3);
        assert_eq!(json["comparisons"][1]["variant"], "zerowire xdp");
        assert_eq!(json["comparisons"][1]["frame_len"], 64);
        assert_eq!(json["idle"][0]["cpu_ns"], 0);
        let folder = std::env::temp_dir().join(format!("zerowire-port-charts-{}", std::process::id()));
        let names = report.write_charts(&folder).unwrap();
        assert_eq!(names, ["port-cpu-tx.svg", "port-ratio-tx.svg"]);
        let svg = fs::read_to_string(folder.join(&names[0])).unwrap();
        assert!(svg.contains("zerowire xdp") && svg.contains("raw socket"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
