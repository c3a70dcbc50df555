//! Interleaved runs of several variants, case by case.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::Serialize;

use crate::case::Case;
use crate::progress::Progress;
use crate::stats::{Summary, rotation};
use crate::variant::{Sample, Variant};

/// How often and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Rounds of a case; each variant runs once a round.
    pub rounds: usize,
    /// Half as many frames a run.
    pub quick: bool,
}

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
    /// One entry a variant; the first is the floor.
    pub variants: Vec<VariantReport>,
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
    /// Frames a second.
    pub frames_per_second: Summary,
    /// Gigabits a second.
    pub gigabits_per_second: Summary,
    /// The ledger, added up over all rounds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub ledger: BTreeMap<String, u64>,
    /// Every run, in order.
    pub samples: Vec<Sample>,
}

/// Runs all cases. The first variant is the floor that the others are compared with.
pub fn compare(cases: &[Case], variants: &mut [Box<dyn Variant>], plan: Plan) -> Result<Vec<CaseReport>> {
    if variants.is_empty() || plan.rounds == 0 {
        bail!("nothing to measure: give at least one round and one variant");
    }
    let mut progress = Progress::new("bench", cases.len() * (plan.rounds + 1));
    let mut reports = Vec::with_capacity(cases.len());
    for case in cases {
        reports.push(compare_case(case, variants, plan, &mut progress)?);
    }
    progress.finish();
    Ok(reports)
}

fn compare_case(
    case: &Case,
    variants: &mut [Box<dyn Variant>],
    plan: Plan,
    progress: &mut Progress,
) -> Result<CaseReport> {
    let frames = case.frames(plan.quick);
    progress.step(case);
    for variant in variants.iter_mut() {
        let failed = format!("{} ({case}): preparing failed", variant.name());
        variant.prepare(case).context(failed)?;
        // One burst warms memory, caches and queues; it doesn't count.
        let failed = format!("{} ({case}): the warm-up failed", variant.name());
        variant.run(case, case.burst()).context(failed)?;
    }
    progress.advance();
    let mut samples = vec![Vec::with_capacity(plan.rounds); variants.len()];
    for round in 0..plan.rounds {
        progress.step(case);
        for index in rotation(variants.len(), round) {
            let variant = &mut variants[index];
            let failed = format!("{} ({case}): round {} failed", variant.name(), round + 1);
            samples[index].push(variant.run(case, frames).context(failed)?);
        }
        progress.advance();
    }
    let names: Vec<String> = variants.iter().map(|v| v.name().to_owned()).collect();
    Ok(CaseReport {
        case: *case,
        working_set_bytes: case.working_set.bytes(),
        rounds: plan.rounds,
        frames,
        variants: summarise(&names, samples)?,
    })
}

/// Turns the runs of all variants into figures; the first variant is the floor.
fn summarise(names: &[String], samples: Vec<Vec<Sample>>) -> Result<Vec<VariantReport>> {
    let cost = |runs: &[Sample]| -> Vec<f64> { runs.iter().map(Sample::cpu_ns_per_frame).collect() };
    let floor = samples.first().map(|runs| cost(runs)).unwrap_or_default();
    let mut reports = Vec::with_capacity(names.len());
    for (index, (name, runs)) in names.iter().zip(samples).enumerate() {
        let costs = cost(&runs);
        let summary = |figure: fn(&Sample) -> f64| {
            Summary::of(runs.iter().map(figure)).with_context(|| format!("{name}: no runs"))
        };
        let mut ledger = BTreeMap::new();
        for (key, value) in runs.iter().flat_map(|run| &run.ledger) {
            *ledger.entry(key.clone()).or_insert(0) += value;
        }
        reports.push(VariantReport {
            name: name.clone(),
            cpu_ns_per_frame: summary(Sample::cpu_ns_per_frame)?,
            ratio_to_floor: if index == 0 { None } else { Summary::ratio(&costs, &floor) },
            frames_per_second: summary(Sample::frames_per_second)?,
            gigabits_per_second: summary(Sample::gigabits_per_second)?,
            ledger,
            samples: runs,
        });
    }
    Ok(reports)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::case::{Direction, WorkingSet};

    /// A variant that costs a fixed time a frame, times the number of its run.
    struct Fixed {
        name: &'static str,
        cost: u64,
        runs: u64,
    }

    impl Variant for Fixed {
        fn name(&self) -> &str {
            self.name
        }

        fn prepare(&mut self, _: &Case) -> Result<()> {
            self.runs = 0;
            Ok(())
        }

        fn run(&mut self, case: &Case, frames: usize) -> Result<Sample> {
            self.runs += 1;
            Ok(Sample {
                cpu: Duration::from_nanos(self.cost * self.runs * frames as u64),
                wall: Duration::from_nanos(self.cost * frames as u64),
                frames: frames as u64,
                bytes: (frames * case.frame_len) as u64,
                ledger: BTreeMap::from([("zero_copy_bytes".to_owned(), 5)]),
            })
        }
    }

    /// A report of two cases and two variants with invented figures.
    pub(crate) fn sample_reports() -> Vec<CaseReport> {
        let cases = Case::all(&[Direction::Transmit], &[64, 60_000], &[WorkingSet::Hot]).unwrap();
        let mut variants: Vec<Box<dyn Variant>> = vec![
            Box::new(Fixed { name: "floor", cost: 400, runs: 0 }),
            Box::new(Fixed { name: "zero copy", cost: 440, runs: 0 }),
        ];
        let plan = Plan { rounds: 3, quick: true };
        compare(&cases, &mut variants, plan).unwrap()
    }

    #[test]
    fn ratios_are_of_the_same_round_and_ledgers_add_up() {
        let reports = sample_reports();
        assert_eq!(reports.len(), 2);
        let [floor, other] = &reports[0].variants[..] else {
            panic!("two variants expected");
        };
        assert!(floor.ratio_to_floor.is_none());
        let ratio = other.ratio_to_floor.unwrap();
        assert!((ratio.min - 1.1).abs() < 1e-9 && (ratio.max - 1.1).abs() < 1e-9);
        assert_eq!(other.samples.len(), 3);
        assert_eq!(other.ledger["zero_copy_bytes"], 15);
    }

    #[test]
    fn no_rounds_is_an_error() {
        let plan = Plan { rounds: 0, quick: true };
        assert!(compare(&[], &mut [], plan).is_err());
    }
}
