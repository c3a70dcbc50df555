//! A ring that runs.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use zerowire_sys::syscall;
use zerowire_vhost_user::features as f;

use super::{RingSetup, RingState};
use crate::memory::GuestMemory;
use crate::ring::inflight::{Recovered, Tracker};
use crate::ring::{RingAddresses, RingLog, SplitRing, UsedOrder};

/// Whether a ring's memory may be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Sound,
    /// The guest broke a rule: nothing is touched until the ring is stopped and started again.
    Broken,
    /// Its memory is gone for the moment: nothing is touched until the ring has moved.
    Unmapped,
}

/// A ring that runs: where it lies, whom it notifies, and whether it may be touched.
///
/// The descriptors are the front end's: it reads and writes them at any time.
#[derive(Debug)]
pub struct HostRing {
    /// The ring.
    pub ring: SplitRing,
    health: Health,
    /// Whether it is served.
    pub state: RingState,
    /// Where its parts are.
    pub addresses: RingAddresses,
    /// The available entry that it began with.
    pub base: u16,
    /// Features that the guest acknowledged.
    pub acked: u64,
    /// The guest address of the used ring, where writes to it are noted in the dirty log, once
    /// [`Self::follow_log`] is called.
    pub(super) log_at: Option<u64>,
    /// What marks its chains in flight, until [`Self::resume`] hands it to the ring.
    inflight: Option<Box<Tracker>>,
    /// None where nobody notifies this side, which then polls the ring by turns.
    pub(super) kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    /// Tells the front end of errors.
    pub(super) err: Option<Arc<OwnedFd>>,
}

impl HostRing {
    /// The ring that `setup` describes, in this memory. [`Self::resume`] follows once its port is
    /// ready, too.
    ///
    /// # Errors
    /// A text that says what is wrong with the addresses.
    pub fn new(setup: RingSetup, memory: &GuestMemory) -> Result<Self, String> {
        let RingSetup { queue, size, addresses, base, acked, state, log_at, inflight, kick, call, err } =
            setup;
        let ring = split_ring((queue, size, addresses), base, (acked, log_at), memory)?;
        let kick = Some(kick);
        let health = Health::Sound;
        Ok(Self { ring, health, state, addresses, base, acked, log_at, inflight, kick, call, err })
    }

    /// Takes up what a process before has left in flight. The driver is notified where that may
    /// have used chains.
    ///
    /// # Errors
    /// A text that says why what lies in the in-flight region can't be this ring's.
    pub fn resume(&mut self) -> Result<Recovered, String> {
        let recovered = match self.inflight.take() {
            Some(tracker) => self.ring.track(tracker)?,
            None => Recovered::default(),
        };
        recovered.log(self.ring.queue());
        self.ring.disarm();
        // A process that died may have used chains and not come to notify the driver, which waits
        // for it ever since.
        self.call();
        Ok(recovered)
    }

    /// A second look at the same ring in this memory, of which nothing is taken.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn peek(&self, memory: &GuestMemory) -> Result<SplitRing, String> {
        let at = (self.ring.queue(), self.ring.size(), self.addresses);
        split_ring(at, self.ring.next_avail(), (self.acked, self.log_at), memory)
    }

    /// The same ring in other memory; what was taken of it has been used or given back before. A
    /// ring that was without its memory goes on, one whose rules the guest broke does not.
    ///
    /// # Errors
    /// As [`Self::new`]. It is without its memory from now on: the old pointers must not be
    /// followed again. Front ends remove and add a region to change it.
    pub fn move_to(&mut self, memory: &GuestMemory) -> Result<(), String> {
        match self.peek(memory) {
            Ok(mut ring) => {
                ring.put_tracker(self.ring.take_tracker());
                self.ring = ring;
                if self.health == Health::Unmapped {
                    self.health = Health::Sound;
                }
                // The ring does not know any more of what it notified the driver last. A driver
                // that is notified once too often loses nothing.
                self.call();
                Ok(())
            }
            Err(e) => {
                self.unmap();
                Err(e)
            }
        }
    }

    /// It can't be served where it lies, until it has moved.
    pub fn unmap(&mut self) {
        if self.health == Health::Sound {
            self.health = Health::Unmapped;
        }
    }

    /// Everything that was taken was used or given back, and the ring stops. Returns where it goes
    /// on (vhost-user GET_VRING_BASE).
    pub fn stop(mut self) -> u16 {
        // Marks of a ring without its memory stay for the next one that has it.
        if !self.is_unmapped() && self.ring.end_tracking(self.health == Health::Broken) {
            self.call();
        }
        self.ring.next_avail()
    }

    /// Whether frames or packets move.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.state == RingState::Enabled && self.is_sound()
    }

    /// Whether a transmit ring's chains are taken, be it to discard them.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.state != RingState::Waiting && self.is_sound()
    }

    /// Whether its memory may be touched.
    #[inline]
    pub fn is_sound(&self) -> bool {
        self.health == Health::Sound
    }

    /// Whether it is without its memory for the moment.
    #[inline]
    pub fn is_unmapped(&self) -> bool {
        self.health == Health::Unmapped
    }

    /// The same memory with another dirty log, or none.
    pub fn follow_log(&mut self, memory: &GuestMemory) {
        self.ring.set_log(RingLog::of(memory, self.log_at));
    }

    /// Another descriptor to notify the driver by, or none.
    pub fn set_call(&mut self, call: Option<Arc<OwnedFd>>) {
        self.call = call;
        // The driver may have missed a notification while the descriptor was another one.
        self.call();
    }

    /// Shows the driver what was used. Returns whether it was notified.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.is_sound() && self.ring.publish() && self.call()
    }

    /// Notifies the driver.
    #[inline]
    pub fn call(&self) -> bool {
        self.call.as_deref().is_some_and(notify)
    }

    /// The guest broke a rule: the ring is not touched any more. What was used before that is the
    /// guest's, and shown to it. Returns whether the ring was touched until now.
    pub fn set_broken(&mut self) -> bool {
        let was_sound = self.is_sound();
        if was_sound {
            self.publish();
            self.health = Health::Broken;
        }
        was_sound
    }

    /// Stops serving the ring and tells the front end (vhost-user SET_VRING_ERR).
    pub fn fail(&mut self) {
        self.set_broken();
        if let Some(fd) = &self.err {
            notify(fd);
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl From<SplitRing> for HostRing {
    /// An enabled ring without a front end, for tests of what is done with it.
    fn from(ring: SplitRing) -> Self {
        Self {
            health: Health::Sound,
            state: RingState::Enabled,
            addresses: RingAddresses::default(),
            base: ring.next_avail(),
            acked: 0,
            log_at: None,
            inflight: None,
            kick: None,
            call: None,
            err: None,
            ring,
        }
    }
}

fn split_ring(
    (queue, size, addresses): (u16, u16, RingAddresses),
    base: u16,
    (acked, log_at): (u64, Option<u64>),
    memory: &GuestMemory,
) -> Result<SplitRing, String> {
    let mut ring = SplitRing::new(queue, size, addresses, base, acked & f::RING_EVENT_IDX != 0, memory)?;
    // Of both devices the queues with even numbers are those that the device writes to.
    ring.set_order(UsedOrder::of(acked, queue.is_multiple_of(2)));
    ring.set_log(RingLog::of(memory, log_at));
    Ok(ring)
}

fn notify(fd: &OwnedFd) -> bool {
    syscall::write(fd.as_fd(), &1u64.to_ne_bytes()).is_ok()
}
