use super::*;

fn ipv4(protocol: u8, fragment: u16, rest: &[u8]) -> Vec<u8> {
    let mut f = vec![0; 12];
    f.extend_from_slice(&ethernet::IPV4.to_be_bytes());
    f.extend_from_slice(&[0x45, 0, 0, 0, 0, 0]);
    f.extend_from_slice(&fragment.to_be_bytes());
    f.extend_from_slice(&[64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    f.extend_from_slice(rest);
    f
}

#[test]
fn headers_are_found() {
    let found = find(&ipv4(UDP, 0, &[0; 20])).unwrap();
    assert_eq!((found.gso, found.transport_at, found.payload_at), (Gso::UdpL4, 34, 42));
    assert_eq!(found.pseudo_sum, 0x0a00 + 1 + 0x0a00 + 2 + 17 + 20);
    let mut tcp = [0u8; 40];
    tcp[12] = 8 << 4;
    let found = find(&ipv4(TCP, 0x4000, &tcp)).unwrap();
    assert_eq!((found.gso, found.payload_at), (Gso::TcpV4, 66));
    // A tag moves everything by four bytes.
    let mut tagged = ipv4(TCP, 0, &tcp);
    tagged.splice(12..12, [0x81, 0, 0, 5]);
    assert_eq!(find(&tagged).unwrap().payload_at, 70);
}

#[test]
fn what_is_cut_short_or_odd_is_not_found() {
    let mut tcp = [0u8; 40];
    tcp[12] = 8 << 4;
    let whole = ipv4(TCP, 0, &tcp);
    for len in 0..66 {
        assert!(find(&whole[..len]).is_none(), "{len}");
    }
    assert!(find(&ipv4(TCP, 0x2000, &tcp)).is_none(), "a first fragment");
    assert!(find(&ipv4(UDP, 5, &tcp)).is_none(), "a later fragment");
    assert!(find(&ipv4(1, 0, &tcp)).is_none(), "ICMP");
    tcp[12] = 4 << 4;
    assert!(find(&ipv4(TCP, 0, &tcp)).is_none(), "a TCP header of 16 bytes");
}
