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
    assert_eq!(check(&mut frame(1, GSO_TCPV4, 54, 1448, 34, 16), 12, 60, no_tso), Err(GsoType(GSO_TCPV4)));
}
