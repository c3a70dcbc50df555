//! The figures of a run.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::way::{Tally, WayName};
use crate::chart::{Bars, Better, Series};
use crate::machine::Machine;
use crate::record::Failure;
use crate::stats::Summary;

/// The result of `zerowire-bench tcp-rx`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TcpRxReport {
    /// Where it was measured.
    pub machine: Machine,
    /// Who sent: `own` or `external`.
    pub client: &'static str,
    /// Whether sender and receiver had a CPU each; of no meaning with an external client.
    pub separate_cpus: bool,
    /// Whether it was a quick run.
    pub quick: bool,
    /// Whether every byte was looked at.
    pub touch: bool,
    /// Bytes of a read() or recv() of the ways without the library.
    pub read_bytes: usize,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// What memory traffic counts, or why it is not measured.
    pub memory: Memory,
    /// Remarks.
    pub notes: Vec<String>,
    /// Row by row.
    pub cases: Vec<TcpRxCase>,
}

/// Memory traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// What is counted.
    Measured(String),
    /// Why it isn't.
    NotMeasured(String),
}

impl Default for Memory {
    fn default() -> Self {
        Self::NotMeasured("nothing was run".to_owned())
    }
}

/// The figures of one number of connections.
#[derive(Debug, Clone, Serialize)]
pub struct TcpRxCase {
    /// Connections.
    pub connections: usize,
    /// One entry a way that succeeded.
    pub lines: Vec<Line>,
    /// Ways that are not to be had here, and why.
    pub absent: Vec<Failure>,
    /// Ways that failed, and why.
    pub failures: Vec<Failure>,
}

/// One run.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Sample {
    /// What was received and how.
    #[serde(flatten)]
    pub tally: Tally,
    /// How long the run took.
    pub seconds: f64,
    /// CPU time of the receiving thread.
    pub cpu_seconds: f64,
    /// Memory traffic, where it is measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

impl Sample {
    fn bytes(&self) -> f64 {
        (self.tally.bytes as f64).max(1.0)
    }

    /// 10⁹ bits a second.
    pub fn gigabits(&self) -> f64 {
        self.tally.bytes as f64 * 8e-9 / self.seconds.max(1e-9)
    }

    /// CPU seconds a gigabyte (10⁹ bytes).
    pub fn cpu_a_gigabyte(&self) -> f64 {
        self.cpu_seconds * 1e9 / self.bytes()
    }

    /// System calls a megabyte (10⁶ bytes).
    pub fn calls_a_megabyte(&self) -> f64 {
        self.tally.calls as f64 * 1e6 / self.bytes()
    }

    /// Completions, or reads, a megabyte.
    pub fn pieces_a_megabyte(&self) -> f64 {
        self.tally.pieces as f64 * 1e6 / self.bytes()
    }

    fn memory_a_byte(&self) -> f64 {
        self.memory_bytes.unwrap_or(0) as f64 / self.bytes()
    }

    fn zero_copied(&self) -> f64 {
        self.tally.zero_copied as f64 / self.bytes()
    }
}

/// A way in a case.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Which way.
    pub way: WayName,
    /// What runs, as the library says it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// 10⁹ bits a second.
    pub gigabits_per_second: Summary,
    /// CPU seconds of the receiving thread a gigabyte.
    pub cpu_seconds_a_gigabyte: Summary,
    /// The same, divided by that of recv in the same round (one connection only).
    pub cpu_to_recv: Option<Summary>,
    /// The same, divided by that of epoll and read in the same round.
    pub cpu_to_epoll: Option<Summary>,
    /// System calls a megabyte.
    pub calls_a_megabyte: Summary,
    /// Completions, reads or leases a megabyte.
    pub pieces_a_megabyte: Summary,
    /// Bytes of memory traffic a payload byte.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_a_byte: Option<Summary>,
    /// The part of the bytes that was not copied by the kernel.
    pub zero_copied_share: Summary,
    /// Every run, in order.
    pub samples: Vec<Sample>,
}

impl Line {
    /// The figures of `samples`, and those of `recv` and `epoll` of the same rounds; `None` when there are none.
    pub fn of(
        way: WayName,
        path: String,
        samples: Vec<Sample>,
        recv: &[Sample],
        epoll: &[Sample],
    ) -> Option<Self> {
        let summary = |figure: fn(&Sample) -> f64| Summary::of(samples.iter().map(figure));
        let cpu = |all: &[Sample]| all.iter().map(Sample::cpu_a_gigabyte).collect::<Vec<_>>();
        let has_memory = samples.iter().all(|s| s.memory_bytes.is_some());
        Some(Self {
            way,
            path,
            gigabits_per_second: summary(Sample::gigabits)?,
            cpu_seconds_a_gigabyte: summary(Sample::cpu_a_gigabyte)?,
            cpu_to_recv: Summary::ratio(&cpu(&samples), &cpu(recv)),
            cpu_to_epoll: Summary::ratio(&cpu(&samples), &cpu(epoll)),
            calls_a_megabyte: summary(Sample::calls_a_megabyte)?,
            pieces_a_megabyte: summary(Sample::pieces_a_megabyte)?,
            memory_a_byte: summary(Sample::memory_a_byte).filter(|_| has_memory),
            zero_copied_share: summary(Sample::zero_copied)?,
            samples,
        })
    }
}

impl TcpRxReport {
    /// What failed, with the row.
    pub fn failures(&self) -> Vec<String> {
        let of_case = |case: &TcpRxCase| {
            let line =
                |f: &Failure| format!("{} ({} connections): {}", f.variant, case.connections, f.reason);
            case.failures.iter().map(line).collect::<Vec<_>>()
        };
        self.cases.iter().flat_map(of_case).collect()
    }

    /// The ways that were measured, in order.
    pub fn ways(&self) -> Vec<WayName> {
        let measured = |way: &WayName| self.cases.iter().any(|c| c.lines.iter().any(|l| l.way == *way));
        WayName::ALL.into_iter().filter(measured).collect()
    }

    /// Writes the charts into `folder`, which is made if it isn't there; the names of the files.
    pub fn write_charts(&self, folder: &Path) -> Result<Vec<String>> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("can't make the folder {}", folder.display()))?;
        type Figure = (Better, fn(&Line) -> Summary);
        let charts: [(&str, &str, &str, Figure); 3] = [
            ("cpu", "CPU time of receiving TCP", "CPU s a GB", (Better::Lower, |l| l.cpu_seconds_a_gigabyte)),
            ("rate", "Bandwidth of receiving TCP", "Gbit/s", (Better::Higher, |l| l.gigabits_per_second)),
            (
                "calls",
                "System calls of receiving TCP",
                "system calls a MB",
                (Better::Lower, |l| l.calls_a_megabyte),
            ),
        ];
        let mut names = Vec::new();
        for (kind, title, y_label, (better, figure)) in charts {
            let name = format!("tcp-rx-{kind}.svg");
            self.chart(title, (y_label, better), figure).write(&folder.join(&name))?;
            names.push(name);
        }
        Ok(names)
    }

    fn chart(
        &self,
        title: &str,
        (y_label, better): (&str, Better),
        figure: impl Fn(&Line) -> Summary,
    ) -> Bars {
        let value = |case: &TcpRxCase, way: WayName| case.lines.iter().find(|l| l.way == way).map(&figure);
        let series = self.ways().into_iter().map(|way| Series {
            name: way.to_string(),
            values: self.cases.iter().map(|case| value(case, way)).collect(),
        });
        Bars {
            title: title.to_owned(),
            subtitle: format!(
                "{}; medians of {} interleaved rounds, whiskers: quartiles",
                self.machine, self.rounds
            ),
            y_label: y_label.to_owned(),
            better,
            x_label: "connections".to_owned(),
            groups: self.cases.iter().map(|case| case.connections.to_string()).collect(),
            series: series.collect(),
            reference: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu_seconds: f64) -> Sample {
        let tally = Tally {
            bytes: 2_000_000_000,
            zero_copied: 500_000_000,
            calls: 4000,
            pieces: 8000,
            ..Tally::default()
        };
        Sample { tally, seconds: 4.0, cpu_seconds, memory_bytes: None }
    }

    #[test]
    fn figures_are_what_they_say() {
        let samples = vec![sample(1.0), sample(3.0)];
        let line = Line::of(WayName::Plain, String::new(), samples.clone(), &[], &[sample(2.0), sample(3.0)])
            .expect("samples");
        assert_eq!(line.gigabits_per_second.median, 4.0);
        assert_eq!(line.cpu_seconds_a_gigabyte.median, 1.0);
        assert_eq!((line.calls_a_megabyte.median, line.pieces_a_megabyte.median), (2.0, 4.0));
        assert_eq!(line.cpu_to_epoll.expect("pairs").median, 0.75);
        assert_eq!((line.cpu_to_recv, line.memory_a_byte), (None, None));
        assert_eq!(line.zero_copied_share.median, 0.25);
        assert!(Line::of(WayName::Plain, String::new(), Vec::new(), &samples, &samples).is_none());
    }
}
