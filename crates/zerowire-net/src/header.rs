//! The virtio-net header of a frame that a guest sends: read once, checked, and rewritten.
//!
//! The checks run on the private copy that later goes out as the first segment. Whatever the guest
//! does to its own memory afterwards, the kernel sees the checked fields. CVE-2024-11614 is the
//! case of a back end that trusted the guest's fields.

use thiserror::Error;
use zerowire_vhost_user::features as f;

use zerowire_wire::ethernet;
use zerowire_wire::vnet::{FLAGS_AT, Fields, LENGTHS, NUM_BUFFERS_AT, OFFLOAD};
pub use zerowire_wire::vnet::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM};
use zerowire_wire::{tcp, udp};

use super::ETH_HEADER_BYTES;

/// VLAN tags that a frame with offloads may have.
pub const MAX_TAGS: usize = 2;

/// An offload field that is wrong. The frame is dropped; the text appears in the log once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// NEEDS_CSUM without the feature CSUM.
    #[error("a partial checksum, but CSUM was not negotiated (virtio 1.3 §5.1.6.2.1)")]
    CsumNotNegotiated,
    /// The checksum field lies outside the frame.
    #[error(
        "csum_start {start} + csum_offset {offset} + 2 is outside a frame of {len} bytes, or inside its Ethernet header"
    )]
    CsumOutside {
        /// `csum_start`
        start: u16,
        /// `csum_offset`
        offset: u16,
        /// Bytes of the frame.
        len: usize,
    },
    /// A segmentation type that does not exist or was not negotiated.
    #[error("gso_type {0:#x} is unknown or was not negotiated (virtio 1.3 §5.1.6.2.1)")]
    GsoType(u8),
    /// Segments of no bytes.
    #[error("gso_type {0:#x} with gso_size 0")]
    GsoSize(u8),
    /// Segmentation without a checksum to complete.
    #[error("gso_type {0:#x} without NEEDS_CSUM (virtio 1.3 §5.1.6.2.1)")]
    GsoWithoutCsum(u8),
    /// The header is longer than the frame.
    #[error("hdr_len {hdr_len} is more than the frame's {len} bytes")]
    HdrLen {
        /// `hdr_len`
        hdr_len: u16,
        /// Bytes of the frame.
        len: usize,
    },
    /// A segmentation type for another protocol than the frame's.
    #[error("gso_type {gso_type:#x} does not fit Ethernet type {ether_type:#06x}")]
    GsoProtocol {
        /// `gso_type`
        gso_type: u8,
        /// The frame's type behind VLAN tags.
        ether_type: u16,
    },
}

/// Checks the header at the start of `private` (at least 10 bytes) for a frame of `frame_len`
/// bytes. The frame's first bytes lie at `header_len` in `private`. Rewrites what the device must
/// not pass on: unknown flags, `num_buffers`.
#[inline]
pub fn check(
    private: &mut [u8],
    header_len: usize,
    frame_len: usize,
    acked: u64,
) -> Result<(), OffloadError> {
    let fields = Fields::of(private);
    private[FLAGS_AT] = fields.flags & NEEDS_CSUM;
    private[NUM_BUFFERS_AT..header_len].fill(0);
    // Most frames ask for nothing.
    if fields.is_plain() {
        // Without an offload the other fields mean nothing: the kernel shall not look at them
        // either.
        private[OFFLOAD].fill(0);
        return Ok(());
    }
    check_offload(fields, frame_len, acked)?;
    if fields.gso_type == GSO_NONE {
        // hdr_len and gso_size mean nothing without segmentation, and the kernel refuses frames
        // shorter than hdr_len.
        private[LENGTHS].fill(0);
        return Ok(());
    }
    check_protocol(fields.gso_type, &private[header_len..])
}

/// Bytes of all headers of a checked frame that goes out as TCP or UDP segments, read from the
/// headers themselves. The driver's `hdr_len` is a hint (virtio 1.3 §5.1.6.2), in which Linux
/// counts whatever lies in the frame's first piece. None if the frame is of another kind, or shows
/// less than its headers.
#[inline]
pub fn headers_len(private: &[u8], header_len: usize) -> Option<usize> {
    let fields = Fields::of(private);
    let start = usize::from(fields.csum_start);
    let transport = match fields.gso_kind() {
        GSO_TCPV4 | GSO_TCPV6 => tcp::header_bytes(private.get(header_len + start..)?)?,
        GSO_UDP_L4 => udp::HEADER_BYTES,
        // Fragments have no header of a transport protocol's.
        _ => return None,
    };
    Some(start + transport)
}

fn check_offload(fields: Fields, frame_len: usize, acked: u64) -> Result<(), OffloadError> {
    let Fields { flags, gso_type, hdr_len, gso_size, csum_start: start, csum_offset: offset } = fields;
    let needs_csum = flags & NEEDS_CSUM != 0;
    if needs_csum {
        if acked & f::NET_CSUM == 0 {
            return Err(OffloadError::CsumNotNegotiated);
        }
        let end = usize::from(start) + usize::from(offset) + 2;
        if usize::from(start) < ETH_HEADER_BYTES || end > frame_len {
            return Err(OffloadError::CsumOutside { start, offset, len: frame_len });
        }
    }
    if gso_type == GSO_NONE {
        return Ok(());
    }
    let feature = match gso_type & !GSO_ECN {
        GSO_TCPV4 => f::NET_HOST_TSO4,
        GSO_TCPV6 => f::NET_HOST_TSO6,
        GSO_UDP => f::NET_HOST_UFO,
        GSO_UDP_L4 => f::NET_HOST_USO,
        _ => return Err(OffloadError::GsoType(gso_type)),
    };
    let ecn_allowed = acked & f::NET_HOST_ECN != 0;
    if acked & feature == 0 || (gso_type & GSO_ECN != 0 && !ecn_allowed) {
        return Err(OffloadError::GsoType(gso_type));
    }
    if gso_size == 0 {
        return Err(OffloadError::GsoSize(gso_type));
    }
    if !needs_csum {
        return Err(OffloadError::GsoWithoutCsum(gso_type));
    }
    if usize::from(hdr_len) > frame_len {
        return Err(OffloadError::HdrLen { hdr_len, len: frame_len });
    }
    Ok(())
}

/// The segmentation type must fit the frame's network protocol: the kernel segments by the type.
fn check_protocol(gso_type: u8, frame: &[u8]) -> Result<(), OffloadError> {
    let ether_type = ethernet::payload(frame, MAX_TAGS).map_or(0, |(ether_type, _)| ether_type);
    let fits = match gso_type & !GSO_ECN {
        GSO_TCPV4 => ether_type == ethernet::IPV4,
        GSO_TCPV6 => ether_type == ethernet::IPV6,
        _ => matches!(ether_type, ethernet::IPV4 | ethernet::IPV6),
    };
    if fits { Ok(()) } else { Err(OffloadError::GsoProtocol { gso_type, ether_type }) }
}

#[cfg(test)]
mod tests;
