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
use crate::chart::{Bars, Series};
use crate::machine::Machine;
use crate::record::Failure;
use crate::stats::Summary;
use crate::table::bytes;
use crate::vsock::host::HostCpu;

/// The result of `zerowire bench vsock-rx --table`.
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
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let mut names = Vec::new();
        for direction in Direction::ALL {
            for working_set in WorkingSet::ALL {
                let cases = self.of(direction, working_set);
                if cases.is_empty() {
                    continue;
                }
                let name = format!("vsock-rx-cpu-{}-{working_set}.svg", direction.short());
                self.chart(direction, working_set, &cases).write(&folder.join(&name))?;
                names.push(name);
            }
        }
        Ok(names)
    }

    fn chart(&self, direction: Direction, working_set: WorkingSet, cases: &[&RxCaseReport]) -> Bars {
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
            x_label: "bytes of a dequeue".to_owned(),
            groups: cases.iter().map(|report| bytes(report.case.len)).collect(),
            series: series.collect(),
            reference: None,
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
            "1.93",
            "FAILED: direct (guest -> host, 4 KiB dequeues, hot): refused",
        ] {
            assert!(text.contains(word), "{word:?} is missing in:\n{text}");
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
        // A length that was not published.
        assert!(json["cases"][1]["published"].is_null());
    }

    #[test]
    fn charts_name_the_machine() {
        let report = report();
        let cases: Vec<&RxCaseReport> = report.cases.iter().take(1).collect();
        let svg = report.chart(Direction::Transmit, WorkingSet::Hot, &cases).render().unwrap();
        for word in ["Linux 6.18.0", "4 KiB", "mapped", "guest to host"] {
            assert!(svg.contains(word), "{word} is missing");
        }
    }
}
