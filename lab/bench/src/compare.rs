//! The comparison of ways to move frames between a guest and its port.

use serde::Serialize;

use crate::bare_calls::BARE_CALLS;
use crate::case::Case;
use crate::experiment::floored::{Amounts, Floored, Ledger, LedgerFacts, Plan, first_program, zero_copied};
use crate::experiment::{Base, CellReport, Figure, ReportLine, Subject};
use crate::programs::NamedProgram;
use crate::transfer::TransferSample;

/// The tap's floor, where another one is the floor.
pub const TAP: &str = "tap floor";
/// A plain packet socket that copies: the floor of streams on ports.
pub const RAW: &str = "raw socket";

/// The comparison.
#[derive(Debug, Clone)]
pub struct NetBench;

/// The figures of a case; the first line is the floor's.
pub type CaseReport = CellReport<NetBench>;

/// What is known of a case besides its figures.
#[derive(Debug, Clone, Serialize)]
pub struct NetFacts {
    /// The working set in bytes.
    pub working_set_bytes: usize,
    /// Rounds, without the warm-up.
    pub rounds: usize,
    /// Frames of each run.
    pub frames: usize,
}

impl Subject for NetBench {
    type Cell = Case;
    type CellFacts = NetFacts;
    type Variant = String;
    type Facts = LedgerFacts;
    type Sample = TransferSample;

    const FIGURES: &'static [Figure<Self>] = &[
        // Of all threads, in nanoseconds. The ratios are to the floor; to the bare calls and to the
        // tap's floor where they were measured; and to the first of several programs.
        Figure::<Self>::spread("cpu_ns_per_frame", |_, s| Some(s.cpu_each())),
        Figure::<Self>::ratio("ratio_to_floor", "floor", |_, s| s.cpu_each()),
        Figure::<Self>::ratio_if_any("ratio_to_bare_calls", BARE_CALLS, |_, s| s.cpu_each()),
        Figure::<Self>::ratio_if_any("cpu_to_tap_floor", TAP, |_, s| s.cpu_each()),
        Figure::<Self>::ratio_if_any("ratio_to_before", "before", |_, s| s.cpu_each()),
        Figure::<Self>::spread("frames_per_second", |_, s| Some(s.rate())),
        Figure::<Self>::spread("gigabits_per_second", |_, s| Some(s.gigabits_per_second())),
        // Of one CPU, and for a whole one.
        Figure::<Self>::spread("cpu_load_percent", |_, s| Some(100.0 * s.cpu_load())),
        Figure::<Self>::spread("gigabits_per_cpu", |_, s| Some(s.gigabits_per_cpu())),
        Figure::<Self>::ratio_if_any("bandwidth_to_raw_socket", RAW, |_, s| s.gigabits_per_second()),
        Figure::<Self>::ratio_if_any("load_to_raw_socket", RAW, |_, s| s.cpu_load()),
        Figure::<Self>::ratio_if_any("per_cpu_to_raw_socket", RAW, |_, s| s.gigabits_per_cpu()),
    ];
    const LINES: &'static str = "variants";
    const VARIANT: &'static str = "name";
}

impl Floored for NetBench {
    /// The warm-up moves one burst.
    fn amounts(case: &Case, plan: Plan) -> Amounts {
        let rounds = plan.rounds * case.rounds_for_one();
        Amounts { warm_up: case.burst(), round: case.frames(plan.quick), rounds }
    }

    fn cell_facts(case: &Case, amounts: &Amounts) -> NetFacts {
        let working_set_bytes = case.working_set.bytes();
        NetFacts { working_set_bytes, rounds: amounts.rounds, frames: amounts.round }
    }

    fn facts(_: &Case, ledger: Ledger, _: &Amounts) -> LedgerFacts {
        LedgerFacts { ledger }
    }
}

/// What a variant is compared with besides the floor.
pub(crate) fn bases(programs: &[NamedProgram], variant: &str) -> Vec<Base<String>> {
    let bare_calls = Base { label: BARE_CALLS, variant: BARE_CALLS.to_owned() };
    let bare_calls = Some(bare_calls).filter(|_| !["floor", BARE_CALLS].contains(&variant));
    bare_calls.into_iter().chain(first_program(programs, variant)).collect()
}

/// The share of the bytes that were not copied in user space.
pub(crate) fn not_copied(_: &CaseReport, line: &ReportLine<NetBench>) -> Option<String> {
    zero_copied(line, |facts| &facts.ledger)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use anyhow::{Result, bail};

    use super::*;
    use crate::case::{Direction, WorkingSet};
    use crate::experiment::floored::{Variant, beyond_gate, compare};
    use crate::interleave::Turn;

    /// A variant that costs a fixed time a frame, times the number of its run.
    struct Fixed {
        name: &'static str,
        cost: u64,
        runs: u64,
        /// Runs that succeed.
        lasts: u64,
    }

    impl Variant<NetBench> for Fixed {
        fn name(&self) -> &str {
            self.name
        }

        fn prepare(&mut self, _: &Case) -> Result<()> {
            self.runs = 0;
            Ok(())
        }

        fn ledger(&mut self) -> Result<Ledger> {
            Ok(Ledger::from([("runs".to_owned(), self.runs)]))
        }

        fn run(&mut self, case: &Case, frames: usize, _: Turn) -> Result<TransferSample> {
            self.runs += 1;
            if self.runs > self.lasts {
                bail!("lost a frame");
            }
            let times =
                [self.cost * self.runs, self.cost].map(|cost| Duration::from_nanos(cost * frames as u64));
            Ok(TransferSample::of_frames(times.into(), frames, case.frame_len))
        }
    }

    /// A report of two cases and two variants with invented figures.
    pub(crate) fn sample_reports() -> Vec<CaseReport> {
        reports_of([("floor", 400), ("zero copy", 440)], |name| bases(&[], name))
    }

    /// The same of these variants, each of which is compared with `other`, too.
    pub(crate) fn reports_beside(names: [&'static str; 3], other: &'static str) -> Vec<CaseReport> {
        let costs = names.into_iter().zip([400, 440, 440]);
        let base = |name: &str| (name != other).then(|| Base { label: other, variant: other.to_owned() });
        reports_of(costs, |name| base(name).into_iter().collect())
    }

    /// Reports of two cases; a further variant fails.
    fn reports_of(
        costs: impl IntoIterator<Item = (&'static str, u64)>,
        bases: impl Fn(&str) -> Vec<Base<String>>,
    ) -> Vec<CaseReport> {
        let cases = Case::all(&[Direction::Transmit], &[64, 60_000], &[WorkingSet::Hot]).unwrap();
        let variant = |name, cost, lasts| Box::new(Fixed { name, cost, runs: 0, lasts });
        let mut variants: Vec<Box<dyn Variant<NetBench>>> = Vec::new();
        for (name, cost) in costs {
            variants.push(variant(name, cost, 99));
        }
        variants.push(variant("broken", 440, 2));
        compare(&cases, &mut variants, Plan { rounds: 3, quick: true }, bases).unwrap()
    }

    #[test]
    fn ratios_are_of_the_same_round_and_failures_are_kept() {
        let reports = sample_reports();
        assert_eq!(reports.len(), 2);
        let [floor, other] = &reports[0].lines[..] else {
            panic!("two variants expected");
        };
        assert!(floor.spread("ratio_to_floor").is_none());
        let ratio = other.spread("ratio_to_floor").unwrap();
        assert!((ratio.min - 1.1).abs() < 1e-9 && (ratio.max - 1.1).abs() < 1e-9);
        assert_eq!(other.samples.len(), 3);
        assert_eq!(other.facts.ledger["runs"], 4);
        assert_eq!(reports[0].failures[0].variant, "broken");
        assert!(reports[0].failures[0].reason.contains("round 2: lost a frame"));
    }

    #[test]
    fn only_a_back_end_is_set_beside_the_bare_calls() {
        let cases = Case::all(&[Direction::Transmit], &[64], &[WorkingSet::Hot]).unwrap();
        let variant = |(name, cost)| -> Box<dyn Variant<NetBench>> {
            Box::new(Fixed { name, cost, runs: 0, lasts: 99 })
        };
        let mut variants = [("floor", 400), (BARE_CALLS, 440), ("zerowire", 462)].map(variant);
        let plan = Plan { rounds: 3, quick: true };
        let reports = compare(&cases, &mut variants, plan, |name| bases(&[], name)).unwrap();
        let ratios: Vec<_> = reports[0].lines.iter().map(|line| line.spread("ratio_to_bare_calls")).collect();
        assert_eq!(ratios[..2], [None, None]);
        assert!((ratios[2].unwrap().median - 1.05).abs() < 1e-9, "{ratios:?}");
    }

    #[test]
    fn a_further_program_is_set_beside_the_first_one() {
        let cases = Case::all(&[Direction::Transmit], &[64], &[WorkingSet::Hot]).unwrap();
        let variant = |(name, cost)| -> Box<dyn Variant<NetBench>> {
            Box::new(Fixed { name, cost, runs: 0, lasts: 99 })
        };
        let costs = [("floor", 400), ("old", 440), ("new", 462), ("old --x", 500), ("new --x", 400)];
        let mut variants = costs.map(variant);
        let programs = ["old=/a", "new=/b"].map(|text| text.parse().unwrap());
        let plan = Plan { rounds: 3, quick: true };
        let reports = compare(&cases, &mut variants, plan, |name| bases(&programs, name)).unwrap();
        let ratios = reports[0].lines.iter().map(|line| line.spread("ratio_to_before"));
        let medians: Vec<_> = ratios.map(|ratio| ratio.map(|r| (r.median * 1000.0).round())).collect();
        assert_eq!(medians, [None, None, Some(1050.0), None, Some(800.0)]);
        // 5 % more is beyond a gate of 2 % and within one of 6 %.
        let beyond = ["new (tx 64 B hot): 1.050..1.050 times the first program's CPU time"];
        assert_eq!(beyond_gate(&reports, 2.0), beyond);
        assert_eq!(beyond_gate(&reports, 6.0), Vec::<String>::new());
    }

    #[test]
    fn a_program_is_within_any_gate_of_itself() {
        let cases = Case::all(&[Direction::Transmit], &[64], &[WorkingSet::Hot]).unwrap();
        let variant = |(name, cost)| -> Box<dyn Variant<NetBench>> {
            Box::new(Fixed { name, cost, runs: 0, lasts: 99 })
        };
        let mut variants = [("floor", 400), ("old", 440), ("new", 440)].map(variant);
        let programs = ["old=/a", "new=/a"].map(|text| text.parse().unwrap());
        let plan = Plan { rounds: 3, quick: true };
        let reports = compare(&cases, &mut variants, plan, |name| bases(&programs, name)).unwrap();
        assert_eq!(beyond_gate(&reports, 0.0), Vec::<String>::new());
    }

    #[test]
    fn no_rounds_is_an_error() {
        let plan = Plan { rounds: 0, quick: true };
        assert!(compare::<NetBench>(&[], &mut [], plan, |_| Vec::new()).is_err());
    }
}
