use super::*;

fn ipv4(dst: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0u8; 54];
    frame[12..14].copy_from_slice(&ethernet::IPV4.to_be_bytes());
    frame[14] = 0x45;
    frame[30..34].copy_from_slice(&dst);
    frame
}

fn arp(operation: u8, target: [u8; 4]) -> Vec<u8> {
    let mut frame = vec![0u8; 42];
    frame[12..14].copy_from_slice(&ethernet::ARP.to_be_bytes());
    frame[21] = operation;
    frame[38..42].copy_from_slice(&target);
    frame
}

#[test]
fn takes_ipv4_to_the_service_of_any_protocol() {
    for protocol in [1, 6, 17, 200] {
        let mut frame = ipv4(SERVICE_ADDRESS);
        frame[23] = protocol;
        assert!(wants(&frame));
    }
}

#[test]
fn takes_arp_requests_for_the_service_only() {
    assert!(wants(&arp(1, SERVICE_ADDRESS)));
    assert!(!wants(&arp(2, SERVICE_ADDRESS)));
    assert!(!wants(&arp(1, [169, 254, 169, 253])));
}

fn ipv6(dst: Ipv6Addr, next: u8) -> Vec<u8> {
    let mut frame = vec![0u8; 86];
    frame[12..14].copy_from_slice(&ethernet::IPV6.to_be_bytes());
    frame[14] = 0x60;
    frame[20] = next;
    frame[38..54].copy_from_slice(&dst.octets());
    frame
}

/// A neighbour message for `target` to the group of its low 24 bits.
fn neighbour(kind: u8, target: Ipv6Addr) -> Vec<u8> {
    let mut frame = ipv6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0x254), 58);
    frame[54] = kind;
    frame[62..78].copy_from_slice(&target.octets());
    frame
}

#[test]
fn takes_ipv6_to_the_service_and_solicitations_for_it() {
    for next in [0, 6, 17, 44, 58] {
        assert!(wants(&ipv6(SERVICE_ADDRESS_V6, next)));
    }
    assert!(wants(&neighbour(135, SERVICE_ADDRESS_V6)));
    assert!(!wants(&neighbour(136, SERVICE_ADDRESS_V6)));
    // Another host with the same low 24 bits.
    let other = Ipv6Addr::new(0xfd00, 0xec3, 0, 0, 0, 0, 0, 0x254);
    assert!(!wants(&neighbour(135, other)) && !wants(&ipv6(other, 6)));
}

#[test]
fn leaves_everything_else_alone() {
    assert!(!wants(&ipv4([169, 254, 169, 253])));
    assert!(!wants(&ipv4([10, 0, 0, 1])));
    let mut tagged = ipv4(SERVICE_ADDRESS);
    tagged.splice(12..12, [0x81, 0x00, 0x00, 0x01]);
    assert!(!wants(&tagged));
    let mut ipv6 = ipv4(SERVICE_ADDRESS);
    ipv6[12..14].copy_from_slice(&[0x86, 0xdd]);
    assert!(!wants(&ipv6));
}

#[test]
fn short_input_is_not_taken() {
    let cases = [
        (ipv4(SERVICE_ADDRESS), 34),
        (arp(1, SERVICE_ADDRESS), 42),
        (ipv6(SERVICE_ADDRESS_V6, 6), 54),
        (neighbour(135, SERVICE_ADDRESS_V6), 78),
    ];
    for (frame, needed) in cases {
        for len in 0..frame.len() {
            assert_eq!(wants(&frame[..len]), len >= needed, "length {len}");
        }
    }
}
