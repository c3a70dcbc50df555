//! The benchmark from end to end: make a namespace, measure, report.

use std::io::Write;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::bare_xdp::BareXdp;
use super::bursts;
use super::compare::TAP;
use super::hold::{Hold, go_first};
use super::options::PortOptions;
use super::raw::RawSocket;
use super::report::PortReport;
use super::served::Served;
use crate::case::{Case, Direction};
use crate::compare::compare;
use crate::cpu::Placement;
use crate::floor::Floor;
use crate::machine::Machine;
use crate::netns::in_new_namespace;
use crate::others::Usage;
use crate::record::Plan;
use crate::report::give_out;
use crate::variant::Variant;

/// Measures ports on veth pairs against the bare loops; text goes to `out`, files where the options say.
///
/// Fails when the namespace or an interface can't be made, when the bare AF_XDP loop fails, and when a file can't be written.
pub fn run_ports(options: &PortOptions, out: &mut dyn Write) -> Result<PortReport> {
    let cases = options.cases()?;
    let before = Usage::now();
    let mut report = in_new_namespace(|| measure(options, &cases))?;
    report.notes.extend(before.remark(&Usage::now()));
    let files = (options.json.as_deref(), options.svg.as_deref());
    give_out(&report, &report.text(), files, |folder| report.write_charts(folder), out)?;
    Ok(report)
}

fn measure(options: &PortOptions, cases: &[Case]) -> Result<PortReport> {
    let placement = Placement::detect()?;
    placement.pin_driver()?;
    go_first(None)?;
    let hold = Rc::new(Hold::new(&placement)?);
    let mut notes = Vec::new();
    let bare = BareXdp::new(hold.clone(), &placement).context("the bare AF_XDP loop")?;
    let mut variants: Vec<Box<dyn Variant>> = vec![Box::new(bare)];
    for (port, more) in served(options) {
        let program = options.program.as_deref().context("no program")?;
        match Served::start(program, port, more, hold.clone(), &placement) {
            Ok(served) => variants.push(Box::new(served)),
            // The others are measured all the same, unless nothing is left.
            Err(error) if options.ports.len() > 1 => {
                notes.push(format!("port {} is left out: {error:#}", port.word()));
            }
            Err(error) => return Err(error.context(format!("port {}", port.word()))),
        }
    }
    if options.program.is_none() {
        notes.push("only the bare loops were measured: no back end was given".to_owned());
    }
    variants.push(Box::new(Floor::new("zwfloor", placement.clone())?.called(TAP)));
    variants.push(Box::new(RawSocket::new(hold.clone(), &placement)?));
    let plan = Plan { rounds: options.rounds(), quick: options.quick };
    let mut reports = compare(cases, &mut variants, plan)?;
    for report in reports.iter_mut().filter(|report| report.case.direction == Direction::Receive) {
        report.working_set_bytes = bursts::working_set(&report.case);
    }
    let measured: Vec<String> = variants.iter().map(|variant| variant.name().to_owned()).collect();
    // The back ends end here.
    drop(variants);
    let mut report = PortReport::new(Machine::detect(), placement.separate(), notes, reports);
    let watch = Duration::from_secs(if options.quick { 1 } else { 3 });
    for port in &options.ports {
        let Some(program) = options.program.as_deref() else { break };
        if measured.contains(&format!("zerowire {}", port.word())) {
            let mut served = Served::start(program, *port, "", hold.clone(), &placement)?;
            report.idle.push(served.idle(watch)?);
        }
    }
    Ok(report)
}

/// The back ends that are to be measured: a port and further arguments.
fn served(options: &PortOptions) -> Vec<(super::PortKind, &str)> {
    if options.program.is_none() {
        return Vec::new();
    }
    let more = || std::iter::once("").chain(options.variants.iter().map(String::as_str));
    options.ports.iter().flat_map(|port| more().map(|args| (*port, args))).collect()
}
