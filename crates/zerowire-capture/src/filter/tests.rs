use zerowire_wire::pcapng::{LINKTYPE_ETHERNET, LINKTYPE_VSOCK, PacketDirection};
use zerowire_wire::vsock::Header;
use zerowire_wire::{ethernet, vsockmon};

use super::*;

const OWN: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

fn frame(destination: [u8; 6], tags: &[u16], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let tags = tags.iter().flat_map(|tag| [0x81, 0, (tag >> 8) as u8, *tag as u8]);
    let head = destination.into_iter().chain(OWN).chain(tags).chain(ether_type.to_be_bytes());
    head.chain(payload.iter().copied()).collect()
}

fn ipv4(protocol: u8, offset: u8, ports: [u16; 2]) -> Vec<u8> {
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, offset, 64, protocol, 0, 0, 10, 1, 2, 3, 192, 168, 0, 9];
    packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
    packet
}

fn ipv6(next: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 8, next, 64];
    packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    packet.extend(rest);
    packet
}

fn holds(text: &str, frame: &[u8]) -> bool {
    let filter = CaptureFilter::parse(text, LINKTYPE_ETHERNET).expect(text);
    assert_eq!(filter.to_string(), text);
    filter.passes(frame, frame.len() as u32, PacketDirection::Outbound)
}

#[track_caller]
fn check(frame: &[u8], yes: &[&str], no: &[&str]) {
    yes.iter().for_each(|text| assert!(holds(text, frame), "{text}"));
    no.iter().for_each(|text| assert!(!holds(text, frame), "{text}"));
}

#[test]
fn words_about_a_tcp_segment_hold_or_not() {
    check(
        &frame([2; 6], &[], ethernet::IPV4, &ipv4(6, 0, [1024, 80])),
        &[
            "ip",
            "tcp",
            "port 80",
            "tcp port 80",
            "dst port 80",
            "tcp src port 1024",
            "portrange 80-90",
            "host 10.1.2.3",
            "src host 10.1.2.3",
            "ip dst host 192.168.0.9",
            "net 10.0.0.0/8",
            "dst net 192.168.0.0/16",
            "net 0.0.0.0/0",
            "ether src host 52:54:00:00:00:01",
            "ether dst 02:02:02:02:02:02",
            "less 38",
            "greater 38",
            "outbound",
            "! udp",
            "not vlan",
        ],
        &[
            "ip6",
            "arp",
            "udp",
            "udp port 80",
            "icmp",
            "src port 80",
            "portrange 81-1023",
            "dst host 10.1.2.3",
            "net 10.2.0.0/16",
            "net fd00::/8",
            "ether host 52:54:00:00:00:02",
            "vlan",
            "broadcast",
            "multicast",
            "less 37",
            "greater 39",
            "inbound",
        ],
    );
}

#[test]
fn headers_behind_tags_and_extensions_are_found() {
    check(
        &frame([0xff; 6], &[5, 6], ethernet::IPV4, &ipv4(17, 0, [53, 54])),
        &["vlan", "vlan 5", "vlan 5 and udp port 53", "broadcast", "ether broadcast", "multicast"],
        &["vlan 6", "tcp"],
    );
    let behind_options = ipv6(0, &[17, 0, 0, 0, 0, 0, 0, 0, 0, 53, 0, 54]);
    check(
        &frame([0x33, 0x33, 0, 0, 0, 1], &[], ethernet::IPV6, &behind_options),
        &["ip6", "udp port 53", "src host fd00::1", "net fd00::/64", "multicast", "ether multicast"],
        &["ip", "broadcast", "dst host fd00::1"],
    );
    let arp = [0, 1, 8, 0, 6, 4, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2];
    check(
        &frame([0xff; 6], &[], ethernet::ARP, &arp),
        &["arp", "arp host 10.0.0.2", "src host 10.0.0.1"],
        &["ip", "ip host 10.0.0.2", "src host 10.0.0.2"],
    );
}

#[test]
fn a_later_fragment_has_a_protocol_and_no_ports() {
    let later = frame([2; 6], &[], ethernet::IPV4, &ipv4(17, 8, [53, 54]));
    check(&later, &["udp", "host 10.1.2.3"], &["port 53", "udp port 53"]);
    let later = frame([2; 6], &[], ethernet::IPV6, &ipv6(44, &[17, 0, 0, 8, 0, 0, 0, 0, 0, 53, 0, 54]));
    check(&later, &["udp"], &["port 53"]);
}

#[test]
fn of_a_cut_frame_only_what_is_there_holds() {
    let whole = frame([2; 6], &[], ethernet::IPV4, &ipv4(6, 0, [1024, 80]));
    let any = "ip or tcp or port 80 or host 10.1.2.3 or ether src 52:54:00:00:00:01";
    for len in 0..whole.len() {
        assert!(!holds("port 80", &whole[..len]), "{len}");
        assert_eq!(holds(any, &whole[..len]), len >= 12, "{len}");
        assert!(holds("not port 80", &whole[..len]), "{len}");
    }
}

#[test]
fn operators_bind_as_in_pcap_filter() {
    let frame = frame([2; 6], &[], ethernet::IPV4, &ipv4(6, 0, [1024, 80]));
    check(
        &frame,
        &["arp or ip and tcp", "tcp or udp or arp", "(arp)||(tcp&&!udp)", "not (arp or udp)", "not not tcp"],
        // From left to right, without precedence.
        &["tcp or udp and arp", "not tcp or arp", "not (tcp or arp)"],
    );
}

#[test]
fn words_of_vsock_are_about_cids_and_ports() {
    let header = Header { src_cid: 3, dst_cid: 2, src_port: 70_000, dst_port: 80, ..Header::default() };
    let packet = vsockmon::prefix(&header);
    let holds = |text: &str| {
        let filter = CaptureFilter::parse(text, LINKTYPE_VSOCK).expect(text);
        filter.passes(&packet, 100, PacketDirection::Inbound)
    };
    for yes in [
        "cid 3",
        "src cid 3 and dst cid 2",
        "port 80",
        "src port 70000",
        "portrange 79-81",
        "inbound",
        "less 100",
    ] {
        assert!(holds(yes), "{yes}");
    }
    for no in ["cid 4", "dst cid 3", "src port 80", "outbound", "greater 101"] {
        assert!(!holds(no), "{no}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let deep = "(".repeat(40) + "ip";
    let long = "ip or ".repeat(1000) + "ip";
    for (text, said) in [
        ("", "a word is missing"),
        ("and", "'and' is not known"),
        ("ip and", "a word is missing"),
        ("ip arp", "'arp' where 'and', 'or' or the end"),
        ("(ip", "')' is missing"),
        ("ip)", "')' where"),
        ("tcp port", "the number of a port is missing"),
        ("port 65536", "'65536' is not the number of a port"),
        ("portrange 9-8", "'9-8' is no range"),
        ("src", "what is meant is missing"),
        ("host x", "'x' is not an IP address"),
        ("net 10.0.0.0/33", "'10.0.0.0/33' is no network"),
        ("net 10.0.0.0", "'10.0.0.0' is no network"),
        ("ether host 52:54", "'52:54' is no MAC address"),
        ("vlan 4096", "vlan 4096: numbers go from 0 to 4095"),
        ("less x", "'x' is not a number of bytes"),
        ("cid 3", "'cid' is not known: give ip"),
        (deep.as_str(), "nested more than 32 times"),
        (long.as_str(), "at most 4096"),
    ] {
        let error = CaptureFilter::parse(text, LINKTYPE_ETHERNET).expect_err(text).to_string();
        assert!(error.contains(said) && error.starts_with("filter '"), "{text}: {error}");
        assert!(error.len() < 1000, "{error}");
    }
    let error = CaptureFilter::parse("tcp port 80", LINKTYPE_VSOCK).expect_err("vsock").to_string();
    assert!(error.contains("'tcp' is not known: give [src|dst] cid"), "{error}");
}

#[test]
fn the_deepest_expression_keeps_its_results_apart() {
    // Each level waits with a result while the next one is worked out.
    let mut text = "tcp".to_owned();
    for _ in 0..31 {
        text = format!("arp or ({text})");
    }
    let tcp = frame([2; 6], &[], ethernet::IPV4, &ipv4(6, 0, [1, 2]));
    let udp = frame([2; 6], &[], ethernet::IPV4, &ipv4(17, 0, [1, 2]));
    check(&tcp, &[&text], &[]);
    check(&udp, &[], &[&text]);
}
