//! The benchmark from end to end.

use std::io::Write;

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::cell::{ComparedPart, OURS, Peers};
use super::find::{self, PeerProgram};
use super::options::PeersOptions;
use super::report::{PeersReport, ProgramVersion};
use super::{net, replay, tcp, udp, vsock};
use crate::cpu::Placement;
use crate::experiment::{CellReport, ReportHead, measured};
use crate::netns::{in_new_namespace, on_own_thread};

/// Measures all parts; text goes to `out`, files where the options say.
///
/// Fails when options make no sense, when a namespace can't be made, when zerowire can't be started
/// and when a file can't be written. A program that fails is named in the report.
pub fn run_peers(options: &PeersOptions, out: &mut dyn Write) -> Result<PeersReport> {
    options.verify()?;
    measured(&options.files, out, || report(options))
}

fn report(options: &PeersOptions) -> Result<PeersReport> {
    let placement = Placement::detect()?;
    let mut cases = Vec::new();
    for &part in &options.parts {
        let cells = measure(part, options, &placement);
        cases.extend(cells.with_context(|| format!("part {part}"))?);
    }
    Ok(PeersReport {
        head: ReportHead::detect(&placement),
        quick: options.quick,
        rounds: options.rounds(),
        programs: versions(options),
        summary: super::report::summary(&cases),
        cases,
    })
}

fn measure(
    part: ComparedPart,
    options: &PeersOptions,
    placement: &Placement,
) -> Result<Vec<CellReport<Peers>>> {
    match part {
        ComparedPart::Net => in_new_namespace(|| net::measure(options, placement)),
        ComparedPart::Udp => in_new_namespace(|| udp::measure(options, placement)),
        // Needs no network. The thread's CPU changes meanwhile.
        ComparedPart::Vsock => on_own_thread(|| vsock::measure(options, placement)),
        ComparedPart::Replay => in_new_namespace(|| replay::measure(options, placement)),
        ComparedPart::Tcp => in_new_namespace(|| tcp::measure(options, placement)),
    }
}

/// What the programs say of themselves.
fn versions(options: &PeersOptions) -> Vec<ProgramVersion> {
    let peers = PeerProgram::value_variants().iter();
    let peers = peers.filter(|peer| options.parts.contains(&peer.part()));
    let found = peers.filter_map(|peer| Some((*peer, find::find(*peer, &options.peers).ok()?)));
    let found = found.map(|(peer, program)| (peer.to_string(), version(peer, &program)));
    let ours = find::first_line(&options.program, &["--version"]);
    let all = std::iter::once((OURS.to_owned(), ours)).chain(found);
    all.map(|(name, version)| ProgramVersion { name, version }).collect()
}

fn version(peer: PeerProgram, program: &std::path::Path) -> Option<String> {
    match peer {
        // It prints its version when it starts, and ends then: it has no port to test.
        PeerProgram::Testpmd => {
            let text = find::said(program, &["-v", "--no-huge", "-m", "32", "--no-pci", "--no-shconf"])?;
            let line = text.lines().find_map(|line| line.split_once("RTE Version: "))?.1;
            Some(line.trim_matches('\'').to_owned())
        }
        _ => find::first_line(program, &["--version"]),
    }
}
