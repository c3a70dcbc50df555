//! `zerowire net` on a tap beside dpdk-testpmd, which forwards between vhost-user and a tap.
//!
//! The same guest without a VM drives both, one after the other. Of what is sent each keeps the
//! ring full. What is received comes in bursts that wait in the tap's queue, so that the measured
//! side finds them whole. dpdk-testpmd polls: outside of its turns it is stopped.

use std::path::Path;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};

use super::cell::{OURS, PeerCell, Peers};
use super::find::PeerProgram;
use super::options::PeersOptions;
use super::sides::{MissingPeers, compare_variants};
use crate::backend::BackendProcess;
use crate::case::{Case, Direction};
use crate::compare::NetBench;
use crate::cpu::Placement;
use crate::experiment::{CellReport, Turn, Variant};
use crate::floor::TapFloor;
use crate::netns::NetnsLink;
use crate::options::PortKind;
use crate::ports::bursts::Arrivals;
use crate::ports::hold::{Hold, go_first};
use crate::ports::served::ServedPort;
use crate::ports::veth::Wire;
use crate::programs::NamedProgram;
use crate::transfer::TransferSample;

/// Lengths of frames that both can carry in one piece.
const LENS: [usize; 2] = [64, 1500];
/// Frames of a run, in terms of one of `zerowire-bench net`.
const LONGER: usize = 4;
/// The tap of dpdk-testpmd.
const TAP: &str = "zwdpdk";

/// Measures all rows in the namespace of the calling thread.
pub(super) fn measure(options: &PeersOptions, placement: &Placement) -> Result<Vec<CellReport<Peers>>> {
    placement.pin_driver()?;
    go_first(None)?;
    let arrivals = Arrivals::Bursts(Rc::new(Hold::new(placement)?));
    let program = NamedProgram::usual(&options.program);
    let ours = ServedPort::start(&program, PortKind::Tap, "", arrivals.clone(), placement)?;
    let mut variants: Vec<Box<dyn Variant<NetBench>>> =
        vec![Box::new(ours.called(OURS)), Box::new(TapFloor::new("zwfloor", placement.clone())?)];
    let mut missing = MissingPeers::default();
    let testpmd = missing
        .start(PeerProgram::Testpmd, options, |program| Stopped::start(&program, &arrivals, placement));
    variants.extend(testpmd.map(|port| Box::new(port) as Box<dyn Variant<NetBench>>));
    let cases = Case::all(&Direction::ALL, &LENS, options.working_sets())?;
    Ok(compare_variants(&cases, PeerCell::Net, &mut variants, &missing, LONGER, options))
}

/// A back end that polls. It is stopped when it has nothing to do.
struct Stopped {
    port: ServedPort,
    process: Pid,
}

impl Stopped {
    /// Starts `program`, a dpdk-testpmd, in the namespace of the calling thread.
    fn start(program: &Path, arrivals: &Arrivals, placement: &Placement) -> Result<Self> {
        let cpu = placement.worker_cpu();
        let backend = BackendProcess::start_peer(|socket| testpmd(program, socket, cpu), placement)?;
        let link = NetnsLink::new(TAP).with_context(|| format!("it made no tap: {}", backend.log()))?;
        link.up()?;
        let (name, wire) = (PeerProgram::Testpmd.to_string(), Wire::Tap(link));
        let port = ServedPort::of(name, backend, wire, arrivals.clone(), placement).polling();
        let process = Pid::from_raw(port.pid() as i32).context("it has no process number")?;
        kill_process(process, Signal::STOP)?;
        Ok(Self { port, process })
    }

    /// Lets it run while `work` runs.
    fn awake<T>(&mut self, work: impl FnOnce(&mut ServedPort) -> Result<T>) -> Result<T> {
        kill_process(self.process, Signal::CONT)?;
        let result = work(&mut self.port);
        kill_process(self.process, Signal::STOP)?;
        result
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // One that is stopped takes no SIGTERM.
        let _ = kill_process(self.process, Signal::CONT);
    }
}

impl Variant<NetBench> for Stopped {
    fn name(&self) -> &str {
        self.port.name()
    }

    fn prepare(&mut self, case: &Case) -> Result<()> {
        self.awake(|port| port.prepare(case))
    }

    fn run(&mut self, case: &Case, frames: usize, turn: Turn) -> Result<TransferSample> {
        self.awake(|port| port.run(case, frames, turn))
    }
}

/// Its command: two threads on CPU `cpu`, of which one forwards and one waits.
fn testpmd(program: &Path, socket: &Path, cpu: usize) -> Command {
    let mut command = Command::new(program);
    command.args(["--no-huge", "-m", "256", "--no-pci", "--no-shconf", "--no-telemetry", "--log-level=4"]);
    command.arg(format!("--lcores=0@{cpu},1@{cpu}"));
    command.arg(format!("--vdev=net_vhost0,iface={},queues=1", socket.display()));
    command.arg(format!("--vdev=net_tap0,iface={TAP}"));
    command.args(["--", "--auto-start", "--forward-mode=io", "--total-num-mbufs=8192", "--no-mlockall"]);
    command
}
