//! From the options to the files: what is the same around every measurement.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use zerowire_cli::logging::rfc3339;
use zerowire_cli::outcome::write_file;

use super::{CellReport, Failure, Subject};
use crate::chart::Bars;
use crate::cpu::Placement;
use crate::machine::{Machine, Usage};
use crate::words::wrong;

/// Where a report goes besides the text.
#[derive(Debug, Clone, PartialEq, Eq, Default, Args)]
pub struct Files {
    /// Write the result as JSON; - is standard output, in place of the text.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write charts (SVG) into this folder.
    #[arg(long, value_name = "FOLDER")]
    pub svg: Option<PathBuf>,
}

/// What a report begins with.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ReportHead {
    /// Where it was measured.
    pub machine: Machine,
    /// Whether the driver, or sender, and the measured side had a CPU each; nothing where programs
    /// were run that say it themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub separate_cpus: Option<bool>,
    /// Remarks on what was left out and why.
    pub notes: Vec<String>,
}

impl ReportHead {
    /// Of this machine, without remarks.
    pub fn detect(placement: &Placement) -> Self {
        let separate_cpus = Some(placement.separate());
        Self { machine: Machine::detect(), separate_cpus, notes: Vec::new() }
    }

    /// The machine, `about`, remarks.
    pub fn text(&self, about: &str) -> String {
        let notes: String = self.notes.iter().map(|note| format!("Note: {note}.\n")).collect();
        format!("{}\n{about}{notes}", self.machine)
    }

    /// What to say where `who` had to share a CPU; else nothing.
    pub fn shared_cpu(&self, who: &str) -> String {
        match self.separate_cpus {
            None | Some(true) => String::new(),
            Some(false) => format!("One CPU only: {who} took turns; rates mean little.\n"),
        }
    }
}

#[cfg(test)]
impl ReportHead {
    /// What reports of tests begin with.
    pub(crate) fn example(note: &str) -> Self {
        Self { machine: Machine::example(), separate_cpus: Some(true), notes: vec![note.into()] }
    }
}

/// The result of an experiment.
pub trait Report: Serialize {
    /// The report for people.
    fn text(&self) -> String;

    /// Its charts, with the names of their files.
    fn charts(&self) -> Vec<(String, Bars)> {
        Vec::new()
    }

    /// Where remarks go.
    fn notes(&mut self) -> &mut Vec<String>;
}

/// Measures, and writes the report: text to `out`, files where `files` says.
///
/// # Errors
/// A file can't be written, which is found out before anything is measured; those of `measure`.
pub fn measured<R: Report>(
    files: &Files,
    out: &mut dyn Write,
    measure: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let to_stdout = files.json.as_deref() == Some(Path::new("-"));
    let json = files.json.as_deref().filter(|_| !to_stdout);
    check_places(json, files.svg.as_deref())?;
    let before = Usage::now();
    let mut report = measure()?;
    report.notes().extend(before.remark(&Usage::now()));
    if to_stdout {
        out.write_all(json_text(&report)?.as_bytes())?;
    } else {
        out.write_all(report.text().as_bytes())?;
    }
    if let Some(path) = json {
        write_json(&report, path)?;
        writeln!(out, "JSON: {}", path.display())?;
    }
    if let Some(folder) = &files.svg {
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
    fs::create_dir_all(folder).with_context(|| format!("can't make the folder {}", folder.display()))?;
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
    failures_in(cells, "")
}

/// What failed in `cells`, with the cell and what stands behind it.
pub fn failures_in<E: Subject>(cells: &[CellReport<E>], what: &str) -> Vec<String> {
    let line = |cell: &CellReport<E>, failure: &Failure| {
        format!("{} ({}{what}): {}", failure.variant, cell.at, failure.reason)
    };
    cells.iter().flat_map(|cell| cell.failures.iter().map(move |failure| line(cell, failure))).collect()
}

/// Whether [`measured`] will be able to write its files: asked before a long measurement, not after
/// it. Makes the folder.
///
/// # Errors
/// It will not.
pub fn check_places(json: Option<&Path>, svg: Option<&Path>) -> Result<()> {
    // Pipes and terminals can't be tried without being used.
    if let Some(path) =
        json.filter(|path| fs::metadata(path).is_ok_and(|m| m.is_file() || m.is_dir()) || !path.exists())
    {
        let is_new = !path.exists();
        let opened = fs::OpenOptions::new().append(true).create(true).open(path);
        opened.with_context(|| format!("can't write {}", path.display()))?;
        if is_new {
            let _ = fs::remove_file(path);
        }
    }
    if let Some(folder) = svg {
        if cfg!(not(feature = "charts")) {
            wrong!("--svg {}: this program was built without charts", folder.display());
        }
        fs::create_dir_all(folder).with_context(|| format!("can't make the folder {}", folder.display()))?;
    }
    Ok(())
}

/// A report with its head: what JSON has.
#[derive(Serialize)]
struct Headed<'a, R> {
    run: RunTaken,
    #[serde(flatten)]
    report: &'a R,
}

/// Any report as indented JSON, with its head.
fn json_text(report: &impl Serialize) -> Result<String> {
    let mut text = serde_json::to_string_pretty(&Headed { run: RunTaken::now(), report })?;
    text.push('\n');
    Ok(text)
}

/// Writes any report as indented JSON with its head, replacing the file.
///
/// # Errors
/// The file can't be written.
pub fn write_json(report: &impl Serialize, path: &Path) -> Result<()> {
    write_file(path, json_text(report)?.as_bytes())
}

/// The head of a report's JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunTaken {
    /// The day in UTC, as `2026-11-26`.
    pub date: String,
    /// Version of this program.
    pub version: &'static str,
    /// The commit that this program was built from, with `-dirty` behind it if files had changed;
    /// none where that is not known.
    pub commit: Option<String>,
    /// The command line, without the places of JSON and charts and without folders.
    pub command: String,
}

impl RunTaken {
    /// That of this process, at this moment.
    pub fn now() -> Self {
        let exe = std::env::current_exe().ok();
        Self {
            date: rfc3339(SystemTime::now()).chars().take_while(|c| *c != 'T').collect(),
            version: env!("CARGO_PKG_VERSION"),
            commit: exe.as_deref().and_then(commit),
            command: command(std::env::args().skip(1)),
        }
    }
}

/// The commit of the tree that `program` lies in, unless the program is older than it.
fn commit(program: &Path) -> Option<String> {
    let folder = program.parent()?;
    let git = |arguments: &[&str]| {
        let out = Command::new("git")
            .arg("-C")
            .arg(folder)
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let text = String::from_utf8(out.stdout).ok()?.trim().to_owned();
        (out.status.success() && !text.is_empty()).then_some(text)
    };
    let committed = git(&["log", "-1", "--format=%ct"])?.parse().ok()?;
    let built = program.metadata().ok()?.modified().ok()?;
    if built < UNIX_EPOCH + Duration::from_secs(committed) {
        return None;
    }
    git(&["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"])
}

/// A command line as it can be typed elsewhere.
fn command(arguments: impl IntoIterator<Item = String>) -> String {
    let mut words = vec!["zerowire-bench".to_owned()];
    let mut is_place = false;
    for argument in arguments {
        let is_value = std::mem::take(&mut is_place);
        is_place = !is_value && ["--json", "--svg"].contains(&argument.as_str());
        if is_value || is_place || argument.starts_with("--json=") || argument.starts_with("--svg=") {
            continue;
        }
        let word = without_folder(&argument);
        words.push(if word.contains(' ') { format!("'{word}'") } else { word });
    }
    words.join(" ")
}

/// `before=/tmp/zerowire` is `before=zerowire`.
fn without_folder(word: &str) -> String {
    let Some((folder, name)) = word.rsplit_once('/') else { return word.to_owned() };
    let kept = folder.rfind(['=', ' ']).map_or("", |end| &folder[..=end]);
    format!("{kept}{name}")
}

#[cfg(test)]
mod tests;
