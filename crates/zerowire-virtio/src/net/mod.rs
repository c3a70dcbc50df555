//! virtio-net (virtio 1.3 §5.1): headers, transmit, receive, and the worker that serves one queue
//! pair.

pub mod announce;
pub mod config;
pub mod features;
pub mod header;
pub mod offload;
mod policy;
pub mod receive;
pub mod transmit;

pub use policy::{GATHER_MAX_BYTES, PathMode, Policy, RX_COPYBREAK_BYTES};
pub use receive::Receive;
pub use transmit::Transmit;

/// The longest frame that is carried, bytes, without the virtio-net header. That is an IP packet of
/// 65 535 bytes behind an Ethernet header and two VLAN tags. tun itself would take 1 MiB.
pub const MAX_FRAME_BYTES: usize = 65_535 + 14 + 8;

/// Length of an Ethernet header, bytes.
pub const ETH_HEADER_BYTES: usize = zerowire_wire::ethernet::HEADER_BYTES;
