//! Whole frames through a packet socket (packet(7)). [`PacketRing`] builds frames in memory that
//! the kernel sends from (PACKET_TX_RING, Documentation/networking/packet_mmap.rst).
//! [`PacketSocket`] copies.
//!
//! Both need CAP_NET_RAW, and send only: nothing is received, and the interface's own traffic is
//! not disturbed.
//!
//! # Who owns the bytes
//! A ring's memory belongs to the kernel's socket and is mapped into this process. A slot passes to
//! the kernel with [`FrameSender::flush`](crate::send::frame::FrameSender::flush) and is back when
//! the interface (or whoever got the frame) has let go of it. Meanwhile no safe code reaches it.
//! What the kernel copies of each frame is its head: the Ethernet header, or with offload the
//! `hdr_len` bytes of [`VnetHeader`]. Dropping the ring is safe at any time: frames in flight hold
//! their pages.
//!
//! A frame that is back was sent, or thrown away. A queue throws it away when it is emptied (an
//! interface set down). So does an interface without carrier, which a veth is for some time after
//! its other end came up. The kernel doesn't say which. Nor does it say whether a frame was copied
//! further on. A veth, a tun, lo and a bridge that floods copy when a receiver on this machine gets
//! the frame. The kernel also copies where it has to cut a frame itself, for an interface without
//! segmentation. The ledger counts what this process and the socket copied.
//!
//! # Example
//! ```no_run
//! use std::time::Duration;
//! use zerowire::packet::{PacketOptions, PacketRing};
//! use zerowire::send::frame::FrameSender;
//!
//! let mut ring = PacketRing::open("eth0", &PacketOptions::default())?;
//! for n in 0..1_000_000u32 {
//!     // Built in place: no copy.
//!     while !ring.push(60, &mut |frame| {
//!         frame.fill(0);
//!         frame[14..18].copy_from_slice(&n.to_be_bytes());
//!     })? {
//!         ring.flush()?;
//!         ring.wait(Duration::from_secs(1))?;
//!     }
//! }
//! ring.drain(Duration::from_secs(1))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod link;
mod options;
mod ring;
mod socket;
mod wait;

pub use error::OpenError;
pub use options::PacketOptions;
pub use ring::PacketRing;
pub use socket::PacketSocket;
pub use zerowire_sys::packet::{MAX_FRAME_BYTES, MAX_RING_BYTES, MAX_SLOTS, Version};
pub use zerowire_wire::vnet::{Gso, VNET_HEADER_BYTES, VnetError, VnetHeader};
