//! From the options to the files: what is the same around every measurement.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{CellReport, Subject};
use crate::chart::Bars;
use crate::others::Usage;
use crate::record::Failure;
use crate::report::{check_places, write_json};

/// Where a report goes besides the text.
#[derive(Debug, Clone, Copy, Default)]
pub struct Files<'a> {
    /// A file for JSON; `-`: JSON takes the place of the text.
    pub json: Option<&'a Path>,
    /// A folder for charts.
    pub svg: Option<&'a Path>,
}

/// The result of an experiment.
pub trait Report: Serialize {
    /// The report for people.
    fn text(&self) -> String;

    /// Its charts, with the names of their files.
    fn charts(&self) -> Vec<(String, Bars)>;

    /// Where remarks go.
    fn notes(&mut self) -> &mut Vec<String>;
}

/// Measures, and writes the report: text to `out`, files where `files` says.
///
/// # Errors
/// A file can't be written, which is found out before anything is measured; those of `measure`.
pub fn measured<R: Report>(
    files: Files<'_>,
    out: &mut dyn Write,
    measure: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let to_stdout = files.json == Some(Path::new("-"));
    check_places((files.json.filter(|_| !to_stdout), files.svg))?;
    let before = Usage::now();
    let mut report = measure()?;
    report.notes().extend(before.remark(&Usage::now()));
    if to_stdout {
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        out.write_all(report.text().as_bytes())?;
    }
    if let Some(path) = files.json.filter(|_| !to_stdout) {
        write_json(&report, path)?;
        writeln!(out, "JSON: {}", path.display())?;
    }
    if let Some(folder) = files.svg {
        for name in charts_into(folder, report.charts())? {
            if !to_stdout {
                writeln!(out, "chart: {}", folder.join(name).display())?;
            }
        }
    }
    Ok(report)
}

/// Writes charts into `folder`, which is made if it isn't there; the names of the files. A chart
/// without a bar is left out.
///
/// # Errors
/// A chart can't be drawn or written.
pub fn charts_into(folder: &Path, charts: Vec<(String, Bars)>) -> Result<Vec<String>> {
    std::fs::create_dir_all(folder).with_context(|| format!("can't make the folder {}", folder.display()))?;
    let has_bars = |bars: &Bars| bars.series.iter().any(|s| s.values.iter().any(Option::is_some));
    let mut names = Vec::new();
    for (name, bars) in charts.into_iter().filter(|(_, bars)| has_bars(bars)) {
        bars.write(&folder.join(&name))?;
        names.push(name);
    }
    Ok(names)
}

/// What failed in `cells`, with the cell.
pub fn failures<E: Subject>(cells: &[CellReport<E>]) -> Vec<String> {
    let line = |cell: &CellReport<E>, failure: &Failure| {
        format!("{} ({}): {}", failure.variant, cell.at, failure.reason)
    };
    cells.iter().flat_map(|cell| cell.failures.iter().map(move |failure| line(cell, failure))).collect()
}
