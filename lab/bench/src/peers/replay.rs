//! `zerowire replay --topspeed` beside tcpreplay, with one capture on one interface: an ifb device,
//! which takes frames and drops them.
//!
//! CPU time is that of the whole program, start and reading of the capture included, and of the
//! kernel's softirq threads, which may take over from it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cell::{OURS, PeerCell, Peers};
use super::child;
use super::find::PeerProgram;
use super::options::PeersOptions;
use super::sides::{MissingPeers, PeerSide, compare};
use crate::cpu::Placement;
use crate::experiment::{CellReport, ProgressLine, Turn};
use crate::held::Held;
use crate::packet_tx::SinkKind;
use crate::packet_tx::lab::{INTERFACE, TxLab};
use crate::packet_tx::source::{HEAD_LEN, Head};
use crate::packet_tx::way::Softirq;
use crate::transfer::TransferSample;

/// Frame lengths in bytes, Ethernet header included.
const FRAMES: [usize; 2] = [64, 1400];
/// Packets in the capture.
const PACKETS: usize = 1000;

/// One of the programs, and its arguments besides those of all.
struct Player {
    name: &'static str,
    program: PathBuf,
    more: &'static [&'static str],
}

/// Measures all rows in the namespace of the calling thread.
pub(crate) fn measure(options: &PeersOptions, placement: &Placement) -> Result<Vec<CellReport<Peers>>> {
    placement.pin_driver()?;
    let lab = TxLab::new(SinkKind::Ifb, placement)?;
    let softirq = Softirq::find();
    let held = Held::temporary()?;
    let mut players =
        vec![Player { name: OURS, program: options.program.clone(), more: &["replay", "--quiet"] }];
    let mut missing = MissingPeers::default();
    if let Some(program) = missing.start(PeerProgram::Tcpreplay, options, Ok) {
        players.push(Player { name: "tcpreplay", program: program.clone(), more: &[] });
        players.push(Player { name: "tcpreplay -K", program, more: &["--preload-pcap"] });
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
                Ok(TransferSample::of_frames((cpu, ended.wall), PACKETS * passes, frame_len))
            })
        });
        let at = PeerCell::Replay { frame_len };
        cells.push(compare(at, sides.collect(), &missing, options.rounds(), &mut progress));
    }
    Ok(cells)
}

impl Player {
    fn command(&self, capture: &Path, passes: usize) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.more).args(["--topspeed", "--intf1", INTERFACE]);
        command.arg(format!("--loop={passes}")).arg(capture);
        command
    }
}

/// A capture (pcap, version 2.4, microseconds, link type Ethernet) of [`PACKETS`] frames with the
/// same time.
fn pcap(lab: &TxLab, frame_bytes: usize) -> Vec<u8> {
    let mut file = Vec::with_capacity(24 + PACKETS * (16 + frame_bytes));
    file.extend(0xa1b2_c3d4u32.to_le_bytes());
    file.extend([2u16, 4].map(u16::to_le_bytes).concat());
    // Time zone, accuracy, longest packet, link type.
    file.extend([0u32, 0, 1 << 16, 1].map(u32::to_le_bytes).concat());
    let head = Head::new(lab, frame_bytes - HEAD_LEN, false);
    for number in 0..PACKETS {
        file.extend([1u32, 0, frame_bytes as u32, frame_bytes as u32].map(u32::to_le_bytes).concat());
        let at = file.len();
        file.resize(at + frame_bytes, number as u8);
        head.write(&mut file[at..]);
    }
    file
}
