//! What a turn of the transmit side is given, and what it gives.

use zerowire::ledger::Counters;
use zerowire_vhost::memory::GuestMemory;

use super::Detour;
use crate::FrameGuard;

/// How much of a frame is read into private memory where something inspects it, bytes behind the
/// virtio-net header: Ethernet with two tags, IPv6 or IPv4 with options, TCP with options.
pub(crate) const INSPECT_BYTES: usize = 22 + 60 + 60;

/// What the transmit side needs besides its ring and its port.
pub struct TransmitContext<'a> {
    /// The memory that the ring was made for.
    pub memory: &'a GuestMemory,
    /// Where to count.
    pub counters: &'a Counters,
    /// Who else wants frames.
    pub detour: Option<&'a mut dyn Detour>,
    /// What the guest may send; None for any frame.
    pub guard: Option<&'a FrameGuard>,
}

/// How a ring's turn ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Chains taken.
    pub chains: usize,
    /// The driver wants to be notified.
    pub notify: bool,
}
