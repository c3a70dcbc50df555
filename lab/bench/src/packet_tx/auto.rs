//! Auto beside copying and lending: a long run of each, in turns.
//!
//! A new sender each, so Auto's learning is part of its run. Chunks of the three take turns in an
//! order that rotates, so a machine that drifts does so for all three.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use serde::Serialize;
use zerowire::send::{SendBackend, SendMode};

use super::case::{SinkKind, TxCase};
use super::lab::TxLab;
use super::library::{Choice, Handover, Sockets};
use super::report::PERCENT;
use super::source::TxSource;
use super::way::{Proof, Softirq, TxWay, run};
use crate::experiment::{CellReport, Column, Digits, Figure, ProgressLine, Runs, Subject, Tried, rows};
use crate::stats::rotation;

/// Sends of a chunk.
const CHUNK: usize = 1024;

/// The comparison: a cell is a sink, and its lines are the rows of the table.
#[derive(Debug, Clone)]
pub struct AutoChoice;

/// What Auto did.
#[derive(Debug, Clone, Default, Serialize)]
pub struct AutoFacts {
    /// Sends of each of the three.
    pub sends: usize,
    /// What became of Auto's bytes.
    pub proof: Proof,
    /// What ran and why.
    pub path: String,
    /// What Auto chose in the end, and why.
    pub choices: Vec<String>,
}

/// CPU nanoseconds a send of a chunk of each.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct AutoSample {
    /// Copying.
    pub copy_ns: f64,
    /// Lending.
    pub zero_copy_ns: f64,
    /// Auto, its learning included.
    pub auto_ns: f64,
}

impl Subject for AutoChoice {
    type Cell = SinkKind;
    type CellFacts = ();
    type Variant = TxCase;
    type Facts = AutoFacts;
    type Sample = AutoSample;

    const FIGURES: &'static [Figure<Self>] = &[
        Figure::<Self>::mean("copy_ns", |_, s| s.copy_ns),
        Figure::<Self>::mean("zero_copy_ns", |_, s| s.zero_copy_ns),
        Figure::<Self>::mean("auto_ns", |_, s| s.auto_ns),
        // What Auto cost more than the better of the two, in percent; negative: less.
        Figure::<Self>::all("excess_percent", |_, samples| {
            let sum = |of: fn(&AutoSample) -> f64| samples.iter().map(of).sum::<f64>();
            let better = sum(|s| s.copy_ns).min(sum(|s| s.zero_copy_ns)).max(1e-9);
            (sum(|s| s.auto_ns) / better - 1.0) * 100.0
        }),
    ];
}

/// Compares the three over `sends` sends each.
pub fn compare(
    case: &TxCase,
    lab: &TxLab,
    softirq: &Softirq,
    sends: usize,
    progress: &mut ProgressLine,
) -> Tried<AutoChoice> {
    progress.step(format_args!("auto, {case}"));
    let mut samples = Vec::new();
    let measured = measure(case, lab, softirq, sends, &mut samples);
    progress.advance();
    let (facts, failed) = match measured {
        Ok(facts) => (facts, None),
        Err(error) => (AutoFacts::default(), Some(error)),
    };
    Tried { variant: *case, bases: Vec::new(), facts, runs: Runs { samples, failed } }
}

fn measure(
    case: &TxCase,
    lab: &TxLab,
    softirq: &Softirq,
    sends: usize,
    samples: &mut Vec<AutoSample>,
) -> Result<AutoFacts> {
    let source = TxSource::new(case, lab)?;
    let open = |mode| {
        let choice = Choice { mode, backend: SendBackend::Auto, handover: Handover::Single, areas: false };
        Sockets::open(lab, &source, choice).with_context(|| format!("{mode:?}"))
    };
    let mut ways = [open(SendMode::Copy)?, open(SendMode::ZeroCopy)?, open(SendMode::Auto)?];
    // Routes and caches are warmed by a sender of its own, so that none of the three has learnt
    // anything.
    run(&mut open(SendMode::Copy)?, case, lab, softirq, case.burst())?;
    let chunk = CHUNK.min(sends);
    for round in 0..sends / chunk {
        let mut cpu_ns = [0.0; 3];
        for index in rotation(ways.len(), round) {
            let sample = run(&mut ways[index], case, lab, softirq, chunk)?;
            cpu_ns[index] = sample.ns_a_send(sample.cpu);
        }
        let [copy_ns, zero_copy_ns, auto_ns] = cpu_ns;
        samples.push(AutoSample { copy_ns, zero_copy_ns, auto_ns });
    }
    let auto = &ways[2];
    Ok(AutoFacts {
        sends: samples.len() * chunk,
        proof: auto.proof(),
        path: auto.path(),
        choices: auto.sender().choices().iter().map(ToString::to_string).collect(),
    })
}

const COLUMNS: [Column<AutoChoice>; 7] = [
    Column::words("case", |_, line| Some(line.variant.to_string())),
    Column::words("sends", |_, line| Some(line.facts.sends.to_string())),
    Column::median("copying ns", "copy_ns", Digits::Three),
    Column::median("lending ns", "zero_copy_ns", Digits::Three),
    Column::median("auto ns", "auto_ns", Digits::Three),
    Column::words("excess", |_, line| Some(format!("{:+.1} %", line.middle("excess_percent")?))),
    Column::words("lent, not copied", |_, line| Some(PERCENT.text(line.facts.proof.zero_copied_share()))),
];

/// The comparison as text; empty where there is none.
pub fn text(sinks: &[CellReport<AutoChoice>]) -> String {
    if sinks.is_empty() {
        return String::new();
    }
    let mut out = format!(
        "\nAuto against the better of copying and lending, CPU time of a send, learning included (to reach: +2 %):\n{}",
        rows(sinks, &COLUMNS).render()
    );
    for line in sinks.iter().flat_map(|sink| &sink.lines) {
        // Writing to a String doesn't fail.
        let _ = writeln!(out, "{} chose: {}", line.variant, line.facts.choices.join("; "));
    }
    out
}
