//! Each variant beside the tap's floor.

use serde::Serialize;

use crate::case::Case;
use crate::compare::{CaseReport, VariantReport, ratio_to};
use crate::stats::Summary;
use crate::variant::Sample;

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
    let one = |variant: &VariantReport| Comparison {
        case: report.case,
        variant: variant.name.clone(),
        cpu_to_tap_floor: ratio_to(report, variant, TAP, Sample::cpu_ns_per_frame),
    };
    report.variants.iter().map(one).collect()
}
