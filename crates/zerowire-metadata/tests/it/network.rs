//! Addresses, routes, loss, limits and time.

use std::net::Ipv6Addr;
use std::time::Duration;

use crate::support::{DOCUMENT, GUEST_MAC, Guest, Route, service};
use smoltcp::socket::tcp::State;
use zerowire_metadata::{
    Config, DEFAULT_MAC, MAX_CONNECTIONS, MAX_QUEUED_FRAMES, MetadataService, MetadataTree, SERVICE_ADDRESS,
    SERVICE_ADDRESS_V6, TokenPolicy, wants,
};

const REQUEST: &[u8] = b"GET /latest/user-data HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n";

#[test]
fn any_address_and_route_is_answered() {
    for ip in [[10, 0, 0, 2], [192, 168, 255, 254], [169, 254, 3, 4], [8, 8, 8, 8]] {
        for route in [Route::Gateway, Route::OnLink] {
            for partial_checksums in [true, false] {
                let mut guest = Guest::with_route(DOCUMENT, TokenPolicy::Optional, ip, route);
                guest.set_partial_checksums(partial_checksums);
                let answer = guest.get("/latest/user-data", "");
                assert_eq!(answer.text(), "hello\n", "{ip:?} {route:?}");
            }
        }
    }
}

#[test]
fn any_ipv6_address_and_route_is_answered() {
    for ip in ["fe80::5054:ff:fe00:1", "fd00:ec2::1", "2001:db8::2"] {
        let ip: Ipv6Addr = ip.parse().expect("an address");
        for route in [Route::Gateway, Route::OnLink] {
            for partial_checksums in [true, false] {
                let mut guest = Guest::with_ipv6(DOCUMENT, TokenPolicy::Required, ip, route);
                guest.set_partial_checksums(partial_checksums);
                let header = format!("X-metadata-token: {}\r\n", guest.token("60").text());
                let answer = guest.get("/latest/user-data", &header);
                assert_eq!(answer.text(), "hello\n", "{ip:?} {route:?}");
                assert_eq!(guest.service.stats().traffic.dropped_malformed, 0);
            }
        }
    }
}

/// The ones' complement sum of RFC 1071 over an ICMPv6 message and its pseudo-header (RFC 8200
/// section 8.1).
fn icmpv6_sum(packet: &[u8]) -> u16 {
    let len = u32::from(u16::from_be_bytes([packet[4], packet[5]]));
    let pseudo = [&packet[8..40], &len.to_be_bytes(), &[0, 0, 0, 58], &packet[40..]].concat();
    let mut sum: u32 = pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// A neighbour solicitation for the service, from `source` to `destination`.
fn solicitation(source: Ipv6Addr, destination: Ipv6Addr, hop_limit: u8) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0, 0, 24, 58, hop_limit];
    packet.extend(source.octets());
    packet.extend(destination.octets());
    packet.extend([135, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend(SERVICE_ADDRESS_V6.octets());
    let sum = !icmpv6_sum(&packet);
    packet[42..44].copy_from_slice(&sum.to_be_bytes());
    let mut frame = vec![0x33, 0x33, 0xff, 0, 2, 0x54];
    frame.extend(GUEST_MAC);
    frame.extend([0x86, 0xdd]);
    frame.extend(packet);
    frame
}

#[test]
fn a_neighbour_solicitation_gets_the_services_address() {
    let group: Ipv6Addr = "ff02::1:ff00:254".parse().expect("an address");
    let guest: Ipv6Addr = "fe80::1".parse().expect("an address");
    let all: Ipv6Addr = "ff02::1".parse().expect("an address");
    for (source, destination, to, mac, flags) in [
        (guest, group, guest, GUEST_MAC, 0x60),
        // Is it still there?
        (guest, SERVICE_ADDRESS_V6, guest, GUEST_MAC, 0x60),
        // May I have that address?
        (Ipv6Addr::UNSPECIFIED, group, all, [0x33, 0x33, 0, 0, 0, 1], 0x20),
    ] {
        let mut service = service(DOCUMENT, TokenPolicy::Required);
        let request = solicitation(source, destination, 255);
        assert!(wants(&request));
        service.ingest(&request, Duration::ZERO);
        let reply = service.pop_frame().expect("an advertisement");
        let mut expected = mac.to_vec();
        expected.extend(DEFAULT_MAC);
        expected.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, 58, 255]);
        expected.extend(SERVICE_ADDRESS_V6.octets());
        expected.extend(to.octets());
        expected.extend([136, 0, reply[56], reply[57], flags, 0, 0, 0]);
        expected.extend(SERVICE_ADDRESS_V6.octets());
        expected.extend([2, 1]);
        expected.extend(DEFAULT_MAC);
        assert_eq!(reply, expected);
        assert_eq!(icmpv6_sum(&reply[14..]), 0xffff);
        assert!(!service.is_active());
        // One that came through a router, and one whose checksum is wrong.
        let mut wrong = request.clone();
        wrong[57] ^= 1;
        for bad in [solicitation(source, destination, 254), wrong] {
            service.ingest(&bad, Duration::ZERO);
            service.poll(Duration::ZERO);
            assert_eq!(service.pop_frame(), None);
        }
    }
}

/// Whoever forwards a packet refuses one with hop limit 1.
#[test]
fn answers_to_put_are_forwarded_by_nobody() {
    let v6 =
        Guest::with_ipv6(DOCUMENT, TokenPolicy::Optional, "fe80::1".parse().expect("one"), Route::OnLink);
    for mut guest in [Guest::new(DOCUMENT, TokenPolicy::Optional), v6] {
        let handle = guest.connect();
        guest.send(handle, b"GET /latest HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
        assert_eq!(guest.answer(handle).status, 200);
        assert!(guest.hop_limits.iter().all(|limit| *limit >= 64), "{:?}", guest.hop_limits);
        guest.hop_limits.clear();
        guest.send(handle, b"PUT /latest/api/token HTTP/1.1\r\nHost: 169.254.169.254\r\nX-metadata-token-ttl-seconds: 60\r\n\r\n");
        assert_eq!(guest.answer(handle).status, 200);
        guest.socket(handle).close();
        guest.run_for(Duration::from_secs(60));
        assert!(!guest.hop_limits.is_empty() && guest.hop_limits.iter().all(|limit| *limit == 1));
    }
}

#[test]
fn an_arp_request_gets_the_services_address() {
    let mut service = service(DOCUMENT, TokenPolicy::Required);
    let mut request = vec![0xff; 6];
    request.extend(GUEST_MAC);
    request.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    request.extend(GUEST_MAC);
    request.extend([10, 0, 0, 2]);
    request.extend([0; 6]);
    request.extend(SERVICE_ADDRESS);
    assert!(wants(&request));
    service.ingest(&request, Duration::ZERO);
    let reply = service.pop_frame().expect("a reply");
    let mut expected = GUEST_MAC.to_vec();
    expected.extend(DEFAULT_MAC);
    expected.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    expected.extend(DEFAULT_MAC);
    expected.extend(SERVICE_ADDRESS);
    expected.extend(GUEST_MAC);
    expected.extend([10, 0, 0, 2]);
    assert_eq!(reply, expected);
    assert!(!service.is_active());
}

#[test]
fn large_values_stream_under_loss() {
    let value: String = (0..300_000u32).map(|i| char::from(b'a' + (i % 23) as u8)).collect();
    let document = format!(r#"{{"v": "{value}"}}"#);
    for lose_every in [0, 13, 7, 3] {
        let mut guest = Guest::new(&document, TokenPolicy::Required);
        guest.lose_every = lose_every;
        let header = format!("X-metadata-token: {}\r\n", guest.token("21600").text());
        // Few enough segments to keep heavy loss within the test's time.
        let path = if lose_every == 3 { "/" } else { "/v" };
        let answer = guest.get(path, &header);
        assert_eq!(answer.status, 200);
        if path == "/v" {
            assert_eq!(answer.text(), value, "one in {lose_every} lost");
        }
    }
}

#[test]
fn idle_costs_nothing() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Optional);
    assert_eq!(guest.service.next_deadline(guest.now), None);
    assert_eq!(guest.service.stats().buffered_bytes, 0);
    assert!(size_of::<MetadataService>() < 4096, "{}", size_of::<MetadataService>());
    let handle = guest.connect();
    guest.send(handle, REQUEST);
    assert_eq!(guest.answer(handle).status, 200);
    assert!(guest.service.next_deadline(guest.now).is_some());
    guest.socket(handle).close();
    guest.run_for(Duration::from_secs(60));
    assert!(!guest.service.is_active());
    assert_eq!(guest.service.next_deadline(guest.now), None);
    let held = guest.service.stats().buffered_bytes;
    assert!(held < 8 * 1024, "{held} bytes held while idle");
}

#[test]
fn quiet_connections_end_by_themselves() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Optional);
    let silent = guest.connect();
    let slow = guest.connect();
    guest.send(slow, b"GET / HTTP/1.1\r\n");
    let slow_body = guest.connect();
    guest.send(
        slow_body,
        b"PUT /latest/api/token HTTP/1.1\r\nHost: 169.254.169.254\r\nContent-Length: 5\r\n\r\nabc",
    );
    assert_eq!(guest.answer(slow_body).status, 400);
    guest.run_for(Duration::from_secs(12));
    assert_eq!(guest.answer(slow).status, 408);
    assert_eq!(guest.answer(slow_body).status, 408);
    assert_eq!(guest.socket(silent).state(), State::Established);
    guest.run_for(Duration::from_secs(60));
    assert_ne!(guest.socket(silent).state(), State::Established);
    assert!(!guest.service.is_active(), "{:?}", guest.service.stats());
    assert_eq!(guest.service.next_deadline(guest.now), None);
}

#[test]
fn a_client_that_never_reads_is_given_up() {
    let document = format!(r#"{{"v": "{}"}}"#, "x".repeat(300_000));
    let mut guest = Guest::new(&document, TokenPolicy::Optional);
    let handle = guest.connect();
    guest.send(handle, b"GET /v HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
    guest.run_for(Duration::from_secs(90));
    assert!(!guest.service.is_active(), "{:?}", guest.service.stats());
    assert_eq!(guest.service.stats().connections_timed_out, 1);
}

#[test]
fn a_guest_that_vanishes_leaves_nothing() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Optional);
    for _ in 0..5 {
        let handle = guest.connect();
        guest.send(handle, REQUEST);
    }
    guest.lose_every = 1;
    let end = guest.now + Duration::from_secs(200);
    let mut polls = 0;
    while let Some(next) = guest.service.next_deadline(guest.now) {
        guest.now = next.max(guest.now);
        assert!(guest.now < end, "still busy: {:?}", guest.service.stats());
        guest.service.poll(guest.now);
        while guest.service.pop_frame().is_some() {}
        polls += 1;
        assert!(polls < 1000, "polled too often");
    }
    assert!(!guest.service.is_active());
}

#[test]
fn connections_are_bounded_and_idle_ones_give_way() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Optional);
    // All slots busy with unfinished requests: another one is not accepted.
    let mut busy = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        let handle = guest.connect();
        guest.send(handle, b"GET /latest");
        busy.push(handle);
    }
    guest.run_for(Duration::from_millis(100));
    let late = guest.open();
    guest.run_for(Duration::from_millis(100));
    assert_eq!(guest.socket(late).state(), State::SynSent);
    let stats = guest.service.stats();
    assert_eq!(stats.connections, MAX_CONNECTIONS);
    assert!(stats.connections_refused > 0);
    assert!(stats.buffered_bytes < MAX_CONNECTIONS * 30 * 1024, "{stats:?}");
    // One gets its answer and idles: the next attempt takes its place.
    guest.send(busy[0], b"/user-data HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
    assert_eq!(guest.answer(busy[0]).text(), "hello\n");
    guest.run_until("connect", |guest| guest.socket(late).may_send());
    assert_eq!(guest.service.stats().connections_evicted, 1);
    guest.run_for(Duration::from_millis(100));
    assert_eq!(guest.socket(busy[0]).state(), State::Closed, "reset");
    guest.send(late, REQUEST);
    assert_eq!(guest.answer(late).text(), "hello\n");
}

#[test]
fn a_request_that_was_acknowledged_keeps_its_connection() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Optional);
    let idle: Vec<_> = (0..MAX_CONNECTIONS)
        .map(|_| {
            let handle = guest.connect();
            guest.send(handle, REQUEST);
            assert_eq!(guest.answer(handle).text(), "hello\n");
            handle
        })
        .collect();
    guest.run_for(Duration::from_secs(2));
    // One batch of frames has the next request of the longest idle one, and a connection too many.
    guest.send(idle[0], REQUEST);
    let late = guest.open();
    guest.run_until("connect", |guest| guest.socket(late).may_send());
    assert_eq!(guest.answer(idle[0]).text(), "hello\n");
    assert_eq!(guest.service.stats().connections_evicted, 1);
    assert_eq!(guest.socket(idle[1]).state(), State::Closed, "reset");
}

#[test]
fn a_burst_of_clients_is_served_without_resets() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Optional);
    let handles: Vec<_> = (0..3 * MAX_CONNECTIONS).map(|_| guest.open()).collect();
    for handle in handles {
        // TCP retries those beyond the slots until one is free.
        guest.run_until("connect", |guest| guest.socket(handle).may_send());
        guest.send(handle, REQUEST);
        assert_eq!(guest.answer(handle).text(), "hello\n");
        guest.socket(handle).close();
    }
    let stats = guest.service.stats();
    assert!(stats.connections_refused > 0, "{stats:?}");
    assert_eq!(stats.connections_evicted, 0);
}

#[test]
fn many_short_connections_dont_run_out_of_slots() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Optional);
    for _ in 0..4 * MAX_CONNECTIONS {
        let answer = guest.exchange("GET /latest/user-data HTTP/1.0\r\n\r\n");
        assert_eq!(answer.text(), "hello\n");
    }
    let stats = guest.service.stats();
    assert_eq!(stats.connections_refused, 0);
    assert_eq!(stats.connections_timed_out, 0);
}

#[test]
fn frames_wait_while_the_guest_takes_none() {
    let value = "x".repeat(300_000);
    let mut guest = Guest::new(&format!(r#"{{"v": "{value}"}}"#), TokenPolicy::Optional);
    let handles: Vec<_> = (0..20).map(|_| guest.connect()).collect();
    let mut frame = vec![0u8; 42];
    frame[6..12].copy_from_slice(&GUEST_MAC);
    frame[12..22].copy_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame[38..42].copy_from_slice(&SERVICE_ADDRESS);
    for _ in 0..10 * MAX_QUEUED_FRAMES {
        guest.service.ingest(&frame, guest.now);
    }
    let stats = guest.service.stats();
    assert_eq!(stats.traffic.dropped_out, 9 * MAX_QUEUED_FRAMES as u64);
    // Nothing can be sent, and the deadline doesn't ask to be polled at once.
    guest.service.poll(guest.now);
    let deadline = guest.service.next_deadline(guest.now).expect("connections");
    assert!(deadline > guest.now + Duration::from_secs(1));
    while guest.service.pop_frame().is_some() {}
    for handle in handles {
        guest.send(handle, b"GET /v HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
    }
    guest.run_for(Duration::from_millis(5));
    assert_eq!(guest.get("/v", "").text(), value);
}

#[test]
fn a_group_address_is_no_address_of_the_service() {
    for mac in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        let tree = MetadataTree::from_json_str("{}").expect("valid").into();
        let config = Config::new(tree).mac(mac);
        let error = MetadataService::new(config).expect_err("refused").to_string();
        assert!(error.contains("use a unicast one"), "{error}");
    }
}
