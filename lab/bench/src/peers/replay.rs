//! `zerowire replay --topspeed` beside tcpreplay, with one capture on one interface: an ifb device,
//! which takes frames and drops them.
//!
//! CPU time is that of the whole program, start and reading of the capture included, and of the
//! kernel's softirq threads, which may take over from it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cell::{OURS, PeerCell, PeerSample, Peers, ReplayCell};
use super::child;
use super::find::{self, PeerProgram};
use super::options::PeersOptions;
use super::sides::{PeerSide, compare};
use crate::cpu::Placement;
use crate::experiment::CellReport;
use crate::held::Held;
use crate::interleave::Turn;
use crate::packet_tx::SinkKind;
use crate::packet_tx::lab::TxLab;
use crate::packet_tx::measure::Softirq;
use crate::packet_tx::replay::{FRAMES, PACKETS, arguments, pcap};
use crate::progress::ProgressLine;

/// One of the programs, and what it is told besides.
struct Player {
    name: &'static str,
    program: PathBuf,
    more: &'static [&'static str],
}

/// Measures all rows in the namespace of the calling thread.
pub(super) fn measure(options: &PeersOptions, placement: &Placement) -> Result<Vec<CellReport<Peers>>> {
    placement.pin_driver()?;
    let lab = TxLab::new(SinkKind::Ifb, placement)?;
    let softirq = Softirq::find();
    let held = Held::temporary(&format!("zerowire-peers-{}", std::process::id()))?;
    let mut players = vec![Player { name: OURS, program: options.program.clone(), more: &[] }];
    let mut absent = Vec::new();
    match find::find(PeerProgram::Tcpreplay, &options.peers) {
        Ok(program) => {
            players.push(Player { name: "tcpreplay", program: program.clone(), more: &[] });
            players.push(Player { name: "tcpreplay -K", program, more: &["--preload-pcap"] });
        }
        Err(missing) => absent.push(missing),
    }
    let passes = if options.quick { 200 } else { 1000 };
    let mut progress = ProgressLine::new("peers replay", FRAMES.len() * (options.rounds() + 1));
    let mut cells = Vec::new();
    for frame_len in FRAMES {
        let capture = held.folder().join(format!("{frame_len}.pcap"));
        std::fs::write(&capture, pcap(&lab, frame_len))
            .with_context(|| format!("can't write {}", capture.display()))?;
        let sides = players.iter().map(|player| {
            let (lab, softirq, held, capture) = (&lab, &softirq, &held, &capture);
            PeerSide::new(player.name, move |turn| {
                let passes = if turn == Turn::WarmUp { 10 } else { passes };
                let before = (lab.arrived()?, softirq.now());
                let ended = child::run(&mut player.command(capture, passes), held, placement)?;
                let (arrived, frames) = (lab.arrived()? - before.0, (PACKETS * passes) as u64);
                if arrived != frames {
                    bail!("{frames} frames were to be sent and {arrived} arrived: the run is void");
                }
                let cpu = ended.cpu + softirq.now().saturating_sub(before.1);
                let (cpu_ns, wall_ns) = (cpu.as_nanos() as u64, ended.wall.as_nanos() as u64);
                Ok(PeerSample { cpu_ns, wall_ns, frames, bytes: frames * frame_len as u64 })
            })
        });
        let at = PeerCell::Replay(ReplayCell { frame_len });
        cells.push(compare(at, sides.collect(), &absent, options.rounds(), &mut progress));
    }
    progress.finish();
    Ok(cells)
}

impl Player {
    fn command(&self, capture: &Path, passes: usize) -> Command {
        let mut arguments = arguments(self.name == OURS, capture, passes);
        let file = arguments.pop();
        arguments.extend(self.more.iter().map(OsString::from));
        arguments.extend(file);
        let mut command = Command::new(&self.program);
        command.args(arguments);
        command
    }
}
