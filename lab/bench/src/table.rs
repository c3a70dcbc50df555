//! Text tables for terminals and log files.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Columns that a table may take.
static COLUMNS: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Sets how many columns of a terminal the tables of this process take from now on. A wider table
/// is printed in parts, each with the labels of its rows. Labels go to lines above the rows that
/// have them in common where that makes fewer parts.
pub fn fit_tables(columns: usize) {
    COLUMNS.store(columns, Ordering::Relaxed);
}

/// A table whose first column is aligned left and whose others are aligned right.
#[derive(Debug, Clone)]
pub struct Table {
    rows: Vec<Vec<String>>,
    labels: usize,
}

impl Table {
    /// A table with these headings.
    pub fn new<'a>(headings: impl IntoIterator<Item = &'a str>) -> Self {
        Self { rows: vec![headings.into_iter().map(str::to_owned).collect()], labels: 1 }
    }

    /// The first columns, as many, say which row it is.
    pub fn labels(self, labels: usize) -> Self {
        Self { labels, ..self }
    }

    /// Adds a row; missing cells stay empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The table as lines of text, the headings underlined.
    pub fn render(&self) -> String {
        self.render_within(COLUMNS.load(Ordering::Relaxed))
    }

    fn render_within(&self, most: usize) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let labels = self.labels.min(columns);
        // How many labels are above: as few as make the fewest parts.
        let layouts = (0..labels.max(1)).map(|above| (above, split(&widths, above..labels, most)));
        let (above, parts) = layouts.min_by_key(|(_, parts)| parts.len()).unwrap_or_default();
        let parts = parts.into_iter().map(|part| self.part(&widths, above, (above..labels).chain(part)));
        parts.collect::<Vec<_>>().join("\n")
    }

    /// The rows in these columns, with the first `above` labels on lines of their own.
    fn part(&self, widths: &[usize], above: usize, columns: impl Iterator<Item = usize>) -> String {
        let columns: Vec<usize> = columns.collect();
        let (mut out, mut common) = (String::new(), None);
        for (index, row) in self.rows.iter().enumerate() {
            let labels = &row[..above.min(row.len())];
            if index > 0 && above > 0 && common != Some(labels) {
                let named = self.rows[0].iter().zip(labels).map(|(name, label)| format!("{name}: {label}"));
                out.push_str(&named.collect::<Vec<_>>().join(", "));
                out.push('\n');
                common = Some(labels);
            }
            let mut line = String::new();
            for &column in &columns {
                let (width, cell) = (widths[column], row.get(column).map_or("", String::as_str));
                // Writing to a String doesn't fail.
                let _ = if column > above {
                    write!(line, "  {cell:>width$}")
                } else {
                    write!(line, "{:indent$}{cell:<width$}", "", indent = indent(above))
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
            if index == 0 {
                let total = columns.iter().map(|&c| widths[c] + 2).sum::<usize>() + indent(above);
                out.push_str(&"-".repeat(total.saturating_sub(2)));
                out.push('\n');
            }
        }
        out
    }
}

/// How far rows below lines of their own are indented.
fn indent(above: usize) -> usize {
    if above > 0 { 2 } else { 0 }
}

/// The columns behind the labels, in parts as wide as a terminal of `most` columns. One that does
/// not fit stands alone.
fn split(widths: &[usize], labels: Range<usize>, most: usize) -> Vec<Range<usize>> {
    let width = |part: &[usize]| part.iter().map(|w| w + 2).sum::<usize>();
    let taken = indent(labels.start) + width(&widths[labels.clone()]);
    let room = most.saturating_add(2).saturating_sub(taken);
    let mut parts: Vec<Range<usize>> = Vec::new();
    for column in labels.end..widths.len() {
        match parts.last_mut() {
            Some(part) if width(&widths[part.start..=column]) <= room => part.end += 1,
            _ => parts.push(column..column + 1),
        }
    }
    if parts.is_empty() {
        parts.push(labels.end..labels.end);
    }
    parts
}

/// A figure with three significant digits.
pub fn figure(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}

/// A length in the unit that suits it.
pub fn bytes(value: usize) -> String {
    match value {
        v if v >= 1 << 20 && v % (1 << 20) == 0 => format!("{} MiB", v >> 20),
        v if v >= 1 << 10 && v % (1 << 10) == 0 => format!("{} KiB", v >> 10),
        v => format!("{v} B"),
    }
}

#[cfg(test)]
mod tests;
