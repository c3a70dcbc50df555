//! The benchmark from end to end.

use std::io::Write;

use anyhow::{Context, Result};

use super::auto::{self, AutoReport};
use super::case::{SinkKind, TxCase};
use super::column::Column;
use super::cycles;
use super::lab::TxLab;
use super::measure::{self, Softirq};
use super::options::PacketTxOptions;
use super::replay;
use super::report::{Caller, PacketTx, RowFacts, TxFacts, TxReport, TxVariant};
use super::source::TxSource;
use super::way::{Proof, TxWay};
use super::{bare, library};
use crate::cpu::Placement;
use crate::experiment::Failure;
use crate::experiment::{CellReport, Tried, measured};
use crate::interleave::{Turn, interleave};
use crate::machine::Machine;
use crate::netns::in_new_namespace;
use crate::progress::ProgressLine;

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
        machine: Machine::detect(),
        separate_cpus: placement.separate(),
        quick: options.quick,
        rounds: options.rounds(),
        ..TxReport::default()
    };
    if options.floor_only {
        report.notes.push("only the bare loops were measured".to_owned());
    }
    if !softirq.seen() {
        report.notes.push("the kernel's softirq threads can't be seen: their CPU time is missing".to_owned());
    }
    for &sink in &options.sinks {
        // A namespace a sink: nothing of the one is left for the other.
        let part = in_new_namespace(|| {
            let lab = TxLab::new(sink, &placement)?;
            placement.pin_worker()?;
            measure_sink(options, &lab, &softirq)
        });
        let part = part.with_context(|| format!("sink {sink}"))?;
        report.cases.extend(part.cases);
        report.auto.extend(part.auto);
        report.auto_failures.extend(part.auto_failures);
        report.cycles.extend(part.cycles);
        report.notes.extend(part.notes);
    }
    if options.more.replay {
        match &options.more.program {
            Some(program) => {
                let measured = in_new_namespace(|| {
                    let lab = TxLab::new(SinkKind::Ifb, &placement)?;
                    replay::measure(program, &lab, options.rounds(), options.quick)
                });
                report.replay = Some(measured.context("replay")?);
            }
            None => report.notes.push("replay was not measured: no program was given".to_owned()),
        }
    }
    Ok(report)
}

/// What one sink adds to the report.
#[derive(Default)]
struct Part {
    cases: Vec<CellReport<PacketTx>>,
    auto: Vec<AutoReport>,
    auto_failures: Vec<Failure>,
    cycles: Vec<cycles::CyclesReport>,
    notes: Vec<String>,
}

fn measure_sink(options: &PacketTxOptions, lab: &TxLab, softirq: &Softirq) -> Result<Part> {
    let cases = options.cases(lab.kind())?;
    let mut part = Part::default();
    let auto_steps = if options.auto_sends() > 0 { cases.len() } else { 0 };
    let title = format!("packet-tx {}", lab.kind());
    let mut progress = ProgressLine::new(&title, cases.len() * (options.rounds() + 1) + auto_steps);
    for case in &cases {
        part.cases.push(measure_case(options, case, lab, softirq, &mut progress)?);
        if options.auto_sends() > 0 {
            match auto::compare(case, lab, softirq, options.auto_sends(), &mut progress) {
                Ok(report) => part.auto.push(report),
                Err(error) => part.auto_failures.push(Failure {
                    variant: format!("auto beside copying and lending, {case}"),
                    reason: format!("{error:#}"),
                }),
            }
        }
    }
    progress.finish();
    if options.more.cycles {
        match cycles::measure(options, &cases, lab) {
            Ok(reports) => part.cycles = reports,
            Err(error) => {
                part.notes.push(format!("cycles on the {} sink: not measured: {error:#}", lab.kind()));
            }
        }
    }
    Ok(part)
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
                let sample = measure::run(way.as_mut(), case, lab, softirq, warm_up)?;
                seat.path = way.path();
                if turn == Turn::WarmUp && !column.is_exclusive() {
                    seat.way = Some(way);
                    return Ok(sample);
                }
                way
            }
        };
        let sample = measure::run(way.as_mut(), case, lab, softirq, sends)?;
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
        let facts = TxFacts { proof, kernel_tells: sender.column.kernel_tells(), path };
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
        Caller::Bare => bare::open(column, case, lab, source)?.context("there is no bare loop of it"),
        Caller::Library => library::open(column, case, lab, source),
    }
}
