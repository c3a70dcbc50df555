use std::time::Duration;

use anyhow::{Result, bail};

use super::*;
use crate::case::{Direction, WorkingSet};
use crate::experiment::{Turn, Variant, beyond_gate, compare};

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
        let times = [self.cost * self.runs, self.cost].map(|cost| Duration::from_nanos(cost * frames as u64));
        Ok(TransferSample::of_frames(times.into(), frames, case.frame_len))
    }
}

/// Compares variants of these costs in cases of these lengths. One that is broken fails.
fn compared(
    sizes: &[usize],
    costs: &[(&'static str, u64)],
    bases: impl Fn(&str) -> Vec<Base<String>>,
) -> Vec<CaseReport> {
    let cases = Case::all(&[Direction::Transmit], sizes, &[WorkingSet::Hot]).unwrap();
    let variant = |&(name, cost): &(&'static str, u64)| -> Box<dyn Variant<NetBench>> {
        Box::new(Fixed { name, cost, runs: 0, lasts: if name == "broken" { 2 } else { 99 } })
    };
    let mut variants: Vec<_> = costs.iter().map(variant).collect();
    compare(&cases, &mut variants, Plan { rounds: 3, quick: true }, bases).unwrap()
}

/// A report of two cases and two variants with invented figures.
pub(crate) fn sample_reports() -> Vec<CaseReport> {
    compared(&[64, 60_000], &[("floor", 400), ("zero copy", 440), ("broken", 440)], |name| bases(&[], name))
}

/// The same of these variants, each of which is compared with `other`, too.
pub(crate) fn reports_beside(names: [&'static str; 3], other: &'static str) -> Vec<CaseReport> {
    let base = |name: &str| (name != other).then(|| Base { label: other, variant: other.to_owned() });
    let [first, second, third] = names;
    let costs = [(first, 400), (second, 440), (third, 440), ("broken", 440)];
    compared(&[64, 60_000], &costs, |name| base(name).into_iter().collect())
}

/// Variants of `programs`, in a case of 64 bytes.
fn of_programs(costs: &[(&'static str, u64)], programs: [&str; 2]) -> Vec<CaseReport> {
    let programs = programs.map(|text| text.parse().unwrap());
    compared(&[64], costs, |name| bases(&programs, name))
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
    let costs = [("floor", 400), (BARE_CALLS, 440), ("zerowire", 462)];
    let reports = compared(&[64], &costs, |name| bases(&[], name));
    let ratios: Vec<_> = reports[0].lines.iter().map(|line| line.spread("ratio_to_bare_calls")).collect();
    assert_eq!(ratios[..2], [None, None]);
    assert!((ratios[2].unwrap().median - 1.05).abs() < 1e-9, "{ratios:?}");
}

#[test]
fn a_further_program_is_set_beside_the_first_one() {
    let costs = [("floor", 400), ("old", 440), ("new", 462), ("old --x", 500), ("new --x", 400)];
    let reports = of_programs(&costs, ["old=/a", "new=/b"]);
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
    let reports = of_programs(&[("floor", 400), ("old", 440), ("new", 440)], ["old=/a", "new=/a"]);
    assert_eq!(beyond_gate(&reports, 0.0), Vec::<String>::new());
}

#[test]
fn no_rounds_is_an_error() {
    let plan = Plan { rounds: 0, quick: true };
    assert!(compare::<NetBench>(&[], &mut [], plan, |_| Vec::new()).is_err());
}
