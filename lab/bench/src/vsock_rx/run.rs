//! The experiment from end to end.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Error, Result, bail};

use super::experiment::{Experiment, Guest};
use super::floor::Floor;
use super::mode::Mode;
use super::options::{TableOptions, windows_for};
use super::report::{LineReport, RxCaseReport, RxReport};
use super::variant::{Line, RxCase, RxSample};
use crate::case::Direction;
use crate::cpu::Placement;
use crate::interleave::{Turn, interleave};
use crate::machine::Machine;
use crate::others::Usage;
use crate::progress::Progress;
use crate::record::Failure;
use crate::report::{check_places, give_out};

/// Bytes that warm caches and queues before anything counts. Their content is checked.
const WARM_UP: u64 = 8 << 20;

/// Measures copying and mapped receive against the floors; text goes to `out`, files where the options say.
///
/// Fails when a file can't be written; what fails of the back end or the program is named in the report.
pub fn run_table(options: &TableOptions, out: &mut dyn Write) -> Result<RxReport> {
    options.verify()?;
    let files = (options.json.as_deref(), options.svg.as_deref());
    check_places(files)?;
    let before = Usage::now();
    // Threads and children inherit the affinity that is changed meanwhile.
    let measured = std::thread::scope(|scope| scope.spawn(|| measure(options)).join());
    let mut report = measured.unwrap_or_else(|_| bail!("the benchmark's thread panicked"))?;
    report.notes.extend(before.remark(&Usage::now()));
    give_out(&report, &report.text(), files, |folder| report.write_charts(folder), out)?;
    Ok(report)
}

fn measure(options: &TableOptions) -> Result<RxReport> {
    let placement = Placement::detect()?;
    placement.pin_driver()?;
    let mut report = RxReport {
        machine: Machine::detect(),
        separate_cpus: placement.separate(),
        megabytes: options.bytes() >> 20,
        rounds: options.rounds(),
        credit: options.credit,
        host_cpu: options.host_cpu,
        ..RxReport::default()
    };
    let mut ends = Ends { plain: None, direct: None };
    match &options.program {
        Some(program) => ends = Ends::start(program, options, &placement, &mut report.notes)?,
        None => report.notes.push("only the floors were measured: no back end was given".to_owned()),
    }
    let mut cases = Vec::new();
    for &direction in &options.directions {
        for &working_set in &options.working_sets {
            cases.extend(options.lens().into_iter().map(|len| {
                let windows = if options.windows == 0 { windows_for(len) } else { options.windows };
                RxCase { direction, len, working_set, windows }
            }));
        }
    }
    let mut progress = Progress::new("bench", cases.len() * (options.rounds() + 1));
    for case in &cases {
        report.cases.push(ends.measure_case(case, options, &placement, &mut progress)?);
    }
    progress.finish();
    Ok(report)
}

/// The back ends: one as it is by default, one that shares the guest's memory.
struct Ends<'a> {
    plain: Option<Experiment<'a>>,
    direct: Option<Experiment<'a>>,
}

/// The guests of a case.
struct Guests {
    plain: Option<Guest>,
    direct: Option<Guest>,
}

impl<'a> Ends<'a> {
    fn start(
        program: &Path,
        options: &'a TableOptions,
        placement: &Placement,
        notes: &mut Vec<String>,
    ) -> Result<Self> {
        let plain = Some(Experiment::start(program, options, &[], placement)?);
        let mut direct = None;
        if options.modes.contains(&Mode::Direct) && options.directions.contains(&Direction::Transmit) {
            match Experiment::start_direct(program, options, placement) {
                Ok(experiment) => direct = Some(experiment),
                Err(error) => notes.push(format!("direct windows are left out: {error:#}")),
            }
        }
        Ok(Self { plain, direct })
    }

    fn lines(&self, case: &RxCase, options: &TableOptions) -> Vec<Line> {
        let wanted = |line: &Line| match line {
            line if line.is_floor() => true,
            _ if self.plain.is_none() => false,
            Line::Direct => self.direct.is_some() && case.direction == Direction::Transmit,
            line => line.mode().is_some_and(|mode| options.modes.contains(&mode)),
        };
        Line::ALL.into_iter().filter(wanted).collect()
    }

    fn measure_case(
        &self,
        case: &RxCase,
        options: &TableOptions,
        placement: &Placement,
        progress: &mut Progress,
    ) -> Result<RxCaseReport> {
        let mut floor = Floor::new(case, options.host_cpu, placement, options.credit)?;
        let guest_of = |end: &Option<Experiment<'_>>| end.as_ref().map(|end| end.guest(case)).transpose();
        let transmit = case.direction == Direction::Transmit;
        let mut guests = Guests {
            plain: guest_of(&self.plain)?,
            direct: if transmit { guest_of(&self.direct)? } else { None },
        };
        let lines = self.lines(case, options);
        let runs = interleave(lines.len(), options.rounds(), case, progress, |index, turn| {
            let (bytes, check) = match turn {
                Turn::WarmUp => (WARM_UP, true),
                Turn::Round(_) => (options.bytes(), false),
            };
            self.run(lines[index], &mut floor, &mut guests, bytes, check)
        });
        let records = lines
            .into_iter()
            .zip(runs)
            .map(|(line, runs)| Record { line, samples: runs.samples, failed: runs.failed })
            .collect();
        Ok(report_of(case, options, records))
    }

    fn run(
        &self,
        line: Line,
        floor: &mut Floor,
        guests: &mut Guests,
        bytes: u64,
        check: bool,
    ) -> Result<RxSample> {
        let (end, guest) = match line {
            line if line.is_floor() => return floor.run(line, bytes),
            Line::Direct => (&self.direct, &mut guests.direct),
            _ => (&self.plain, &mut guests.plain),
        };
        let end = end.as_ref().context("no back end runs for this")?;
        let outcome = match guest {
            Some(guest) => end.run(guest, line, bytes, check),
            None => bail!("the guest could not be connected again after a failure"),
        };
        if outcome.is_err() {
            // What is left of a failed run must not be in the way of the next line.
            let case = guest.take().map(|guest| guest.case());
            *guest = case.and_then(|case| end.guest(&case).ok());
        }
        outcome
    }
}

/// What one line did in one case.
struct Record {
    line: Line,
    samples: Vec<RxSample>,
    failed: Option<Error>,
}

fn report_of(case: &RxCase, options: &TableOptions, records: Vec<Record>) -> RxCaseReport {
    let failures = records.iter().filter_map(|record| {
        let reason = format!("{:#}", record.failed.as_ref()?);
        Some(Failure { variant: record.line.name().to_owned(), reason })
    });
    let failures = failures.collect();
    let samples = |line| {
        let sound = |record: &&Record| record.line == line && record.failed.is_none();
        records.iter().find(sound).map(|record| &record.samples[..]).unwrap_or_default()
    };
    let lines = records.iter().filter(|record| record.failed.is_none()).filter_map(|record| {
        let floor = match record.line {
            Line::FloorTouch | Line::FloorCopyTouch => None,
            Line::Direct | Line::FloorTouchWoken => Some(Line::FloorTouch),
            // Host to guest, what is mapped is the device's own buffer: the one copy is the back end's read().
            _ => Some(Line::FloorCopyTouch),
        };
        LineReport::of(
            record.line,
            case.len,
            &record.samples,
            samples(Line::Copy),
            floor.map_or(&[], samples),
        )
    });
    let lines = lines.collect();
    RxCaseReport::new(case, options.rounds(), options.bytes(), lines, failures)
}
