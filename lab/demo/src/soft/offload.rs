//! What a guest's kernel does for offloads, which smoltcp does not know: long TCP
//! segments, cut by the host, with checksums that the host completes.

use zerowire_guest::net::VirtioNetHdr;
use zerowire_guest::net::header::{FLAG_NEEDS_CSUM, GSO_TCPV4};

/// Where the TCP header begins: Ethernet, then IPv4 without options.
const TCP_START: usize = 34;

/// Where the checksum is in the TCP header (RFC 9293 §3.1).
const CHECKSUM: usize = 16;

/// The longest segment payload: an IPv4 packet of 65535 bytes less two headers.
const LONGEST_PAYLOAD: u16 = 65_495;

/// Makes the virtio-net header for a frame to send, and leaves a partial checksum in it
/// (virtio 1.3 §5.1.6.2): `segment` bytes of payload go into each packet on the wire.
pub(super) fn prepare(frame: &mut [u8], segment: u16) -> VirtioNetHdr {
    if !is_tcp(frame) {
        return VirtioNetHdr::default();
    }
    let length = frame.len() - TCP_START;
    let sum = pseudo_header_sum(frame, length);
    frame[TCP_START + CHECKSUM..][..2].copy_from_slice(&sum.to_be_bytes());
    let headers = TCP_START + tcp_header_len(frame);
    let mut header = VirtioNetHdr {
        flags: FLAG_NEEDS_CSUM,
        csum_start: TCP_START as u16,
        csum_offset: CHECKSUM as u16,
        ..VirtioNetHdr::default()
    };
    if frame.len() > headers + usize::from(segment) {
        header.gso_type = GSO_TCPV4;
        header.gso_size = segment;
        header.hdr_len = headers as u16;
    }
    header
}

/// Lets the stack believe that the peer takes the longest segments; returns what it
/// really takes. None for frames that say nothing about that.
pub(super) fn raise_segment_limit(frame: &mut [u8]) -> Option<u16> {
    const SYN: u8 = 2;
    const FLAGS: usize = TCP_START + 13;
    const OPTIONS: usize = TCP_START + 20;
    if !is_tcp(frame) || frame[FLAGS] & SYN == 0 {
        return None;
    }
    let end = (TCP_START + tcp_header_len(frame)).min(frame.len());
    let mut at = OPTIONS;
    while at + 1 < end {
        match (frame[at], frame[at + 1]) {
            (0, _) => return None,
            (1, _) => at += 1,
            (2, 4) if at + 4 <= end => {
                let real = u16::from_be_bytes([frame[at + 2], frame[at + 3]]);
                frame[at + 2..at + 4].copy_from_slice(&LONGEST_PAYLOAD.to_be_bytes());
                return Some(real);
            }
            (_, 0) => return None,
            (_, length) => at += usize::from(length),
        }
    }
    None
}

fn is_tcp(frame: &[u8]) -> bool {
    frame.len() >= TCP_START + 20 && frame[12..15] == [8, 0, 0x45] && frame[23] == 6
}

fn tcp_header_len(frame: &[u8]) -> usize {
    usize::from(frame[TCP_START + 12] >> 4) * 4
}

/// Addresses, protocol and length, folded and not inverted.
fn pseudo_header_sum(frame: &[u8], length: usize) -> u16 {
    let words = frame[26..34].chunks_exact(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let mut sum = words.sum::<u32>() + 6 + length as u32;
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

#[cfg(test)]
mod tests;
