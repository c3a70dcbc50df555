//! The benchmark from end to end: make a namespace, measure, report.

use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::bare::BareLoop;
use super::bare_xdp::BareXdp;
use super::bursts::{self, Arrivals};
use super::hold::{Hold, go_first};
use super::published::PUBLISHED;
use super::raw::RawSocket;
use super::report::PortReport;
use super::served::ServedPort;
use crate::case::{Case, Direction};
use crate::compare::{CaseReport, NetBench, RAW, TAP, bases};
use crate::cpu::Placement;
use crate::experiment::{Base, Plan, ReportHead, Variant, compare, measured};
use crate::floor::TapFloor;
use crate::netns::in_new_namespace;
use crate::options::{NetOptions, PortKind};
use crate::programs::{self, NamedProgram};

/// Measures ports on veth pairs, and the tap's, against the bare loops; text goes to `out`, files
/// where the options say.
///
/// Fails when the namespace or an interface can't be made, when the bare AF_XDP loop fails, and
/// when a file can't be written.
pub fn run_ports(options: &NetOptions, out: &mut dyn Write) -> Result<PortReport> {
    let cases = options.port_cases()?;
    measured(&options.files, out, || in_new_namespace(|| measure(options, &cases)))
}

fn measure(options: &NetOptions, cases: &[Case]) -> Result<PortReport> {
    let placement = Placement::detect()?;
    placement.pin_driver()?;
    go_first(None)?;
    let arrivals = Arrivals::Bursts(Rc::new(Hold::new(&placement)?));
    let mut head = ReportHead::detect(&placement);
    let bare = BareLoop::<BareXdp>::new(arrivals.clone(), &placement).context("the bare AF_XDP loop")?;
    let mut variants: Vec<Box<dyn Variant<NetBench>>> = vec![Box::new(bare)];
    let mut started = Vec::new();
    let programs = programs::measured(&options.which.programs, options.program.as_ref());
    for asked in served(options, &programs) {
        match asked.start(&arrivals, &placement) {
            Ok(served) => {
                variants.push(Box::new(served));
                started.push(asked);
            }
            // The others are measured all the same, unless nothing is left that was asked for.
            Err(error) if options.port.len() > 1 || !options.port.contains(&asked.port) => {
                head.notes.push(format!("{} port {} is left out: {error:#}", asked.program.name, asked.port));
            }
            Err(error) => return Err(error.context(format!("port {}", asked.port))),
        }
    }
    if programs.is_empty() {
        head.notes.push("only the bare loops were measured: no back end was given".to_owned());
    }
    variants.push(Box::new(TapFloor::new("zwfloor", placement.clone())?.called(TAP)));
    variants.push(Box::new(BareLoop::<RawSocket>::new(arrivals.clone(), &placement)?));
    let reports = compared(options, cases, &mut variants, TAP)?;
    // The back ends end here.
    drop(variants);
    let mut report = PortReport {
        head,
        cases: reports,
        streams: streams(options, cases, &started, &placement)?,
        published: PUBLISHED,
        idle: Vec::new(),
    };
    let watch = Duration::from_secs(if options.quick { 1 } else { 3 });
    for asked in started {
        if asked.more.is_empty() && options.port.contains(&asked.port) {
            report.idle.push(asked.start(&arrivals, &placement)?.idle(watch)?);
        }
    }
    Ok(report)
}

/// The ports that could be started, and bare loops beside them, with streams of the longest frames.
fn streams(
    options: &NetOptions,
    cases: &[Case],
    ports: &[AskedPort<'_>],
    placement: &Placement,
) -> Result<Vec<CaseReport>> {
    let longest = cases.iter().map(|case| case.frame_len).max();
    let cases: Vec<Case> = cases.iter().copied().filter(|case| Some(case.frame_len) == longest).collect();
    let arrivals = Arrivals::Stream;
    let mut variants: Vec<Box<dyn Variant<NetBench>>> =
        vec![Box::new(BareLoop::<RawSocket>::new(arrivals.clone(), placement)?)];
    for asked in ports {
        let served = asked.start(&arrivals, placement);
        variants.push(Box::new(served.with_context(|| format!("port {}", asked.port))?));
    }
    variants.push(Box::new(BareLoop::<BareXdp>::new(arrivals, placement).context("the bare AF_XDP loop")?));
    compared(options, &cases, &mut variants, RAW)
}

/// Compares each variant with the first one, and with `other`.
fn compared(
    options: &NetOptions,
    cases: &[Case],
    variants: &mut [Box<dyn Variant<NetBench>>],
    other: &'static str,
) -> Result<Vec<CaseReport>> {
    let plan = Plan { rounds: options.port_rounds(), quick: options.quick };
    let bases = |name: &str| {
        let other = (name != other).then(|| Base { label: other, variant: other.to_owned() });
        bases(&options.which.programs, name).into_iter().chain(other).collect()
    };
    let mut reports = compare(cases, variants, plan, bases)?;
    for case in reports.iter_mut().filter(|case| case.at.direction == Direction::Receive) {
        case.facts.working_set_bytes = bursts::working_set(&case.at);
    }
    Ok(reports)
}

/// A back end to measure.
struct AskedPort<'a> {
    program: &'a NamedProgram,
    port: PortKind,
    /// Further arguments.
    more: &'a str,
}

impl AskedPort<'_> {
    fn start(&self, arrivals: &Arrivals, placement: &Placement) -> Result<ServedPort> {
        ServedPort::start(self.program, self.port, self.more, arrivals.clone(), placement)
    }
}

/// The back ends to measure. The tap's serves as a comparison.
fn served<'a>(options: &'a NetOptions, programs: &'a [NamedProgram]) -> Vec<AskedPort<'a>> {
    let more = || std::iter::once("").chain(options.which.with.iter().map(String::as_str));
    let asked = options.port.iter().flat_map(|port| more().map(|args| (*port, args)));
    let beside = (!options.port.contains(&PortKind::Tap)).then_some((PortKind::Tap, ""));
    let of = |(port, more)| programs.iter().map(move |program| AskedPort { program, port, more });
    asked.chain(beside).flat_map(of).collect()
}
