//! Auto beside copying and lending: a long run of each, in turns.
//!
//! A new sender each, so Auto's learning is part of its run. Chunks of the three take turns in an
//! order that rotates, so a machine that drifts does so for all three.

use anyhow::{Context, Result};
use serde::Serialize;
use zerowire::send::{SendBackend, SendMode};

use super::case::TxCase;
use super::lab::TxLab;
use super::library::{Choice, Handover, Sockets};
use super::measure::{Softirq, run};
use super::source::TxSource;
use super::way::{Proof, TxWay};
use crate::progress::ProgressLine;
use crate::stats::rotation;

/// Sends of a chunk.
const CHUNK: usize = 1024;

/// The figures of one case.
#[derive(Debug, Clone, Serialize)]
pub struct AutoReport {
    /// What was measured.
    #[serde(flatten)]
    pub case: TxCase,
    /// Sends of each of the three.
    pub sends: usize,
    /// CPU nanoseconds a send: copying.
    pub copy_ns: f64,
    /// Lending.
    pub zero_copy_ns: f64,
    /// Auto, its learning included.
    pub auto_ns: f64,
    /// What Auto cost more than the better of the two, in percent; negative: less.
    pub excess_percent: f64,
    /// What became of Auto's bytes.
    pub proof: Proof,
    /// What ran and why.
    pub path: String,
    /// What Auto chose in the end, and why.
    pub choices: Vec<String>,
}

/// Compares the three over `sends` sends each.
pub fn compare(
    case: &TxCase,
    lab: &TxLab,
    softirq: &Softirq,
    sends: usize,
    progress: &mut ProgressLine,
) -> Result<AutoReport> {
    progress.step(format_args!("auto, {case}"));
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
    let chunks = sends / chunk;
    let mut cpu = [0.0; 3];
    for round in 0..chunks {
        for index in rotation(ways.len(), round) {
            let sample = run(&mut ways[index], case, lab, softirq, chunk)?;
            cpu[index] += sample.cpu.as_nanos() as f64;
        }
    }
    progress.advance();
    let [copy_ns, zero_copy_ns, auto_ns] = cpu.map(|cpu| cpu / (chunks * chunk) as f64);
    let auto = &ways[2];
    Ok(AutoReport {
        case: *case,
        sends: chunks * chunk,
        copy_ns,
        zero_copy_ns,
        auto_ns,
        excess_percent: (auto_ns / copy_ns.min(zero_copy_ns).max(1e-9) - 1.0) * 100.0,
        proof: auto.proof(),
        path: auto.path(),
        choices: auto.sender().choices().iter().map(ToString::to_string).collect(),
    })
}
