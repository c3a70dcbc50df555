//! A worker's two rings: starting, stopping, notifying.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use zerowire::ledger::Counters;
use zerowire_sys::syscall;

use super::command::Direction;
use super::path::{Path, Side};
use crate::host::{RingSetup, RingState};
use crate::memory::GuestMemory;
use crate::ring::inflight::Recovered;
use crate::ring::{RingLog, SplitRing, UsedOrder};

/// A ring that runs, and how to make it anew when the memory changes.
#[derive(Debug)]
pub(super) struct Running<T> {
    pub side: T,
    pub start: RingSetup,
    /// The guest broke a rule: nothing is touched until the ring is stopped and started again.
    pub broken: bool,
    /// It is broken only because its memory is gone for the moment.
    unmapped: bool,
    /// What a process before had left in flight.
    pub recovered: Recovered,
}

/// The ring that `start` describes, from available entry `base` on.
pub(super) fn split_ring(start: &RingSetup, base: u16, memory: &GuestMemory) -> Result<SplitRing, String> {
    let event_idx = start.acked & zerowire_vhost_user::features::RING_EVENT_IDX != 0;
    let mut ring = SplitRing::new(start.queue, start.size, start.addresses, base, event_idx, memory)?;
    ring.set_order(UsedOrder::of(start.acked, Direction::of(start.queue.into()) == Direction::Receive));
    ring.set_log(RingLog::of(memory, start.log_at));
    Ok(ring)
}

impl<T> Running<T> {
    pub(super) fn new<P>(path: &mut P, mut start: RingSetup, memory: &GuestMemory) -> Result<Self, String>
    where
        T: Side<P>,
    {
        let mut side = T::make(path, &start, start.base, memory)?;
        let recovered = match start.inflight.take() {
            Some(tracker) => match side.ring().track(tracker) {
                Ok(recovered) => recovered,
                Err(e) => {
                    side.abandon(path, &Counters::default());
                    return Err(e);
                }
            },
            None => Recovered::default(),
        };
        recovered.log(start.queue);
        side.ring().disarm();
        let resumes = side.ring().next_used() != 0;
        let running = Self { side, start, broken: false, unmapped: false, recovered };
        // A process that died may have used chains and not come to notify the driver, which waits for it ever since.
        if resumes {
            running.call();
        }
        Ok(running)
    }

    /// Lets go of everything, before the memory changes or the ring stops.
    pub(super) fn let_go<P>(&mut self, path: &mut P, memory: &GuestMemory, counters: &Counters)
    where
        T: Side<P>,
    {
        // A ring without its memory was let go of before that went.
        if !self.unmapped {
            self.side.release(path, memory, counters);
        }
    }

    /// The same ring in other memory. It was [let go of](Self::let_go) before.
    pub(super) fn move_to<P>(&mut self, path: &mut P, memory: &GuestMemory) -> Result<(), String>
    where
        T: Side<P>,
    {
        let base = self.side.ring().next_avail();
        match T::make(path, &self.start, base, memory) {
            Ok(mut side) => {
                side.ring().put_tracker(self.side.ring().take_tracker());
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
    pub(super) fn stop<P>(mut self, path: &mut P, memory: &GuestMemory, counters: &Counters) -> u16
    where
        T: Side<P>,
    {
        self.let_go(path, memory, counters);
        // Marks of a ring without its memory stay for the next one that has it.
        if !self.unmapped && self.side.ring().end_tracking(self.broken) {
            self.call();
        }
        self.side.ring().next_avail()
    }

    pub(super) fn is_active(&self) -> bool {
        self.start.state == RingState::Enabled && !self.broken
    }

    /// Whether a transmit ring's chains are taken, be it to discard them. A ring that was disabled discards what it is
    /// given.
    pub(super) fn is_drained(&self) -> bool {
        self.start.state != RingState::Waiting && !self.broken
    }

    /// Notifies the driver.
    pub(super) fn call(&self) -> bool {
        match &self.start.call {
            Some(fd) => notify(fd),
            None => false,
        }
    }

    /// Stops serving the ring and tells the front end (vhost-user SET_VRING_ERR).
    pub(super) fn fail<P>(&mut self, path: &mut P, counters: &Counters)
    where
        T: Side<P>,
    {
        if !std::mem::replace(&mut self.broken, true) {
            self.side.abandon(path, counters);
        }
        if let Some(fd) = &self.start.err {
            notify(fd);
        }
    }
}

fn notify(fd: &OwnedFd) -> bool {
    syscall::write(fd.as_fd(), &1u64.to_ne_bytes()).is_ok()
}

/// A worker's rings and the memory that they lie in.
pub(super) struct Rings<P: Path> {
    // Rings hold pointers into the memory: they go first.
    pub transmit: Option<Running<P::Transmit>>,
    pub receive: Option<Running<P::Receive>>,
    pub memory: Arc<GuestMemory>,
}

impl<P: Path> Rings<P> {
    /// The kick descriptor of a ring.
    pub(super) fn start_of(&mut self, direction: Direction) -> Option<&mut RingSetup> {
        match direction {
            Direction::Transmit => self.transmit.as_mut().map(|r| &mut r.start),
            Direction::Receive => self.receive.as_mut().map(|r| &mut r.start),
        }
    }
}
