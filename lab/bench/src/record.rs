//! What the comparisons of several variants share: a record of each, and the floor that the others are set beside.

use std::collections::BTreeMap;
use std::fmt::Display;

use anyhow::{Error, Result, bail};
use serde::Serialize;

use crate::interleave::Runs;
use crate::progress::Progress;
use crate::stats::Summary;

/// How often and how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Rounds of a case; each variant runs once a round.
    pub rounds: usize,
    /// Half as many frames a run.
    pub quick: bool,
}

/// A variant that failed in one case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Its name.
    pub variant: String,
    /// The error with its causes.
    pub reason: String,
}

/// What one variant did in one case.
pub(crate) struct Record<S> {
    pub name: String,
    pub samples: Vec<S>,
    pub ledger: BTreeMap<String, u64>,
    failed: Option<Error>,
}

impl<S> Record<S> {
    /// Of these runs; a variant whose ledger can't be had has failed.
    pub fn new(runs: Runs<S>, ledger: Result<BTreeMap<String, u64>>, name: &str) -> Self {
        let (ledger, failed) = match ledger {
            Ok(ledger) => (ledger, runs.failed),
            Err(error) => (BTreeMap::new(), runs.failed.or(Some(error))),
        };
        Self { name: name.to_owned(), samples: runs.samples, ledger, failed }
    }

    /// Fails the variant if its ledger has another number of bytes than were moved; one without an entry is not asked.
    pub fn must_account_for(mut self, moved: u64) -> Self {
        if self.failed.is_none()
            && let Some(counted) = self.ledger.get("bytes").filter(|counted| **counted != moved)
        {
            let problem = format!("{moved} bytes were moved and the back end's ledger has {counted}");
            self.failed = Some(Error::msg(problem));
        }
        self
    }

    /// The summary of a figure.
    pub fn summary(&self, figure: fn(&S) -> f64) -> Option<Summary> {
        Summary::of(self.samples.iter().map(figure))
    }

    fn failure(&self) -> Option<Failure> {
        let error = self.failed.as_ref()?;
        Some(Failure { variant: self.name.clone(), reason: format!("{error:#}; ledger: {:?}", self.ledger) })
    }
}

/// The figures of a case: a report of each variant that succeeded, from its record and its cost in ratio to the floor's of the same
/// round, which the first variant is; and those that failed.
///
/// # Errors
/// The floor failed. Without it there is nothing to compare with: that is no result.
pub(crate) fn conclude<S, R>(
    case: &impl Display,
    mut records: Vec<Record<S>>,
    cost: fn(&S) -> f64,
    report: impl Fn(Record<S>, Option<Summary>) -> Option<R>,
) -> Result<(Vec<R>, Vec<Failure>)> {
    if let Some(error) = records.first_mut().and_then(|floor| floor.failed.take()) {
        return Err(error.context(format!("the floor failed ({case})")));
    }
    let costs = |record: &Record<S>| record.samples.iter().map(cost).collect::<Vec<_>>();
    let floor = records.first().map(costs).unwrap_or_default();
    let failures = records.iter().filter_map(Record::failure).collect();
    let reports = records.into_iter().enumerate().filter(|(_, record)| record.failed.is_none());
    let reports = reports.filter_map(|(index, record)| {
        let ratio = if index == 0 { None } else { Summary::ratio(&costs(&record), &floor) };
        report(record, ratio)
    });
    Ok((reports.collect(), failures))
}

/// Runs all cases one by one, with progress; `rounds` says how many there are of one.
///
/// # Errors
/// There are no rounds or no variants; those of a case.
pub(crate) fn each_case<C, R>(
    cases: &[C],
    variants: usize,
    rounds: impl Fn(&C) -> usize,
    mut one: impl FnMut(&C, &mut Progress) -> Result<R>,
) -> Result<Vec<R>> {
    if variants == 0 || cases.iter().any(|case| rounds(case) == 0) {
        bail!("nothing to measure: give at least one round and one variant");
    }
    let mut progress = Progress::new("bench", cases.iter().map(|case| rounds(case) + 1).sum());
    let reports = cases.iter().map(|case| one(case, &mut progress)).collect::<Result<_>>()?;
    progress.finish();
    Ok(reports)
}
