//! What a device type adds to a vhost-user session.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use zerowire_vhost_user::Request;

use crate::host::RingSetup;
use crate::memory::GuestMemory;
use crate::session::{SessionError, not_offered};

/// The device behind one connection. The session checks what it passes on: queues exist,
/// descriptors to write to are eventfds, `kick`, `call` and `err` are for running rings. A call
/// returns when its work is done, so a front end can't pile up work. Dropping the device ends what
/// it does for this front end.
pub trait Device {
    /// How many queues there are.
    fn queues(&self) -> usize;

    /// The hint in the error text when a front end names a queue that does not exist.
    fn queue_hint(&self) -> &'static str;

    /// Features for the guest and the front end.
    fn offered(&self) -> u64;

    /// Names of features in `mask`.
    fn feature_names(&self, mask: u64) -> Vec<String>;

    /// vhost-user protocol features.
    fn protocol_features(&self) -> u64;

    /// The configuration space (virtio 1.3 §2.5); None where the front end answers for it.
    fn config(&self) -> Option<Vec<u8>> {
        None
    }

    /// The guest has chosen features; no ring runs.
    fn set_features(&mut self, acked: u64) -> Result<(), String>;

    /// As [`Self::set_features`], for a guest that goes on: what waits for it stays where it is.
    fn resume_features(&mut self, acked: u64) -> Result<(), String> {
        self.set_features(acked)
    }

    /// vhost-user NET_SET_MTU.
    fn set_mtu(&mut self, _mtu: u64) -> Result<(), SessionError> {
        Err(not_offered(Request::NetSetMtu))
    }

    /// From now on this is the guest's memory. Nothing of the old one is in use when this returns.
    fn set_memory(&mut self, memory: &Arc<GuestMemory>);

    /// The same memory as before with another dirty log, or none. Nothing is noted in the old one
    /// when this returns.
    fn set_log(&mut self, memory: &Arc<GuestMemory>);

    /// Has writes to a running queue's used ring noted in the dirty log from guest address `at` on,
    /// or not.
    fn log_ring(&mut self, queue: u16, at: Option<u64>);

    /// Tells the port's other side where the guest is now (vhost-user SEND_RARP).
    fn announce(&mut self, _mac: [u8; 6]) -> Result<(), SessionError> {
        Err(not_offered(Request::SendRarp))
    }

    /// Whether a queue's chains are used in the order in which they became available.
    fn uses_in_order(&self, _queue: u16) -> bool {
        true
    }

    /// Whether the process that goes on after this one died may take chains of a queue once more
    /// that were taken and not used. They are found by the used index then, and marked only where
    /// the front end keeps a region.
    fn takes_again(&self, queue: u16) -> bool {
        self.uses_in_order(queue)
    }

    /// Starts a ring.
    fn start(&mut self, ring: RingSetup) -> Result<(), String>;

    /// Stops a ring that was started. Gives back the available entry that it would have taken next;
    /// None leaves the one that the front end gave.
    fn stop(&mut self, queue: u16) -> Option<u16>;

    /// Lets a ring move packets, or not. A ring that does not run yet gets this state again when it
    /// starts.
    fn enable(&mut self, queue: u16, on: bool, runs: bool);

    /// Another descriptor to be notified by. An error says why it can't be, and leaves the one
    /// before.
    fn kick(&mut self, queue: u16, fd: Arc<OwnedFd>) -> Result<(), String>;

    /// Another descriptor to notify the driver by.
    fn call(&mut self, queue: u16, fd: Option<Arc<OwnedFd>>);

    /// Another descriptor to tell of errors by.
    fn err(&mut self, queue: u16, fd: Option<Arc<OwnedFd>>);

    /// RESET_DEVICE: all rings have stopped; state goes, `memory` stays.
    fn reset(&mut self, memory: &Arc<GuestMemory>);

    /// Whether a ring broke since the guest reset the device, which no driver can go on with
    /// (DEVICE_NEEDS_RESET).
    fn needs_reset(&self) -> bool {
        false
    }

    /// A ring broke before another process handed the session over.
    fn set_needs_reset(&mut self) {}

    /// Another process goes on with the session: all rings have stopped, and what waits for the
    /// guest stays where it is.
    fn hand_over(&mut self) {}

    /// The session of another process goes on here: all its rings run that did.
    fn was_taken_up(&mut self) {}

    /// The guest has reset the device (virtio 1.3 §2.4): its rings have stopped.
    fn was_reset(&mut self) {}

    /// The control thread was woken: there may be something new to take up.
    fn attend(&mut self) {}
}
