//! The experiment from end to end.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::experiment::Experiment;
use super::floor::RxFloor;
use super::options::{ReceiveMode, TableOptions, windows_for};
use super::report::{RxFacts, RxReport, VsockRx};
use super::variant::{RxCase, RxWay};
use crate::case::Direction;
use crate::cpu::Placement;
use crate::experiment::{CellReport, ProgressLine, ReportHead, Tried, Turn, interleave, measured};

/// Bytes that warm caches and queues before anything counts. Their content is checked.
const WARM_UP: u64 = 8 << 20;

/// Measures copying and mapped receive against the floors; text goes to `out`, files where the
/// options say.
///
/// Fails when a file can't be written; what fails of the back end or the program is named in the
/// report.
pub fn run_table(options: &TableOptions, out: &mut dyn Write) -> Result<RxReport> {
    options.verify()?;
    measured(&options.files, out, || {
        // Threads and children inherit the affinity that is changed meanwhile.
        let report = std::thread::scope(|scope| scope.spawn(|| measure(options)).join());
        report.unwrap_or_else(|_| bail!("the benchmark's thread panicked"))
    })
}

fn measure(options: &TableOptions) -> Result<RxReport> {
    let placement = Placement::detect()?;
    placement.pin_driver()?;
    let mut report = RxReport {
        head: ReportHead::detect(&placement),
        megabytes: options.bytes() >> 20,
        rounds: options.rounds(),
        credit: options.credit(),
        host_cpu: options.host_cpu,
        ..RxReport::default()
    };
    let mut ends = Ends { plain: None, direct: None };
    match &options.program {
        Some(program) => ends = Ends::start(program, options, &placement, &mut report.head.notes)?,
        None => report.head.notes.push("only the floors were measured: no back end was given".to_owned()),
    }
    let mut cases = Vec::new();
    for &direction in &options.directions {
        for &working_set in &options.working_sets {
            cases.extend(options.lens().into_iter().map(|len| {
                let windows = windows_for(options.windows, len);
                RxCase { direction, len, working_set, windows }
            }));
        }
    }
    let mut progress = ProgressLine::new("bench", cases.len() * (options.rounds() + 1));
    for case in &cases {
        report.cases.push(ends.measure_case(case, options, &placement, &mut progress)?);
    }
    Ok(report)
}

/// The back ends: one as it is by default, one that shares the guest's memory.
struct Ends<'a> {
    plain: Option<Experiment<'a>>,
    direct: Option<Experiment<'a>>,
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
        if options.modes.contains(&ReceiveMode::Direct) && options.directions.contains(&Direction::Transmit) {
            match Experiment::start(program, options, &["--share-guest-memory"], placement) {
                Ok(experiment) => direct = Some(experiment),
                Err(error) => notes.push(format!("direct windows are left out: {error:#}")),
            }
        }
        Ok(Self { plain, direct })
    }

    fn lines(&self, case: &RxCase, options: &TableOptions) -> Vec<RxWay> {
        let wanted = |line: &RxWay| match line {
            line if line.is_floor() => true,
            _ if self.plain.is_none() => false,
            RxWay::Direct => self.direct.is_some() && case.direction == Direction::Transmit,
            line => line.mode().is_some_and(|mode| options.modes.contains(&mode)),
        };
        RxWay::all().filter(wanted).collect()
    }

    fn measure_case(
        &mut self,
        case: &RxCase,
        options: &TableOptions,
        placement: &Placement,
        progress: &mut ProgressLine,
    ) -> Result<CellReport<VsockRx>> {
        let mut floor = RxFloor::new(case, options.host_cpu, placement, options.credit())?;
        let lines = self.lines(case, options);
        let runs = interleave(lines.len(), options.rounds(), case, progress, |index, turn| {
            let (bytes, check) = match turn {
                Turn::WarmUp => (WARM_UP, true),
                Turn::Round(_) => (options.bytes(), false),
            };
            let end = match lines[index] {
                floors if floors.is_floor() => return floor.run(floors, bytes),
                RxWay::Direct => &mut self.direct,
                _ => &mut self.plain,
            };
            let end = end.as_mut().context("no back end runs for this")?;
            end.run(case, lines[index], bytes, check)
        });
        let tried = lines.into_iter().zip(runs);
        let tried = tried.map(|(way, runs)| Tried { variant: way, bases: way.bases(), facts: (), runs });
        let facts = RxFacts::of(case, options.rounds(), options.bytes());
        Ok(CellReport::of(*case, facts, tried.collect(), Vec::new()))
    }
}
