//! The benchmark from end to end.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Error, Result};

use super::auto::{self, AutoReport};
use super::case::{SinkKind, TxCase};
use super::column::Column;
use super::cycles;
use super::lab::Lab;
use super::measure::{self, Softirq};
use super::options::PacketTxOptions;
use super::replay;
use super::report::{Kind, Line, TxCaseReport, TxReport};
use super::source::Source;
use super::way::{Proof, TxSample, Way};
use super::{bare, library};
use crate::cpu::Placement;
use crate::interleave::{Runs, Turn, interleave};
use crate::machine::Machine;
use crate::netns::in_new_namespace;
use crate::others::Usage;
use crate::progress::Progress;
use crate::record::Failure;
use crate::report::{check_places, give_out};

/// Measures every column in every row; text goes to `out`, files where the options say.
///
/// Fails when options make no sense, when namespaces or devices can't be made, and when a file can't be written; a column that
/// fails is named in the report.
pub fn run_packet_tx(options: &PacketTxOptions, out: &mut dyn Write) -> Result<TxReport> {
    options.verify()?;
    let (json, svg) = (options.json.as_deref(), options.svg.as_deref());
    let to_stdout = json == Some(Path::new("-"));
    check_places((json.filter(|_| !to_stdout), svg))?;
    let before = Usage::now();
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
            let lab = Lab::new(sink, &placement)?;
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
    if options.replay {
        match &options.program {
            Some(program) => {
                let measured = in_new_namespace(|| {
                    let lab = Lab::new(SinkKind::Ifb, &placement)?;
                    replay::measure(program, &lab, options.rounds(), options.quick)
                });
                report.replay = Some(measured.context("replay")?);
            }
            None => report.notes.push("replay was not measured: no program was given".to_owned()),
        }
    }
    report.notes.extend(before.remark(&Usage::now()));
    if to_stdout {
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
        if let Some(folder) = svg {
            report.write_charts(folder)?;
        }
        return Ok(report);
    }
    give_out(&report, &report.text(), (json, svg), |folder| report.write_charts(folder), out)?;
    Ok(report)
}

/// What one sink adds to the report.
#[derive(Default)]
struct Part {
    cases: Vec<TxCaseReport>,
    auto: Vec<AutoReport>,
    auto_failures: Vec<Failure>,
    cycles: Vec<cycles::CyclesReport>,
    notes: Vec<String>,
}

fn measure_sink(options: &PacketTxOptions, lab: &Lab, softirq: &Softirq) -> Result<Part> {
    let cases = options.cases(lab.kind())?;
    let mut part = Part::default();
    let auto_steps = if options.auto_sends() > 0 { cases.len() } else { 0 };
    let title = format!("packet-tx {}", lab.kind());
    let mut progress = Progress::new(&title, cases.len() * (options.rounds() + 1) + auto_steps);
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
    if options.cycles {
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
    lab: &Lab,
    softirq: &Softirq,
    progress: &mut Progress,
) -> Result<TxCaseReport> {
    let source = Source::new(case, lab)?;
    let lines = lines(options);
    let mut seats: Vec<Seat> = lines.iter().map(|_| Seat::default()).collect();
    let sends = case.sends(options.quick);
    let runs = interleave(lines.len(), options.rounds(), case, progress, |index, turn| {
        let (column, kind) = lines[index];
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
            // After a failure above it isn't kept: what is left of it must not send in the middle of others.
            false => seat.way = Some(way),
        }
        Ok(sample)
    });
    for seat in &mut seats {
        if let Some(way) = seat.way.take() {
            seat.proof += way.proof();
        }
    }
    let proofs = seats.into_iter().map(|seat| (seat.proof, seat.path)).collect();
    Ok(report_of(case, options.rounds(), sends, lines, proofs, runs))
}

/// A line's way, and what is known of it.
#[derive(Default)]
struct Seat<'a> {
    way: Option<Box<dyn Way + 'a>>,
    proof: Proof,
    path: String,
}

/// What is measured in each case, in order: each column bare and by the library.
fn lines(options: &PacketTxOptions) -> Vec<(Column, Kind)> {
    let kinds = if options.floor_only { &[Kind::Bare][..] } else { &[Kind::Bare, Kind::Library] };
    let all = options.columns.iter().flat_map(|&column| kinds.iter().map(move |&kind| (column, kind)));
    all.filter(|(column, kind)| *kind == Kind::Library || *column != Column::Auto).collect()
}

/// Opens a column one way or the other.
pub(super) fn open<'a>(
    column: Column,
    kind: Kind,
    case: &TxCase,
    lab: &'a Lab,
    source: &'a Source,
) -> Result<Box<dyn Way + 'a>> {
    match kind {
        Kind::Bare => bare::open(column, case, lab, source)?.context("there is no bare loop of it"),
        Kind::Library => library::open(column, case, lab, source),
    }
}

fn report_of(
    case: &TxCase,
    rounds: usize,
    sends: usize,
    lines: Vec<(Column, Kind)>,
    proofs: Vec<(Proof, String)>,
    mut runs: Vec<Runs<TxSample>>,
) -> TxCaseReport {
    let failure = |((column, kind), error): (&(Column, Kind), Error)| Failure {
        variant: format!("{column}, {kind}"),
        reason: format!("{error:#}"),
    };
    let failures: Vec<Failure> = lines
        .iter()
        .zip(&mut runs)
        .filter_map(|(line, runs)| Some(failure((line, runs.failed.take()?))))
        .collect();
    let sound: Vec<(Column, Kind, Vec<TxSample>)> = lines
        .into_iter()
        .zip(runs)
        // One that failed half-way has fewer samples, and they don't pair up with others.
        .map(|((column, kind), runs)| match runs.samples.len() == rounds {
            true => (column, kind, runs.samples),
            false => (column, kind, Vec::new()),
        })
        .collect();
    let of = |column, kind| {
        let found = sound.iter().find(|(c, k, _)| (*c, *k) == (column, kind));
        found.map(|(_, _, samples)| &samples[..]).unwrap_or_default()
    };
    let reports = sound.iter().zip(proofs).filter_map(|((column, kind, samples), proof)| {
        let bare = if *kind == Kind::Library { of(*column, Kind::Bare) } else { &[] };
        let mut copying = of(column.copying(), Kind::Bare);
        if copying.is_empty() {
            copying = of(column.copying(), Kind::Library);
        }
        Line::of(case, *column, *kind, samples, bare, copying, proof)
    });
    TxCaseReport {
        case: *case,
        working_set_bytes: case.working_set.bytes(),
        sends,
        lines: reports.collect(),
        published: super::reference::row(case.payload),
        failures,
    }
}
