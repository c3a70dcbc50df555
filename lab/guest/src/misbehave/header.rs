//! Offload fields that don't fit their frame.

use crate::net::VirtioNetHdr;
use crate::net::header::{FLAG_NEEDS_CSUM, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4};

/// Headers that a device must not pass on with a frame of `frame_len` bytes,
/// each with the name of what is wrong (virtio 1.3 §5.1.6.2).
pub fn bad_headers(frame_len: u16) -> Vec<(&'static str, VirtioNetHdr)> {
    let csum = |csum_start, csum_offset| VirtioNetHdr {
        flags: FLAG_NEEDS_CSUM,
        csum_start,
        csum_offset,
        ..VirtioNetHdr::default()
    };
    let gso = |gso_type, gso_size, hdr_len| VirtioNetHdr { gso_type, gso_size, hdr_len, ..csum(34, 16) };
    let unflagged = VirtioNetHdr { flags: 0, ..gso(GSO_TCPV4, 1400, 54) };
    vec![
        ("csum_start behind the frame", csum(frame_len, 0)),
        ("csum_start far behind the frame", csum(u16::MAX, 0)),
        ("checksum field half behind the frame", csum(frame_len - 1, 0)),
        ("csum_offset behind the frame", csum(34, frame_len)),
        ("csum_start + csum_offset beyond 16 bits", csum(u16::MAX, u16::MAX)),
        ("unknown gso_type 2", gso(2, 1400, 54)),
        ("unknown gso_type 6", gso(6, 1400, 54)),
        ("unknown gso_type 0x7f", gso(0x7f, 1400, 54)),
        ("ECN without a TCP type", gso(GSO_NONE | 0x80, 1400, 54)),
        ("gso_size 0 with TCPv4", gso(GSO_TCPV4, 0, 54)),
        ("gso_size 0 with TCPv6", gso(GSO_TCPV6, 0, 74)),
        ("gso_size 0 with UDP", gso(GSO_UDP, 0, 42)),
        ("gso_size 0 with UDP_L4", gso(GSO_UDP_L4, 0, 42)),
        ("TCPv4 without NEEDS_CSUM", unflagged),
        (
            "GSO with csum_start behind the frame",
            VirtioNetHdr { csum_start: frame_len, ..gso(GSO_TCPV4, 1400, 54) },
        ),
    ]
}
