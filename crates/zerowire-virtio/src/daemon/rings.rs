//! A worker's two rings: starting, stopping, notifying.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::command::{Direction, RingStart};
use zerowire::ledger::{Counters, DropReason};

use crate::memory::GuestMemory;
use crate::net::receive::ReceiveSetup;
use crate::net::{Policy, Receive, Transmit, features};
use crate::ring::SplitRing;

/// A ring that runs, and how to make it anew when the memory changes.
#[derive(Debug)]
pub(super) struct Running<T> {
    pub side: T,
    pub start: RingStart,
    /// The guest broke a rule: nothing is touched until the ring is stopped and started again.
    pub broken: bool,
    /// It is broken only because its memory is gone for the moment.
    unmapped: bool,
}

/// The two sides behind one interface.
pub(super) trait Side: Sized {
    fn make(start: &RingStart, base: u16, policy: Policy, memory: &GuestMemory) -> Result<Self, String>;
    fn ring(&mut self) -> &mut SplitRing;
    /// Gives parsed chains back to the ring. Returns how many received frames are lost with that.
    fn release(&mut self) -> usize;
}

fn split_ring(start: &RingStart, base: u16, memory: &GuestMemory) -> Result<SplitRing, String> {
    let event_idx = start.acked & zerowire_vhost_user::features::RING_EVENT_IDX != 0;
    SplitRing::new(start.queue, start.size, start.addresses, base, event_idx, memory)
}

impl Side for Transmit {
    fn make(start: &RingStart, base: u16, policy: Policy, memory: &GuestMemory) -> Result<Self, String> {
        let ring = split_ring(start, base, memory)?;
        Self::new(ring, policy, start.acked, features::header_len(start.acked)).map_err(|e| e.to_string())
    }

    fn ring(&mut self) -> &mut SplitRing {
        self.ring()
    }

    fn release(&mut self) -> usize {
        0
    }
}

impl Side for Receive {
    fn make(start: &RingStart, base: u16, policy: Policy, memory: &GuestMemory) -> Result<Self, String> {
        let ring = split_ring(start, base, memory)?;
        let setup = ReceiveSetup {
            mergeable: start.acked & zerowire_vhost_user::features::NET_MRG_RXBUF != 0,
            header_len: features::header_len(start.acked),
            mtu: start.mtu,
            mode: policy.mode,
        };
        Self::new(ring, setup).map_err(|e| e.to_string())
    }

    fn ring(&mut self) -> &mut SplitRing {
        self.ring()
    }

    fn release(&mut self) -> usize {
        self.release()
    }
}

impl<T: Side> Running<T> {
    pub(super) fn new(start: RingStart, policy: Policy, memory: &GuestMemory) -> Result<Self, String> {
        let mut side = T::make(&start, start.base, policy, memory)?;
        side.ring().disarm();
        Ok(Self { side, start, broken: false, unmapped: false })
    }

    /// The same ring in other memory.
    pub(super) fn move_to(
        &mut self,
        policy: Policy,
        memory: &GuestMemory,
        counters: &Counters,
    ) -> Result<(), String> {
        self.let_go(counters);
        let base = self.side.ring().next_avail();
        match T::make(&self.start, base, policy, memory) {
            Ok(side) => {
                self.side = side;
                // A ring that was without its memory goes on; one whose rules the guest broke does not.
                if std::mem::take(&mut self.unmapped) {
                    self.broken = false;
                }
                Ok(())
            }
            Err(e) => {
                // The old pointers must not be followed again. Front ends remove and add a region to change it.
                self.unmapped |= !self.broken;
                self.broken = true;
                Err(e)
            }
        }
    }

    /// Stops the ring; where it has to go on (vhost-user GET_VRING_BASE).
    pub(super) fn stop(mut self, counters: &Counters) -> u16 {
        self.let_go(counters);
        self.side.ring().next_avail()
    }

    fn let_go(&mut self, counters: &Counters) {
        for _ in 0..self.side.release() {
            counters.dropped(DropReason::NoRoom);
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.start.enabled && !self.broken
    }

    /// Whether a transmit ring's chains are taken, be it to discard them. A ring that was disabled discards what it is
    /// given (vhost-user, "Ring states"). One that was just started and not enabled yet is left alone: front ends enable
    /// rings right after they started them, and the frames of a guest that was reconnected wait there.
    pub(super) fn is_drained(&self) -> bool {
        (self.start.enabled || self.start.discards) && !self.broken
    }

    /// Notifies the driver.
    pub(super) fn call(&self) -> bool {
        match &self.start.call {
            Some(fd) => notify(fd),
            None => false,
        }
    }

    /// Stops serving the ring and tells the front end (vhost-user SET_VRING_ERR).
    pub(super) fn fail(&mut self) {
        self.broken = true;
        if let Some(fd) = &self.start.err {
            notify(fd);
        }
    }
}

fn notify(fd: &OwnedFd) -> bool {
    rustix::io::write(fd.as_fd(), &1u64.to_ne_bytes()).is_ok()
}

/// A worker's rings and the memory that they lie in.
#[derive(Debug)]
pub(super) struct Rings {
    // Rings hold pointers into the memory: they go first.
    pub transmit: Option<Running<Transmit>>,
    pub receive: Option<Running<Receive>>,
    pub memory: Arc<GuestMemory>,
}

impl Rings {
    /// The kick descriptor of a ring.
    pub(super) fn start_of(&mut self, direction: Direction) -> Option<&mut RingStart> {
        match direction {
            Direction::Transmit => self.transmit.as_mut().map(|r| &mut r.start),
            Direction::Receive => self.receive.as_mut().map(|r| &mut r.start),
        }
    }
}
