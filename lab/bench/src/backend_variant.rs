//! A back end as one of the variants that are compared.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::backend::{BackendKind, BackendProcess};
use crate::case::{Case, Direction};
use crate::compare::NetBench;
use crate::cpu::Placement;
use crate::experiment::floored::{Ledger, Variant, since};
use crate::frame::{Frame, GUEST_MAC, SINK_MAC};
use crate::generator::{Generator, verify_received, verify_sent};
use crate::guest::NetGuest;
use crate::interleave::Turn;
use crate::netns::NetnsLink;
use crate::variant::NetSample;

/// How long a back end may take to go to sleep after its work. One that polls never does: its CPU
/// time is then exact to a timer tick only.
const SETTLE_LIMIT: Duration = Duration::from_millis(60);

/// A back end with one VM on its own tap.
pub struct BackendVariant {
    name: String,
    backend: BackendProcess,
    fragment_len: usize,
    /// Features that the guest leaves out.
    without: u64,
    ready: Option<ReadyBackend>,
    /// The ledger before this case.
    before: Ledger,
}

struct ReadyBackend {
    case: Case,
    guest: NetGuest,
    link: NetnsLink,
    generator: Generator,
}

impl BackendVariant {
    /// Starts `program net` as `kind` says, with one VM. Large frames are sent in
    /// fragments of `fragment_len` bytes.
    pub fn start(
        program: &Path,
        kind: &BackendKind,
        fragment_len: usize,
        placement: &Placement,
    ) -> Result<Self> {
        let backend = BackendProcess::start(program, kind, 1, placement)?;
        Ok(Self {
            name: kind.name.clone(),
            backend,
            fragment_len,
            without: kind.without,
            ready: None,
            before: Ledger::new(),
        })
    }

    fn measure(&mut self, case: &Case, frames: usize) -> Result<NetSample> {
        let clock = self.backend.clock()?;
        let ready = match self.ready.as_mut() {
            Some(ready) if ready.case == *case => ready,
            _ => bail!("{} was not prepared for {case}", self.name),
        };
        let counters = ready.link.counters()?;
        let (mut cpu, mut wall) = (Duration::ZERO, Duration::ZERO);
        match case.direction {
            Direction::Transmit => {
                let (begin, _) = clock.settled(SETTLE_LIMIT)?;
                wall += ready.guest.transmit(frames)?;
                cpu += clock.settled(SETTLE_LIMIT)?.0 - begin;
                verify_sent(counters, ready.link.counters()?, frames)?;
            }
            Direction::Receive => {
                let mut left = frames;
                while left > 0 {
                    let count = left.min(case.burst());
                    ready.generator.preload(count)?;
                    let (begin, _) = clock.settled(SETTLE_LIMIT)?;
                    wall += ready.guest.receive(count, case.frame_len)?;
                    cpu += clock.settled(SETTLE_LIMIT)?.0 - begin;
                    left -= count;
                }
                verify_received(counters, ready.link.counters()?, frames)?;
            }
        }
        let bytes = (frames * case.frame_len) as u64;
        Ok(NetSample { cpu, wall, frames: frames as u64, bytes })
    }
}

impl Variant<NetBench> for BackendVariant {
    fn name(&self) -> &str {
        &self.name
    }

    fn prepare(&mut self, case: &Case) -> Result<()> {
        // The guest before goes first: the back end serves one front end a socket.
        self.ready = None;
        let set = case.working_set.bytes();
        let outgoing = Frame::build(case.frame_len, SINK_MAC, GUEST_MAC)?;
        let memory = match case.direction {
            Direction::Transmit => NetGuest::transmit_bytes(set, &outgoing, self.fragment_len),
            Direction::Receive => NetGuest::receive_bytes(set, case.frame_len),
        };
        let mut guest = NetGuest::connect_without(&self.backend.socket(0), memory, self.without)?;
        match case.direction {
            Direction::Transmit => guest.prepare_transmit(set, &outgoing, self.fragment_len)?,
            Direction::Receive => guest.prepare_receive(set, case.frame_len)?,
        }
        let link = self.backend.link(0)?;
        link.set_mtu(outgoing.mtu())?;
        link.set_txqueuelen(case.burst())?;
        let incoming = Frame::build(case.frame_len, GUEST_MAC, link.mac()?)?;
        let generator = Generator::new(&link, incoming)?;
        self.before = self.backend.ledger(case.direction)?;
        self.ready = Some(ReadyBackend { case: *case, guest, link, generator });
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
        Ok(since(self.backend.ledger(case.direction)?, &self.before))
    }
}
