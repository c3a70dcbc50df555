//! The virtio-net header of a frame that a guest sends: read once, checked, and rewritten.
//!
//! The checks run on the private copy that later goes out as the first segment. Whatever the guest
//! does to its own memory afterwards, the kernel sees the checked fields. CVE-2024-11614 is the
//! case of a back end that trusted the guest's fields.

use thiserror::Error;
use zerowire_vhost_user::features as f;

use zerowire_wire::ethernet;
pub use zerowire_wire::vnet::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4, NEEDS_CSUM};
use zerowire_wire::{tcp, udp};

use super::ETH_HEADER_BYTES;

/// VLAN tags that a frame with offloads may have.
pub const MAX_TAGS: usize = 2;

/// An offload field that is wrong. The frame is dropped; the text appears in the log once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
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

fn u16_le(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
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
    // Most frames ask for nothing.
    let plain = private[0] & NEEDS_CSUM == 0 && private[1] == GSO_NONE;
    private[0] &= NEEDS_CSUM;
    if header_len == 12 {
        private[10] = 0;
        private[11] = 0;
    }
    if plain {
        // Without an offload the other fields mean nothing: the kernel shall not look at them
        // either.
        private[2..10].fill(0);
        return Ok(());
    }
    check_offload(private, header_len, frame_len, acked)?;
    if private[1] == GSO_NONE {
        // hdr_len and gso_size mean nothing without segmentation, and the kernel refuses frames
        // shorter than hdr_len.
        private[2..6].fill(0);
    }
    Ok(())
}

/// Bytes of all headers of a checked frame that goes out as TCP or UDP segments, read from the
/// headers themselves. The driver's `hdr_len` is a hint (virtio 1.3 §5.1.6.2), in which Linux
/// counts whatever lies in the frame's first piece. None if the frame is of another kind, or shows
/// less than its headers.
#[inline]
pub fn headers_len(private: &[u8], header_len: usize) -> Option<usize> {
    let start = usize::from(u16_le(private, 6));
    let transport = match private[1] & !GSO_ECN {
        GSO_TCPV4 | GSO_TCPV6 => tcp::header_bytes(private.get(header_len + start..)?)?,
        GSO_UDP_L4 => udp::HEADER_BYTES,
        // Fragments have no header of a transport protocol's.
        _ => return None,
    };
    Some(start + transport)
}

fn check_offload(
    private: &[u8],
    header_len: usize,
    frame_len: usize,
    acked: u64,
) -> Result<(), OffloadError> {
    let needs_csum = private[0] & NEEDS_CSUM != 0;
    let gso_type = private[1];
    let (hdr_len, gso_size) = (u16_le(private, 2), u16_le(private, 4));
    let (start, offset) = (u16_le(private, 6), u16_le(private, 8));
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
    check_protocol(gso_type, &private[header_len..])
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
mod tests {
    use super::*;

    const ALL: u64 = f::NET_CSUM | f::NET_HOST_TSO4 | f::NET_HOST_TSO6 | f::NET_HOST_UFO | f::NET_HOST_USO;

    /// A header followed by the start of an IPv4 frame.
    fn frame(flags: u8, gso: u8, hdr_len: u16, gso_size: u16, start: u16, offset: u16) -> [u8; 64] {
        let mut b = [0u8; 64];
        b[0] = flags;
        b[1] = gso;
        for (at, v) in [(2, hdr_len), (4, gso_size), (6, start), (8, offset), (10, 7)] {
            b[at..at + 2].copy_from_slice(&v.to_le_bytes());
        }
        b[24..26].copy_from_slice(&[0x08, 0x00]);
        b
    }

    #[test]
    fn a_plain_frame_loses_fields_that_mean_nothing() {
        let mut b = frame(0x86, 0, 9, 9, 9, 9);
        assert_eq!(check(&mut b, 12, 60, ALL), Ok(()));
        assert_eq!(b[..12], [0; 12]);
    }

    #[test]
    fn good_offloads_pass_unchanged() {
        let mut b = frame(1, GSO_TCPV4, 54, 1448, 34, 16);
        let before = b;
        assert_eq!(check(&mut b, 12, 3000, ALL), Ok(()));
        assert_eq!(b[..10], before[..10]);
        assert_eq!(b[10..12], [0, 0], "num_buffers is not the guest's to set");
        let mut v6 = frame(1, GSO_TCPV6, 74, 1428, 54, 16);
        v6[24..26].copy_from_slice(&[0x81, 0x00]);
        v6[28..30].copy_from_slice(&[0x86, 0xdd]);
        assert_eq!(check(&mut v6, 12, 3000, ALL), Ok(()));
    }

    #[test]
    fn the_drivers_length_of_the_headers_plays_no_part() {
        let mut b = frame(1, GSO_TCPV4, 54, 1448, 34, 16);
        b[12 + 34 + 12] = 0x80;
        for hdr_len in [0, 53, 66, 128, u16::MAX] {
            b[2..4].copy_from_slice(&hdr_len.to_le_bytes());
            assert_eq!(headers_len(&b, 12), Some(66));
        }
        assert_eq!(headers_len(&frame(1, GSO_TCPV4, 54, 1448, 40, 16), 12), None, "it shows less");
        assert_eq!(headers_len(&frame(1, GSO_UDP, 42, 1480, 34, 6), 12), None);
    }

    #[test]
    fn each_wrong_field_is_named() {
        use OffloadError::*;
        let cases = [
            (frame(1, 0, 0, 0, 58, 2), CsumOutside { start: 58, offset: 2, len: 60 }),
            (frame(1, 0, 0, 0, 0xffff, 0xffff), CsumOutside { start: 0xffff, offset: 0xffff, len: 60 }),
            (frame(1, 0, 0, 0, 13, 2), CsumOutside { start: 13, offset: 2, len: 60 }),
            (frame(1, 2, 54, 1448, 34, 16), GsoType(2)),
            (frame(1, GSO_TCPV4 | GSO_ECN, 54, 1448, 34, 16), GsoType(0x81)),
            (frame(1, GSO_TCPV4, 54, 0, 34, 16), GsoSize(GSO_TCPV4)),
            (frame(0, GSO_TCPV4, 54, 1448, 34, 16), GsoWithoutCsum(GSO_TCPV4)),
            (frame(1, GSO_TCPV4, 61, 1448, 34, 16), HdrLen { hdr_len: 61, len: 60 }),
            (frame(1, GSO_TCPV6, 54, 1448, 34, 16), GsoProtocol { gso_type: GSO_TCPV6, ether_type: 0x800 }),
        ];
        for (mut b, want) in cases {
            assert_eq!(check(&mut b, 12, 60, ALL), Err(want));
        }
        assert_eq!(check(&mut frame(1, 0, 0, 0, 34, 16), 12, 60, 0), Err(CsumNotNegotiated));
        let no_tso = f::NET_CSUM;
        assert_eq!(
            check(&mut frame(1, GSO_TCPV4, 54, 1448, 34, 16), 12, 60, no_tso),
            Err(GsoType(GSO_TCPV4))
        );
    }
}
