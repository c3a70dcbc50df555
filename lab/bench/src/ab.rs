//! Two builds of this program in turns: `zerowire-bench ab OLD NEW -- packet-tx …`.
//!
//! The library is linked into this program, so a change of the library is measured by two programs.
//! Each round runs both, in an order that rotates, with `--rounds 1 --json -`. The CPU figures of
//! NEW are divided by those of OLD of the same round.

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Serialize;
use serde_json::Value;

use crate::experiment::{
    CellReport, Column, Digits, Figure, Files, NumberCell, ProgressLine, Report, ReportHead, ReportLine,
    Runs, Subject, Tried, measured, rows,
};
use crate::held::Held;
use crate::machine::Machine;
use crate::programs::percent;
use crate::stats::rotation;
use crate::words::{verify_rounds, wrong};

/// Numbers of a case that say how much was moved, and not which case it is.
const AMOUNTS: [&str; 5] = ["working_set_bytes", "rounds", "frames", "bytes", "sends"];

/// Commands that measure the program `zerowire` beside their own.
const OF_ZEROWIRE: [&str; 4] = ["net", "vsock", "vsock-rx", "peers"];

/// Options of [`run_ab`].
#[derive(Debug, Clone, PartialEq, Args)]
#[command(after_help = "\
For benchmarks whose library is linked into this program: packet-tx, tcp-rx. 'vsock-rx --table', 'net', 'vsock' and 'peers' run the \
'zerowire' beside each build, in a folder of its own. Each round runs OLD and NEW in turns, with one round each, and divides the CPU figures of NEW by those of OLD. 'net' and \
'vsock' compare builds of 'zerowire' by --program.\n\
\n\
Example:\n  zerowire-bench ab /tmp/before /tmp/after -- packet-tx --quick --sizes 1000 --columns zc")]
pub struct AbOptions {
    /// The build of zerowire-bench that the other one is compared with, or an old 'zerowire' that
    /// has 'bench'.
    #[arg(value_name = "OLD")]
    pub old: PathBuf,
    /// The other build.
    #[arg(value_name = "NEW")]
    pub new: PathBuf,
    /// What both run: a command of zerowire-bench and its arguments, without --rounds and --json.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    /// How often both run.
    #[arg(long, default_value_t = 9, value_name = "N")]
    pub rounds: usize,
    /// End with status 1 if NEW takes more than PERCENT more CPU time than OLD in a line. The lower
    /// quartile of the ratios counts.
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub gate: Option<f64>,
    /// Write the result as JSON; - is standard output, in place of the text.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// The comparison of two builds.
#[derive(Debug, Clone)]
pub struct Builds;

/// The result: a line for each figure of the benchmark that both run.
pub type AbReport = CellReport<Builds>;

/// What is known besides.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AbFacts {
    /// Where it was measured, and remarks.
    #[serde(flatten)]
    pub head: ReportHead,
    /// What both builds ran: a command of zerowire-bench and its arguments.
    pub command: Vec<String>,
}

/// A figure of a variant in a case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AbFigure {
    /// The case: a value of each axis.
    pub case: String,
    /// The variant.
    pub variant: String,
    /// The key of the figure.
    pub figure: String,
}

impl fmt::Display for AbFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}), {}", self.variant, self.case, self.figure)
    }
}

impl Subject for Builds {
    /// How often both builds ran.
    type Cell = NumberCell;
    type CellFacts = AbFacts;
    type Variant = AbFigure;
    type Facts = ();
    /// The value of a round with the old build, and with the new one.
    type Sample = [f64; 2];

    const FIGURES: &'static [Figure<Self>] = &[
        Figure::<Self>::spread("old", |_, [old, _]| Some(*old)),
        Figure::<Self>::spread("new", |_, [_, new]| Some(*new)),
        Figure::<Self>::spread("ratio", |_, [old, new]| (*old != 0.0).then(|| new / old)),
    ];
}

/// Runs both builds in turns; text goes to `out`, a file where the options say.
///
/// # Errors
/// The options make no sense, a build fails, or it prints another JSON than the benchmarks do.
pub fn run_ab(options: &AbOptions, out: &mut dyn Write) -> Result<AbReport> {
    verify_rounds(options.rounds)?;
    if let Some(own) = options.command.iter().find(|word| ["--rounds", "--json"].contains(&word.as_str())) {
        wrong!("{own} behind --: give it before OLD; each run has one round");
    }
    beside(options)?;
    let files = Files { json: options.json.clone(), svg: None };
    measured(&files, out, || measure(options))
}

/// Commands that run the `zerowire` beside the build need one beside each, which must not be the
/// same.
fn beside(options: &AbOptions) -> Result<()> {
    let Some(command) = options.command.first().filter(|word| OF_ZEROWIRE.contains(&word.as_str())) else {
        return Ok(());
    };
    // These measure no program, or others.
    if options.command.iter().any(|word| word == "--floor-only" || word.starts_with("--program")) {
        return Ok(());
    }
    let [old, new] = [&options.old, &options.new].map(|build| build.with_file_name("zerowire"));
    if let Some(missing) = [&old, &new].into_iter().find(|program| !program.exists()) {
        wrong!("{} is missing: {command} measures the 'zerowire' beside each build", missing.display());
    }
    if old.canonicalize()? == new.canonicalize()? {
        wrong!(
            "{command} measures the 'zerowire' beside each build, and both lie beside the same one: put each in a folder of its own \
             with its 'zerowire'"
        );
    }
    Ok(())
}

fn measure(options: &AbOptions) -> Result<AbReport> {
    let programs = [&options.old, &options.new];
    let mut rounds = Vec::new();
    let mut progress = ProgressLine::new("ab", 2 * options.rounds);
    for round in 0..options.rounds {
        let mut both = [Vec::new(), Vec::new()];
        for index in rotation(2, round) {
            progress.step(programs[index].display());
            both[index] = found(&run(programs[index], &options.command)?);
            progress.advance();
        }
        rounds.push(both);
    }
    let head = ReportHead { machine: Machine::detect(), ..ReportHead::default() };
    compared(AbFacts { head, command: options.command.clone() }, &rounds)
}

/// One run of a build: its JSON.
fn run(program: &Path, command: &[String]) -> Result<Value> {
    let mut run = Command::new(program);
    run.args(arguments(program, command)).args(["--rounds", "1", "--json", "-"]);
    run.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let held = Held::nothing();
    let child = held.spawn(&mut run).with_context(|| format!("can't start {}", program.display()))?;
    let output = child.wait_with_output()?;
    drop(held);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} ended with {}: {}", program.display(), output.status, complaint(&said));
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("{} printed no JSON", program.display()))
}

/// What a benchmark said last. What it says of its arguments is several lines, whose last one is a
/// hint at --help.
fn complaint(said: &str) -> String {
    let lines = said.trim().lines();
    let of_arguments = lines.clone().skip_while(|line| !line.starts_with("error: "));
    let of_arguments: Vec<_> = of_arguments.take_while(|line| !line.is_empty()).map(str::trim).collect();
    if of_arguments.is_empty() { lines.last().unwrap_or_default().to_owned() } else { of_arguments.join(" ") }
}

/// The arguments of a build: those of a build from the time when the benchmarks were a command of
/// `zerowire` begin with that command.
fn arguments<'a>(program: &Path, command: &'a [String]) -> Vec<&'a str> {
    let bench = program.file_name().is_some_and(|name| name == "zerowire").then_some("bench");
    bench.into_iter().chain(command.iter().map(String::as_str)).collect()
}

/// A figure of one run, and its value.
type Found = (AbFigure, f64);

/// The CPU figures of a benchmark's JSON, ratios left out.
fn found(report: &Value) -> Vec<Found> {
    let mut all = Vec::new();
    for case in report["cases"].as_array().into_iter().flatten() {
        let lines = case.get("lines").or_else(|| case.get("variants"));
        for line in lines.and_then(Value::as_array).into_iter().flatten() {
            for (key, value) in line.as_object().into_iter().flatten() {
                let Some(value) = value["median"].as_f64() else { continue };
                if key.starts_with("cpu") && !key.contains("_to_") {
                    let (case, variant) = (named(case, true), named(line, false));
                    all.push((AbFigure { case, variant, figure: key.clone() }, value));
                }
            }
        }
    }
    all
}

/// The words that say which variant it is, and the `numbers` as well that say which case it is.
fn named(object: &Value, numbers: bool) -> String {
    let word = |(key, value): (&String, &Value)| match value {
        Value::String(word) if key != "path" => Some(word.clone()),
        Value::Number(number) if numbers && number.is_u64() && !AMOUNTS.contains(&key.as_str()) => {
            Some(format!("{key} {number}"))
        }
        _ => None,
    };
    object.as_object().into_iter().flatten().filter_map(word).collect::<Vec<_>>().join(", ")
}

/// Puts the runs of both builds together. What one build lacks is not compared.
fn compared(facts: AbFacts, rounds: &[[Vec<Found>; 2]]) -> Result<AbReport> {
    let tried = |figure: &AbFigure| {
        let value = |all: &[Found]| Some(all.iter().find(|(other, _)| other == figure)?.1);
        let sample = |[old, new]: &[Vec<Found>; 2]| Some([value(old)?, value(new)?]);
        let runs = Runs { samples: rounds.iter().filter_map(sample).collect(), failed: None };
        Tried { variant: figure.clone(), bases: Vec::new(), facts: (), runs }
    };
    let figures = rounds.first().map_or(&[][..], |[old, _]| old);
    let tried = figures.iter().map(|(figure, _)| tried(figure)).collect();
    let report = CellReport::of(NumberCell { axis: "rounds", value: rounds.len() }, facts, tried, Vec::new());
    if report.lines.is_empty() {
        bail!("the builds have no CPU figure in common");
    }
    Ok(report)
}

impl AbReport {
    /// The lines whose ratio is above 1 by more than `percent`: its lower quartile says so.
    pub fn beyond_gate(&self, percent: f64) -> Vec<String> {
        let line = |line: &ReportLine<Builds>| {
            let ratio = line.spread("ratio").filter(|ratio| ratio.q1 > 1.0 + percent / 100.0)?;
            Some(format!("{}: {:.3}..{:.3} times OLD's", line.variant, ratio.q1, ratio.q3))
        };
        self.lines.iter().filter_map(line).collect()
    }
}

const COLUMNS: [Column<Builds>; 6] = [
    Column::words("case", |_, line| Some(line.variant.case.clone())),
    Column::words("variant", |_, line| Some(line.variant.variant.clone())),
    Column::words("figure", |_, line| Some(line.variant.figure.clone())),
    Column::median("OLD", "old", Digits::Three),
    Column::median("NEW", "new", Digits::Three),
    Column::spread("NEW / OLD", "ratio", Digits::Behind(3)),
];

impl Report for AbReport {
    fn text(&self) -> String {
        format!(
            "{}{}: medians of {} rounds, both builds in turns; NEW / OLD: of the same round.\n{}",
            self.facts.head.text(""),
            self.facts.command.join(" "),
            self.at.value,
            rows([self], &COLUMNS).labels(3).render()
        )
    }

    fn notes(&mut self) -> &mut Vec<String> {
        &mut self.facts.head.notes
    }
}

#[cfg(test)]
mod tests;
