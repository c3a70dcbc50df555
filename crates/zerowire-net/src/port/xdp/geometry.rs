//! Where a frame lands in a chunk, such that it lands where the guest wants it.
//!
//! The kernel puts a received frame 256 + h bytes behind the address A of the fill entry. Here h is
//! the headroom that the UMEM was registered with. The kernel drops a frame that would reach beyond
//! A + c, the end of the chunk (net/xdp/xsk.c, `xsk_rcv_check`). So for frames of at most F bytes,
//! h = c − 256 − F. A frame for guest byte B gets A = B − 256 − h, and its chunk ends at B + F. No
//! frame can be written past that, whatever arrives.

use zerowire_sys::xdp::KERNEL_HEADROOM_BYTES;

/// Bytes of a chunk: the most that the kernel takes.
pub const CHUNK_BYTES: u32 = 4096;

/// The longest frame that fits into one chunk, bytes.
pub const MAX_FRAME_BYTES: u32 = CHUNK_BYTES - KERNEL_HEADROOM_BYTES;

/// An Ethernet header with one VLAN tag, bytes: what a frame has beyond the MTU.
pub const FRAME_OVERHEAD_BYTES: u32 = 18;

/// The largest MTU that a port can serve, bytes.
pub const MAX_MTU: usize = (MAX_FRAME_BYTES - FRAME_OVERHEAD_BYTES) as usize;

/// Private memory before the guest's, bytes. A chunk begins up to a chunk's length before its
/// buffer. Each address in guest memory has to be able to carry any cookie
/// ([`zerowire_sys::xdp::address::encode`]), which takes 64 KiB.
pub const PADDING_BYTES: usize = 128 << 10;

/// In zero-copy mode a driver sees room for a frame in multiples of this, bytes
/// (include/net/xdp_sock_drv.h, `xsk_pool_get_rx_frame_size`), and may fill all of it.
const ZERO_COPY_STEP_BYTES: u32 = 128;

/// The arithmetic for one UMEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The longest frame, F, bytes.
    pub(super) frame_bytes: u32,
    /// Whether it is made for zero-copy mode.
    pub(super) zero_copy: bool,
}

impl Geometry {
    /// For an interface with this MTU. A larger one than [`MAX_MTU`] counts as that.
    pub fn for_mtu(mtu: usize) -> Self {
        let mtu = mtu.min(MAX_MTU) as u32;
        Self { frame_bytes: (mtu + FRAME_OVERHEAD_BYTES).min(MAX_FRAME_BYTES), zero_copy: false }
    }

    /// The same for zero-copy mode: what a driver may write is rounded up.
    pub fn for_zero_copy(mtu: usize) -> Self {
        let exact = Self::for_mtu(mtu).frame_bytes;
        let frame_bytes = exact.next_multiple_of(ZERO_COPY_STEP_BYTES).min(MAX_FRAME_BYTES);
        Self { frame_bytes, zero_copy: true }
    }

    /// For one mode or the other.
    pub fn new(mtu: usize, zero_copy: bool) -> Self {
        if zero_copy { Self::for_zero_copy(mtu) } else { Self::for_mtu(mtu) }
    }

    /// What the UMEM is registered with, h, bytes.
    pub fn headroom_bytes(&self) -> u32 {
        MAX_FRAME_BYTES - self.frame_bytes
    }

    /// Bytes from the begin of a chunk to that of the frame.
    #[inline]
    pub fn frame_offset(&self) -> u64 {
        u64::from(CHUNK_BYTES - self.frame_bytes)
    }

    /// The fill entry for a frame that begins at byte `frame` of the UMEM; None where no chunk lies
    /// before it.
    #[inline]
    pub fn chunk_for(&self, frame: u64) -> Option<u64> {
        frame.checked_sub(self.frame_offset())
    }
}

#[cfg(test)]
mod tests;
