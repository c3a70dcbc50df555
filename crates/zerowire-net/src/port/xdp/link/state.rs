//! What a link is made of: its socket, the memory, the interface, and how far things are.

use std::sync::Arc;
use std::time::{Duration, Instant};

use zerowire_sys::xdp::program::Steering;
use zerowire_sys::xdp::{Interface, Socket};
use zerowire_vhost::memory::GuestMemory;

use super::NAPS;
use super::promiscuity::Promiscuity;
use crate::port::LinkWatch;
use crate::port::xdp::umem::{Slab, VmUmem};

/// A socket that is bound, and what goes with it.
pub(super) struct BoundSocket {
    // Goes before the slab, which keeps the memory.
    pub(super) socket: Socket,
    /// Its part of the slab.
    pub(super) slab: Slab,
    /// Tells when the interface goes or changes.
    pub(super) watch: LinkWatch,
    pub(super) interface: Interface,
    /// The queue's frames come to it.
    pub(super) steered: bool,
    /// Chunks were posted to it.
    pub(super) posted: bool,
}

/// The guest's memory, as far as frames may lie in it.
#[derive(Default)]
pub(super) struct Registered {
    pub(super) umem: Option<Arc<VmUmem>>,
    /// The longest frame by the interface's MTU as it is now, bytes.
    pub(super) mtu_allows: u32,
    pub(super) memory: Arc<GuestMemory>,
}

/// What the interface was made to do.
pub(super) struct OnInterface {
    /// What a NIC that filters lets through while there is a socket.
    pub(super) promiscuity: Promiscuity,
    /// The program on the interface of the socket that was bound last.
    pub(super) steering: Option<Arc<Steering>>,
}

/// What a socket is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Nothing,
    ToSend,
    /// Also while nothing is sent.
    ToReceive,
}

/// Why the socket, or its zero-copy mode, is missing, and when the next attempt comes.
#[derive(Default)]
pub(super) struct Binding {
    pub(super) retry_at: Option<Instant>,
    /// Why the socket is missing.
    pub(super) problem: Option<String>,
    /// Since when the queue is another socket's.
    pub(super) busy_since: Option<Instant>,
    /// Why the socket is not in zero-copy mode, where that was thought of.
    pub(super) why_copy: Option<String>,
    /// Bytes of the guest's receive buffers, as far as they are known when the socket is bound.
    pub(super) buffer_bytes: Option<usize>,
}

/// Sockets that there were.
#[derive(Default)]
pub(super) struct SocketCount {
    pub(super) generation: u64,
    /// There is another one than when this was asked last.
    pub(super) renewed: bool,
}

/// When the kernel lets go of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LetsGo {
    /// At any time until it says so.
    Later,
    /// It has copied a frame by the time that it has taken it from the ring. Chains come back when
    /// they were sent all the same.
    AtOnce,
    /// The same, and chains come back then.
    AtOnceAndChainsCome,
}

/// What is under way.
pub(super) struct Sending {
    pub(super) lets_go: LetsGo,
    /// The interface is down: frames are dropped rather than held.
    pub(super) down: bool,
    /// Pieces were queued that the kernel has not taken.
    pub(super) unsent: bool,
    pub(super) idle_since: Option<Instant>,
    pub(super) nap: Duration,
}

impl LetsGo {
    /// Another socket was bound; `at_once`: the kernel copies at once what it takes from it.
    pub(super) fn bound(self, at_once: bool) -> Self {
        match self {
            _ if !at_once => Self::Later,
            Self::AtOnceAndChainsCome => self,
            Self::Later | Self::AtOnce => Self::AtOnce,
        }
    }

    /// Whether chains should come back when their frames were copied, where that is at once.
    #[inline]
    pub(super) fn with_chains(self, come: bool) -> Self {
        match self {
            Self::Later => Self::Later,
            Self::AtOnce | Self::AtOnceAndChainsCome if come => Self::AtOnceAndChainsCome,
            Self::AtOnce | Self::AtOnceAndChainsCome => Self::AtOnce,
        }
    }
}

impl Sending {
    pub(super) fn new() -> Self {
        Self { lets_go: LetsGo::Later, down: false, unsent: false, idle_since: None, nap: NAPS.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_come_with_the_copy_only_where_it_is_made_at_once() {
        let asked = LetsGo::Later.bound(true).with_chains(true);
        assert_eq!(asked, LetsGo::AtOnceAndChainsCome);
        assert_eq!(asked.with_chains(false), LetsGo::AtOnce);
        assert_eq!(asked.bound(true), asked, "a socket in the place of another goes on as that did");
        assert_eq!(asked.bound(false).with_chains(true), LetsGo::Later);
    }
}
