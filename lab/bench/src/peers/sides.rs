//! The programs of one cell, in turns.

use anyhow::{Result, anyhow};

use super::cell::{OURS, PeerCell, PeerSample, Peers};
use crate::experiment::{Base, CellReport, Failure, Tried};
use crate::interleave::{Turn, interleave};
use crate::progress::ProgressLine;

/// One of the programs: its name, and what it does in a turn.
pub(super) struct PeerSide<'a> {
    name: String,
    run: Box<dyn FnMut(Turn) -> Result<PeerSample> + 'a>,
}

impl<'a> PeerSide<'a> {
    pub(super) fn new(name: &str, run: impl FnMut(Turn) -> Result<PeerSample> + 'a) -> Self {
        Self { name: name.to_owned(), run: Box::new(run) }
    }

    /// One that could not be started: it counts as failed.
    pub(super) fn failed(failure: &Failure) -> Self {
        let reason = failure.reason.clone();
        Self::new(&failure.variant, move |_| Err(anyhow!("{reason}")))
    }
}

/// Runs `sides` in turns. All others are compared with ours.
pub(super) fn compare(
    at: PeerCell,
    mut sides: Vec<PeerSide<'_>>,
    absent: &[Failure],
    rounds: usize,
    progress: &mut ProgressLine,
) -> CellReport<Peers> {
    let runs = interleave(sides.len(), rounds, at, progress, |index, turn| (sides[index].run)(turn));
    let tried = sides.into_iter().zip(runs).map(|(side, runs)| {
        let base = (side.name != OURS).then(|| Base { label: OURS, variant: OURS.to_owned() });
        Tried { variant: side.name, bases: base.into_iter().collect(), facts: (), runs }
    });
    CellReport::of(at, (), tried.collect(), absent.to_vec())
}
