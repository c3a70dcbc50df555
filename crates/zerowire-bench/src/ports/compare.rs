//! Each variant beside the tap's floor and beside a packet socket that copies.

use serde::Serialize;

use crate::case::{Case, Direction};
use crate::compare::{CaseReport, VariantReport};
use crate::stats::Summary;
use crate::variant::Sample;

/// The names of the variants that others are compared with.
pub const TAP: &str = "tap floor";
/// See [`TAP`].
pub const RAW: &str = "raw socket";

/// The figures of one variant in one case. Ratios are of runs of the same round.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// What was measured.
    #[serde(flatten)]
    pub case: Case,
    /// The variant.
    pub variant: String,
    /// CPU time of a frame divided by the tap floor's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_to_tap_floor: Option<Summary>,
    /// Gigabits a second. None toward the port: bursts are queued while the clock stands, and the kernel's thread works on them
    /// then, so that the time on the wall says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gigabits_per_second: Option<Summary>,
    /// CPU time by time on the wall while frames moved, in percent of one CPU. None toward the port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_load_percent: Option<Summary>,
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
pub fn comparisons(report: &CaseReport) -> Vec<Comparison> {
    report.variants.iter().filter_map(|variant| comparison(report, variant)).collect()
}

fn comparison(report: &CaseReport, variant: &VariantReport) -> Option<Comparison> {
    let figures =
        |of: &VariantReport, figure: fn(&Sample) -> f64| of.samples.iter().map(figure).collect::<Vec<_>>();
    let own = |figure| Summary::of(figures(variant, figure));
    let ratio = |name: &str, figure| {
        let base = report.variants.iter().find(|base| base.name == name && base.name != variant.name)?;
        Summary::ratio(&figures(variant, figure), &figures(base, figure))
    };
    let sends = report.case.direction == Direction::Transmit;
    Some(Comparison {
        case: report.case,
        variant: variant.name.clone(),
        cpu_to_tap_floor: ratio(TAP, Sample::cpu_ns_per_frame),
        gigabits_per_second: own(Sample::gigabits_per_second).filter(|_| sends),
        cpu_load_percent: own(|sample| sample.cpu_load() * 100.0).filter(|_| sends),
        gigabits_per_cpu: own(per_cpu)?,
        bandwidth_to_raw_socket: ratio(RAW, Sample::gigabits_per_second).filter(|_| sends),
        load_to_raw_socket: ratio(RAW, Sample::cpu_load).filter(|_| sends),
        per_cpu_to_raw_socket: ratio(RAW, per_cpu),
    })
}

/// Gigabits in a second of CPU time.
fn per_cpu(sample: &Sample) -> f64 {
    sample.bytes as f64 * 8e-9 / sample.cpu.as_secs_f64().max(1e-9)
}
