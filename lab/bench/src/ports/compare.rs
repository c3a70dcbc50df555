//! Each variant beside the tap's floor.

use serde::Serialize;

use crate::case::Case;
use crate::compare::{CaseReport, NetBench};
use crate::experiment::ReportLine;
use crate::stats::Summary;
use crate::variant::NetSample;

/// The name of the variant that others are compared with.
pub const TAP: &str = "tap floor";

/// One variant in one case.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// What was measured.
    #[serde(flatten)]
    pub case: Case,
    /// The variant.
    pub variant: String,
    /// CPU time of a frame divided by the tap floor's of the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_to_tap_floor: Option<Summary>,
}

/// All variants of a case that succeeded, in their order.
pub fn comparisons(report: &CaseReport) -> Vec<Comparison> {
    let one = |line: &ReportLine<NetBench>| Comparison {
        case: report.at,
        variant: line.variant.clone(),
        cpu_to_tap_floor: to_tap(report, line),
    };
    report.lines.iter().map(one).collect()
}

/// CPU time of a frame divided by the tap floor's of the same round.
pub(super) fn to_tap(report: &CaseReport, line: &ReportLine<NetBench>) -> Option<Summary> {
    report.ratio_to(line, &TAP.to_owned(), NetSample::cpu_ns_per_frame)
}
