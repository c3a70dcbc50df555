use zerowire_wire::checksum::Checksum;
use zerowire_wire::vnet::NEEDS_CSUM;

use super::*;

const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A sum over a region that includes its own checksum is all ones (RFC 1071). Other code than
/// this makes the frames.
fn verifies(pseudo_header: &[u8], bytes: &[u8]) -> bool {
    let words = |part: &[u8]| -> u32 {
        let word = |w: &[u8]| u32::from(w[0]) << 8 | w.get(1).copied().map_or(0, u32::from);
        part.chunks(2).map(word).sum()
    };
    let mut sum = words(pseudo_header) + words(bytes);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum == 0xffff
}

/// RFC 768: both addresses, the protocol, the length.
fn pseudo(protocol: u8, len: usize) -> Vec<u8> {
    [&SOURCE_IP[..], &TARGET_IP, &[0, protocol], &(len as u16).to_be_bytes()].concat()
}

#[test]
fn sizes_are_exact_and_bounded() {
    for len in [60, 64, 1500, 1514, 9000, 9014, 9015, 60_000, LARGEST] {
        let frame = Frame::build(len, HOST, GUEST_MAC).unwrap();
        assert_eq!(frame.bytes().len(), len);
        assert_eq!(frame.with_header().len(), len + 12);
        assert_eq!(frame.is_gso(), len > LARGEST_PLAIN);
        assert_eq!(u16::from_be_bytes([frame.bytes()[16], frame.bytes()[17]]) as usize, len - ETHERNET_LEN);
    }
    assert!(Frame::build(59, HOST, GUEST_MAC).is_err());
    assert!(Frame::build(LARGEST + 1, HOST, GUEST_MAC).is_err());
}

#[test]
fn ipv4_and_udp_checksums_verify_at_odd_and_even_lengths() {
    for len in [60, 61, 64, 1499, 1500, 9014] {
        let frame = Frame::build(len, HOST, GUEST_MAC).unwrap();
        let bytes = frame.bytes();
        assert!(verifies(&[], &bytes[14..34]));
        let udp = &bytes[34..];
        assert!(verifies(&pseudo(17, udp.len()), udp));
    }
}

#[test]
fn completing_the_partial_tcp_checksum_makes_it_verify() {
    let frame = Frame::build(60_000, HOST, GUEST_MAC).unwrap();
    let header = &frame.header;
    let start = u16::from_le_bytes([header[6], header[7]]) as usize;
    let offset = u16::from_le_bytes([header[8], header[9]]) as usize;
    assert_eq!(header[0], NEEDS_CSUM);
    assert_eq!(u16::from_le_bytes([header[4], header[5]]), GSO_SEGMENT);
    assert_eq!(u16::from_le_bytes([header[2], header[3]]), 66);
    let mut bytes = frame.bytes().to_vec();
    let mut sum = Checksum::new();
    sum.add(&bytes[start..]);
    bytes[start + offset..start + offset + 2].copy_from_slice(&sum.finish().to_be_bytes());
    let tcp = &bytes[start..];
    assert!(verifies(&pseudo(6, tcp.len()), tcp));
}

#[test]
fn mtu_follows_the_frame() {
    let mtu = |len| Frame::build(len, HOST, GUEST_MAC).unwrap().mtu();
    assert_eq!(mtu(64), 1500);
    assert_eq!(mtu(1514), 1500);
    assert_eq!(mtu(9014), 9000);
    assert_eq!(mtu(60_000), 1500);
}

#[test]
fn arp_request_asks_for_the_target() {
    let bytes = arp_request(GUEST_MAC, [10, 0, 0, 2], [10, 0, 0, 1]);
    assert_eq!(bytes.len(), 60);
    assert_eq!(&bytes[12..14], &[8, 6]);
    assert_eq!(&bytes[20..22], &[0, 1]);
    assert_eq!(&bytes[38..42], &[10, 0, 0, 1]);
}
