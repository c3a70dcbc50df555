mod any;

use zerowire::ledger::DropReason;

use super::FrameGuard;
use super::testing::{LINK_LOCAL, OWN, OWN_V4, OWN_V6};

const OTHER: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];
const OTHER_V4: [u8; 4] = [10, 0, 0, 1];
const OTHER_V6: [u8; 16] = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const NOBODY_V6: [u8; 16] = [0; 16];
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
const PLAIN: [u8; 12] = [0; 12];

fn guard(text: &str) -> FrameGuard {
    let own = "52:54:00:00:00:01".parse().expect("an address");
    FrameGuard::parse(text, Some(own)).unwrap_or_else(|e| panic!("{e}"))
}

fn framed(source: [u8; 6], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    [&[0xff; 6][..], &source, &ether_type.to_be_bytes(), payload].concat()
}

fn tagged(frame: &[u8], ether_type: u16, vlan: u16) -> Vec<u8> {
    [&frame[..12], &ether_type.to_be_bytes(), &vlan.to_be_bytes(), &frame[12..]].concat()
}

fn v4(source: [u8; 4], to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let len = (20 + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, protocol, 0, 0]);
    framed(OWN, 0x0800, &[&packet[..], &source, &to, payload].concat())
}

fn udp(from: u16, to: u16) -> Vec<u8> {
    [&from.to_be_bytes()[..], &to.to_be_bytes(), &[0, 12, 0, 0, 1, 2, 3, 4]].concat()
}

fn dhcp() -> Vec<u8> {
    v4([0; 4], [255; 4], UDP, &udp(68, 67))
}

fn arp(operation: u8, sender_mac: [u8; 6], sender: [u8; 4]) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, operation];
    framed(OWN, 0x0806, &[&head[..], &sender_mac, &sender, &[0; 6], &OTHER_V4].concat())
}

fn v6(source: [u8; 16], next: u8, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() as u16;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(len.to_be_bytes());
    packet.extend([next, 255]);
    framed(OWN, 0x86dd, &[&packet[..], &source, &[0xff; 16], payload].concat())
}

/// A message with one option of this kind.
fn discovery(kind: u8, target: [u8; 16], option: (u8, [u8; 6])) -> Vec<u8> {
    let mut message = vec![kind, 0, 0xaa, 0xbb, 0, 0, 0, 0];
    match kind {
        133 => {}
        134 => message.extend([0; 8]),
        137 => message.extend([target, target].concat()),
        _ => message.extend(target),
    }
    message.extend([option.0, 1]);
    message.extend(option.1);
    message
}

fn check(text: &str, frame: &[u8]) -> Result<(), DropReason> {
    guard(text).check(&PLAIN, frame)
}

/// What the guard is told, a frame, what becomes of it, and what it is.
type Row<'a> = (&'a str, Vec<u8>, Result<(), DropReason>, &'a str);

#[track_caller]
fn table(rows: &[Row<'_>]) {
    for (text, frame, want, what) in rows {
        assert_eq!(check(text, frame), *want, "{text}: {what}");
    }
}

#[test]
fn sources_and_tags_are_those_that_are_given() {
    let refused = Err(DropReason::GuardVlan);
    let plain = framed(OWN, 0x88b5, &[0; 40]);
    let priority = tagged(&plain, 0x8100, 0);
    let seven = tagged(&plain, 0x8100, 0xe007);
    table(&[
        ("mac", plain.clone(), Ok(()), "its own address"),
        ("mac", framed(OTHER, 0x88b5, &[0; 40]), Err(DropReason::GuardMac), "another one"),
        ("mac", framed(OTHER, 0x0800, &[]), Err(DropReason::GuardMac), "a header alone"),
        ("mac=52:54:00:00:00:02", framed(OTHER, 0x88b5, &[]), Ok(()), "the address that is named"),
        ("mac=52:54:00:00:00:02", plain.clone(), Err(DropReason::GuardMac), "not that one"),
        ("vlan=off", framed(OTHER, 0x88b5, &[]), Ok(()), "no tag"),
        ("vlan=off", seven.clone(), refused, "a tag"),
        ("vlan=off", priority.clone(), refused, "a priority"),
        ("vlan=off", tagged(&plain, 0x88a8, 7), refused, "a service tag"),
        ("vlan=off", tagged(&plain, 0x9100, 7), refused, "an old tag"),
        ("vlan=7", seven.clone(), Ok(()), "the tag, with a priority"),
        ("vlan=7", plain.clone(), refused, "no tag"),
        ("vlan=7", priority, refused, "another number"),
        ("vlan=7", tagged(&plain, 0x88a8, 7), refused, "a service tag"),
        ("vlan=7", tagged(&seven, 0x8100, 7), refused, "two tags"),
        ("vlan=7", tagged(&tagged(&plain, 0x9200, 1), 0x8100, 7), refused, "an old tag within"),
        ("vlan=7", seven[..16].to_vec(), Err(DropReason::GuardUnseen), "it ends within the tag"),
    ]);
}

#[test]
fn ipv4_packets_come_from_the_addresses_that_are_given() {
    let refused = Err(DropReason::GuardIp);
    let own = v4(OWN_V4, OTHER_V4, TCP, &[0; 20]);
    let mut fragment = dhcp();
    fragment[20] = 0x20;
    let mut options = dhcp();
    options[14] = 0x46;
    options.splice(34..34, [1, 1, 1, 1]);
    let mut version = own.clone();
    version[14] = 0x65;
    table(&[
        ("ip=10.0.0.2", own.clone(), Ok(()), "its own"),
        ("ip=10.0.0.9+10.0.0.2", own.clone(), Ok(()), "one of two"),
        ("ip=10.0.0.0/30", own.clone(), Ok(()), "one of a network"),
        ("ip=0.0.0.0/0", own.clone(), Ok(()), "any"),
        ("ip=10.0.0.4/30", own.clone(), refused, "not of that network"),
        ("ip=fd00::2", own.clone(), refused, "no IPv4 address is given"),
        ("ip=10.0.0.2", v4(OTHER_V4, OWN_V4, TCP, &[0; 20]), refused, "another one"),
        ("ip=10.0.0.2", dhcp(), Ok(()), "a DHCP client"),
        ("ip=10.0.0.2", options, Ok(()), "one with IP options"),
        ("ip=10.0.0.2", fragment, refused, "a fragment of nobody"),
        ("ip=10.0.0.2", v4([0; 4], [255; 4], UDP, &udp(67, 68)), refused, "a DHCP server without an address"),
        ("ip=10.0.0.2", v4([0; 4], [255; 4], TCP, &udp(68, 67)), refused, "nobody by TCP"),
        ("ip=10.0.0.2", v4([0; 4], OTHER_V4, UDP, &udp(68, 67)), refused, "nobody to one host"),
        ("ip=10.0.0.2", dhcp()[..37].to_vec(), Err(DropReason::GuardUnseen), "it ends within the ports"),
        ("ip=10.0.0.2", own[..33].to_vec(), Err(DropReason::GuardUnseen), "it ends within the header"),
        ("ip=10.0.0.2", version, Err(DropReason::GuardUnseen), "version 6 in IPv4"),
        ("ip=10.0.0.2", arp(2, OTHER, OTHER_V4), Ok(()), "ARP is checked by 'arp'"),
        ("ip=10.0.0.2", framed(OWN, 0x88cc, &[0; 40]), Ok(()), "another protocol"),
    ]);
}

/// Tags, IEEE 802.2 and lengths that hide a packet from those who look at the first type alone.
#[test]
fn hidden_packets_are_found_or_refused() {
    let (own, other) = (v4(OWN_V4, OTHER_V4, TCP, &[0; 20]), v4(OTHER_V4, OWN_V4, TCP, &[0; 20]));
    let refused = Err(DropReason::GuardIp);
    let unseen = Err(DropReason::GuardUnseen);
    let snap = [&[0xaa, 0xaa, 3, 0, 0, 0, 8, 0], &other[14..]].concat();
    let two = |frame: &[u8]| tagged(&tagged(frame, 0x8100, 0), 0x88a8, 0);
    table(&[
        ("ip=10.0.0.2", tagged(&own, 0x8100, 5), Ok(()), "a tag"),
        ("ip=10.0.0.2", two(&own), Ok(()), "two"),
        ("ip=10.0.0.2", tagged(&other, 0x8100, 0), refused, "another source behind a tag"),
        ("ip=10.0.0.2", two(&other), refused, "behind two"),
        ("ip=10.0.0.2", tagged(&two(&own), 0x8100, 0), unseen, "three tags"),
        ("ip=10.0.0.2", tagged(&own, 0x9100, 0), unseen, "an old tag"),
        ("ip=10.0.0.2", framed(OWN, snap.len() as u16, &snap), unseen, "IEEE 802.2"),
        ("ip=10.0.0.2", framed(OWN, 0x05ff, &snap), unseen, "with a length that can't be"),
        ("ip=10.0.0.2", tagged(&framed(OWN, 0, &snap), 0x8100, 0), unseen, "behind a tag"),
        ("mac+arp", tagged(&arp(2, OTHER, OWN_V4), 0x8100, 0), Err(DropReason::GuardArp), "ARP behind a tag"),
        ("mac", tagged(&two(&own), 0x8100, 0), Ok(()), "'mac' looks at no tags"),
    ]);
}

#[test]
fn arp_packets_name_the_guest_as_their_sender() {
    let refused = Err(DropReason::GuardArp);
    let guard = "mac+ip=10.0.0.2+arp";
    let mut hardware = arp(1, OWN, OWN_V4);
    hardware[15] = 6;
    table(&[
        (guard, arp(1, OWN, OWN_V4), Ok(()), "a request"),
        (guard, arp(2, OWN, OWN_V4), Ok(()), "a reply"),
        (guard, arp(1, OWN, [0; 4]), Ok(()), "a probe"),
        (guard, arp(2, OWN, [0; 4]), refused, "a reply of nobody"),
        (guard, arp(1, OTHER, OWN_V4), refused, "another MAC address"),
        (guard, arp(1, OWN, OTHER_V4), refused, "another IP address"),
        (guard, arp(8, OWN, OWN_V4), refused, "another operation"),
        (guard, hardware, refused, "other hardware"),
        (guard, arp(1, OWN, OWN_V4)[..41].to_vec(), Err(DropReason::GuardUnseen), "it ends before"),
        ("mac+arp", arp(2, OWN, OTHER_V4), Ok(()), "without ip= any IP address"),
        ("mac+arp", arp(2, OTHER, OTHER_V4), refused, "but no other MAC address"),
        ("mac+ip=fd00::2+arp", arp(2, OWN, OTHER_V4), refused, "no IPv4 address is given"),
        ("mac+arp", v4(OTHER_V4, OWN_V4, TCP, &[]), Ok(()), "IP is checked by ip="),
    ]);
}

#[test]
fn ipv6_packets_come_from_the_addresses_that_are_given() {
    let refused = Err(DropReason::GuardIp);
    let guard = "mac+ip=fd00::2";
    let stable = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    // Behind the router alert of the hop by hop options.
    let report = [ICMPV6, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0, 0, 0, 0, 0];
    let fragment = [&[ICMPV6, 0, 0, 1, 0, 0, 0, 9][..], &discovery(135, OWN_V6, (14, OWN))].concat();
    table(&[
        (guard, v6(OWN_V6, TCP, &[0; 20]), Ok(()), "its own"),
        (guard, v6(LINK_LOCAL, TCP, &[0; 20]), Ok(()), "the link-local one of its MAC address"),
        (guard, v6(OTHER_V6, TCP, &[0; 20]), refused, "another one"),
        (guard, v6(stable, TCP, &[0; 20]), refused, "another link-local one"),
        ("mac+ip=fd00::2+fe80::/64", v6(stable, TCP, &[0; 20]), Ok(()), "if it is named"),
        ("ip=fd00::2", v6(LINK_LOCAL, TCP, &[0; 20]), refused, "no MAC address is known"),
        ("mac+ip=10.0.0.2", v6(LINK_LOCAL, TCP, &[0; 20]), refused, "no IPv6 address is given"),
        ("ip=fd00::/16", v6(OTHER_V6, TCP, &[0; 20]), Ok(()), "one of a network"),
        (guard, v6(NOBODY_V6, ICMPV6, &discovery(135, OWN_V6, (14, OWN))), Ok(()), "duplicate addresses"),
        (guard, v6(NOBODY_V6, ICMPV6, &discovery(133, OWN_V6, (14, OWN))), Ok(()), "a search for routers"),
        (guard, v6(NOBODY_V6, 0, &report), Ok(()), "a report of groups"),
        (guard, v6(NOBODY_V6, ICMPV6, &discovery(136, OWN_V6, (2, OWN))), refused, "nobody announces"),
        (guard, v6(NOBODY_V6, ICMPV6, &[128, 0, 0, 0]), refused, "nobody asks for an echo"),
        (guard, v6(NOBODY_V6, UDP, &udp(546, 547)), refused, "nobody by UDP"),
        (guard, v6(NOBODY_V6, 44, &fragment), refused, "a fragment of nobody"),
        (guard, v6(NOBODY_V6, 60, &[]), Err(DropReason::GuardUnseen), "it ends before its headers"),
        (guard, v6(OWN_V6, TCP, &[])[..53].to_vec(), Err(DropReason::GuardUnseen), "within the header"),
    ]);
}

#[test]
fn neighbour_discovery_announces_the_guest_alone() {
    let refused = Err(DropReason::GuardNd);
    let guard = "mac+ip=fd00::2+nd";
    let nd = |source, kind, target, option| v6(source, ICMPV6, &discovery(kind, target, option));
    let echo = [128, 0, 0, 0, 1, 2, 3, 4];
    table(&[
        (guard, nd(OWN_V6, 136, OWN_V6, (2, OWN)), Ok(()), "its own address"),
        (guard, nd(LINK_LOCAL, 136, LINK_LOCAL, (2, OWN)), Ok(()), "its link-local one"),
        (guard, nd(OWN_V6, 136, OTHER_V6, (2, OWN)), refused, "another one"),
        (guard, nd(OWN_V6, 136, OWN_V6, (2, OTHER)), refused, "another MAC address"),
        (guard, nd(OWN_V6, 136, OWN_V6, (1, OTHER)), refused, "the same in the other option"),
        (guard, nd(OWN_V6, 135, OTHER_V6, (1, OWN)), Ok(()), "it asks for another one"),
        (guard, nd(OWN_V6, 135, OTHER_V6, (1, OTHER)), refused, "in another one's name"),
        (guard, nd(NOBODY_V6, 135, OWN_V6, (14, OTHER)), Ok(()), "duplicates of its own address"),
        (guard, nd(NOBODY_V6, 135, OTHER_V6, (14, OTHER)), refused, "duplicates of another one"),
        (guard, nd(OWN_V6, 133, OWN_V6, (1, OWN)), Ok(()), "it looks for routers"),
        (guard, nd(OWN_V6, 133, OWN_V6, (1, OTHER)), refused, "in another one's name"),
        (guard, nd(LINK_LOCAL, 134, OWN_V6, (1, OWN)), refused, "a router"),
        (guard, nd(LINK_LOCAL, 137, OWN_V6, (2, OWN)), refused, "a redirect"),
        (guard, nd(OTHER_V6, 136, OWN_V6, (2, OWN)), Err(DropReason::GuardIp), "the source comes first"),
        (guard, v6(OWN_V6, ICMPV6, &echo), Ok(()), "an echo request"),
        (guard, v6(OWN_V6, TCP, &[134; 20]), Ok(()), "another protocol"),
        ("mac+nd", nd(OTHER_V6, 136, OTHER_V6, (2, OWN)), Ok(()), "without ip= any IP address"),
        ("mac+nd", nd(OTHER_V6, 136, OTHER_V6, (2, OTHER)), refused, "but no other MAC address"),
        ("mac+nd", nd(OTHER_V6, 134, OTHER_V6, (1, OWN)), refused, "and no router"),
        ("mac+nd", v4(OTHER_V4, OWN_V4, TCP, &[]), Ok(()), "IPv4 is not looked at"),
        ("mac+ip=fd00::2", nd(OWN_V6, 136, OTHER_V6, (2, OTHER)), Ok(()), "'nd' is off"),
    ]);
}

/// Headers and fragments before a router advertisement (RFC 7113), and what lies too far back.
#[test]
fn neighbour_discovery_does_not_hide() {
    let (refused, unseen) = (Err(DropReason::GuardNd), Err(DropReason::GuardUnseen));
    let router = discovery(134, OWN_V6, (1, OWN));
    let options = |next: u8, units: u8| [&[next, units][..], &vec![0; 6 + 8 * usize::from(units)]].concat();
    let fragment = |next: u8, offset: u8| vec![next, 0, 0, offset, 0, 0, 0, 9];
    let announced = discovery(136, OWN_V6, (2, OWN));
    let mut empty = announced.clone();
    empty[25] = 0;
    let mut short = v6(OWN_V6, ICMPV6, &announced);
    short[19] += 8;
    let mut cut = v6(OWN_V6, ICMPV6, &announced);
    cut[19] = 16;
    let long = [&announced[..], &[14, 20], &[0; 158]].concat();
    let rows = [
        (v6(OWN_V6, 60, &[&options(ICMPV6, 0)[..], &router].concat()), refused, "behind options"),
        (
            v6(OWN_V6, 0, &[&options(60, 1)[..], &options(ICMPV6, 2), &router].concat()),
            refused,
            "behind two kinds of them",
        ),
        (v6(OWN_V6, 44, &[&fragment(ICMPV6, 1)[..], &router].concat()), refused, "in a first fragment"),
        (v6(OWN_V6, 44, &[&fragment(ICMPV6, 0)[..], &router].concat()), refused, "in the only one"),
        (
            v6(OWN_V6, 44, &[&fragment(60, 1)[..], &options(ICMPV6, 0), &router].concat()),
            refused,
            "behind options in a fragment",
        ),
        (v6(OWN_V6, 44, &[&fragment(ICMPV6, 1)[..], &announced].concat()), refused, "fragments at all"),
        (v6(OWN_V6, 44, &[&fragment(ICMPV6, 1)[..], &[128, 0, 0, 0]].concat()), Ok(()), "but of an echo"),
        (v6(OWN_V6, 44, &[&fragment(ICMPV6, 9)[..], &router].concat()), Ok(()), "not a first fragment"),
        (v6(OWN_V6, 44, &[&fragment(60, 1)[..], &[ICMPV6]].concat()), unseen, "headers end in the next"),
        (v6(OWN_V6, 60, &[&options(ICMPV6, 20)[..], &router].concat()), unseen, "too far back"),
        (v6(OWN_V6, ICMPV6, &long), unseen, "options too far back"),
        (v6(OWN_V6, ICMPV6, &empty), refused, "an option of no bytes"),
        (v6(OWN_V6, ICMPV6, &announced[..20]), refused, "it ends within its target"),
        (short, unseen, "longer than the frame"),
        (cut, refused, "shorter than its target"),
    ];
    for (frame, want, what) in rows {
        assert_eq!(check("mac+ip=fd00::2+nd", &frame), want, "{what}");
    }
}

/// The kernel, or this process, stores a checksum where the virtio-net header says: over the source
/// address, say, which the guard has seen.
#[test]
fn no_checksum_is_stored_over_what_was_seen() {
    let unseen = Err(DropReason::GuardUnseen);
    let tcp4 = v4(OWN_V4, OTHER_V4, TCP, &[0; 20]);
    let tcp6 = v6(OWN_V6, TCP, &[0; 20]);
    let announced = v6(OWN_V6, ICMPV6, &discovery(136, OWN_V6, (2, OWN)));
    for (text, frame, (start, offset), want) in [
        ("ip=10.0.0.2", &tcp4, (34, 16), Ok(())),
        ("ip=10.0.0.2", &tcp4, (14, 12), unseen),
        ("ip=10.0.0.2", &tcp4, (14, 19), unseen),
        ("ip=10.0.0.2", &tcp4, (14, 20), Ok(())),
        ("ip=10.0.0.2", &dhcp(), (34, 6), Ok(())),
        ("ip=10.0.0.2", &dhcp(), (34, 2), unseen),
        ("ip=10.0.0.2", &tagged(&tcp4, 0x8100, 5), (14, 0), unseen),
        ("ip=10.0.0.2", &framed(OWN, 0x88b5, &[0; 40]), (14, 0), Ok(())),
        ("vlan=5", &tagged(&tcp4, 0x8100, 5), (14, 0), unseen),
        ("mac", &tcp4, (14, 12), Ok(())),
        ("mac+arp", &arp(1, OWN, OWN_V4), (14, 14), unseen),
        ("ip=fd00::2", &tcp6, (54, 16), Ok(())),
        ("ip=fd00::2", &tcp6, (14, 22), unseen),
        ("mac+nd", &tcp6, (54, 16), Ok(())),
        ("mac+nd", &announced, (54, 2), Ok(())),
        ("mac+nd", &announced, (54, 1), unseen),
        ("mac+nd", &announced, (54, 0), unseen),
        ("mac+nd", &announced, (54, 20), unseen),
        ("mac+nd", &v6(OWN_V6, ICMPV6, &[128, 0, 0, 0]), (54, 2), Ok(())),
    ] {
        let mut vnet = PLAIN;
        vnet[0] = 1;
        vnet[6..8].copy_from_slice(&u16::to_le_bytes(start));
        vnet[8..10].copy_from_slice(&u16::to_le_bytes(offset));
        assert_eq!(guard(text).check(&vnet, frame), want, "{text}: {start} + {offset}");
        vnet[0] = 0;
        assert_eq!(guard(text).check(&vnet, frame), Ok(()), "{text}: no checksum is asked for");
    }
}
