//! What a run prints and writes: text, JSON, charts.

mod tables;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::mode::Mode;
use super::reference::{self, Cell};
use super::variant::{Line, RxCase, RxSample};
use crate::case::{Direction, WorkingSet};
use crate::chart::{Bars, Better, Series};
use crate::machine::Machine;
use crate::record::Failure;
use crate::stats::Summary;
use crate::table::bytes;
use crate::vsock::host::HostCpu;

/// The result of `zerowire-bench vsock-rx --table`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RxReport {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether driver and back end had a CPU each.
    pub separate_cpus: bool,
    /// Megabytes (2^20) of each run.
    pub megabytes: u64,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Credit of a connection in bytes.
    pub credit: u32,
    /// Where the host's program ran.
    pub host_cpu: HostCpu,
    /// Remarks on what was left out and why.
    pub notes: Vec<String>,
    /// Case by case.
    pub cases: Vec<RxCaseReport>,
}

/// The figures of one case.
#[derive(Debug, Clone, Serialize)]
pub struct RxCaseReport {
    /// What was measured.
    #[serde(flatten)]
    pub case: RxCase,
    /// The working set in bytes.
    pub working_set_bytes: usize,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Bytes of each run.
    pub bytes: u64,
    /// One entry a line that succeeded.
    pub lines: Vec<LineReport>,
    /// The published figures of this column: copying, and mapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<[Cell; 2]>,
    /// D of their mapped receive divided by D of their copying one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_ratio: Option<f64>,
    /// Lines that failed, and why; they are not measured further in this case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

/// The figures of one line in one case.
#[derive(Debug, Clone, Serialize)]
pub struct LineReport {
    /// Which line.
    pub line: Line,
    /// A: seconds of the send loop.
    pub send_seconds: Summary,
    /// B: seconds of the receive loop.
    pub loop_seconds: Summary,
    /// C: seconds in dequeue calls.
    pub dequeue_seconds: Summary,
    /// D: nanoseconds in dequeue calls for as many bytes as the column says.
    pub dequeue_ns: Summary,
    /// The same with the program's look at each cache line.
    pub dequeue_and_touch_ns: Summary,
    /// CPU seconds of back end and program for 10⁹ bytes.
    pub cpu_s_per_gb: Summary,
    /// CPU seconds of the back end for 10⁹ bytes.
    pub backend_cpu_s_per_gb: Summary,
    /// CPU seconds of the program for 10⁹ bytes.
    pub program_cpu_s_per_gb: Summary,
    /// `dequeue_ns` divided by copying receive's of the same round: what was published of others.
    pub dequeue_to_copy: Option<Summary>,
    /// `dequeue_and_touch_ns` divided by copying receive's of the same round.
    pub time_to_copy: Option<Summary>,
    /// `cpu_s_per_gb` divided by copying receive's of the same round.
    pub cpu_to_copy: Option<Summary>,
    /// `cpu_s_per_gb` divided by the floor's of the same round: the touch floor's for direct windows, else that of memcpy
    /// and touch.
    pub cpu_to_floor: Option<Summary>,
    /// Bytes of a dequeue on average.
    pub dequeue_len: f64,
    /// Wake-ups for each dequeue.
    pub wake_ups_per_dequeue: f64,
    /// The share of the bytes that was left where the guest had them.
    pub direct_share: f64,
    /// The share of the bytes that the back end copied an additional time, because the program was behind.
    pub held_share: f64,
    /// Every run, in order.
    pub samples: Vec<RxSample>,
}

impl LineReport {
    /// The figures of `samples`; `None` when there are none.
    pub fn of(
        line: Line,
        len: usize,
        samples: &[RxSample],
        copy: &[RxSample],
        floor: &[RxSample],
    ) -> Option<Self> {
        let summary = |figure: &dyn Fn(&RxSample) -> f64| Summary::of(samples.iter().map(figure));
        let ratio = |base: &[RxSample], figure: &dyn Fn(&RxSample) -> f64| {
            let of = |samples: &[RxSample]| samples.iter().map(figure).collect::<Vec<f64>>();
            Summary::ratio(&of(samples), &of(base))
        };
        let mean = |figure: &dyn Fn(&RxSample) -> f64| {
            samples.iter().map(figure).sum::<f64>() / samples.len().max(1) as f64
        };
        let time = |sample: &RxSample| sample.dequeue_and_touch_ns(len);
        let copy = if line.mode().is_some_and(|mode| mode != Mode::Copy) { copy } else { &[] };
        Some(Self {
            line,
            send_seconds: summary(&|s| s.send_seconds)?,
            loop_seconds: summary(&|s| s.loop_seconds)?,
            dequeue_seconds: summary(&|s| s.dequeue_seconds)?,
            dequeue_ns: summary(&|s| s.dequeue_ns(len))?,
            dequeue_and_touch_ns: summary(&time)?,
            cpu_s_per_gb: summary(&RxSample::cpu_per_gb)?,
            backend_cpu_s_per_gb: summary(&RxSample::backend_per_gb)?,
            program_cpu_s_per_gb: summary(&RxSample::program_per_gb)?,
            dequeue_to_copy: ratio(copy, &|s| s.dequeue_ns(len)),
            time_to_copy: ratio(copy, &time),
            cpu_to_copy: ratio(copy, &RxSample::cpu_per_gb),
            cpu_to_floor: ratio(floor, &RxSample::cpu_per_gb),
            dequeue_len: mean(&RxSample::dequeue_len),
            wake_ups_per_dequeue: mean(&|s| s.wake_ups as f64 / s.dequeues.max(1) as f64),
            direct_share: mean(&|s| s.direct_bytes as f64 / s.bytes.max(1) as f64),
            held_share: mean(&|s| s.held_bytes as f64 / s.bytes.max(1) as f64),
            samples: samples.to_vec(),
        })
    }
}

impl RxCaseReport {
    /// The report of a case.
    pub fn new(
        case: &RxCase,
        rounds: usize,
        bytes: u64,
        lines: Vec<LineReport>,
        failures: Vec<Failure>,
    ) -> Self {
        let published = |mode| reference::cell(case.direction, mode, case.len);
        Self {
            case: *case,
            working_set_bytes: case.set_bytes(),
            rounds,
            bytes,
            lines,
            published: published(Mode::Copy)
                .zip(published(Mode::Mapped))
                .map(|(copy, mapped)| [copy, mapped]),
            published_ratio: reference::ratio(case.direction, case.len),
            failures,
        }
    }

    fn line(&self, line: Line) -> Option<&LineReport> {
        self.lines.iter().find(|report| report.line == line)
    }
}

impl RxReport {
    /// The report as text.
    pub fn text(&self) -> String {
        let mut out = format!("{}\n", self.machine);
        out.push_str(&format!(
            "{} MiB a run, medians of {} interleaved rounds; credit {} (a guest that receives gives two dequeues at least); \
             {}; GB is 10^9 bytes.\n",
            self.megabytes,
            self.rounds,
            bytes(self.credit as usize),
            match self.host_cpu {
                HostCpu::Backend => "host program on the back end's CPU, a polling one on the guest's",
                HostCpu::Guest => "host program on the guest's CPU",
                HostCpu::Any => "host program on any CPU",
            }
        ));
        if !self.separate_cpus {
            out.push_str("One CPU only: driver and back end took turns; rates mean little.\n");
        }
        for note in &self.notes {
            out.push_str(&format!("Note: {note}.\n"));
        }
        for direction in Direction::ALL {
            for working_set in WorkingSet::ALL {
                let cases = self.of(direction, working_set);
                if !cases.is_empty() {
                    out.push('\n');
                    out.push_str(&tables::section(direction, working_set, &cases));
                }
            }
        }
        for failure in self.failures() {
            out.push_str(&format!("FAILED: {failure}\n"));
        }
        out
    }

    fn of(&self, direction: Direction, working_set: WorkingSet) -> Vec<&RxCaseReport> {
        let wanted = |report: &&RxCaseReport| {
            (report.case.direction, report.case.working_set) == (direction, working_set)
        };
        self.cases.iter().filter(wanted).collect()
    }

    /// What failed, and why.
    pub fn failures(&self) -> Vec<String> {
        let of = |report: &RxCaseReport| -> Vec<String> {
            let lines = report.failures.iter();
            lines.map(|f| format!("{} ({}): {}", f.variant, report.case, f.reason)).collect()
        };
        self.cases.iter().flat_map(of).collect()
    }

    /// Writes the charts into the folder `folder`, which is made if it isn't there. Returns the names of the files.
    pub fn write_charts(&self, folder: &Path) -> Result<Vec<String>> {
        fs::create_dir_all(folder).with_context(|| format!("can't make the folder {}", folder.display()))?;
        let mut names = Vec::new();
        for direction in Direction::ALL {
            for working_set in WorkingSet::ALL {
                let cases = self.of(direction, working_set);
                if cases.is_empty() {
                    continue;
                }
                for (kind, chart) in [
                    ("cpu", self.cpu_chart(direction, working_set, &cases)),
                    ("ratio", self.ratio_chart(direction, working_set, &cases)),
                ] {
                    let name = format!("vsock-rx-{kind}-{}-{working_set}.svg", direction.short());
                    chart.write(&folder.join(&name))?;
                    names.push(name);
                }
            }
        }
        Ok(names)
    }

    fn cpu_chart(&self, direction: Direction, working_set: WorkingSet, cases: &[&RxCaseReport]) -> Bars {
        // Polling burns a CPU by design, and the control is no way of receiving.
        let lines = [Line::FloorCopyTouch, Line::Copy, Line::Mapped, Line::Direct];
        let series = lines.into_iter().filter(|line| cases.iter().any(|case| case.line(*line).is_some()));
        let series = series.map(|line| Series {
            name: if line == Line::FloorCopyTouch { "floor".to_owned() } else { line.name().to_owned() },
            values: cases.iter().map(|case| case.line(line).map(|report| report.cpu_s_per_gb)).collect(),
        });
        Bars {
            title: format!("CPU time of back end and program, {}, {working_set}", way(direction)),
            subtitle: format!(
                "{}; floor: one memcpy and a look at each cache line; medians of {} interleaved rounds, whiskers: \
                 quartiles",
                self.machine, self.rounds
            ),
            y_label: "CPU seconds a GB".to_owned(),
            better: Better::Lower,
            x_label: "bytes of a dequeue".to_owned(),
            groups: cases.iter().map(|report| bytes(report.case.len)).collect(),
            series: series.collect(),
            reference: None,
        }
    }

    /// Mapped against copying receive, beside what was published of it.
    fn ratio_chart(&self, direction: Direction, working_set: WorkingSet, cases: &[&RxCaseReport]) -> Bars {
        let mapped = |name: &str, ratio: fn(&LineReport) -> Option<Summary>| Series {
            name: name.to_owned(),
            values: cases.iter().map(|case| case.line(Line::Mapped).and_then(ratio)).collect(),
        };
        let published = |case: &&RxCaseReport| case.published_ratio.and_then(|ratio| Summary::of([ratio]));
        Bars {
            title: format!("Mapped against copying receive, {}, {working_set}", way(direction)),
            subtitle: format!(
                "{}; D: calls that dequeue, D+: with a look at each cache line; medians of {} interleaved rounds, whiskers: \
                 quartiles",
                self.machine, self.rounds
            ),
            y_label: "mapped / copying".to_owned(),
            better: Better::Lower,
            x_label: "bytes of a dequeue".to_owned(),
            groups: cases.iter().map(|report| bytes(report.case.len)).collect(),
            series: vec![
                Series { name: "D, published".to_owned(), values: cases.iter().map(published).collect() },
                mapped("D", |line| line.dequeue_to_copy),
                mapped("D+", |line| line.time_to_copy),
                mapped("CPU", |line| line.cpu_to_copy),
            ],
            reference: Some(1.0),
        }
    }
}

fn way(direction: Direction) -> &'static str {
    match direction {
        Direction::Transmit => "guest to host",
        Direction::Receive => "host to guest",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> RxReport {
        let line = |line: Line, len, cost: f64, copy: &[RxSample], floor: &[RxSample]| {
            let samples = samples(cost);
            LineReport::of(line, len, &samples, copy, floor).unwrap()
        };
        let case = |direction, len| {
            let (copy, floor) = (samples(4.0), samples(1.0));
            let lines = vec![
                line(Line::FloorCopyTouch, len, 1.0, &[], &[]),
                line(Line::Copy, len, 4.0, &copy, &floor),
                line(Line::Mapped, len, 2.0, &copy, &floor),
            ];
            let failures = vec![Failure { variant: "direct".into(), reason: "refused".into() }];
            RxCaseReport::new(
                &RxCase { direction, len, working_set: WorkingSet::Hot, windows: 4 },
                3,
                1 << 20,
                lines,
                failures,
            )
        };
        RxReport {
            machine: Machine {
                kernel: "6.18.0".into(),
                cpu: "Some CPU".into(),
                cores: 2,
                ..Machine::default()
            },
            separate_cpus: true,
            megabytes: 1,
            rounds: 3,
            credit: 65_536,
            host_cpu: HostCpu::Backend,
            notes: vec!["the machine was busy".into()],
            cases: vec![case(Direction::Transmit, 4096), case(Direction::Receive, 5 << 12)],
        }
    }

    fn samples(cost: f64) -> Vec<RxSample> {
        let one = |round: f64| RxSample {
            bytes: 1 << 20,
            send_seconds: 0.5,
            loop_seconds: 0.6,
            dequeue_seconds: cost * round * 1e-4,
            touch_seconds: cost * round * 1e-4,
            dequeues: 256,
            wake_ups: 128,
            backend_cpu_seconds: cost * round * 1e-3,
            program_cpu_seconds: cost * round * 1e-3,
            direct_bytes: 0,
            held_bytes: 0,
        };
        [1.0, 2.0, 3.0].map(one).to_vec()
    }

    #[test]
    fn text_has_the_cells_the_ratios_and_what_failed() {
        let text = report().text();
        for word in [
            "Linux 6.18.0, Some CPU, 2 CPUs",
            "Note: the machine was busy.",
            "Guest to host, hot (256 KiB).",
            "0.500/0.600",
            "0.50 (0.50..0.50)",
            "published, copy  D",
            "7039",
            "FAILED: direct (guest -> host, 4 KiB dequeues, hot): refused",
        ] {
            assert!(text.contains(word), "{word:?} is missing in:\n{text}");
        }
    }

    /// The cells of a row of the ratios, by their headings.
    fn cells<'a>(text: &'a str, row: &str) -> Vec<(&'a str, &'a str)> {
        let split = |line: &'a str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        let headings = text.lines().find(|line| line.contains("D / copy  ")).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with(row)).unwrap_or_default();
        split(headings).zip(split(line).skip(1)).collect()
    }

    #[test]
    fn what_was_published_is_a_column_beside_the_ratios() {
        let text = report().text();
        let mapped = cells(&text, "mapped, 4 KiB ");
        assert_eq!(
            mapped[..3],
            [("D / copy", "0.50 (0.50..0.50)"), ("published", "1.93"), ("D+ / copy", "0.50 (0.50..0.50)")],
            "{text}"
        );
        assert_eq!(mapped[4], ("CPU / floor", "2.00 (2.00..2.00)"));
        // Nothing was published of copying alone, and not of this length.
        assert_eq!(cells(&text, "copy, 4 KiB ")[1], ("published", "-"));
        assert_eq!(cells(&text, "mapped, 20 KiB ")[1], ("published", "-"));
    }

    #[test]
    fn every_length_is_in_every_table() {
        let mut report = report();
        let case = report.cases.remove(0);
        report.cases = reference::LENS
            .iter()
            .map(|len| {
                RxCaseReport::new(
                    &RxCase { len: *len, ..case.case },
                    3,
                    1 << 20,
                    case.lines.clone(),
                    Vec::new(),
                )
            })
            .collect();
        let text = report.text();
        let lens = reference::LENS.map(bytes);
        let headings: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
            .collect();
        // Times and CPU seconds have a column a length, ratios a row.
        assert_eq!(headings.iter().filter(|cells| **cells == lens).count(), 2, "{text}");
        for (len, ratio) in lens.iter().zip(["1.93", "1.05", "0.85", "0.48", "0.44", "0.34"]) {
            assert_eq!(cells(&text, &format!("mapped, {len} "))[1], ("published", ratio), "{text}");
        }
    }

    #[test]
    fn json_carries_every_run_and_the_published_cells() {
        let json = serde_json::to_value(report()).unwrap();
        let case = &json["cases"][0];
        assert_eq!((&case["direction"], &case["len"]), (&"transmit".into(), &4096.into()));
        assert_eq!(case["lines"][2]["line"], "mapped");
        assert_eq!(case["lines"][2]["samples"].as_array().unwrap().len(), 3);
        assert_eq!(case["lines"][2]["cpu_to_floor"]["median"], 2.0);
        assert!(case["lines"][1]["time_to_copy"].is_null());
        assert_eq!(case["published"][1]["dequeue_ns"], 13598.0);
        assert!((case["published_ratio"].as_f64().unwrap() - 1.93).abs() < 0.01);
        assert_eq!(case["lines"][2]["dequeue_to_copy"]["median"], 0.5);
        // A length that was not published.
        assert!(json["cases"][1]["published"].is_null());
    }

    #[test]
    fn charts_name_the_machine() {
        let report = report();
        let cases: Vec<&RxCaseReport> = report.cases.iter().take(1).collect();
        for (chart, words) in [
            (report.cpu_chart(Direction::Transmit, WorkingSet::Hot, &cases), ["mapped", "CPU seconds a GB"]),
            (report.ratio_chart(Direction::Transmit, WorkingSet::Hot, &cases), ["D, published", "D+"]),
        ] {
            let svg = chart.render().unwrap();
            for word in words.into_iter().chain(["Linux 6.18.0", "4 KiB", "guest to host"]) {
                assert!(svg.contains(word), "{word} is missing");
            }
        }
    }
}
