//! Parts of a report beside its cases: a few cells of variants that all have to run, and a table.

use std::fmt;

use anyhow::Result;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::report::members;
use super::{Base, CellReport, Column, ReportLine, Runs, Subject, Tried, rows};

/// A cell of one axis, whose values are numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberCell {
    /// The axis: the key in JSON.
    pub axis: &'static str,
    /// The place on it.
    pub value: usize,
}

impl fmt::Display for NumberCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.axis, self.value)
    }
}

impl Serialize for NumberCell {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        out.collect_map([(self.axis, self.value)])
    }
}

/// The figures of a cell. Each variant is compared with that of `base`.
///
/// # Errors
/// A variant failed: the text names it, and the cell.
pub fn part_cell<E: Subject<Facts = ()>>(
    at: E::Cell,
    facts: E::CellFacts,
    base: Option<Base<E::Variant>>,
    ran: impl IntoIterator<Item = (E::Variant, Runs<E::Sample>)>,
) -> Result<CellReport<E>> {
    let mut tried = Vec::new();
    for (variant, mut runs) in ran {
        if let Some(error) = runs.failed.take() {
            return Err(error.context(format!("{variant} ({at})")));
        }
        let bases = base.iter().filter(|base| base.variant != variant).cloned().collect();
        tried.push(Tried { variant, bases, facts: (), runs });
    }
    Ok(CellReport::of(at, facts, tried, Vec::new()))
}

/// An empty line, a title and the table of `cells`, whose first `labels` columns say which row it
/// is; nothing without cells.
pub fn titled<E: Subject>(
    title: &str,
    cells: &[CellReport<E>],
    columns: &[Column<E>],
    labels: usize,
) -> String {
    if cells.is_empty() {
        return String::new();
    }
    format!("\n{title}:\n{}", rows(cells, columns).labels(labels).render())
}

/// Serializes cells as one list of their lines, each with what its cell has.
///
/// # Errors
/// Those of the serializer.
pub fn flat<E: Subject, S: Serializer>(cells: &[CellReport<E>], out: S) -> Result<S::Ok, S::Error> {
    out.collect_seq(cells.iter().flat_map(|cell| cell.lines.iter().map(move |line| FlatLine { cell, line })))
}

struct FlatLine<'a, E: Subject> {
    cell: &'a CellReport<E>,
    line: &'a ReportLine<E>,
}

impl<E: Subject> Serialize for FlatLine<'_, E> {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut map = out.serialize_map(None)?;
        members(&mut map, "cell", &self.cell.at)?;
        members(&mut map, "facts", &self.cell.facts)?;
        self.line.write(&mut map)?;
        map.end()
    }
}

#[cfg(test)]
mod tests;
