//! Variants that are prepared for each cell and compared with the first one, the floor.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, bail};
use serde::Serialize;

use super::{Base, CellReport, ProgressLine, ReportLine, Subject, Tried, Turn, interleave};
use crate::programs::{NamedProgram, before};

/// What a back end counted: its ledger of one direction, inner objects flattened.
pub type Ledger = BTreeMap<String, u64>;

/// What was counted between two ledgers.
pub fn since(mut ledger: Ledger, before: &Ledger) -> Ledger {
    for (key, value) in &mut ledger {
        *value -= before.get(key).copied().unwrap_or(0).min(*value);
    }
    ledger.retain(|_, value| *value > 0);
    ledger
}

/// How often and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Rounds of a cell; each variant runs once a round.
    pub rounds: usize,
    /// Half as much a run, or less.
    pub quick: bool,
}

/// How much is moved in a cell: frames or bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amounts {
    /// By the warm-up.
    pub warm_up: usize,
    /// By each round.
    pub round: usize,
    /// How many rounds there are.
    pub rounds: usize,
}

impl Amounts {
    /// By all runs.
    pub fn moved(&self) -> u64 {
        (self.warm_up + self.rounds * self.round) as u64
    }
}

/// A way of moving what a cell says.
pub trait Variant<E: Subject> {
    /// Its name in tables and files.
    fn name(&self) -> &str;

    /// Makes everything ready for a cell. Not measured.
    fn prepare(&mut self, at: &E::Cell) -> Result<()>;

    /// Moves `amount` frames or bytes, and fails when one is lost. The warm-up, which is the first
    /// run after [`Variant::prepare`], may check the content, and no other run.
    fn run(&mut self, at: &E::Cell, amount: usize, turn: Turn) -> Result<E::Sample>;

    /// What the back end's own ledger says of all runs since [`Variant::prepare`]. Empty without a
    /// ledger.
    fn ledger(&mut self) -> Result<Ledger> {
        Ok(Ledger::new())
    }
}

/// A subject whose variants are compared with the first one.
pub trait Floored: Subject<Variant = String> {
    /// How much is moved in a cell.
    fn amounts(at: &Self::Cell, plan: Plan) -> Amounts;

    /// Further facts of a cell.
    fn cell_facts(at: &Self::Cell, amounts: &Amounts) -> Self::CellFacts;

    /// Further facts of a variant in a cell.
    fn facts(at: &Self::Cell, ledger: Ledger, amounts: &Amounts) -> Self::Facts;

    /// The bytes that the ledger must have, if they are compared.
    fn accounted(_: &Amounts) -> Option<u64> {
        None
    }
}

/// The facts of a variant that has a ledger.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LedgerFacts {
    /// The back end's ledger over the warm-up and all rounds.
    #[serde(skip_serializing_if = "Ledger::is_empty")]
    pub ledger: Ledger,
}

/// The base `before` of a variant of a further program: the same variant of the first one.
pub(crate) fn first_program(programs: &[NamedProgram], variant: &str) -> Option<Base<String>> {
    before(programs, variant).map(|variant| Base { label: "before", variant })
}

/// Variants of further programs that cost more than `percent` more than the first program's. The
/// lower quartile of the ratios decides: three rounds of four say so.
pub fn beyond_gate<E: Floored>(cells: &[CellReport<E>], percent: f64) -> Vec<String> {
    let limit = 1.0 + percent / 100.0;
    let line = |cell: &CellReport<E>, line: &ReportLine<E>| {
        let ratio = line.spread("ratio_to_before").filter(|ratio| ratio.q1 > limit)?;
        let (name, at) = (&line.variant, cell.at);
        Some(format!("{name} ({at}): {:.3}..{:.3} times the first program's CPU time", ratio.q1, ratio.q3))
    };
    cells.iter().flat_map(|cell| cell.lines.iter().filter_map(move |of| line(cell, of))).collect()
}

/// Runs all cells. The first variant is the floor, the base `floor` of the others; `bases` says
/// what else a variant is compared with.
///
/// # Errors
/// There are no rounds or no variants. The floor failed: without it there is nothing to compare
/// with.
pub fn compare<E: Floored>(
    cells: &[E::Cell],
    variants: &mut [Box<dyn Variant<E>>],
    plan: Plan,
    bases: impl Fn(&str) -> Vec<Base<String>>,
) -> Result<Vec<CellReport<E>>> {
    let rounds = |at: &E::Cell| E::amounts(at, plan).rounds;
    if variants.is_empty() || cells.iter().any(|at| rounds(at) == 0) {
        bail!("nothing to measure: give at least one round and one variant");
    }
    let mut progress = ProgressLine::new("bench", cells.iter().map(|at| rounds(at) + 1).sum());
    let cell = |at| compare_cell(at, variants, &E::amounts(at, plan), &bases, &mut progress);
    cells.iter().map(cell).collect()
}

fn compare_cell<E: Floored>(
    at: &E::Cell,
    variants: &mut [Box<dyn Variant<E>>],
    amounts: &Amounts,
    bases: impl Fn(&str) -> Vec<Base<String>>,
    progress: &mut ProgressLine,
) -> Result<CellReport<E>> {
    let runs = interleave(variants.len(), amounts.rounds, at, progress, |index, turn| {
        let variant = &mut variants[index];
        match turn {
            Turn::WarmUp => {
                variant.prepare(at).context("preparing failed")?;
                variant.run(at, amounts.warm_up, turn)
            }
            Turn::Round(_) => variant.run(at, amounts.round, turn),
        }
    });
    let floor = variants.first().map(|variant| variant.name().to_owned()).unwrap_or_default();
    let mut tried = Vec::with_capacity(variants.len());
    for (index, (variant, mut runs)) in variants.iter_mut().zip(runs).enumerate() {
        let name = variant.name().to_owned();
        let (ledger, unreadable) = match variant.ledger() {
            Ok(ledger) => (ledger, None),
            Err(error) => (Ledger::new(), Some(error)),
        };
        let problem = runs.failed.take().or(unreadable).or_else(|| {
            let (moved, counted) = (E::accounted(amounts)?, *ledger.get("bytes")?);
            (counted != moved)
                .then(|| anyhow!("{moved} bytes were moved and the back end's ledger has {counted}"))
        });
        match problem {
            Some(error) if index == 0 => return Err(error.context(format!("the floor failed ({at})"))),
            Some(error) => runs.failed = Some(anyhow!("{error:#}; ledger: {ledger:?}")),
            None => {}
        }
        let mut all = bases(&name);
        if index > 0 {
            all.push(Base { label: "floor", variant: floor.clone() });
        }
        tried.push(Tried { variant: name, bases: all, facts: E::facts(at, ledger, amounts), runs });
    }
    Ok(CellReport::of(*at, E::cell_facts(at, amounts), tried, Vec::new()))
}

/// The share of the bytes that a ledger counts as not copied in user space; `None` without a
/// ledger.
pub fn zero_copied<E: Subject<Facts = F>, F>(
    line: &ReportLine<E>,
    ledger: impl Fn(&F) -> &Ledger,
) -> Option<String> {
    let of = |key| ledger(&line.facts).get(key).copied().unwrap_or(0) as f64;
    let bytes = of("bytes");
    (bytes > 0.0).then(|| format!("{:.0} %", 100.0 * of("zero_copied_bytes") / bytes))
}
