//! A bare loop on a veth pair of its own: system calls, and no virtqueue.

use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use anyhow::{Result, bail};

use super::bursts::{self, Arrivals};
use super::measured::{KernelTime, measured};
use super::veth::{Veth, Wire};
use crate::case::{Case, Direction};
use crate::compare::NetBench;
use crate::cpu::{Placement, on_worker};
use crate::experiment::{Ledger, Turn, Variant};
use crate::frame::{Frame, GUEST_MAC};
use crate::generator::Generator;
use crate::netns::NetnsLink;
use crate::transfer::TransferSample;

/// The calls of such a loop.
pub trait BareCalls: Sized {
    /// Its name in tables.
    const NAME: &'static str;

    /// What it has for a case: a socket and the working set.
    type Ready: Send;

    /// For the pair's end `port`.
    fn new(port: &NetnsLink) -> Result<Self>;

    /// Opens the socket on `port`.
    fn open(&self, port: &NetnsLink, case: &Case) -> Result<Self::Ready>;

    /// Sends `frames` frames.
    fn send(ready: &mut Self::Ready, frames: usize) -> Result<()>;

    /// Receives `frames` frames, and stores in `done` how many have come.
    fn receive(ready: &mut Self::Ready, frames: usize, done: &AtomicUsize) -> Result<()>;
}

/// The loop.
pub struct BareLoop<C: BareCalls> {
    calls: C,
    wire: Wire,
    arrivals: Arrivals,
    placement: Placement,
    ready: Option<(Case, C::Ready, Generator)>,
    kernel: KernelTime,
}

impl<C: BareCalls> BareLoop<C> {
    /// Makes the pair in the namespace of the calling thread.
    pub fn new(arrivals: Arrivals, placement: &Placement) -> Result<Self> {
        let wire = Wire::Veth(Veth::new(placement)?);
        let (calls, placement) = (C::new(wire.port())?, placement.clone());
        Ok(Self { calls, wire, arrivals, placement, ready: None, kernel: KernelTime::default() })
    }
}

impl<C: BareCalls> Variant<NetBench> for BareLoop<C> {
    fn name(&self) -> &str {
        C::NAME
    }

    fn prepare(&mut self, case: &Case) -> Result<()> {
        // The old socket goes first: a queue has one at a time.
        self.ready = None;
        self.kernel = KernelTime::default();
        let ready = self.calls.open(self.wire.port(), case)?;
        let peer = self.wire.peer();
        let generator = Generator::with_room(peer, Frame::build(case.frame_len, GUEST_MAC, peer.mac()?)?)?;
        self.ready = Some((*case, ready, generator));
        Ok(())
    }

    fn run(&mut self, case: &Case, frames: usize, _: Turn) -> Result<TransferSample> {
        let Some((_, ready, generator)) = self.ready.as_mut().filter(|(of, ..)| of == case) else {
            bail!("{} was not prepared for {case}", C::NAME);
        };
        let (arrivals, placement) = (&self.arrivals, &self.placement);
        measured(&self.wire, &mut self.kernel, (case, frames), Duration::ZERO, || match case.direction {
            Direction::Transmit => on_worker(placement, || C::send(ready, frames)),
            Direction::Receive => {
                let work = |done: &AtomicUsize| C::receive(ready, frames, done);
                bursts::receive_on_worker(arrivals, placement, generator, frames, work)
            }
        })
    }

    fn ledger(&mut self) -> Result<Ledger> {
        let mut ledger = Ledger::new();
        self.kernel.note(&mut ledger);
        Ok(ledger)
    }
}
