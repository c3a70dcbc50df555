//! The figures of a cell.

use std::fmt::Display;

use serde::ser::{Error as _, SerializeMap};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{Number, Runs, Subject};

/// A variant that failed, or is not to be had.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Its name.
    pub variant: String,
    /// The error with its causes.
    pub reason: String,
}

impl Failure {
    /// Of a variant, for `reason`: an error is written with its causes.
    pub fn of(variant: impl Display, reason: impl Display) -> Self {
        Self { variant: variant.to_string(), reason: format!("{reason:#}") }
    }
}

/// What a variant is compared with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base<V> {
    /// What the figures call it. Of several bases with one label the first counts that did not
    /// fail.
    pub label: &'static str,
    /// The other variant.
    pub variant: V,
}

/// A variant that was run in a cell.
pub struct Tried<E: Subject> {
    /// Which one.
    pub variant: E::Variant,
    /// What it is compared with.
    pub bases: Vec<Base<E::Variant>>,
    /// What is known of it besides.
    pub facts: E::Facts,
    /// Its runs.
    pub runs: Runs<E::Sample>,
}

/// The figures of a cell.
#[derive(Debug, Clone)]
pub struct CellReport<E: Subject> {
    /// Which one.
    pub at: E::Cell,
    /// What is known of it besides.
    pub facts: E::CellFacts,
    /// One entry a variant that succeeded.
    pub lines: Vec<ReportLine<E>>,
    /// Variants that are not to be had here, and why.
    pub absent: Vec<Failure>,
    /// Variants that failed, and why.
    pub failures: Vec<Failure>,
}

/// A variant in a cell.
#[derive(Debug, Clone)]
pub struct ReportLine<E: Subject> {
    /// Which one.
    pub variant: E::Variant,
    /// What is known of it besides.
    pub facts: E::Facts,
    /// The values of the subject's figures, in their order.
    pub figures: Vec<Option<Number>>,
    /// Every run, in order.
    pub samples: Vec<E::Sample>,
}

impl<E: Subject> CellReport<E> {
    /// Makes the figures of the variants that did not fail; the others are named with the reason.
    pub fn of(at: E::Cell, facts: E::CellFacts, tried: Vec<Tried<E>>, absent: Vec<Failure>) -> Self {
        let failure = |tried: &Tried<E>| Some(Failure::of(&tried.variant, tried.runs.failed.as_ref()?));
        let failures = tried.iter().filter_map(failure).collect();
        let sound = |tried: &&Tried<E>| tried.runs.failed.is_none() && !tried.runs.samples.is_empty();
        let samples = |variant: &E::Variant| {
            let found = tried.iter().filter(sound).find(|other| other.variant == *variant);
            found.map(|other| &other.runs.samples[..])
        };
        let figures = |tried: &Tried<E>| -> Vec<Option<Number>> {
            let base = |label: &str| {
                let bases = tried.bases.iter().filter(|base| base.label == label);
                bases.filter_map(|base| samples(&base.variant)).next().unwrap_or_default()
            };
            let of = (&at, &tried.variant);
            E::FIGURES.iter().map(|figure| figure.value(of, &tried.runs.samples, base)).collect()
        };
        let all: Vec<Option<Vec<_>>> =
            tried.iter().map(|tried| sound(&tried).then(|| figures(tried))).collect();
        let lines = tried.into_iter().zip(all).filter_map(|(tried, figures)| {
            let Tried { variant, facts, runs, .. } = tried;
            Some(ReportLine { variant, facts, figures: figures?, samples: runs.samples })
        });
        Self { at, facts, lines: lines.collect(), absent, failures }
    }

    /// The line of a variant.
    pub fn line(&self, variant: &E::Variant) -> Option<&ReportLine<E>> {
        self.lines.iter().find(|line| line.variant == *variant)
    }
}

impl<E: Subject> Serialize for CellReport<E> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut map = out.serialize_map(None)?;
        members(&mut map, "cell", &self.at)?;
        members(&mut map, "facts", &self.facts)?;
        map.serialize_entry(E::LINES, &self.lines)?;
        for (key, list) in [("absent", &self.absent), ("failures", &self.failures)] {
            if E::EMPTY_LISTS || !list.is_empty() {
                map.serialize_entry(key, list)?;
            }
        }
        map.end()
    }
}

impl<E: Subject> Serialize for ReportLine<E> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut map = out.serialize_map(None)?;
        self.write(&mut map)?;
        map.end()
    }
}

impl<E: Subject> ReportLine<E> {
    /// Adds its members.
    pub(super) fn write<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        members(map, E::VARIANT, &self.variant)?;
        members(map, "facts", &self.facts)?;
        for (figure, value) in E::FIGURES.iter().zip(&self.figures) {
            if figure.or_null || value.is_some() {
                map.serialize_entry(figure.key, value)?;
            }
        }
        map.serialize_entry("samples", &self.samples)
    }
}

/// Adds the members of `value`: nothing of `null`, and a value without members as `key`.
pub(super) fn members<M: SerializeMap>(
    map: &mut M,
    key: &str,
    value: &impl Serialize,
) -> Result<(), M::Error> {
    match serde_json::to_value(value).map_err(M::Error::custom)? {
        Value::Object(object) => object.iter().try_for_each(|(key, value)| map.serialize_entry(key, value)),
        Value::Null => Ok(()),
        other => map.serialize_entry(key, &other),
    }
}
