//! The benchmark from end to end.

use std::io::Write;
use std::path::Path;

use anyhow::Result;

use super::case::{SocketKind, VsockCase};
use super::compare::VsockBench;
use super::device::{DeviceKind, DeviceVariant};
use super::floor::SocketFloor;
use super::options::VsockBenchOptions;
use super::report::VsockReport;
use super::{attack, crowd, idle, latency, sibling};
use crate::amount::amount;
use crate::cpu::Placement;
use crate::experiment::{Plan, ReportHead, Variant, compare, first_program, measured};
use crate::netns::on_own_thread;
use crate::programs;
use crate::words::{verify_rounds, wrong};

/// Measures the vsock back end against the floor; text goes to `out`, files where the options say.
///
/// Fails when a byte is lost on the floor, and when a file can't be written. What fails of the back
/// end is named in the report.
pub fn run_vsock(options: &VsockBenchOptions, out: &mut dyn Write) -> Result<VsockReport> {
    verify_rounds(options.rounds())?;
    if !(128..=65_536).contains(&options.ends.rx_buffer) {
        wrong!("receive buffers of {} bytes: choose 128 to 65536", options.ends.rx_buffer);
    }
    if let Some(count) = options.idle.iter().find(|count| **count > 8192) {
        wrong!("{count} idle connections: choose 1 to 8192");
    }
    let lens = options.write_lens();
    let (ways, credits, sets) = (&options.directions, &options.credits, &options.working_sets);
    let cases = VsockCase::all(options.socket, ways, &lens, credits, sets)?;
    programs::verify(&options.which.programs, options.which.gate)?;
    // Threads and children inherit the affinity that is changed meanwhile.
    measured(&options.files, out, || on_own_thread(|| measure(options, &cases)))
}

fn measure(options: &VsockBenchOptions, cases: &[VsockCase]) -> Result<VsockReport> {
    let placement = Placement::detect()?;
    placement.pin_driver()?;
    let mut report = VsockReport {
        head: ReportHead::detect(&placement),
        rx_buffer: options.ends.rx_buffer,
        host_cpu: options.ends.host_cpu,
        socket: options.socket,
        ..VsockReport::default()
    };
    let mut variants: Vec<Box<dyn Variant<VsockBench>>> = vec![
        Box::new(SocketFloor::new(options.ends.host_cpu, placement.clone())),
        Box::new(SocketFloor::copying(options.ends.host_cpu, placement.clone())),
        Box::new(SocketFloor::bounded(options.ends.host_cpu, placement.clone())),
    ];
    let named = &options.which.programs;
    let programs = programs::measured(named, options.program.as_ref());
    for kind in kinds(options) {
        for program in &programs {
            let (kind, credits) = (kind.of(program), &options.credits);
            variants.push(Box::new(DeviceVariant::start(&program.path, kind, credits, &placement)?));
        }
    }
    if programs.is_empty() {
        report.head.notes.push("only the floor was measured: no back end was given".to_owned());
    } else if !named.is_empty() {
        report
            .head
            .notes
            .push("what is not a stream of one connection is measured without --program".to_owned());
    }
    let plan = Plan { rounds: options.rounds(), quick: options.quick };
    let bases = |name: &str| first_program(named, name).into_iter().collect::<Vec<_>>();
    report.cases = compare(cases, &mut variants, plan, bases)?;
    // The back ends end here; those of the other parts are processes of their own.
    drop(variants);
    if !named.is_empty() {
        return Ok(report);
    }
    if options.socket == SocketKind::Seqpacket {
        report.head.notes.push(
            "round trips, guest to guest, many and idle connections, attacks: with --type stream".to_owned(),
        );
    } else if let Some(program) = &options.program {
        others(options, program, &placement, &mut report)?;
    }
    Ok(report)
}

/// What isn't a stream of one connection. A part that fails is named in the report; the others go
/// on.
fn others(
    options: &VsockBenchOptions,
    program: &Path,
    placement: &Placement,
    report: &mut VsockReport,
) -> Result<()> {
    let (quick, rounds) = (options.quick, options.rounds());
    let mut failed = Vec::new();
    fn keep<T>(part: &str, result: Result<T>, failed: &mut Vec<String>) -> Option<T> {
        result.map_err(|error| failed.push(format!("{part}: {error:#}"))).ok()
    }
    if !options.no_extras {
        let trips = amount(if quick { 500 } else { 2000 });
        let result = latency::measure(program, rounds, trips, placement);
        report.latency = keep("round trips", result, &mut failed).unwrap_or_default();
        let result = sibling::measure(program, &options.working_sets, rounds, quick, placement);
        report.guest_to_guest = keep("guest to guest", result, &mut failed).unwrap_or_default();
        let result = crowd::measure(program, 64, options.ends.host_cpu, (rounds, quick), placement);
        report.crowd = keep("many connections", result, &mut failed).unwrap_or_default();
        let result = attack::measure(program, options.ends.host_cpu, (rounds, quick), placement);
        report.attacks = keep("attacks", result, &mut failed);
    }
    let counts: Vec<usize> = options.idle.iter().copied().filter(|count| *count > 0).collect();
    if !counts.is_empty() {
        let starts = if quick { 5 } else { 15 };
        let result = idle::measure(program, &counts, starts, quick, placement);
        report.idle = keep("idle connections", result, &mut failed);
    }
    report.failed_parts = failed;
    Ok(())
}

fn kinds(options: &VsockBenchOptions) -> Vec<DeviceKind> {
    let kind = |name: &str, args: &str, guest_sleeps| DeviceKind {
        name: name.to_owned(),
        args: args.split_whitespace().map(str::to_owned).collect(),
        guest_sleeps,
        rx_buffer_len: options.ends.rx_buffer,
        host_cpu: options.ends.host_cpu,
    };
    let mut kinds = vec![kind("zerowire", "", false)];
    if !options.ends.no_sleeping_guest {
        kinds.push(kind("zerowire, guest sleeps", "", true));
    }
    kinds.extend(options.which.with.iter().map(|args| kind(&format!("zerowire {args}"), args, false)));
    kinds
}
