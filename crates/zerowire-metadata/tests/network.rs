//! Addresses, routes, loss, limits and time.

mod common;

use std::time::Duration;

use common::{DOCUMENT, GUEST_MAC, Guest, Route, service};
use smoltcp::socket::tcp::State;
use zerowire_metadata::{
    Config, DEFAULT_MAC, MAX_CONNECTIONS, MAX_QUEUED_FRAMES, MetadataService, MetadataTree, SERVICE_ADDRESS,
    TokenPolicy, wants,
};

const REQUEST: &[u8] = b"GET /latest/user-data HTTP/1.1\r\nHost: h\r\n\r\n";

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
    guest.send(slow_body, b"PUT /latest/api/token HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabc");
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
    guest.send(handle, b"GET /v HTTP/1.1\r\nHost: h\r\n\r\n");
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
    guest.send(busy[0], b"/user-data HTTP/1.1\r\nHost: h\r\n\r\n");
    assert_eq!(guest.answer(busy[0]).text(), "hello\n");
    guest.run_until("connect", |guest| guest.socket(late).may_send());
    assert_eq!(guest.service.stats().connections_evicted, 1);
    guest.run_for(Duration::from_millis(100));
    assert_eq!(guest.socket(busy[0]).state(), State::Closed, "reset");
    guest.send(late, REQUEST);
    assert_eq!(guest.answer(late).text(), "hello\n");
}

#[test]
fn a_burst_of_clients_is_served_without_resets() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Optional);
    let handles: Vec<_> = (0..3 * MAX_CONNECTIONS).map(|_| guest.open()).collect();
    for handle in handles {
        // Those beyond the slots are tried again by TCP until one is free.
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
    assert_eq!(stats.dropped_out, 9 * MAX_QUEUED_FRAMES as u64);
    // Nothing can be sent, and the deadline doesn't ask to be polled at once.
    guest.service.poll(guest.now);
    let deadline = guest.service.next_deadline(guest.now).expect("connections");
    assert!(deadline > guest.now + Duration::from_secs(1));
    while guest.service.pop_frame().is_some() {}
    for handle in handles {
        guest.send(handle, b"GET /v HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    guest.run_for(Duration::from_millis(5));
    assert_eq!(guest.get("/v", "").text(), value);
}

#[test]
fn a_group_address_is_no_address_of_the_service() {
    for mac in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
        let tree = MetadataTree::from_json_str("{}").expect("valid").into();
        let config = Config { mac, ..Config::new(tree) };
        let error = MetadataService::new(config).expect_err("refused").to_string();
        assert!(error.contains("use a unicast one"), "{error}");
    }
}
