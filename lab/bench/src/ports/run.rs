//! The benchmark from end to end: make a namespace, measure, report.

use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::bare_xdp::BareXdp;
use super::bursts::{self, Arrivals};
use super::compare::TAP;
use super::hold::{Hold, go_first};
use super::options::{PortKind, cases, rounds};
use super::raw::RawSocket;
use super::report::PortReport;
use super::served::ServedPort;
use crate::case::{Case, Direction};
use crate::compare::{CaseReport, NetBench, bases};
use crate::cpu::Placement;
use crate::experiment::floored::{Plan, Variant, compare};
use crate::experiment::measured;
use crate::floor::TapFloor;
use crate::machine::Machine;
use crate::netns::in_new_namespace;
use crate::options::NetOptions;

/// Measures ports on veth pairs, and the tap's, against the bare loops; text goes to `out`, files
/// where the options say.
///
/// Fails when the namespace or an interface can't be made, when the bare AF_XDP loop fails, and
/// when a file can't be written.
pub fn run_ports(options: &NetOptions, out: &mut dyn Write) -> Result<PortReport> {
    let cases = cases(options)?;
    measured(&options.files, out, || in_new_namespace(|| measure(options, &cases)))
}

fn measure(options: &NetOptions, cases: &[Case]) -> Result<PortReport> {
    let placement = Placement::detect()?;
    placement.pin_driver()?;
    go_first(None)?;
    let arrivals = Arrivals::Bursts(Rc::new(Hold::new(&placement)?));
    let mut notes = Vec::new();
    let bare = BareXdp::new(arrivals.clone(), &placement).context("the bare AF_XDP loop")?;
    let mut variants: Vec<Box<dyn Variant<NetBench>>> = vec![Box::new(bare)];
    let mut started = Vec::new();
    for (port, more) in served(options) {
        match start(options, port, more, &arrivals, &placement) {
            Ok(served) => {
                variants.push(Box::new(served));
                started.push((port, more));
            }
            // The others are measured all the same, unless nothing is left that was asked for.
            Err(error) if options.port.len() > 1 || !options.port.contains(&port) => {
                notes.push(format!("port {} is left out: {error:#}", port));
            }
            Err(error) => return Err(error.context(format!("port {}", port))),
        }
    }
    if options.program.is_none() {
        notes.push("only the bare loops were measured: no back end was given".to_owned());
    }
    variants.push(Box::new(TapFloor::new("zwfloor", placement.clone())?.called(TAP)));
    variants.push(Box::new(RawSocket::new(arrivals.clone(), &placement)?));
    let plan = Plan { rounds: rounds(options), quick: options.quick };
    let reports = compared(cases, &mut variants, plan)?;
    // The back ends end here.
    drop(variants);
    let streams = streams(options, cases, &started, &placement)?;
    let mut report = PortReport::new(Machine::detect(), placement.separate(), notes, reports, streams);
    let watch = Duration::from_secs(if options.quick { 1 } else { 3 });
    for (port, more) in started {
        if more.is_empty() && options.port.contains(&port) {
            report.idle.push(start(options, port, more, &arrivals, &placement)?.idle(watch)?);
        }
    }
    Ok(report)
}

/// The ports that could be started, and bare loops beside them, with streams of the longest frames.
fn streams(
    options: &NetOptions,
    cases: &[Case],
    ports: &[(PortKind, &str)],
    placement: &Placement,
) -> Result<Vec<CaseReport>> {
    let longest = cases.iter().map(|case| case.frame_len).max();
    let cases: Vec<Case> = cases.iter().copied().filter(|case| Some(case.frame_len) == longest).collect();
    let arrivals = Arrivals::Stream;
    let mut variants: Vec<Box<dyn Variant<NetBench>>> =
        vec![Box::new(RawSocket::new(arrivals.clone(), placement)?)];
    for (port, more) in ports {
        let served = start(options, *port, more, &arrivals, placement);
        variants.push(Box::new(served.with_context(|| format!("port {}", port))?));
    }
    variants.push(Box::new(BareXdp::new(arrivals, placement).context("the bare AF_XDP loop")?));
    compared(&cases, &mut variants, Plan { rounds: rounds(options), quick: options.quick })
}

fn compared(
    cases: &[Case],
    variants: &mut [Box<dyn Variant<NetBench>>],
    plan: Plan,
) -> Result<Vec<CaseReport>> {
    let mut reports = compare(cases, variants, plan, |name| bases(&[], name))?;
    for case in reports.iter_mut().filter(|case| case.at.direction == Direction::Receive) {
        case.facts.working_set_bytes = bursts::working_set(&case.at);
    }
    Ok(reports)
}

fn start(
    options: &NetOptions,
    port: PortKind,
    more: &str,
    arrivals: &Arrivals,
    placement: &Placement,
) -> Result<ServedPort> {
    let program = options.program.as_deref().context("no program")?;
    ServedPort::start(program, port, more, arrivals.clone(), placement)
}

/// The back ends to measure: a port and further arguments. The tap's serves as a comparison.
fn served(options: &NetOptions) -> Vec<(PortKind, &str)> {
    if options.program.is_none() {
        return Vec::new();
    }
    let more = || std::iter::once("").chain(options.which.with.iter().map(String::as_str));
    let asked = options.port.iter().flat_map(|port| more().map(|args| (*port, args)));
    let beside = (!options.port.contains(&PortKind::Tap)).then_some((PortKind::Tap, ""));
    asked.chain(beside).collect()
}
