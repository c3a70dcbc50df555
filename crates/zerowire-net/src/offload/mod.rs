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
//! Plain code without I/O. It works on two things. One is the headers of a frame, at most
//! [`HEADERS_BYTES`]. The caller has read them once into private memory, together with the
//! virtio-net header that [`super::header::check`] accepted. The other is the guest's [`Segment`]s
//! behind them, which are read for their sum and never written. The private copy decides
//! everything, and it is what goes out.
//!
//! **What the guest can do meanwhile.** It can change the payload after it is summed here and
//! before the kernel reads it. Its own frame then has a wrong checksum, and whoever receives it
//! drops it.
//!
//! The result is byte for byte what the kernel makes of the same frame where an interface takes no
//! offloads. See `tcp_gso_segment` (net/ipv4/tcp_offload.c), `__udp_gso_segment`
//! (net/ipv4/udp_offload.c) and `skb_checksum_help` (net/core/dev.c).

mod checksum;
mod headers;
mod payload;
mod request;
mod segment;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use checksum::{Checksum, add_guest};
pub use headers::{HEADERS_BYTES, Headers, HeadersError, longest_segment};
pub use payload::Cursor;
pub use request::Request;
pub use segment::{SegmentError, Segmenter, complete};

#[cfg(doc)]
use zerowire_vhost::memory::Segment;
