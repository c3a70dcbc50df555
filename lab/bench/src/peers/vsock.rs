//! `zerowire vsock` beside vhost-device-vsock, which has the same unix sockets for the host's
//! programs. The floor is the same stream through a pair of unix sockets.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::cell::{OURS, PeerCell, PeerSample, Peers};
use super::find::{self, PeerProgram};
use super::options::PeersOptions;
use super::sides::{PeerSide, compare};
use crate::backend::BackendProcess;
use crate::case::{Direction, WorkingSet};
use crate::cpu::Placement;
use crate::experiment::CellReport;
use crate::experiment::floored::{Floored, Plan, Variant};
use crate::interleave::Turn;
use crate::progress::ProgressLine;
use crate::vsock::SocketKind;
use crate::vsock::case::{RX_BUFFER, VsockCase};
use crate::vsock::compare::VsockBench;
use crate::vsock::device::{DeviceKind, DeviceVariant};
use crate::vsock::floor::SocketFloor;
use crate::vsock::host::HostCpu;
use crate::vsock::variant::VsockSample;

/// Credit of a connection, of both.
const CREDIT: u32 = 256 << 10;
/// Lengths of writes.
const WRITES: [usize; 2] = [4 << 10, 64 << 10];

/// Measures all rows. The calling thread is moved to the driver's CPU.
pub(super) fn measure(options: &PeersOptions, placement: &Placement) -> Result<Vec<CellReport<Peers>>> {
    placement.pin_driver()?;
    let cpu = HostCpu::default();
    let ours = DeviceVariant::start(&options.program, kind(OURS), &[CREDIT], placement)?;
    let mut variants: Vec<Box<dyn Variant<VsockBench>>> =
        vec![Box::new(ours), Box::new(SocketFloor::new(cpu, placement.clone()))];
    let (mut absent, mut failed) = (Vec::new(), Vec::new());
    match find::find(PeerProgram::VhostDeviceVsock, &options.peers) {
        Ok(program) => match BackendProcess::start_peer(|socket| command(&program, socket), placement) {
            Ok(backend) => {
                let kind = kind(PeerProgram::VhostDeviceVsock.name());
                variants.push(Box::new(DeviceVariant::of(kind, vec![(CREDIT, backend)], placement)));
            }
            Err(error) => failed.push(PeerProgram::VhostDeviceVsock.absent(format!("{error:#}"))),
        },
        Err(missing) => absent.push(missing),
    }
    let sets = if options.quick { &[WorkingSet::Hot][..] } else { &WorkingSet::ALL[..] };
    let cases = VsockCase::all(SocketKind::Stream, &Direction::ALL, &WRITES, &[CREDIT], sets)?;
    let mut progress = ProgressLine::new("peers vsock", cases.len() * (options.rounds() + 1));
    let mut cells = Vec::with_capacity(cases.len());
    for case in cases {
        let amounts = VsockBench::amounts(&case, Plan { rounds: options.rounds(), quick: options.quick });
        let side = |variant: &mut Box<dyn Variant<VsockBench>>, turn: Turn| {
            if turn == Turn::WarmUp {
                variant.prepare(&case)?;
            }
            let bytes = if turn == Turn::WarmUp { amounts.warm_up } else { amounts.round };
            variant.run(&case, bytes, turn).map(PeerSample::from)
        };
        let sides = variants.iter_mut().map(|variant| {
            let name = variant.name().to_owned();
            PeerSide::new(&name, move |turn| side(variant, turn))
        });
        let sides = sides.chain(failed.iter().map(PeerSide::failed)).collect();
        cells.push(compare(PeerCell::Vsock(case), sides, &absent, options.rounds(), &mut progress));
    }
    progress.finish();
    Ok(cells)
}

impl From<VsockSample> for PeerSample {
    fn from(sample: VsockSample) -> Self {
        Self { cpu_ns: sample.cpu_ns, wall_ns: sample.wall_ns, frames: 0, bytes: sample.bytes }
    }
}

fn kind(name: &str) -> DeviceKind {
    DeviceKind {
        name: name.to_owned(),
        args: Vec::new(),
        guest_sleeps: false,
        rx_buffer_len: RX_BUFFER,
        host_cpu: HostCpu::default(),
    }
}

/// vhost-device-vsock with the socket, the host's end and the CID that a [`BackendProcess`] has.
fn command(program: &Path, socket: &Path) -> Command {
    let mut command = Command::new(program);
    let (socket, host) = (socket.display(), socket.with_extension("host"));
    command.arg(format!("--guest-cid={}", BackendProcess::cid(0)));
    command.arg(format!("--socket={socket}")).arg(format!("--uds-path={}", host.display()));
    command.arg(format!("--tx-buffer-size={CREDIT}"));
    command
}
