//! What a run prints and writes: text, JSON, charts.

mod tables;

use serde::Serialize;

use super::options::ReceiveMode;
use super::reference::{self, Cell};
use super::variant::{RxCase, RxSample, RxWay};
use crate::case::{Direction, WorkingSet};
use crate::chart::{Bars, Series};
use crate::experiment::{
    Base, CellReport, Figure, Report, ReportHead, Subject, bars, failed, failures, sections, subtitle,
};
use crate::stats::Summary;
use crate::table::bytes;
use crate::vsock::host::HostCpu;

/// The comparison of ways to receive by vsock.
#[derive(Debug, Clone)]
pub struct VsockRx;

/// A case with its figures.
pub(super) type RxCell = CellReport<VsockRx>;

/// What is known of a case besides its figures.
#[derive(Debug, Clone, Serialize)]
pub struct RxFacts {
    /// The working set in bytes.
    pub working_set_bytes: usize,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Bytes of each run.
    pub bytes: u64,
    /// The published figures of this column: copying, and mapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<[Cell; 2]>,
    /// D of their mapped receive divided by D of their copying one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_ratio: Option<f64>,
}

impl RxFacts {
    /// Of a case with `rounds` rounds of `bytes` bytes.
    pub fn of(case: &RxCase, rounds: usize, bytes: u64) -> Self {
        let published = |mode| reference::cell(case.direction, mode, case.len);
        Self {
            working_set_bytes: case.set_bytes(),
            rounds,
            bytes,
            published: published(ReceiveMode::Copy)
                .zip(published(ReceiveMode::Mapped))
                .map(|(copy, mapped)| [copy, mapped]),
            published_ratio: reference::ratio(case.direction, case.len),
        }
    }
}

impl Subject for VsockRx {
    type Cell = RxCase;
    type CellFacts = RxFacts;
    type Variant = RxWay;
    type Facts = ();
    type Sample = RxSample;

    const FIGURES: &'static [Figure<Self>] = &[
        // A, B and C: seconds of the send loop, of the receive loop, and in dequeue calls.
        Figure::<Self>::spread("send_seconds", |_, s| Some(s.send_seconds)),
        Figure::<Self>::spread("loop_seconds", |_, s| Some(s.loop_seconds)),
        Figure::<Self>::spread("dequeue_seconds", |_, s| Some(s.dequeue_seconds)),
        // D: nanoseconds in dequeue calls for as many bytes as the column says; and with the look.
        Figure::<Self>::spread("dequeue_ns", |case, s| Some(s.dequeue_ns(case.len))),
        Figure::<Self>::spread("dequeue_and_touch_ns", |case, s| Some(s.dequeue_and_touch_ns(case.len))),
        // CPU seconds for 10⁹ bytes: of back end and program, and of each.
        Figure::<Self>::spread("cpu_s_per_gb", |_, s| Some(s.cpu_per_gb())),
        Figure::<Self>::spread("backend_cpu_s_per_gb", |_, s| Some(s.per_gb(s.backend_cpu_seconds))),
        Figure::<Self>::spread("program_cpu_s_per_gb", |_, s| Some(s.per_gb(s.program_cpu_seconds))),
        // Divided by copying receive's. The first is what was published of others.
        Figure::<Self>::ratio("dequeue_to_copy", "copy", |case, s| s.dequeue_ns(case.len)),
        Figure::<Self>::ratio("time_to_copy", "copy", |case, s| s.dequeue_and_touch_ns(case.len)),
        Figure::<Self>::ratio("cpu_to_copy", "copy", |_, s| s.cpu_per_gb()),
        Figure::<Self>::ratio("cpu_to_floor", "floor", |_, s| s.cpu_per_gb()),
        // Bytes of a dequeue, and wake-ups for each.
        Figure::<Self>::mean("dequeue_len", |_, s| s.per_dequeue(s.bytes)),
        Figure::<Self>::mean("wake_ups_per_dequeue", |_, s| s.per_dequeue(s.wake_ups)),
        // The share of the bytes that stayed where the guest had them. Then the share that the back
        // end copied an additional time, because the program was behind.
        Figure::<Self>::mean("direct_share", |_, s| s.direct_bytes as f64 / s.bytes.max(1) as f64),
        Figure::<Self>::mean("held_share", |_, s| s.held_bytes as f64 / s.bytes.max(1) as f64),
    ];
    const VARIANT: &'static str = "line";
}

impl RxWay {
    /// What it is compared with: copying receive, and a floor. That is the touch alone for direct
    /// windows, else memcpy and touch.
    pub(super) fn bases(self) -> Vec<Base<Self>> {
        let copy = self.mode().is_some_and(|mode| mode != ReceiveMode::Copy).then_some(("copy", Self::Copy));
        let floor = match self {
            Self::FloorTouch | Self::FloorCopyTouch => None,
            Self::Direct | Self::FloorTouchWoken => Some(("floor", Self::FloorTouch)),
            // Host to guest, what is mapped is the device's own buffer: the one copy is the back
            // end's read().
            _ => Some(("floor", Self::FloorCopyTouch)),
        };
        copy.into_iter().chain(floor).map(|(label, variant)| Base { label, variant }).collect()
    }
}

/// The result of `zerowire-bench vsock-rx --table`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct RxReport {
    /// Where it was measured, and remarks.
    #[serde(flatten)]
    pub head: ReportHead,
    /// Megabytes (2^20) of each run.
    pub megabytes: u64,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Credit of a connection in bytes.
    pub credit: u32,
    /// Where the host's program ran.
    pub host_cpu: HostCpu,
    /// Case by case.
    pub cases: Vec<CellReport<VsockRx>>,
}

impl RxReport {
    /// What failed, and why.
    pub fn failures(&self) -> Vec<String> {
        failures(&self.cases)
    }

    fn sections(&self) -> Vec<((Direction, WorkingSet), Vec<&RxCell>)> {
        sections(&self.cases, |case| (case.direction, case.working_set))
    }

    fn cpu_chart(&self, direction: Direction, working_set: WorkingSet, cases: &[&RxCell]) -> Bars {
        // Polling burns a CPU by design, and nobody receives as the control does.
        let ways = [RxWay::FloorCopyTouch, RxWay::Copy, RxWay::Mapped, RxWay::Direct];
        let value = |case: &RxCell, way: &RxWay| case.line(way)?.spread("cpu_s_per_gb");
        let mut chart = bars(cases, |case| bytes(case.len), ways, value);
        for floor in chart.series.iter_mut().filter(|bars| bars.name == RxWay::FloorCopyTouch.to_string()) {
            floor.name = "floor".to_owned();
        }
        Bars {
            title: format!("CPU time of back end and program, {}, {working_set}", direction.from_to()),
            subtitle: subtitle(
                format_args!("{}; floor: one memcpy and a look at each cache line", self.head.machine),
                self.rounds,
            ),
            y_label: "CPU seconds a GB".to_owned(),
            x_label: "bytes of a dequeue".to_owned(),
            ..chart
        }
    }

    /// Mapped against copying receive, beside what was published of it.
    fn ratio_chart(&self, direction: Direction, working_set: WorkingSet, cases: &[&RxCell]) -> Bars {
        let mapped = |name: &str, key: &str| Series {
            name: name.to_owned(),
            values: cases.iter().map(|case| case.line(&RxWay::Mapped)?.spread(key)).collect(),
        };
        let published = |case: &&RxCell| case.facts.published_ratio.and_then(|ratio| Summary::of([ratio]));
        Bars {
            title: format!("Mapped against copying receive, {}, {working_set}", direction.from_to()),
            subtitle: subtitle(
                format_args!(
                    "{}; D: calls that dequeue, D+: with a look at each cache line",
                    self.head.machine
                ),
                self.rounds,
            ),
            y_label: "mapped / copying".to_owned(),
            x_label: "bytes of a dequeue".to_owned(),
            groups: cases.iter().map(|case| bytes(case.at.len)).collect(),
            series: vec![
                Series { name: "D, published".to_owned(), values: cases.iter().map(published).collect() },
                mapped("D", "dequeue_to_copy"),
                mapped("D+", "time_to_copy"),
                mapped("CPU", "cpu_to_copy"),
            ],
            reference: Some(1.0),
            ..Bars::default()
        }
    }
}

impl Report for RxReport {
    fn text(&self) -> String {
        let cpus = format!(
            "{} MiB a run, medians of {} interleaved rounds; credit {} (a guest that receives gives two dequeues at least); \
             {}; GB is 10^9 bytes.\n{}",
            self.megabytes,
            self.rounds,
            bytes(self.credit as usize),
            match self.host_cpu {
                HostCpu::Backend => "host program on the back end's CPU, a polling one on the guest's",
                HostCpu::Guest => "host program on the guest's CPU",
                HostCpu::Any => "host program on any CPU",
            },
            self.head.shared_cpu("driver and back end")
        );
        let mut out = self.head.text(&cpus);
        for ((direction, working_set), cases) in self.sections() {
            out.push('\n');
            out.push_str(&tables::section(direction, working_set, &cases));
        }
        out.push_str(&failed(&self.failures()));
        out
    }

    fn charts(&self) -> Vec<(String, Bars)> {
        let mut charts = Vec::new();
        for ((direction, working_set), cases) in self.sections() {
            let name = |kind: &str| format!("vsock-rx-{kind}-{}-{working_set}.svg", direction.short());
            charts.push((name("cpu"), self.cpu_chart(direction, working_set, &cases)));
            charts.push((name("ratio"), self.ratio_chart(direction, working_set, &cases)));
        }
        charts
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.head.notes
    }
}

#[cfg(test)]
mod tests;
