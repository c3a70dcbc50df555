//! What a link is made of: its socket, the memory, the interface, and how far things are.

use std::sync::Arc;
use std::time::Instant;

use zerowire_sys::xdp::{Interface, Socket};
use zerowire_vhost::memory::{GuestMemory, Segment};

use crate::port::LinkWatch;
use crate::port::xdp::geometry::Geometry;
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
pub struct Registered {
    pub(super) umem: Option<Arc<VmUmem>>,
    /// The longest frame by the interface's MTU as it is now, bytes.
    mtu_allows: u32,
    pub(super) memory: Arc<GuestMemory>,
}

impl Registered {
    /// The registration that a socket was bound with.
    pub(super) fn begin(&mut self, umem: Arc<VmUmem>) {
        self.mtu_allows = umem.geometry.frame_bytes;
        self.umem = Some(umem);
    }

    /// The interface has this MTU now, bytes. Returns the longest frame from the guest where that
    /// is another one now, bytes.
    pub(super) fn limit(&mut self, mtu: usize) -> Option<u32> {
        let registered = self.geometry()?;
        let allows = Geometry::new(mtu, registered.zero_copy).frame_bytes.min(registered.frame_bytes);
        (std::mem::replace(&mut self.mtu_allows, allows) != allows).then_some(allows)
    }

    /// Which registration it is; 0 for none.
    pub(in crate::port::xdp) fn id(&self) -> u64 {
        self.umem.as_ref().map_or(0, |u| u.id)
    }

    /// The arithmetic of the registration, while there is one.
    #[inline]
    pub(in crate::port::xdp) fn geometry(&self) -> Option<Geometry> {
        self.umem.as_ref().map(|u| u.geometry)
    }

    /// Where a segment begins in the UMEM; None where not all of it is part of that.
    #[inline]
    pub(in crate::port::xdp) fn address(&self, segment: &Segment) -> Option<u64> {
        self.umem.as_ref().and_then(|u| u.address(segment))
    }

    /// The longest frame that goes out, bytes; 0 without memory to send from.
    #[inline]
    pub(in crate::port::xdp) fn longest(&self) -> usize {
        if self.umem.is_some() { self.mtu_allows as usize } else { 0 }
    }
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
    /// True: the interface should be promiscuous and is not.
    pub(super) is_deaf: bool,
}
