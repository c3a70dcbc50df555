//! One direction of a queue pair as its worker sees it: a ring, and what the port has of it.
//!
//! **Who owns what.** Sides are made and go as rings start and stop. A [released](Side::release)
//! side has given back, or put back, every chain that it took. The port then holds nothing of the
//! guest that it could write to.

use zerowire::ledger::Counters;
use zerowire_vhost::host::{HostRing, RingSetup};
use zerowire_vhost::memory::GuestMemory;
use zerowire_vhost::ring::inflight::Recovered;

use crate::features::{header_len, toward_guest};
use crate::port::PortPath;
use crate::receive::{Inlet, ReceiveContext, ReceiveSetup};
use crate::{Receive, Transmit};

/// Which of a pair's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// Even queue numbers: toward the guest.
    Receive,
    /// Odd queue numbers: from the guest.
    Transmit,
}

impl Direction {
    pub(crate) fn of(queue: u16) -> Self {
        if queue.is_multiple_of(2) { Self::Receive } else { Self::Transmit }
    }
}

/// One direction of a queue pair.
pub(super) trait Side<P>: Sized {
    /// A side for this ring. [`Self::begin`] follows.
    fn make(path: &mut P, ring: HostRing) -> Result<Self, String>;

    /// The ring.
    fn host(&self) -> &HostRing;

    /// The ring.
    fn host_mut(&mut self) -> &mut HostRing;

    /// Gives up the ring.
    fn into_host(self) -> HostRing;

    /// The ring is new, or lies in other memory than before, of which nothing is out: has the port
    /// serve it there.
    fn begin(&mut self, path: &mut P, memory: &GuestMemory) -> Result<(), String>;

    /// Ends all that is under way, before the ring stops or its memory goes. Chains are given back,
    /// or put back into the ring to be taken again. The ring's next available entry is then where
    /// another device goes on.
    fn release(&mut self, path: &mut P, memory: &GuestMemory, counters: &Counters);

    /// The guest broke a rule, or the ring can't begin: ends all that is under way without a
    /// further look at the ring. [`Self::release`] may still follow.
    fn abandon(&mut self, path: &mut P, counters: &Counters);

    /// Starts a ring. What a process before had left in flight comes with it.
    fn start(path: &mut P, setup: RingSetup, memory: &GuestMemory) -> Result<(Self, Recovered), String> {
        let mut side = Self::make(path, HostRing::new(setup, memory)?)?;
        side.begin(path, memory)?;
        match side.host_mut().resume() {
            Ok(recovered) => Ok((side, recovered)),
            Err(e) => {
                side.abandon(path, &Counters::default());
                Err(e)
            }
        }
    }

    /// Lets go of everything, before the memory changes or the ring stops.
    fn let_go(&mut self, path: &mut P, memory: &GuestMemory, counters: &Counters) {
        // A ring without its memory was let go of before that went.
        if !self.host().is_unmapped() {
            self.release(path, memory, counters);
        }
    }

    /// Ends all that is under way. Gives up the ring, which stops next.
    fn end(mut self, path: &mut P, memory: &GuestMemory, counters: &Counters) -> HostRing {
        self.let_go(path, memory, counters);
        self.into_host()
    }

    /// The same ring in other memory. It was [let go of](Self::let_go) before.
    fn move_to(&mut self, path: &mut P, memory: &GuestMemory) -> Result<(), String> {
        self.host_mut().move_to(memory)?;
        self.begin(path, memory).inspect_err(|_| self.host_mut().unmap())
    }

    /// Stops serving the ring and tells the front end (vhost-user SET_VRING_ERR).
    fn fail(&mut self, path: &mut P, counters: &Counters) {
        if self.host_mut().set_broken() {
            self.abandon(path, counters);
        }
        self.host_mut().fail();
    }
}

impl<P: PortPath> Side<P> for Transmit<P::Outlet> {
    fn make(path: &mut P, ring: HostRing) -> Result<Self, String> {
        let acked = ring.acked;
        let outlet = path.outlet(ring.ring.size()).map_err(|e| e.to_string())?;
        Ok(Self::new(ring, outlet, acked, header_len(acked)))
    }

    fn host(&self) -> &HostRing {
        self.host()
    }

    fn host_mut(&mut self) -> &mut HostRing {
        self.host_mut()
    }

    fn into_host(self) -> HostRing {
        self.host
    }

    fn begin(&mut self, path: &mut P, _memory: &GuestMemory) -> Result<(), String> {
        self.begin(path.queue())
    }

    fn release(&mut self, path: &mut P, _memory: &GuestMemory, counters: &Counters) {
        self.release(path.queue(), counters);
    }

    fn abandon(&mut self, path: &mut P, counters: &Counters) {
        self.abandon(path.queue(), counters);
    }
}

impl<P: PortPath> Side<P> for Receive<P::Inlet> {
    fn make(path: &mut P, ring: HostRing) -> Result<Self, String> {
        let acked = ring.acked;
        let setup = ReceiveSetup::of(acked);
        let inlet = path.inlet(setup, ring.ring.size()).map_err(|e| e.to_string())?;
        let mut side = Self::new(ring, inlet, setup);
        if P::Inlet::ANY_OFFLOAD {
            side.accept_only(toward_guest(acked));
        }
        Ok(side)
    }

    fn host(&self) -> &HostRing {
        self.host()
    }

    fn host_mut(&mut self) -> &mut HostRing {
        self.host_mut()
    }

    fn into_host(self) -> HostRing {
        self.side.host
    }

    fn begin(&mut self, path: &mut P, memory: &GuestMemory) -> Result<(), String> {
        self.begin(path.queue(), memory)
    }

    fn release(&mut self, path: &mut P, memory: &GuestMemory, counters: &Counters) {
        self.release(path.queue(), &ReceiveContext { memory, counters });
    }

    fn abandon(&mut self, path: &mut P, counters: &Counters) {
        self.abandon(path.queue(), counters);
    }
}
