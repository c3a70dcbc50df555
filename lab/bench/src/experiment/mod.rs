//! One experiment: variants are compared in each cell of a table, and figures follow from their
//! runs.
//!
//! A [`Subject`] says what is compared: its cells (a value of each axis), its variants, what one
//! run yields, and its [`Figure`]s. The rest is the same for all experiments:
//!
//! 1. [`interleave`](fn@interleave) runs the variants of a cell in turns.
//! 2. [`CellReport::of`] makes the figures. A variant that failed has none, and nothing is compared
//!    with it.
//! 3. [`Column`]s make tables of them, [`series`] makes charts, and serde makes JSON, with
//!    [`RunTaken`] at its head.
//! 4. [`measured`] writes what the user asked for.
//!
//! Where one run yields all that is compared, as in [`ab`](crate::ab), a line is a row of the table
//! and has a figure for each side.
//!
//! A report can have parts beside its cases, such as round trips. Each is an experiment of few
//! cells: [`part_cell`] makes its figures, [`titled`] its table, and [`flat`] one list of all its
//! lines.

mod figure;
mod floored;
mod interleave;
mod outcome;
mod part;
mod progress;
mod report;
mod show;

pub use figure::{Figure, Number, Of};
pub(crate) use floored::first_program;
pub use floored::{
    Amounts, Floored, Ledger, LedgerFacts, Plan, Variant, beyond_gate, compare, since, zero_copied,
};
pub use interleave::{Runs, Turn, interleave};
pub use outcome::RunTaken;
pub use outcome::{
    Files, Report, ReportHead, charts_into, check_places, failures, failures_in, measured, write_json,
};
pub use part::{NumberCell, flat, part_cell, titled};
pub use progress::ProgressLine;
pub use report::{Base, CellReport, Failure, ReportLine, Tried};
pub use show::{
    CellText, Column, Digits, LeftOut, Show, bars, failed, grid, rows, sections, series, subtitle, variants,
};

use std::fmt::{Debug, Display};

use serde::Serialize;

/// What an experiment compares, and which figures it has.
pub trait Subject: Sized + 'static {
    /// A value of each axis. Its text stands behind the names of variants that fail.
    type Cell: Copy + Debug + Display + Serialize;
    /// Further facts of a cell: how much was moved, what was published.
    type CellFacts: Clone + Debug + Serialize;
    /// What is compared: a name, or members. Its text names it in tables, charts and failures.
    type Variant: Clone + PartialEq + Debug + Display + Serialize;
    /// Further facts of a variant in a cell: its path, its ledger.
    type Facts: Clone + Debug + Serialize;
    /// What one run yields.
    type Sample: Clone + Debug + Serialize;

    /// The figures, in the order of the JSON.
    const FIGURES: &'static [Figure<Self>];
    /// The key in JSON under which a cell has its variants.
    const LINES: &'static str = "lines";
    /// The key in JSON under which each of these has its name, unless the variant has members.
    const VARIANT: &'static str = "variant";
    /// Whether JSON has a cell's lists of absent and failed variants even if they are empty.
    const EMPTY_LISTS: bool = false;
}

#[cfg(test)]
mod tests;
