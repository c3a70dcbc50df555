//! Interleaved runs of several variants, case by case.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::bare_calls::BARE_CALLS;
use crate::case::Case;
use crate::interleave::{Turn, interleave};
use crate::programs::{NamedProgram, before};
use crate::progress::Progress;
use crate::record::{Failure, Plan, Record, conclude, each_case};
use crate::stats::Summary;
use crate::variant::{Sample, Variant};

/// The figures of one case.
#[derive(Debug, Clone, Serialize)]
pub struct CaseReport {
    /// What was measured.
    #[serde(flatten)]
    pub case: Case,
    /// The working set in bytes.
    pub working_set_bytes: usize,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Frames of each run.
    pub frames: usize,
    /// One entry a variant that succeeded; the first is the floor.
    pub variants: Vec<VariantReport>,
    /// Variants that failed, and why; they are not measured further in this case.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<Failure>,
}

/// The figures of one variant in one case.
#[derive(Debug, Clone, Serialize)]
pub struct VariantReport {
    /// Its name.
    pub name: String,
    /// CPU time of a frame in nanoseconds, all threads.
    pub cpu_ns_per_frame: Summary,
    /// The same divided by the floor's of the same round; `None` without a floor.
    pub ratio_to_floor: Option<Summary>,
    /// The same divided by that of the bare calls of the same round, where they were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_bare_calls: Option<Summary>,
    /// The same divided by that of the first program in the same round, where several programs were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio_to_before: Option<Summary>,
    /// Frames a second.
    pub frames_per_second: Summary,
    /// Gigabits a second.
    pub gigabits_per_second: Summary,
    /// The back end's ledger over the warm-up and all rounds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ledger: BTreeMap<String, u64>,
    /// Every run, in order.
    pub samples: Vec<Sample>,
}

impl CaseReport {
    /// Sets each variant of a further program beside the same one of the first.
    pub(crate) fn set_beside_first(&mut self, programs: &[NamedProgram]) {
        let ratio = |variant: &VariantReport| {
            let base = before(programs, &variant.name)?;
            ratio_to(self, variant, &base, Sample::cpu_ns_per_frame)
        };
        let ratios: Vec<_> = self.variants.iter().map(ratio).collect();
        for (variant, ratio) in self.variants.iter_mut().zip(ratios) {
            variant.ratio_to_before = ratio;
        }
    }
}

/// Runs all cases. The first variant is the floor that the others are compared with.
pub fn compare(cases: &[Case], variants: &mut [Box<dyn Variant>], plan: Plan) -> Result<Vec<CaseReport>> {
    let count = variants.len();
    each_case(
        cases,
        count,
        |case| rounds(case, plan),
        |case, progress| compare_case(case, variants, plan, progress),
    )
}

fn rounds(case: &Case, plan: Plan) -> usize {
    plan.rounds * case.rounds_for_one()
}

fn compare_case(
    case: &Case,
    variants: &mut [Box<dyn Variant>],
    plan: Plan,
    progress: &mut Progress,
) -> Result<CaseReport> {
    let (rounds, frames) = (rounds(case, plan), case.frames(plan.quick));
    // The warm-up moves one burst.
    let runs = interleave(variants.len(), rounds, case, progress, |index, turn| match turn {
        Turn::WarmUp => {
            variants[index].prepare(case).context("preparing failed")?;
            variants[index].run(case, case.burst())
        }
        Turn::Round(_) => variants[index].run(case, frames),
    });
    let records = runs.into_iter().zip(variants);
    let records =
        records.map(|(runs, variant)| Record::new(runs, variant.ledger(), variant.name())).collect();
    let (variants, failures) = conclude(case, records, Sample::cpu_ns_per_frame, report)?;
    let working_set_bytes = case.working_set.bytes();
    let mut report = CaseReport { case: *case, working_set_bytes, rounds, frames, variants, failures };
    // None for the floor, as for its ratio to itself.
    let ratio = |variant: &VariantReport| {
        variant.ratio_to_floor.and_then(|_| ratio_to(&report, variant, BARE_CALLS, Sample::cpu_ns_per_frame))
    };
    let ratios: Vec<_> = report.variants.iter().map(ratio).collect();
    for (variant, ratio) in report.variants.iter_mut().zip(ratios) {
        variant.ratio_to_bare_calls = ratio;
    }
    Ok(report)
}

/// A figure of a variant divided by that of the variant `base` in the same round; `None` for that
/// one itself.
pub(crate) fn ratio_to(
    report: &CaseReport,
    variant: &VariantReport,
    base: &str,
    figure: fn(&Sample) -> f64,
) -> Option<Summary> {
    let figures = |of: &VariantReport| of.samples.iter().map(figure).collect::<Vec<_>>();
    let base = report.variants.iter().find(|other| other.name == base && other.name != variant.name)?;
    Summary::ratio(&figures(variant), &figures(base))
}

fn report(record: Record<Sample>, ratio_to_floor: Option<Summary>) -> Option<VariantReport> {
    Some(VariantReport {
        cpu_ns_per_frame: record.summary(Sample::cpu_ns_per_frame)?,
        ratio_to_floor,
        ratio_to_bare_calls: None,
        ratio_to_before: None,
        frames_per_second: record.summary(Sample::frames_per_second)?,
        gigabits_per_second: record.summary(Sample::gigabits_per_second)?,
        name: record.name,
        ledger: record.ledger,
        samples: record.samples,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use anyhow::bail;

    use super::*;
    use crate::case::{Direction, WorkingSet};

    /// A variant that costs a fixed time a frame, times the number of its run.
    struct Fixed {
        name: &'static str,
        cost: u64,
        runs: u64,
        /// Runs that succeed.
        lasts: u64,
    }

    impl Variant for Fixed {
        fn name(&self) -> &str {
            self.name
        }

        fn prepare(&mut self, _: &Case) -> Result<()> {
            self.runs = 0;
            Ok(())
        }

        fn ledger(&mut self) -> Result<BTreeMap<String, u64>> {
            Ok(BTreeMap::from([("runs".to_owned(), self.runs)]))
        }

        fn run(&mut self, case: &Case, frames: usize) -> Result<Sample> {
            self.runs += 1;
            if self.runs > self.lasts {
                bail!("lost a frame");
            }
            Ok(Sample {
                cpu: Duration::from_nanos(self.cost * self.runs * frames as u64),
                wall: Duration::from_nanos(self.cost * frames as u64),
                frames: frames as u64,
                bytes: (frames * case.frame_len) as u64,
            })
        }
    }

    /// A report of two cases and two variants with invented figures.
    pub(crate) fn sample_reports() -> Vec<CaseReport> {
        let cases = Case::all(&[Direction::Transmit], &[64, 60_000], &[WorkingSet::Hot]).unwrap();
        let variant = |name, cost, lasts| Box::new(Fixed { name, cost, runs: 0, lasts });
        let mut variants: Vec<Box<dyn Variant>> =
            vec![variant("floor", 400, 99), variant("zero copy", 440, 99), variant("broken", 440, 2)];
        let plan = Plan { rounds: 3, quick: true };
        compare(&cases, &mut variants, plan).unwrap()
    }

    #[test]
    fn ratios_are_of_the_same_round_and_failures_are_kept() {
        let reports = sample_reports();
        assert_eq!(reports.len(), 2);
        let [floor, other] = &reports[0].variants[..] else {
            panic!("two variants expected");
        };
        assert!(floor.ratio_to_floor.is_none());
        let ratio = other.ratio_to_floor.unwrap();
        assert!((ratio.min - 1.1).abs() < 1e-9 && (ratio.max - 1.1).abs() < 1e-9);
        assert_eq!(other.samples.len(), 3);
        assert_eq!(other.ledger["runs"], 4);
        assert_eq!(reports[0].failures[0].variant, "broken");
        assert!(reports[0].failures[0].reason.contains("round 2: lost a frame"));
    }

    #[test]
    fn only_a_back_end_is_set_beside_the_bare_calls() {
        let cases = Case::all(&[Direction::Transmit], &[64], &[WorkingSet::Hot]).unwrap();
        let variant =
            |(name, cost)| -> Box<dyn Variant> { Box::new(Fixed { name, cost, runs: 0, lasts: 99 }) };
        let mut variants = [("floor", 400), (BARE_CALLS, 440), ("zerowire", 462)].map(variant);
        let reports = compare(&cases, &mut variants, Plan { rounds: 3, quick: true }).unwrap();
        let ratios: Vec<_> = reports[0].variants.iter().map(|variant| variant.ratio_to_bare_calls).collect();
        assert_eq!(ratios[..2], [None, None]);
        assert!((ratios[2].unwrap().median - 1.05).abs() < 1e-9, "{ratios:?}");
    }

    #[test]
    fn a_further_program_is_set_beside_the_first_one() {
        let cases = Case::all(&[Direction::Transmit], &[64], &[WorkingSet::Hot]).unwrap();
        let variant =
            |(name, cost)| -> Box<dyn Variant> { Box::new(Fixed { name, cost, runs: 0, lasts: 99 }) };
        let costs = [("floor", 400), ("old", 440), ("new", 462), ("old --x", 500), ("new --x", 400)];
        let mut variants = costs.map(variant);
        let mut reports = compare(&cases, &mut variants, Plan { rounds: 3, quick: true }).unwrap();
        reports[0].set_beside_first(&["old=/a", "new=/b"].map(|text| text.parse().unwrap()));
        let ratios = reports[0].variants.iter().map(|variant| variant.ratio_to_before);
        let medians: Vec<_> = ratios.map(|ratio| ratio.map(|r| (r.median * 1000.0).round())).collect();
        assert_eq!(medians, [None, None, Some(1050.0), None, Some(800.0)]);
    }

    #[test]
    fn no_rounds_is_an_error() {
        let plan = Plan { rounds: 0, quick: true };
        assert!(compare(&[], &mut [], plan).is_err());
    }
}
