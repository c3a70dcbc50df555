//! Figures as cells of tables and as bars of charts.

use std::fmt::Display;

use super::{CellReport, ReportLine, Subject};
use crate::chart::{Bars, Series};
use crate::stats::Summary;
use crate::table::{Table, figure};

/// A cell without a value.
const NONE: &str = "-";

/// Which part of a spread a text shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// `1.00`.
    Median,
    /// `0.90..1.10`.
    Quartiles,
    /// `1.00 (0.90..1.10)`.
    Both,
    /// `0.50..2.00`, from the least to the largest.
    Range,
}

/// How a number is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digits {
    /// Three that count.
    Three,
    /// As many behind the point.
    Behind(usize),
    /// A share in percent, with as many behind the point.
    Percent(usize),
}

impl Digits {
    /// The number as text.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Three => figure(value),
            Self::Behind(digits) => format!("{value:.digits$}"),
            Self::Percent(digits) => format!("{:.digits$} %", 100.0 * value),
        }
    }
}

/// A text of a variant in a cell.
pub enum CellText<E: Subject> {
    /// A figure.
    Of(&'static str, Show, Digits),
    /// Anything else; `None`: there is nothing to say.
    Words(fn(&CellReport<E>, &ReportLine<E>) -> Option<String>),
}

impl<E: Subject> CellText<E> {
    /// For `line`, which belongs to `cell`.
    pub fn of(&self, cell: &CellReport<E>, line: &ReportLine<E>) -> Option<String> {
        match *self {
            Self::Words(of) => of(cell, line),
            Self::Of(key, Show::Median, digits) => line.middle(key).map(|value| digits.text(value)),
            Self::Of(key, show, digits) => {
                let Summary { median, min, max, q1, q3 } = line.spread(key)?;
                let from_to = |from, to| format!("{}..{}", digits.text(from), digits.text(to));
                Some(match show {
                    Show::Both => format!("{} ({})", digits.text(median), from_to(q1, q3)),
                    Show::Range => from_to(min, max),
                    _ => from_to(q1, q3),
                })
            }
        }
    }
}

/// One column, or two, of a table with a row for each variant.
pub struct Column<E: Subject> {
    /// Its heading.
    pub heading: &'static str,
    /// What stands in it.
    pub text: CellText<E>,
    /// A figure whose quartiles stand in a column of their own behind it.
    quartiles: Option<CellText<E>>,
}

impl<E: Subject> Column<E> {
    const fn new(heading: &'static str, text: CellText<E>) -> Self {
        Self { heading, text, quartiles: None }
    }

    /// The medians of a figure.
    pub const fn median(heading: &'static str, key: &'static str, digits: Digits) -> Self {
        Self::new(heading, CellText::Of(key, Show::Median, digits))
    }

    /// The medians of a figure in a column, and its quartiles in the next one.
    pub const fn spread(heading: &'static str, key: &'static str, digits: Digits) -> Self {
        let text = CellText::Of(key, Show::Median, digits);
        Self { heading, text, quartiles: Some(CellText::Of(key, Show::Quartiles, digits)) }
    }

    /// The medians of a figure, with its quartiles in brackets.
    pub const fn both(heading: &'static str, key: &'static str, digits: Digits) -> Self {
        Self::new(heading, CellText::Of(key, Show::Both, digits))
    }

    /// The least and the largest value of a figure.
    pub const fn range(heading: &'static str, key: &'static str, digits: Digits) -> Self {
        Self::new(heading, CellText::Of(key, Show::Range, digits))
    }

    /// Anything else.
    pub const fn words(
        heading: &'static str,
        of: fn(&CellReport<E>, &ReportLine<E>) -> Option<String>,
    ) -> Self {
        Self::new(heading, CellText::Words(of))
    }

    /// The headings of `columns`.
    pub fn headings(columns: &[Self]) -> impl Iterator<Item = &'static str> {
        let of = |column: &Self| [Some(column.heading), column.quartiles.as_ref().map(|_| "quartiles")];
        columns.iter().flat_map(of).flatten()
    }

    /// The texts of `columns` for `line`, which belongs to `cell`.
    pub fn texts(
        columns: &[Self],
        cell: &CellReport<E>,
        line: &ReportLine<E>,
    ) -> impl Iterator<Item = String> {
        let texts =
            columns.iter().flat_map(|column| [Some(&column.text), column.quartiles.as_ref()]).flatten();
        texts.map(|text| text.of(cell, line).unwrap_or_else(|| NONE.to_owned()))
    }
}

/// A line for each of `failures`.
pub fn failed(failures: &[String]) -> String {
    failures.iter().map(|failure| format!("FAILED: {failure}\n")).collect()
}

/// A table of `cells` with a row a variant in a cell.
pub fn rows<'a, E: Subject>(
    cells: impl IntoIterator<Item = &'a CellReport<E>>,
    columns: &[Column<E>],
) -> Table {
    let mut table = Table::new(Column::headings(columns));
    for cell in cells {
        for line in &cell.lines {
            table.row(Column::texts(columns, cell, line));
        }
    }
    table
}

/// What a [`grid`] leaves out where it has no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftOut {
    /// Rows.
    Rows,
    /// Columns.
    Columns,
    /// Neither.
    Nothing,
}

/// A table with a text for each row and column; `None` where it has no text at all.
pub fn grid<R, C>(
    corner: &str,
    rows: &[(String, R)],
    columns: &[(String, C)],
    empty: LeftOut,
    text: impl Fn(&R, &C) -> Option<String>,
) -> Option<Table> {
    let of = |(_, row): &(String, R)| -> Vec<Option<String>> {
        columns.iter().map(|(_, column)| text(row, column)).collect()
    };
    let texts: Vec<Vec<Option<String>>> = rows.iter().map(of).collect();
    let some = |column: &usize| texts.iter().any(|row| row[*column].is_some());
    let kept: Vec<usize> =
        (0..columns.len()).filter(|column| empty != LeftOut::Columns || some(column)).collect();
    let mut table =
        Table::new(std::iter::once(corner).chain(kept.iter().map(|column| columns[*column].0.as_str())));
    let mut is_empty = true;
    for ((name, _), texts) in rows.iter().zip(&texts) {
        let has_text = texts.iter().any(Option::is_some);
        is_empty &= !has_text;
        if has_text || empty != LeftOut::Rows {
            let cells = kept.iter().map(|column| texts[*column].clone().unwrap_or_else(|| NONE.to_owned()));
            table.row(std::iter::once(name.clone()).chain(cells));
        }
    }
    (!is_empty).then_some(table)
}

/// The bars of a chart that has a group a cell: a series for each of `variants` with a value.
pub fn series<E: Subject, V: Display>(
    cells: &[&CellReport<E>],
    variants: impl IntoIterator<Item = V>,
    value: impl Fn(&CellReport<E>, &V) -> Option<Summary>,
) -> Vec<Series> {
    let all = variants.into_iter().map(|variant| Series {
        name: variant.to_string(),
        values: cells.iter().map(|cell| value(cell, &variant)).collect(),
    });
    all.filter(|series| series.values.iter().any(Option::is_some)).collect()
}

/// A chart with a group of bars for each cell, named by `group`, and the [`series`] of `variants`.
pub fn bars<E: Subject, V: Display>(
    cells: &[&CellReport<E>],
    group: impl Fn(&E::Cell) -> String,
    variants: impl IntoIterator<Item = V>,
    value: impl Fn(&CellReport<E>, &V) -> Option<Summary>,
) -> Bars {
    let groups = cells.iter().map(|cell| group(&cell.at)).collect();
    Bars { groups, series: series(cells, variants, value), ..Bars::default() }
}

/// The subtitle of a chart of medians: `about` is the machine, and what else there is to say.
pub fn subtitle(about: impl Display, rounds: impl Display) -> String {
    format!("{about}; medians of {rounds} interleaved rounds, whiskers: quartiles")
}

/// Cells that have the same `key`, together, in the order in which they come first.
pub fn sections<E: Subject, K: PartialEq>(
    cells: &[CellReport<E>],
    key: impl Fn(&E::Cell) -> K,
) -> Vec<(K, Vec<&CellReport<E>>)> {
    let mut sections: Vec<(K, Vec<_>)> = Vec::new();
    for cell in cells {
        let key = key(&cell.at);
        match sections.iter_mut().find(|(other, _)| *other == key) {
            Some((_, cells)) => cells.push(cell),
            None => sections.push((key, vec![cell])),
        }
    }
    sections
}

/// All variants of `cells` that succeeded somewhere, in order.
pub fn variants<E: Subject>(cells: &[&CellReport<E>]) -> Vec<E::Variant> {
    let mut all: Vec<E::Variant> = Vec::new();
    for line in cells.iter().flat_map(|cell| &cell.lines) {
        if !all.contains(&line.variant) {
            all.push(line.variant.clone());
        }
    }
    all
}
