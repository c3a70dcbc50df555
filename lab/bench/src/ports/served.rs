//! `zerowire net` with a port on a veth pair or a tap, driven by a guest without a VM.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use super::bursts::{self, Arrivals};
use super::measured::{KernelTime, measured};
use super::veth::{Veth, Wire};
use crate::area::RECEIVE_BUFFER;
use crate::backend::{BackendKind, BackendProcess};
use crate::case::{Case, Direction};
use crate::compare::NetBench;
use crate::cpu::Placement;
use crate::experiment::{Ledger, Turn, Variant, since};
use crate::frame::{Frame, GUEST_MAC, SINK_MAC};
use crate::generator::Generator;
use crate::guest::NetGuest;
use crate::idle::PortIdle;
use crate::options::PortKind;
use crate::programs::NamedProgram;
use crate::transfer::TransferSample;

/// How long a back end may take to go to sleep after its work. One that polls never does: its CPU
/// time is then exact to a timer tick only.
const SETTLE_LIMIT: Duration = Duration::from_millis(60);

/// How long frames may take that a back end has copied and not yet sent.
const SENT_LIMIT: Duration = Duration::from_millis(200);

/// Bytes of the pieces of a large frame, where nothing else is said.
const FRAGMENT_LEN: usize = 32 << 10;

/// A back end with one VM.
pub struct ServedPort {
    name: String,
    backend: BackendProcess,
    wire: Wire,
    /// How received frames come. `None`: each burst is longer than the ring, and waits in the tap's
    /// queue until the back end sleeps.
    arrivals: Option<Arrivals>,
    placement: Placement,
    /// Bytes of the pieces in which the guest sends large frames.
    fragment_len: usize,
    /// Features that the guest leaves out.
    without: u64,
    ready: Option<ReadyGuest>,
    /// The ledger before this case.
    before: Ledger,
    kernel: KernelTime,
    /// True: it polls, and never sleeps.
    polls: bool,
}

struct ReadyGuest {
    case: Case,
    guest: NetGuest,
    generator: Generator,
}

impl ServedPort {
    /// Makes the pair in the namespace of the calling thread. Starts the program's `net` with the
    /// port on it and the further arguments `more`, separated by blanks. A tap is made by the back
    /// end.
    pub fn start(
        program: &NamedProgram,
        kind: PortKind,
        more: &str,
        arrivals: Arrivals,
        placement: &Placement,
    ) -> Result<Self> {
        let NamedProgram { name, path, args } = program;
        let all = [&args.join(" "), more].join(" ");
        let (backend, wire) = match kind {
            PortKind::Tap => {
                let backend = BackendProcess::start(path, &BackendKind::with_args(&all), 1, placement)?;
                let tap = backend.link(0)?;
                (backend, Wire::Tap(tap))
            }
            PortKind::Xdp | PortKind::Packet => {
                let veth = Veth::new(placement)?;
                let spec = format!("{kind}:{}", veth.port().name());
                (BackendProcess::start_on(path, &spec, &all, placement)?, Wire::Veth(veth))
            }
        };
        let name = format!("{name} {kind} {more}").trim_end().to_owned();
        Ok(Self::of(name, backend, wire, arrivals, placement))
    }

    /// Starts `program net` as `kind` says, on a tap in whose queue received frames wait. The guest
    /// sends large frames in pieces of `fragment_len` bytes.
    pub fn on_tap(
        program: &Path,
        kind: &BackendKind,
        fragment_len: usize,
        placement: &Placement,
    ) -> Result<Self> {
        let backend = BackendProcess::start(program, kind, 1, placement)?;
        let wire = Wire::Tap(backend.link(0)?);
        let port = Self::of(kind.name.clone(), backend, wire, None, placement);
        Ok(Self { fragment_len, without: kind.without, ..port })
    }

    /// A back end that runs already, and is called `name`. Its port is on `wire`.
    pub fn of(
        name: String,
        backend: BackendProcess,
        wire: Wire,
        arrivals: impl Into<Option<Arrivals>>,
        placement: &Placement,
    ) -> Self {
        Self {
            name,
            backend,
            wire,
            arrivals: arrivals.into(),
            placement: placement.clone(),
            fragment_len: FRAGMENT_LEN,
            without: 0,
            ready: None,
            before: Ledger::new(),
            kernel: KernelTime::default(),
            polls: false,
        }
    }

    /// Under another name.
    pub fn called(self, name: &str) -> Self {
        Self { name: name.to_owned(), ..self }
    }

    /// As a back end that polls: its clock is read without waiting for its sleep.
    pub fn polling(self) -> Self {
        Self { polls: true, ..self }
    }

    /// The back end's process number.
    pub fn pid(&self) -> u32 {
        self.backend.pid()
    }

    /// CPU time of the back end, and of the kernel thread of its port, over `watch` with a guest
    /// that is connected and does nothing.
    pub fn idle(&mut self, watch: Duration) -> Result<PortIdle> {
        self.ready = None;
        let mut guest = NetGuest::connect(&self.backend.socket(0), 4 << 20)?;
        guest.prepare_receive(bursts::POSTED * 2048, RECEIVE_BUFFER / 2)?;
        guest.fill()?;
        let before = self.wire.kernel_time()?;
        let cpu = self.backend.idle_cpu(watch)?;
        Ok(PortIdle::new(&self.name, watch, cpu, self.wire.kernel_time()? - before))
    }

    fn measure(&mut self, case: &Case, frames: usize) -> Result<TransferSample> {
        let Self { name, backend, wire, arrivals, ready, kernel, polls, .. } = self;
        let Some(ready) = ready.as_mut().filter(|ready| ready.case == *case) else {
            bail!("{name} was not prepared for {case}");
        };
        let ReadyGuest { guest, generator, .. } = ready;
        let cpu = || cpu_time(backend, arrivals.as_ref(), *polls);
        let patience = if *polls { SENT_LIMIT } else { Duration::ZERO };
        measured(wire, kernel, (case, frames), patience, || match (case.direction, &*arrivals) {
            (Direction::Transmit, _) => timed(cpu, || guest.transmit(frames)),
            (Direction::Receive, Some(arrivals)) => {
                let mut collect = |count| guest.collect(count, case.frame_len);
                timed(cpu, || bursts::send(arrivals, generator, frames, &mut collect))
            }
            (Direction::Receive, None) => {
                let mut total = (Duration::ZERO, Duration::ZERO);
                let mut left = frames;
                while left > 0 {
                    let count = left.min(case.burst());
                    generator.preload(count)?;
                    let (cpu, wall) = timed(cpu, || guest.receive(count, case.frame_len))?;
                    total = (total.0 + cpu, total.1 + wall);
                    left -= count;
                }
                Ok(total)
            }
        })
    }
}

/// CPU time of the back end so far. Of a running thread the kernel knows it up to the last tick
/// only, so one that polls is kept off its CPU for a moment.
fn cpu_time(backend: &BackendProcess, arrivals: Option<&Arrivals>, polls: bool) -> Result<Duration> {
    let clock = backend.clock()?;
    Ok(match arrivals {
        _ if !polls => clock.settled(SETTLE_LIMIT)?.0,
        Some(Arrivals::Bursts(hold)) => {
            hold.acquire();
            let now = clock.now();
            hold.release();
            now?
        }
        _ => clock.now()?,
    })
}

/// What `cpu` shows of `work`, and how long that says it took.
fn timed(
    cpu: impl Fn() -> Result<Duration>,
    work: impl FnOnce() -> Result<Duration>,
) -> Result<(Duration, Duration)> {
    let begin = cpu()?;
    let wall = work()?;
    Ok((cpu()? - begin, wall))
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
        let waits = self.arrivals.is_none();
        let set = match case.direction {
            Direction::Receive if !waits => bursts::working_set(case),
            _ => case.working_set.bytes(),
        };
        let memory = match case.direction {
            Direction::Transmit => NetGuest::transmit_bytes(set, &outgoing, self.fragment_len),
            Direction::Receive => NetGuest::receive_bytes(set, case.frame_len),
        };
        let mut guest = NetGuest::connect_without(&self.backend.socket(0), memory, self.without)?;
        match case.direction {
            Direction::Transmit => guest.prepare_transmit(set, &outgoing, self.fragment_len)?,
            Direction::Receive => guest.prepare_receive(set, case.frame_len)?,
        }
        let peer = self.wire.peer();
        let incoming = Frame::build(case.frame_len, GUEST_MAC, peer.mac()?)?;
        let generator = if waits {
            peer.set_mtu(outgoing.mtu())?;
            peer.set_txqueuelen(case.burst())?;
            Generator::new(peer, incoming)?
        } else {
            if case.direction == Direction::Receive {
                guest.fill()?;
            }
            // Threads that serve this guest are there now.
            self.backend.pin(&self.placement)?;
            Generator::with_room(peer, incoming)?
        };
        self.before = self.backend.ledger(case.direction)?;
        self.ready = Some(ReadyGuest { case: *case, guest, generator });
        Ok(())
    }

    fn run(&mut self, case: &Case, frames: usize, _: Turn) -> Result<TransferSample> {
        let outcome = self.measure(case, frames);
        self.backend.with_last_words(outcome)
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
