//! A figure of a variant in a cell: how it follows from the runs.

use serde::Serialize;

use super::{ReportLine, Subject};
use crate::stats::Summary;

/// A figure: its key in JSON and in tables, and where it comes from.
pub struct Figure<E: Subject> {
    /// In snake_case.
    pub key: &'static str,
    /// True: JSON has `null` without a value. False: the key is left out.
    pub or_null: bool,
    /// Where it comes from.
    pub of: Of<E>,
}

/// Where a figure comes from.
pub enum Of<E: Subject> {
    /// The spread of a value of each run; no value if one of the runs has none.
    Spread(fn(&E::Cell, &E::Sample) -> Option<f64>),
    /// The spread of a value of each run, where most of them are above 0.
    Positive(fn(&E::Cell, &E::Sample) -> f64),
    /// The mean of a value of each run.
    Mean(fn(&E::Cell, &E::Sample) -> f64),
    /// A value of all runs together; none without a run.
    All(fn(&E::Cell, &[E::Sample]) -> f64),
    /// The spread of a value of each run divided by the base's of the same round: never a ratio of
    /// two medians.
    Ratio {
        /// The value.
        of: fn(&E::Cell, &E::Sample) -> f64,
        /// The label of the base.
        to: &'static str,
    },
    /// The same upside down: the base's value divided by this one's.
    Times {
        /// The value.
        of: fn(&E::Cell, &E::Sample) -> f64,
        /// The label of the base.
        to: &'static str,
    },
    /// Known without a run: what was published.
    Known(fn(&E::Cell, &E::Variant) -> Option<f64>),
}

/// The value of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Number {
    /// Of a value of each run.
    Spread(Summary),
    /// A single one.
    One(f64),
}

impl<E: Subject> Figure<E> {
    /// The spread of a value that every run has.
    pub const fn spread(key: &'static str, of: fn(&E::Cell, &E::Sample) -> Option<f64>) -> Self {
        Self { key, or_null: false, of: Of::Spread(of) }
    }

    /// The spread of a value, where most runs have one above 0.
    pub const fn positive(key: &'static str, of: fn(&E::Cell, &E::Sample) -> f64) -> Self {
        Self { key, or_null: false, of: Of::Positive(of) }
    }

    /// The mean of a value.
    pub const fn mean(key: &'static str, of: fn(&E::Cell, &E::Sample) -> f64) -> Self {
        Self { key, or_null: false, of: Of::Mean(of) }
    }

    /// A value of all runs together.
    pub const fn all(key: &'static str, of: fn(&E::Cell, &[E::Sample]) -> f64) -> Self {
        Self { key, or_null: false, of: Of::All(of) }
    }

    /// A value divided by the base's, round by round; `null` without a base.
    pub const fn ratio(key: &'static str, to: &'static str, of: fn(&E::Cell, &E::Sample) -> f64) -> Self {
        Self { key, or_null: true, of: Of::Ratio { of, to } }
    }

    /// The same; the key is left out without a base.
    pub const fn ratio_if_any(
        key: &'static str,
        to: &'static str,
        of: fn(&E::Cell, &E::Sample) -> f64,
    ) -> Self {
        Self { key, or_null: false, of: Of::Ratio { of, to } }
    }

    /// The base's value divided by this one's, round by round; `null` without a base.
    pub const fn times(key: &'static str, to: &'static str, of: fn(&E::Cell, &E::Sample) -> f64) -> Self {
        Self { key, or_null: true, of: Of::Times { of, to } }
    }

    /// What is known without a run.
    pub const fn known(key: &'static str, of: fn(&E::Cell, &E::Variant) -> Option<f64>) -> Self {
        Self { key, or_null: false, of: Of::Known(of) }
    }

    /// The value for `variant` in the cell `at`; `base` gives the runs that a label stands for.
    pub(super) fn value<'a>(
        &self,
        (at, variant): (&E::Cell, &E::Variant),
        samples: &[E::Sample],
        base: impl Fn(&str) -> &'a [E::Sample],
    ) -> Option<Number>
    where
        E::Sample: 'a,
    {
        let spread = |values: Vec<f64>| Summary::of(values);
        let each = |of: fn(&E::Cell, &E::Sample) -> f64, samples: &[E::Sample]| -> Vec<f64> {
            samples.iter().map(|sample| of(at, sample)).collect()
        };
        let summary = match self.of {
            Of::Spread(of) => spread(samples.iter().map(|sample| of(at, sample)).collect::<Option<_>>()?),
            Of::Positive(of) => spread(each(of, samples)).filter(|all| all.median > 0.0),
            Of::Ratio { of, to } => Summary::ratio(&each(of, samples), &each(of, base(to))),
            Of::Times { of, to } => Summary::ratio(&each(of, base(to)), &each(of, samples)),
            Of::Mean(of) => {
                let sum: f64 = each(of, samples).iter().sum();
                return (!samples.is_empty()).then(|| Number::One(sum / samples.len() as f64));
            }
            Of::All(of) => return (!samples.is_empty()).then(|| Number::One(of(at, samples))),
            Of::Known(of) => return of(at, variant).map(Number::One),
        };
        summary.map(Number::Spread)
    }
}

impl<E: Subject> ReportLine<E> {
    fn number(&self, key: &str) -> Option<Number> {
        let index = E::FIGURES.iter().position(|figure| figure.key == key);
        debug_assert!(index.is_some(), "there is no figure {key}");
        self.figures.get(index?).copied().flatten()
    }

    /// The spread of the figure `key`.
    pub fn spread(&self, key: &str) -> Option<Summary> {
        match self.number(key)? {
            Number::Spread(summary) => Some(summary),
            Number::One(_) => None,
        }
    }

    /// The median of the figure `key`, or its only value.
    pub fn middle(&self, key: &str) -> Option<f64> {
        match self.number(key)? {
            Number::Spread(summary) => Some(summary.median),
            Number::One(value) => Some(value),
        }
    }
}
