//! Checksums and segmentation in software, for ports that take neither from a guest (virtio 1.3
//! §5.1.6.2).
//!
//! ```text
//!  guest:    [vnet header | Ethernet … TCP | payload ………………………………………………]        one chain
//!                 │ read once      │            │ stays where it is, summed
//!                 ▼                ▼            ▼
//!  wire:     { headers 0, private }{ payload 0 }   { headers 1, private }{ payload 1 }   …
//! ```
//!
//! Plain code without I/O. It works on two things: the headers of a frame, at most
//! [`HEADERS_BYTES`], which the caller has read once into private memory together with the
//! virtio-net header that [`super::header::check`] accepted; and the guest's [`Segment`]s behind
//! them, which are read for their sum and never written. What is decided is decided by the private
//! copy, and that is what goes out.
//!
//! **What the guest can do meanwhile.** It can change the payload between its being summed here and
//! its being read by the kernel: its own frame then has a wrong checksum, and is dropped by whoever
//! receives it.
//!
//! What comes out is byte for byte what the kernel makes of the same frame where an interface takes
//! no offloads (net/ipv4/tcp_offload.c, `tcp_gso_segment`; net/ipv4/udp_offload.c,
//! `__udp_gso_segment`; net/core/dev.c, `skb_checksum_help`).

mod checksum;
mod headers;
mod payload;
mod request;
mod segment;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use checksum::{AddGuest, Checksum};
pub use headers::{HEADERS_BYTES, Headers, HeadersError, longest_segment};
pub use payload::Cursor;
pub use request::{Kind, Request};
pub use segment::{SegmentError, Segmenter, complete};

#[cfg(doc)]
use crate::memory::Segment;
