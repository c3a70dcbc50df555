//! `zerowire net` with a port on a veth pair or a tap, driven by a guest without a VM.

use std::time::{Duration, Instant};

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
use crate::netns::Counters;
use crate::programs::NamedProgram;
use crate::variant::NetSample;

/// How long a back end may take to go to sleep after its work.
const SETTLE_LIMIT: Duration = Duration::from_millis(60);

/// How long frames may take that a back end has copied and not yet sent.
const SENT_LIMIT: Duration = Duration::from_millis(200);

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

    /// A back end that runs already, and is called `name`. Its port is on `wire`.
    pub fn of(
        name: String,
        backend: BackendProcess,
        wire: Wire,
        arrivals: Arrivals,
        placement: &Placement,
    ) -> Self {
        let (before, kernel, placement) = (Ledger::new(), KernelTime::default(), placement.clone());
        let (ready, polls) = (None, false);
        Self { name, backend, wire, arrivals, placement, ready, before, kernel, polls }
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

    /// CPU time of the back end so far. Of a running thread the kernel knows it up to the last
    /// tick only, so one that polls is kept off its CPU for a moment.
    fn cpu(&self) -> Result<Duration> {
        let clock = self.backend.clock()?;
        Ok(match &self.arrivals {
            _ if !self.polls => clock.settled(SETTLE_LIMIT)?.0,
            Arrivals::Bursts(hold) => {
                hold.acquire();
                let now = clock.now();
                hold.release();
                now?
            }
            Arrivals::Stream => clock.now()?,
        })
    }

    /// CPU time of the back end, and of the kernel thread of its port, over `watch` with a guest
    /// that is connected and does nothing.
    pub fn idle(&mut self, watch: Duration) -> Result<PortIdle> {
        self.ready = None;
        let mut guest = NetGuest::connect(&self.backend.socket(0), 4 << 20)?;
        guest.prepare_receive(bursts::POSTED * 2048, bursts::BUFFER_LEN / 2)?;
        guest.fill()?;
        let before = self.wire.kernel_time()?;
        let cpu = self.backend.idle_cpu(watch)?;
        Ok(PortIdle::new(&self.name, watch, cpu, self.wire.kernel_time()? - before))
    }

    /// Checks that `frames` frames reached the host. A back end that copies them may give their
    /// buffers back before it sends them.
    fn wait_for_sent(&self, before: Counters, frames: usize) -> Result<()> {
        let start = Instant::now();
        loop {
            let sent = verify_sent(before, self.wire.peer().counters()?, frames);
            if sent.is_ok() || !self.polls || start.elapsed() > SENT_LIMIT {
                return sent;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn measure(&mut self, case: &Case, frames: usize) -> Result<NetSample> {
        let before = (self.wire.kernel_time()?, self.wire.lost()?, self.wire.peer().counters()?);
        let begin = self.cpu()?;
        let Some(ready) = self.ready.as_mut().filter(|ready| ready.case == *case) else {
            bail!("{} was not prepared for {case}", self.name);
        };
        let moved = match case.direction {
            Direction::Transmit => ready.guest.transmit(frames),
            Direction::Receive => bursts::send(&self.arrivals, &ready.generator, frames, |count| {
                ready.guest.collect(count, case.frame_len)
            }),
        };
        let cpu = self.cpu()? - begin;
        let kernel = self.wire.kernel_time()? - before.0;
        let lost = self.wire.lost()? - before.1;
        let wall = moved.with_context(|| format!("{lost} of {frames} frames were lost on the way"))?;
        if lost != 0 {
            bail!("{lost} of {frames} frames were lost on the way: the run is void");
        }
        if case.direction == Direction::Transmit {
            self.wait_for_sent(before.2, frames)?;
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
