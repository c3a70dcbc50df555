//! A VM beside one that breaks the rules.

use super::{Backend, Guest, Peer};

/// What [`Neighbour::record`] says of a VM that nobody harmed.
pub const UNHARMED: (u64, u64, u64) = (0, 0, 1);

/// Another VM of the same process, whose guest works all the while.
pub struct Neighbour {
    name: &'static str,
    guest: Guest,
    peer: Peer,
    pings: u32,
}

impl Neighbour {
    /// The VM `name` with its guest, and the other end of its port.
    pub fn new(name: &'static str, guest: Guest, peer: Peer) -> Self {
        Self { name, guest, peer, pings: 0 }
    }

    /// A frame each way: the guest still works.
    pub fn ping(&mut self) {
        self.pings += 1;
        self.guest.ping(&mut self.peer, self.pings);
    }

    /// Errors of its rings, errors of its connections, and its connections so far.
    pub fn record(&self, backend: &Backend) -> (u64, u64, u64) {
        let stats = backend.stats(self.name);
        (stats.ring_errors, stats.connection_errors, stats.connections)
    }
}
