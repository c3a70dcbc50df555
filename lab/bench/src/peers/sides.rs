//! The programs of one cell, in turns.

use std::path::PathBuf;

use anyhow::{Result, anyhow};

use super::cell::{OURS, PeerCell, Peers};
use super::find::{self, PeerProgram};
use super::options::PeersOptions;
use crate::experiment::{
    Base, CellReport, Failure, Floored, Plan, ProgressLine, Tried, Turn, Variant, interleave,
};
use crate::transfer::TransferSample;

/// One of the programs: its name, and what it does in a turn.
pub(super) struct PeerSide<'a> {
    name: String,
    run: Box<dyn FnMut(Turn) -> Result<TransferSample> + 'a>,
}

impl<'a> PeerSide<'a> {
    pub(super) fn new(name: &str, run: impl FnMut(Turn) -> Result<TransferSample> + 'a) -> Self {
        Self { name: name.to_owned(), run: Box::new(run) }
    }
}

/// Peers that take no part.
#[derive(Default)]
pub(super) struct MissingPeers {
    /// Those that are not installed.
    absent: Vec<Failure>,
    /// Those that could not be started.
    failed: Vec<Failure>,
}

impl MissingPeers {
    /// Starts a peer, if it is there and can be started.
    pub(super) fn start<T>(
        &mut self,
        peer: PeerProgram,
        options: &PeersOptions,
        start: impl FnOnce(PathBuf) -> Result<T>,
    ) -> Option<T> {
        match find::find(peer, &options.peers) {
            Ok(program) => match start(program) {
                Ok(started) => return Some(started),
                Err(error) => self.failed.push(Failure::of(peer, error)),
            },
            Err(missing) => self.absent.push(missing),
        }
        None
    }
}

/// Runs `sides` in turns. All others are compared with ours.
pub(super) fn compare(
    at: PeerCell,
    mut sides: Vec<PeerSide<'_>>,
    missing: &MissingPeers,
    rounds: usize,
    progress: &mut ProgressLine,
) -> CellReport<Peers> {
    sides.extend(missing.failed.iter().map(|failure| {
        let reason = failure.reason.clone();
        PeerSide::new(&failure.variant, move |_| Err(anyhow!("{reason}")))
    }));
    let runs = interleave(sides.len(), rounds, at, progress, |index, turn| (sides[index].run)(turn));
    let tried = sides.into_iter().zip(runs).map(|(side, runs)| {
        let base = (side.name != OURS).then(|| Base { label: OURS, variant: OURS.to_owned() });
        Tried { variant: side.name, bases: base.into_iter().collect(), facts: (), runs }
    });
    CellReport::of(at, (), tried.collect(), missing.absent.clone())
}

/// Runs the variants of another benchmark in turns, in each of its `cases`. A round moves `longer`
/// times as much as one of that benchmark.
pub(super) fn compare_variants<E: Floored>(
    cases: &[E::Cell],
    at: fn(E::Cell) -> PeerCell,
    variants: &mut [Box<dyn Variant<E>>],
    missing: &MissingPeers,
    longer: usize,
    options: &PeersOptions,
) -> Vec<CellReport<Peers>>
where
    TransferSample: From<E::Sample>,
{
    let (rounds, quick) = (options.rounds(), options.quick);
    let mut progress = ProgressLine::new("peers", cases.len() * (rounds + 1));
    let mut cells = Vec::with_capacity(cases.len());
    for case in cases {
        let amounts = E::amounts(case, Plan { rounds, quick });
        let sides = variants.iter_mut().map(|variant| {
            let name = variant.name().to_owned();
            PeerSide::new(&name, move |turn| {
                let amount = match turn {
                    Turn::WarmUp => {
                        variant.prepare(case)?;
                        amounts.warm_up
                    }
                    Turn::Round(_) => longer * amounts.round,
                };
                variant.run(case, amount, turn).map(TransferSample::from)
            })
        });
        cells.push(compare(at(*case), sides.collect(), missing, rounds, &mut progress));
    }
    cells
}
