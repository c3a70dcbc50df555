//! virtio-net over packet sockets: what stands between a queue pair and an interface.
//!
//! ```text
//!  guest's buffers ◄── copy ── receive ring, short frames ◄──────────────┐
//!  guest's buffers ◄── readv(2) ──────── socket of untagged frames ◄─┤
//!  guest's buffers ◄── copy ── private memory ◄── socket of tagged ones ◄─┤ interface
//!  guest's chains ──── sendmmsg(2) ──────► socket of untagged frames ──┘
//! ```
//!
//! Frames pass by [`Transmit`](crate::Transmit) and [`Receive`](crate::Receive), as on a tap: the
//! kernel copies each once, between the guest's memory and its own. This module has what a tap
//! doesn't need:
//!
//! * two sockets, of which one is for frames with a VLAN tag,
//! * an interface that comes and goes by itself,
//! * offloads that nobody can ask the kernel to leave out
//!   ([`accept_only`](crate::Receive::accept_only)),
//! * a ring that the kernel puts short frames into (`slots`), which spares a system call a frame.

mod control;
mod frame_ring;
mod handed;
mod inbound;
mod inlet;
mod kept;
mod link;
mod outbound;
mod outlet;
mod queue;
mod slots;
mod socket;
mod spec;
mod system_calls;
mod tagged;

use control::PacketPort;
use handed::PacketSockets;
pub use inlet::{LOOKS, PacketInlet};
pub use link::Link;
pub use outlet::PacketOutlet;
pub use queue::PacketQueue;
pub use socket::{Arrived, Frames, InterfaceState, PacketError, PacketSocket, SLOT_BYTES, SLOTS, Slots, Tag};
pub use spec::{PacketReceive, PacketRings, PacketSpec};
pub use system_calls::SYSTEM_CALLS;
pub use tagged::restore;

/// Copies on the way of frames that no process makes.
pub const KERNEL_COPIES: &str = "one each way, between the frame and the packet socket's buffer or its receive ring; with a \
     transmit ring none on the way out, but where the interface copies itself (net/packet/af_packet.c)";

#[cfg(test)]
use zerowire_testkit::net as netns;
