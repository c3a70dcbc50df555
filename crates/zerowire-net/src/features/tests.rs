use super::*;

const ALL: Offloads = Offloads { csum: true, tso4: true, tso6: true, ecn: true, ufo: true, uso: true };

#[test]
fn nothing_is_offered_that_the_port_does_not_take() {
    let none = offered(Offloads::default(), Offloads::default(), 1);
    assert_eq!(none & f::NET_CSUM, 0);
    assert_eq!(none & f::NET_MQ, 0);
    assert_eq!(none & (f::NET_HOST_USO | f::NET_GUEST_TSO4), 0);
    let all = offered(ALL, ALL, 2);
    assert_ne!(all & f::NET_MQ, 0);
    assert_ne!(all & f::NET_HOST_USO, 0);
    let one_way = offered(ALL, Offloads::default(), 1);
    assert_ne!(one_way & f::NET_CSUM, 0);
    assert_eq!(one_way & (f::NET_GUEST_CSUM | f::NET_GUEST_TSO6 | f::NET_GUEST_USO4), 0);
}

#[test]
fn the_port_follows_what_the_guest_took() {
    assert_eq!(toward_guest(0), Offloads::default());
    assert_eq!(toward_guest(offered(ALL, ALL, 1)), ALL);
    // Segmentation without checksums is not a valid set (virtio 1.3 §5.1.3.1).
    assert_eq!(toward_guest(f::NET_GUEST_TSO4), Offloads::default());
    assert!(!toward_guest(f::NET_GUEST_CSUM | f::NET_GUEST_USO4).uso);
}

#[test]
fn header_length_follows_the_features() {
    assert_eq!(header_len(0), 10);
    assert_eq!(header_len(f::NET_MRG_RXBUF), 12);
    assert_eq!(header_len(f::VERSION_1), 12);
}
