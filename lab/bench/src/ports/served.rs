//! `zerowire net` with a port on a veth pair or a tap, driven by a guest without a VM.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::bursts::{self, Arrivals};
use super::idle::PortIdle;
use super::measured::KernelTime;
use super::options::PortKind;
use super::veth::Veth;
use super::wire::Wire;
use crate::backend::{BackendKind, BackendProcess};
use crate::case::{Case, Direction};
use crate::compare::NetBench;
use crate::cpu::Placement;
use crate::experiment::floored::{Ledger, Variant, since};
use crate::frame::{Frame, GUEST_MAC, SINK_MAC};
use crate::generator::{Generator, verify_sent};
use crate::guest::NetGuest;
use crate::interleave::Turn;
use crate::variant::NetSample;

/// How long a back end may take to go to sleep after its work.
const SETTLE_LIMIT: Duration = Duration::from_millis(60);

/// Bytes of the pieces of a large frame: none is sent here, since all are within an MTU of 1500.
const FRAGMENT_LEN: usize = 32 << 10;

/// A back end with one VM.
pub struct ServedPort {
    name: String,
    backend: BackendProcess,
    wire: Wire,
    arrivals: Arrivals,
    placement: Placement,
    ready: Option<ReadyGuest>,
    /// The ledger before this case.
    before: Ledger,
    kernel: KernelTime,
}

struct ReadyGuest {
    case: Case,
    guest: NetGuest,
    generator: Generator,
}

impl ServedPort {
    /// Makes the pair in the namespace of the calling thread. Starts `program net` with the port on
    /// it and the further arguments `more`, separated by blanks. A tap is made by the back end.
    pub fn start(
        program: &Path,
        kind: PortKind,
        more: &str,
        arrivals: Arrivals,
        placement: &Placement,
    ) -> Result<Self> {
        let (backend, wire) = match kind {
            PortKind::Tap => {
                let backend = BackendProcess::start(program, &BackendKind::with_args(more), 1, placement)?;
                let tap = backend.link(0)?;
                (backend, Wire::Tap(tap))
            }
            PortKind::Xdp | PortKind::Packet => {
                let veth = Veth::new(placement)?;
                let spec = format!("{kind}:{}", veth.port().name());
                (BackendProcess::start_on(program, &spec, more, placement)?, Wire::Veth(veth))
            }
        };
        let (before, kernel) = (Ledger::new(), KernelTime::default());
        let name = format!("zerowire {kind} {more}").trim_end().to_owned();
        let placement = placement.clone();
        Ok(Self { name, backend, wire, arrivals, placement, ready: None, before, kernel })
    }

    /// CPU time of the back end, and of the kernel thread of its port, over `watch` with a guest
    /// that is connected and does nothing.
    pub fn idle(&mut self, watch: Duration) -> Result<PortIdle> {
        self.ready = None;
        let mut guest = NetGuest::connect(&self.backend.socket(0), 4 << 20)?;
        guest.prepare_receive(bursts::POSTED * 2048, bursts::BUFFER_LEN / 2)?;
        guest.fill()?;
        let begin = (self.backend.clock().settled(watch)?.0, self.wire.kernel_time()?);
        std::thread::sleep(watch);
        let end = (self.backend.clock().now()?, self.wire.kernel_time()?);
        Ok(PortIdle::new(&self.name, watch, end.0 - begin.0, end.1 - begin.1))
    }

    fn measure(&mut self, case: &Case, frames: usize) -> Result<NetSample> {
        let clock = self.backend.clock();
        let Some(ready) = self.ready.as_mut().filter(|ready| ready.case == *case) else {
            bail!("{} was not prepared for {case}", self.name);
        };
        let before = (self.wire.kernel_time()?, self.wire.lost()?, self.wire.peer().counters()?);
        let (begin, _) = clock.settled(SETTLE_LIMIT)?;
        let moved = match case.direction {
            Direction::Transmit => ready.guest.transmit(frames),
            Direction::Receive => bursts::send(&self.arrivals, &ready.generator, frames, |count| {
                ready.guest.collect(count, case.frame_len)
            }),
        };
        let cpu = clock.settled(SETTLE_LIMIT)?.0 - begin;
        let kernel = self.wire.kernel_time()? - before.0;
        let lost = self.wire.lost()? - before.1;
        let wall = moved.with_context(|| format!("{lost} of {frames} frames were lost on the way"))?;
        if lost != 0 {
            bail!("{lost} of {frames} frames were lost on the way: the run is void");
        }
        if case.direction == Direction::Transmit {
            verify_sent(before.2, self.wire.peer().counters()?, frames)?;
        }
        self.kernel.add(kernel, frames);
        Ok(NetSample {
            cpu: cpu + kernel,
            wall,
            frames: frames as u64,
            bytes: (frames * case.frame_len) as u64,
        })
    }
}

impl Variant<NetBench> for ServedPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&mut self, case: &Case) -> Result<()> {
        // The guest before goes first: the back end serves one front end a socket.
        self.ready = None;
        self.kernel = KernelTime::default();
        let outgoing = Frame::build(case.frame_len, SINK_MAC, GUEST_MAC)?;
        let set = match case.direction {
            Direction::Transmit => case.working_set.bytes(),
            Direction::Receive => bursts::working_set(case),
        };
        let memory = match case.direction {
            Direction::Transmit => NetGuest::transmit_bytes(set, &outgoing, FRAGMENT_LEN),
            Direction::Receive => NetGuest::receive_bytes(set, case.frame_len),
        };
        let mut guest = NetGuest::connect(&self.backend.socket(0), memory)?;
        match case.direction {
            Direction::Transmit => guest.prepare_transmit(set, &outgoing, FRAGMENT_LEN)?,
            Direction::Receive => {
                guest.prepare_receive(set, case.frame_len)?;
                guest.fill()?;
            }
        }
        let peer = self.wire.peer();
        let generator = Generator::with_room(peer, Frame::build(case.frame_len, GUEST_MAC, peer.mac()?)?)?;
        // Threads that serve this guest are there now.
        self.backend.pin(&self.placement)?;
        self.before = self.backend.ledger(case.direction)?;
        self.ready = Some(ReadyGuest { case: *case, guest, generator });
        Ok(())
    }

    fn run(&mut self, case: &Case, frames: usize, _: Turn) -> Result<NetSample> {
        let outcome = self.measure(case, frames);
        outcome.with_context(|| format!("the back end's last words: {}", self.backend.log()))
    }

    fn ledger(&mut self) -> Result<Ledger> {
        let Some(case) = self.ready.as_ref().map(|ready| ready.case) else {
            return Ok(Ledger::new());
        };
        let mut ledger = since(self.backend.ledger(case.direction)?, &self.before);
        self.kernel.note(&mut ledger);
        Ok(ledger)
    }
}
