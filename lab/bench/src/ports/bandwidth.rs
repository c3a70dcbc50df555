//! Bandwidth and CPU load of the ports, both ways, beside a plain raw socket that copies. Beside
//! them stand published figures of the same comparison, with another kernel's raw socket and its
//! zero copy.
//!
//! Those are of the patch set "Provide a zero-copy method on KVM virtio-net", version 4 (Xiaohui
//! Xin, 2010, netdev mailing list). They were measured by netperf over a 10 Gb/s card without
//! segmentation offloads. They name neither a direction nor the frames' length, and their load is
//! that of several CPUs.

use serde::Serialize;

use crate::case::Case;
use crate::chart::{Bars, Better, Series};
use crate::compare::{CaseReport, NetBench};
use crate::experiment::ReportLine;
use crate::machine::Machine;
use crate::stats::Summary;
use crate::variant::NetSample;

/// The name of the variant that others are compared with.
pub const RAW: &str = "raw socket";

/// The figures of one variant in one case. Ratios are of runs of the same round.
#[derive(Debug, Clone, Serialize)]
pub struct Bandwidth {
    /// What was measured.
    #[serde(flatten)]
    pub case: Case,
    /// The variant.
    pub variant: String,
    /// Gigabits a second.
    pub gigabits_per_second: Summary,
    /// CPU time by time on the wall, in percent of one CPU.
    pub cpu_load_percent: Summary,
    /// Gigabits a second for a whole CPU.
    pub gigabits_per_cpu: Summary,
    /// Bandwidth divided by the raw socket's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth_to_raw_socket: Option<Summary>,
    /// CPU load divided by the raw socket's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub load_to_raw_socket: Option<Summary>,
    /// Gigabits for a whole CPU divided by the raw socket's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_cpu_to_raw_socket: Option<Summary>,
}

/// All variants of a case that succeeded, in their order.
pub fn bandwidths(report: &CaseReport) -> Vec<Bandwidth> {
    report.lines.iter().filter_map(|line| bandwidth(report, line)).collect()
}

fn bandwidth(report: &CaseReport, line: &ReportLine<NetBench>) -> Option<Bandwidth> {
    let own = |figure: fn(&NetSample) -> f64| Summary::of(line.samples.iter().map(figure));
    let ratio = |figure| report.ratio_to(line, &RAW.to_owned(), figure);
    Some(Bandwidth {
        case: report.at,
        variant: line.variant.clone(),
        gigabits_per_second: own(NetSample::gigabits_per_second)?,
        cpu_load_percent: own(|sample| sample.cpu_load() * 100.0)?,
        gigabits_per_cpu: own(per_cpu)?,
        bandwidth_to_raw_socket: ratio(NetSample::gigabits_per_second),
        load_to_raw_socket: ratio(NetSample::cpu_load),
        per_cpu_to_raw_socket: ratio(per_cpu),
    })
}

/// Gigabits in a second of CPU time.
fn per_cpu(sample: &NetSample) -> f64 {
    sample.bytes as f64 * 8e-9 / sample.cpu.as_secs_f64().max(1e-9)
}

/// A line of the published comparison.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Published {
    /// What it was.
    pub name: &'static str,
    /// Gigabits a second.
    pub gigabits_per_second: f64,
    /// CPU load in percent of one CPU, from and to.
    pub cpu_load_percent: [f64; 2],
}

/// The raw socket, and zero copy.
pub const PUBLISHED: [Published; 2] = [
    Published { name: "raw socket", gigabits_per_second: 1.1, cpu_load_percent: [120.0, 140.0] },
    Published { name: "zero copy", gigabits_per_second: 1.7, cpu_load_percent: [140.0, 160.0] },
];

impl Published {
    /// The middle of the load.
    pub fn middle_load(&self) -> f64 {
        self.cpu_load_percent.iter().sum::<f64>() / 2.0
    }

    /// Gigabits a second for a whole CPU.
    pub fn gigabits_per_cpu(&self) -> f64 {
        self.gigabits_per_second * 100.0 / self.middle_load()
    }

    /// The load as a bar of a chart: its whiskers are the range.
    fn load(&self) -> Summary {
        let [min, max] = self.cpu_load_percent;
        Summary { median: self.middle_load(), min, max, q1: min, q3: max }
    }
}

/// What a chart of these figures shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// Gigabits a second.
    Rate,
    /// CPU load.
    Load,
}

impl Shown {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Rate, Self::Load];

    /// A word for the file's name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Rate => "bandwidth",
            Self::Load => "load",
        }
    }

    fn of(self, row: &Bandwidth) -> Summary {
        match self {
            Self::Rate => row.gigabits_per_second,
            Self::Load => row.cpu_load_percent,
        }
    }

    fn published(self, line: &Published) -> Option<Summary> {
        match self {
            Self::Rate => Summary::of([line.gigabits_per_second]),
            Self::Load => Some(line.load()),
        }
    }
}

/// A chart with a group of bars for each case, and one of the published figures.
pub fn chart(machine: &Machine, rows: &[Bandwidth], shown: Shown) -> Bars {
    let (mut cases, mut names): (Vec<Case>, Vec<&str>) = (Vec::new(), Vec::new());
    for row in rows {
        if !cases.contains(&row.case) {
            cases.push(row.case);
        }
        if !names.contains(&row.variant.as_str()) {
            names.push(&row.variant);
        }
    }
    let [raw, zero_copy] = PUBLISHED.map(|line| shown.published(&line));
    let values = |name: &str| -> Vec<Option<Summary>> {
        let find = |case: &Case| rows.iter().find(|row| row.case == *case && row.variant == name);
        let measured = cases.iter().map(|case| find(case).map(|row| shown.of(row)));
        measured.chain([raw.filter(|_| name == RAW)]).collect()
    };
    let mut series: Vec<Series> =
        names.iter().map(|name| Series { name: (*name).to_owned(), values: values(name) }).collect();
    let none = cases.iter().map(|_| None);
    series
        .push(Series { name: "published: zero copy".to_owned(), values: none.chain([zero_copy]).collect() });
    let len = cases.first().map_or(0, |case| case.frame_len);
    let (title, y_label, better) = match shown {
        Shown::Rate => ("Bandwidth of a stream", "Gb/s", Better::Higher),
        Shown::Load => ("CPU load of a stream", "percent of one CPU", Better::Lower),
    };
    let groups = cases.iter().map(|case| format!("{} {}", case.direction, case.working_set));
    Bars {
        title: format!("{title}, {len} B frames"),
        subtitle: format!(
            "{machine}; medians, whiskers: quartiles; published: a patch set of 2010, 10 Gb/s card"
        ),
        y_label: y_label.to_owned(),
        better,
        x_label: "direction and working set".to_owned(),
        groups: groups.chain(["published".to_owned()]).collect(),
        series,
        reference: None,
    }
}

#[cfg(test)]
mod tests;
