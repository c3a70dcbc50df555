//! `zerowire vsock` beside vhost-device-vsock, which has the same unix sockets for the host's
//! programs. The floor is the same stream through a pair of unix sockets.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::cell::{OURS, PeerCell, Peers};
use super::find::PeerProgram;
use super::options::PeersOptions;
use super::sides::{MissingPeers, compare_variants};
use crate::backend::BackendProcess;
use crate::case::Direction;
use crate::cpu::Placement;
use crate::experiment::{CellReport, Variant};
use crate::transfer::TransferSample;
use crate::vsock::SocketKind;
use crate::vsock::case::{RX_BUFFER, VsockCase};
use crate::vsock::compare::{VsockBench, VsockSample};
use crate::vsock::device::{DeviceKind, DeviceVariant};
use crate::vsock::floor::SocketFloor;
use crate::vsock::host::HostCpu;

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
    let (mut missing, peer) = (MissingPeers::default(), PeerProgram::VhostDeviceVsock);
    let backend = missing.start(peer, options, |program| {
        BackendProcess::start_peer(|socket| command(&program, socket), placement)
    });
    if let Some(backend) = backend {
        let variant = DeviceVariant::of(kind(&peer.to_string()), vec![(CREDIT, backend)], placement);
        variants.push(Box::new(variant));
    }
    let sets = options.working_sets();
    let cases = VsockCase::all(SocketKind::Stream, &Direction::ALL, &WRITES, &[CREDIT], sets)?;
    Ok(compare_variants(&cases, PeerCell::Vsock, &mut variants, &missing, 1, options))
}

impl From<VsockSample> for TransferSample {
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
