//! The benchmark from end to end: make a namespace, measure, report.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;

use crate::backend::BackendKind;
use crate::case::Case;
use crate::compare::{NetBench, bases};
use crate::cpu::Placement;
use crate::experiment::{Plan, ReportHead, Variant, compare, measured};
use crate::floor::TapFloor;
use crate::netns::in_new_namespace;
use crate::options::NetOptions;
use crate::ports::served::ServedPort;
use crate::report::NetReport;
use crate::scaling::{self, Effort};
use crate::words::verify_rounds;
use crate::{added, idle, programs};

/// Frame lengths where none is given.
const SIZES: [usize; 4] = [64, 1500, 9000, 60_000];

/// Measures the back end against the floor; text goes to `out`, files where the options say.
///
/// Fails when the namespace or a tap can't be made, when a frame is lost, and when a file can't be
/// written.
pub fn run_net(options: &NetOptions, out: &mut dyn Write) -> Result<NetReport> {
    verify_rounds(options.rounds())?;
    options.vm_counts()?;
    options.idle_count()?;
    let cases = Case::all(&options.directions, options.lengths(&SIZES), &options.working_sets)?;
    options.guests_without()?;
    programs::verify(&options.which.programs, options.which.gate)?;
    measured(&options.files, out, || in_new_namespace(|| measure(options, &cases)))
}

/// Everything that `zerowire-bench net` measures, in the namespace of the calling thread.
fn measure(options: &NetOptions, cases: &[Case]) -> Result<NetReport> {
    let placement = Placement::detect()?;
    placement.pin_driver()?;
    let mut report = NetReport {
        head: ReportHead::detect(&placement),
        cases: Vec::new(),
        scaling: Vec::new(),
        idle: None,
        added: Vec::new(),
    };
    let mut variants: Vec<Box<dyn Variant<NetBench>>> =
        vec![Box::new(TapFloor::new("zwfloor", placement.clone())?)];
    if options.bare_calls {
        let floor = TapFloor::new("zwbare", placement.clone())?;
        variants.push(Box::new(floor.as_bare_calls(options.fragment_bytes())));
    }
    let named = &options.which.programs;
    let mut kinds = vec![BackendKind::zero_copy()];
    kinds.extend(named.is_empty().then(BackendKind::copy));
    kinds.extend(options.which.with.iter().map(|args| BackendKind::with_args(args)));
    kinds.extend(options.guests_without()?);
    let programs = programs::measured(named, options.program.as_ref());
    for kind in &kinds {
        for program in &programs {
            let (kind, fragment_len) = (kind.of(program), options.fragment_bytes());
            variants.push(Box::new(ServedPort::on_tap(&program.path, &kind, fragment_len, &placement)?));
        }
    }
    if programs.is_empty() {
        report.head.notes.push("no back end was measured: none was given".to_owned());
    } else if !named.is_empty() {
        report.head.notes.push("many VMs and idle ones are measured without --program".to_owned());
    }
    let plan = Plan { rounds: options.rounds(), quick: options.quick };
    report.cases = compare(cases, &mut variants, plan, |name| bases(named, name))?;
    // The back ends end here; those of many VMs are processes of their own.
    drop(variants);
    if let Some(program) = options.program.as_ref().filter(|_| named.is_empty()) {
        let effort = Effort {
            rounds: if options.quick { 2 } else { 5 },
            span: Duration::from_millis(if options.quick { 100 } else { 200 }),
            trips: if options.quick { 600 } else { 1200 },
            fragment_len: options.fragment_bytes(),
        };
        report.scaling = scaling::measure(program, &options.vm_counts()?, effort, &placement)?;
        let (starts, watch) = if options.quick { (5, 1) } else { (15, 3) };
        let watch = Duration::from_secs(watch);
        report.idle = Some(idle::measure(program, options.idle_count()?, starts, watch, &placement)?);
        let trips = if options.quick { 5_000 } else { 200_000 };
        let effort = Effort { trips, rounds: if options.quick { 2 } else { 9 }, ..effort };
        report.added = added::measure(program, effort, &placement)?;
    }
    Ok(report)
}
