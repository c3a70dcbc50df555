//! Several variants in turn, round by round: the way in which every table of this crate is
//! measured.
//!
//! A machine drifts, so no variant runs all its rounds in one go. After a warm-up of each variant,
//! each round runs every variant once, in an order that rotates. A variant that fails does not run
//! again.

use std::fmt::Display;

use anyhow::{Context, Error, Result};

use super::ProgressLine;
use crate::stats::rotation;

/// Which run of a variant it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The first one: warms memory, caches and queues, and doesn't count.
    WarmUp,
    /// A round, from 0 on.
    Round(usize),
}

/// What one variant did.
#[derive(Debug)]
pub struct Runs<S> {
    /// One entry a round that succeeded, in order.
    pub samples: Vec<S>,
    /// Why it ran no further.
    pub failed: Option<Error>,
}

/// Runs `count` variants: a warm-up of each, then `rounds` rounds. `run` runs the variant of an
/// index; its sample of the warm-up is dropped. `progress` goes on by one for the warm-up and by
/// one a round.
pub fn interleave<S>(
    count: usize,
    rounds: usize,
    what: impl Display,
    progress: &mut ProgressLine,
    mut run: impl FnMut(usize, Turn) -> Result<S>,
) -> Vec<Runs<S>> {
    progress.step(&what);
    let mut runs: Vec<Runs<S>> = (0..count)
        .map(|index| Runs {
            samples: Vec::with_capacity(rounds),
            failed: run(index, Turn::WarmUp).context("the warm-up failed").err(),
        })
        .collect();
    progress.advance();
    for round in 0..rounds {
        progress.step(&what);
        for index in rotation(count, round) {
            if runs[index].failed.is_some() {
                continue;
            }
            match run(index, Turn::Round(round)) {
                Ok(sample) => runs[index].samples.push(sample),
                Err(error) => runs[index].failed = Some(error.context(format!("round {}", round + 1))),
            }
        }
        progress.advance();
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variant_runs_once_a_round_in_an_order_that_rotates() {
        let mut order = Vec::new();
        let mut progress = ProgressLine::new("test", 3);
        let runs = interleave(3, 2, "case", &mut progress, |index, turn| {
            order.push((index, turn));
            if index == 1 && turn == Turn::Round(0) {
                anyhow::bail!("lost a frame");
            }
            Ok(index)
        });
        let (warm, first, second) = (Turn::WarmUp, Turn::Round(0), Turn::Round(1));
        assert_eq!(
            order,
            [(0, warm), (1, warm), (2, warm), (0, first), (1, first), (2, first), (2, second), (0, second)]
        );
        assert_eq!(runs[0].samples, [0, 0]);
        assert!(runs[1].samples.is_empty());
        assert_eq!(format!("{:#}", runs[1].failed.as_ref().unwrap()), "round 1: lost a frame");
    }
}
