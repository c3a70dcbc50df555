//! The benchmark from end to end.

use std::io::Write;

use anyhow::{Context, Result};

use super::case::{Column, TxCase};
use super::lab::TxLab;
use super::options::PacketTxOptions;
use super::report::{Caller, PacketTx, RowFacts, TxFacts, TxReport, TxVariant};
use super::source::TxSource;
use super::way::{self, Proof, Softirq, TxWay};
use super::{auto, bare, cycles, library};
use crate::cpu::Placement;
use crate::experiment::{CellReport, ProgressLine, ReportHead, Tried, Turn, interleave, measured};
use crate::netns::in_new_namespace;
use crate::peers::{PeersOptions, replay};

/// Measures every column in every row; text goes to `out`, files where the options say.
///
/// Fails when options make no sense, when namespaces or devices can't be made, and when a file
/// can't be written. A column that fails is named in the report.
pub fn run_packet_tx(options: &PacketTxOptions, out: &mut dyn Write) -> Result<TxReport> {
    options.verify()?;
    measured(&options.files, out, || report(options))
}

fn report(options: &PacketTxOptions) -> Result<TxReport> {
    let softirq = Softirq::find();
    let placement = Placement::detect()?;
    let mut report = TxReport {
        head: ReportHead::detect(&placement),
        quick: options.quick,
        rounds: options.rounds(),
        ..TxReport::default()
    };
    if options.floor_only {
        report.head.notes.push("only the bare loops were measured".to_owned());
    }
    if !softirq.seen() {
        report
            .head
            .notes
            .push("the kernel's softirq threads can't be seen: their CPU time is missing".to_owned());
    }
    for &sink in &options.sinks {
        // A namespace a sink: nothing of the one is left for the other.
        let measured = in_new_namespace(|| {
            let lab = TxLab::new(sink, &placement)?;
            placement.pin_worker()?;
            measure_sink(options, &lab, &softirq, &mut report)
        });
        measured.with_context(|| format!("sink {sink}"))?;
    }
    if options.more.replay {
        let program = options.more.program.clone().context("replay: no program was given")?;
        let (quick, rounds) = (options.quick, Some(options.rounds()));
        let options = PeersOptions { quick, rounds, ..PeersOptions::new(program) };
        let cells = in_new_namespace(|| replay::measure(&options, &placement));
        report.replay = cells.context("replay")?;
    }
    Ok(report)
}

/// Adds the rows of one sink to the report.
fn measure_sink(
    options: &PacketTxOptions,
    lab: &TxLab,
    softirq: &Softirq,
    report: &mut TxReport,
) -> Result<()> {
    let (sink, cases) = (lab.kind(), TxCase::all(&[lab.kind()], &options.working_sets, &options.sizes)?);
    let auto_steps = if options.auto_sends() > 0 { cases.len() } else { 0 };
    let steps = cases.len() * (options.rounds() + 1) + auto_steps;
    let mut progress = ProgressLine::new(&format!("packet-tx {sink}"), steps);
    let mut auto = Vec::new();
    for case in &cases {
        report.cases.push(measure_case(options, case, lab, softirq, &mut progress)?);
        if options.auto_sends() > 0 {
            auto.push(auto::compare(case, lab, softirq, options.auto_sends(), &mut progress));
        }
    }
    drop(progress);
    if !auto.is_empty() {
        report.auto.push(CellReport::of(sink, (), auto, Vec::new()));
    }
    let rows = report.cases.iter_mut().filter(|row| row.at.sink == sink);
    let longest = rows.max_by_key(|row| (row.at.payload, row.at.working_set.bytes()));
    if let Some(row) = longest.filter(|_| options.more.cycles)
        && let Err(error) = cycles::measure(row, lab, options.quick, &mut report.head.notes)
    {
        report.head.notes.push(format!("cycles on the {sink} sink: not measured: {error:#}"));
    }
    Ok(())
}

fn measure_case(
    options: &PacketTxOptions,
    case: &TxCase,
    lab: &TxLab,
    softirq: &Softirq,
    progress: &mut ProgressLine,
) -> Result<CellReport<PacketTx>> {
    let source = TxSource::new(case, lab)?;
    let senders = senders(options);
    let mut seats: Vec<Seat> = senders.iter().map(|_| Seat::default()).collect();
    let sends = case.sends(options.quick);
    let runs = interleave(senders.len(), options.rounds(), case, progress, |index, turn| {
        let TxVariant { column, kind } = senders[index];
        let seat = &mut seats[index];
        let mut way = match seat.way.take() {
            Some(way) => way,
            None => {
                let mut way = open(column, kind, case, lab, &source).context("opening failed")?;
                let warm_up = way.warm_up();
                let sample = way::run(way.as_mut(), case, lab, softirq, warm_up)?;
                seat.path = way.path();
                if turn == Turn::WarmUp && !column.is_exclusive() {
                    seat.way = Some(way);
                    return Ok(sample);
                }
                way
            }
        };
        let sample = way::run(way.as_mut(), case, lab, softirq, sends)?;
        match column.is_exclusive() {
            true => seat.proof += way.proof(),
            // After a failure above it isn't kept: what is left of it must not send in the middle
            // of others.
            false => seat.way = Some(way),
        }
        Ok(sample)
    });
    for seat in &mut seats {
        if let Some(way) = seat.way.take() {
            seat.proof += way.proof();
        }
    }
    let tried = senders.into_iter().zip(seats).zip(runs).map(|((sender, seat), runs)| {
        let Seat { proof, path, .. } = seat;
        let facts = TxFacts { proof, kernel_tells: sender.column.kernel_tells(), path, cycles: None };
        Tried { variant: sender, bases: sender.bases(), facts, runs }
    });
    let facts = RowFacts {
        working_set_bytes: case.working_set.bytes(),
        sends,
        published: super::reference::row(case.payload),
    };
    Ok(CellReport::of(*case, facts, tried.collect(), Vec::new()))
}

/// A line's way, and what is known of it.
#[derive(Default)]
struct Seat<'a> {
    way: Option<Box<dyn TxWay + 'a>>,
    proof: Proof,
    path: String,
}

/// What is measured in each case, in order: each column bare and by the library.
fn senders(options: &PacketTxOptions) -> Vec<TxVariant> {
    let kinds = if options.floor_only { &[Caller::Bare][..] } else { &[Caller::Bare, Caller::Library] };
    let all =
        options.columns.iter().flat_map(|&column| kinds.iter().map(move |&kind| TxVariant { column, kind }));
    all.filter(|sender| sender.kind == Caller::Library || sender.column != Column::Auto).collect()
}

/// Opens a column one way or the other.
pub(super) fn open<'a>(
    column: Column,
    kind: Caller,
    case: &TxCase,
    lab: &'a TxLab,
    source: &'a TxSource,
) -> Result<Box<dyn TxWay + 'a>> {
    match kind {
        Caller::Bare => bare::open(column, case, lab, source),
        Caller::Library => library::open(column, case, lab, source),
    }
}
