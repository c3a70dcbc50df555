use proptest::prelude::*;

use super::*;

fn ethernet(tags: usize, ether_type: u16, rest: &[u8]) -> Vec<u8> {
    let mut f = vec![2; 12];
    f.extend([0x81, 0, 0, 5].repeat(tags));
    f.extend(ether_type.to_be_bytes());
    f.extend_from_slice(rest);
    f
}

fn ipv4(protocol: u8, options: usize, fragment: u16, transport: &[u8]) -> Vec<u8> {
    let mut h = vec![0x45 + options as u8, 0, 0, 0, 0, 0];
    h.extend(fragment.to_be_bytes());
    h.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    h.extend(vec![1; options * 4]);
    h.extend_from_slice(transport);
    h
}

fn ipv6(next: &[u8], transport: &[u8]) -> Vec<u8> {
    let mut h = vec![0x60, 0, 0, 0, 0, 0, next[0], 64];
    h.extend([0xfd; 32]);
    for n in &next[1..] {
        h.extend([*n, 0, 1, 4, 0, 0, 0, 0]);
    }
    h.extend_from_slice(transport);
    h
}

fn tcp(words: u8) -> Vec<u8> {
    let mut h = vec![0x11; 80];
    h[12] = words << 4;
    h
}

#[test]
fn headers_are_found() {
    let found = |f: &[u8], kind, start| Headers::find(f, kind, start, Gso::checksum_at(kind));
    let at = |network_at, transport_at, payload_at, v6, tcp| {
        Ok(Headers { network_at, transport_at, payload_at, v6, tcp })
    };
    let f = ethernet(0, IPV4, &ipv4(TCP, 0, 0x4000, &tcp(8)));
    assert_eq!(found(&f, Gso::TcpV4, 34), at(14, 34, 66, false, true));
    let f = ethernet(2, IPV4, &ipv4(UDP, 10, 0, &[0; 8]));
    assert_eq!(found(&f, Gso::UdpL4, 82), at(22, 82, 90, false, false));
    let f = ethernet(1, IPV6, &ipv6(&[TCP], &tcp(15)));
    assert_eq!(found(&f, Gso::TcpV6, 58), at(18, 58, 118, true, true));
    let f = ethernet(0, IPV6, &ipv6(&[0, 43, 60, UDP], &[0; 30]));
    assert_eq!(found(&f, Gso::UdpL4, 78), at(14, 78, 86, true, false));
}

#[test]
fn each_wrong_header_is_named() {
    use HeadersError::*;
    let good = ethernet(0, IPV4, &ipv4(TCP, 0, 0, &tcp(5)));
    let find = |f: &[u8], kind| Headers::find(f, kind, 34, 16);
    assert!(find(&good, Gso::TcpV4).is_ok());
    for len in 0..54 {
        assert!(matches!(find(&good[..len], Gso::TcpV4), Err(TooLong(_))), "{len}");
    }
    let protocol = |ether_type, protocol, kind| Err(Protocol { ether_type, protocol, kind });
    assert_eq!(find(&good, Gso::TcpV6), protocol(IPV4, TCP, Gso::TcpV6));
    assert_eq!(find(&good, Gso::UdpL4), protocol(IPV4, TCP, Gso::UdpL4));
    assert_eq!(find(&ethernet(3, IPV4, &good[14..]), Gso::TcpV4), protocol(0x8100, 0, Gso::TcpV4));
    let with = |words, fragment| ethernet(0, IPV4, &ipv4(TCP, 0, fragment, &tcp(words)));
    assert_eq!(find(&with(5, 0x2000), Gso::TcpV4), Err(Fragment));
    assert_eq!(find(&with(5, 1), Gso::TcpV4), Err(Fragment));
    assert_eq!(find(&with(4, 0), Gso::TcpV4), Err(TcpLength(16)));
    let mut odd = good.clone();
    odd[14] = 0x44;
    assert_eq!(find(&odd, Gso::TcpV4), Err(Version(0x44)));
    odd[14] = 0x65;
    assert_eq!(find(&odd, Gso::TcpV4), Err(Version(0x65)));
    for (start, offset) in [(33, 16), (34, 17), (34, 6), (54, 16)] {
        let e = Headers::find(&good, Gso::TcpV4, start, offset);
        assert_eq!(e, Err(ChecksumPlace { start, offset, at: 34, want: 16 }));
    }
    // A fragment header, and one that nobody knows.
    for next in [44, 200] {
        let f = ethernet(0, IPV6, &ipv6(&[0, next], &[0; 100]));
        assert_eq!(find(&f, Gso::TcpV6), protocol(IPV6, next, Gso::TcpV6));
    }
    // Extension headers that go on beyond the bytes that are searched.
    let f = ethernet(0, IPV6, &ipv6(&[60; 40], &[60; 400]));
    assert!(matches!(find(&f, Gso::TcpV6), Err(TooLong(_))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn headers_lie_one_behind_the_other_within_the_frame(
        start in prop_oneof![4 => Just((0, IPV4, 0x45)), 4 => Just((1, IPV6, 0x60)), 1 => Just((2, 0x1234, 7))],
        body in prop::collection::vec((0usize..5, any::<u8>()), 0..300),
        kind in prop_oneof![Just(Gso::TcpV4), Just(Gso::TcpV6), Just(Gso::UdpL4)],
        csum_start in 30u16..90,
    ) {
        let (tags, ether_type, first) = start;
        let mut f = ethernet(tags, ether_type, &[first]);
        // One byte in five is any.
        f.extend(body.into_iter().map(|(kind, any)| *[6, 17, 0, 0x80].get(kind).unwrap_or(&any)));
        if let Ok(h) = Headers::find(&f, kind, csum_start, kind.checksum_at()) {
            prop_assert!(h.network_at >= 14 && h.transport_at >= h.network_at + 20);
            prop_assert!(h.payload_at >= h.transport_at + 8);
            prop_assert!(h.payload_at <= f.len().min(HEADERS_BYTES));
            prop_assert_eq!(h.transport_at, usize::from(csum_start));
        }
    }
}

#[test]
fn the_longest_segment_counts_all_headers_and_no_tag() {
    let vnet = |gso: u8, size: u16, start: usize, offset: u8| {
        let [size, start] = [size.to_le_bytes(), (start as u16).to_le_bytes()];
        [1, gso, 0, 0, size[0], size[1], start[0], start[1], offset, 0]
    };
    let longest = |vnet: [u8; 10], frame: &[u8]| longest_segment(&vnet, frame);
    for tags in 0..3 {
        let at = 14 + 4 * tags;
        let v4 = ethernet(tags, IPV4, &ipv4(TCP, 0, 0, &tcp(8)));
        assert_eq!(longest(vnet(1, 1448, at + 20, 16), &v4), Ok(14 + 20 + 32 + 1448));
        assert_eq!(longest(vnet(0x81, 1448, at + 20, 16), &v4), Ok(14 + 20 + 32 + 1448));
        let udp = ethernet(tags, IPV4, &ipv4(UDP, 10, 0, &[0; 8]));
        assert_eq!(longest(vnet(5, 1400, at + 60, 6), &udp), Ok(14 + 60 + 8 + 1400));
        assert_eq!(longest(vnet(3, 1400, at + 60, 6), &udp), Ok(14 + 60 + 1400), "fragments");
        let v6 = ethernet(tags, IPV6, &ipv6(&[0, 60, UDP], &[0; 8]));
        assert_eq!(longest(vnet(3, 1400, at + 56, 6), &v6), Ok(14 + 56 + 8 + 1400), "fragments");
    }
    // Where the kernel would find more headers than the virtio-net header says, nothing is
    // known.
    let options = ethernet(0, IPV4, &ipv4(UDP, 10, 0, &[0; 8]));
    assert!(longest(vnet(3, 1400, 34, 6), &options).is_err());
    let long = ethernet(0, IPV6, &ipv6(&[&[0; 20][..], &[TCP]].concat(), &tcp(5)));
    assert!(longest(vnet(4, 1400, 14 + 40 + 160, 16), &long[..142]).is_err());
}
