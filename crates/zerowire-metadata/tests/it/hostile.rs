//! Whatever a guest sends: no panic, bounded memory, and an end.

use std::time::Duration;

use crate::support::{DOCUMENT, GUEST_MAC, Guest, service};
use proptest::prelude::*;
use zerowire_metadata::{
    MAX_CONNECTIONS, MAX_FRAME_BYTES, MAX_QUEUED_BYTES, MAX_QUEUED_FRAMES, MAX_TOKENS, MetadataService,
    SERVICE_ADDRESS, TokenPolicy, wants,
};

/// Connections with input and response, both queues, tokens, tables.
const MEMORY_BOUND: usize = MAX_CONNECTIONS * 40 * 1024
    + MAX_QUEUED_BYTES
    + MAX_QUEUED_FRAMES * 1600
    + 2 * MAX_TOKENS * 48
    + 16 * 1024;

/// Polls until nothing is under way; every connection has a time limit.
fn drain(service: &mut MetadataService, mut now: Duration) {
    while service.pop_frame().is_some() {}
    for _ in 0..20_000 {
        let Some(next) = service.next_deadline(now) else {
            assert!(!service.is_active());
            return;
        };
        now = now.max(next);
        service.poll(now);
        while service.pop_frame().is_some() {}
    }
    panic!("still busy: {:?}", service.stats());
}

/// An IPv4 frame to the service with a right header checksum.
fn ipv4(source: [u8; 4], protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 20];
    header[0] = 0x45;
    let total = u16::try_from(20 + payload.len()).expect("short");
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[6..8].copy_from_slice(&fragment.to_be_bytes());
    header[8] = 64;
    header[9] = protocol;
    header[12..16].copy_from_slice(&source);
    header[16..20].copy_from_slice(&SERVICE_ADDRESS);
    let mut sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    let checksum = !u16::try_from(sum).expect("folded");
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = vec![0x52, 0x54, 0, 0, 0, 0xfe];
    frame.extend(GUEST_MAC);
    frame.extend([8, 0]);
    frame.extend(header);
    frame.extend(payload);
    frame
}

/// A segment; the service doesn't verify its checksum.
#[derive(Clone, Debug)]
struct Segment {
    host: u8,
    port: u8,
    to_http: bool,
    seq_offset: i16,
    ack_offset: i16,
    flags: u8,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
}

/// What a hostile guest does next.
#[derive(Clone, Debug)]
enum Action {
    Frame(Vec<u8>),
    Packet(u8, u16, Vec<u8>),
    Segment(Segment),
    Wait(u32),
    Take(u8),
}

fn flags() -> impl Strategy<Value = u8> {
    // FIN 1, SYN 2, RST 4, PSH 8, ACK 16: mostly those of a real connection.
    prop_oneof![
        4 => Just(0x02u8),
        6 => Just(0x10u8),
        6 => Just(0x18u8),
        2 => Just(0x11u8),
        1 => Just(0x04u8),
        1 => any::<u8>(),
    ]
}

fn near_zero() -> impl Strategy<Value = i16> {
    prop_oneof![6 => Just(0i16), 2 => -3i16..4, 1 => any::<i16>()]
}

fn http_bytes() -> impl Strategy<Value = Vec<u8>> {
    let valid = prop_oneof![
        Just(&b"GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"[..]),
        Just(&b"GET /latest/user-data HTTP/1.0\r\n\r\n"[..]),
        Just(&b"HEAD /%6catest?a HTTP/1.1\r\nHost: 169.254.169.254\r\nAccept: application/json;q=0.1\r\n\r\n"[..]),
        Just(&b"PUT /latest/api/token HTTP/1.1\r\nHost: 169.254.169.254\r\nX-metadata-token-ttl-seconds: 60\r\nContent-Length: 7\r\n\r\n1234567"[..]),
        Just(&b"GET / HTTP/1.1\r\nHost: 169.254.169.254\r\nX-metadata-token: 00\r\nConnection: close\r\n\r\n"[..]),
    ];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..600),
        4 => (valid.clone(), edits).prop_map(|(text, edits)| {
            let mut bytes = text.to_vec();
            for (index, value) in edits {
                let at = index.index(bytes.len());
                bytes[at] = value;
            }
            bytes
        }),
        2 => (valid, any::<prop::sample::Index>())
            .prop_map(|(text, index)| text[..index.index(text.len())].to_vec()),
    ]
}

prop_compose! {
    fn segment()(
        host in 0u8..2, port in 0u8..20, to_http in prop::bool::weighted(0.95),
        seq_offset in near_zero(), ack_offset in near_zero(), flags in flags(),
        window in prop_oneof![3 => Just(65_535u16), 1 => 0u16..100],
        options in prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(any::<u8>(), 0..41)],
        payload in prop_oneof![1 => Just(Vec::new()), 2 => http_bytes()],
    ) -> Segment {
        Segment { host, port, to_http, seq_offset, ack_offset, flags, window, options, payload }
    }
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Action::Frame),
        1 => (any::<u8>(), any::<u16>(), prop::collection::vec(any::<u8>(), 0..100))
            .prop_map(|(protocol, fragment, payload)| Action::Packet(protocol, fragment, payload)),
        20 => segment().prop_map(Action::Segment),
        2 => (0u32..20_000_000).prop_map(Action::Wait),
        4 => any::<u8>().prop_map(Action::Take),
    ]
}

/// Sequence numbers as a client must follow them to get anywhere.
#[derive(Default)]
struct Peer {
    next: std::collections::HashMap<(u8, u16), (u32, u32)>,
}

impl Peer {
    fn frame(&mut self, segment: &Segment) -> Vec<u8> {
        let source = [10, 0, segment.host, 2];
        let port = 1000 + u16::from(segment.port);
        let (seq, ack) = self.next.entry((segment.host, port)).or_default();
        let mut tcp = port.to_be_bytes().to_vec();
        tcp.extend((if segment.to_http { 80u16 } else { 22 }).to_be_bytes());
        let shifted = |value: u32, by: i16| value.wrapping_add_signed(i32::from(by));
        tcp.extend(shifted(*seq, segment.seq_offset).to_be_bytes());
        tcp.extend(shifted(*ack, segment.ack_offset).to_be_bytes());
        let mut options = segment.options.clone();
        options.truncate(40);
        options.resize(options.len().div_ceil(4) * 4, 0);
        let words = u8::try_from(5 + options.len() / 4).expect("at most 15");
        tcp.extend([words << 4, segment.flags]);
        tcp.extend(segment.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(&segment.payload);
        let counts = u32::from(segment.flags & 1 != 0) + u32::from(segment.flags & 2 != 0);
        if segment.seq_offset == 0 {
            let len = u32::try_from(segment.payload.len()).expect("short");
            *seq = seq.wrapping_add(len + counts);
        }
        ipv4(source, 6, 0, &tcp)
    }

    fn learn(&mut self, frame: &[u8]) {
        if frame[12..14] != [8, 0] || frame[23] != 6 {
            return;
        }
        let port = u16::from_be_bytes([frame[36], frame[37]]);
        let word = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().expect("four"));
        let header = 34 + usize::from(frame[46] >> 4) * 4;
        let counts = u32::from(frame[47] & 1 != 0) + u32::from(frame[47] & 2 != 0);
        let len = u32::try_from(frame.len() - header).expect("short") + counts;
        let ack = word(38).wrapping_add(len);
        self.next.insert((frame[32], port), (word(42), ack));
    }
}

fn run(actions: &[Action]) -> MetadataService {
    let document = format!(r#"{{"latest": {{"user-data": "{}"}}}}"#, "x".repeat(100_000));
    let mut service = service(&document, TokenPolicy::Optional);
    let mut peer = Peer::default();
    let mut now = Duration::ZERO;
    for action in actions {
        match action {
            // Also what `wants` would not take.
            Action::Frame(frame) => {
                let _ = wants(frame);
                service.ingest(frame, now);
            }
            Action::Packet(protocol, fragment, payload) => {
                service.ingest(&ipv4([10, 0, 0, 2], *protocol, *fragment, payload), now);
            }
            Action::Segment(segment) => service.ingest(&peer.frame(segment), now),
            Action::Wait(micros) => now += Duration::from_micros(u64::from(*micros)),
            Action::Take(count) => {
                service.poll(now);
                for _ in 0..*count {
                    let Some(frame) = service.pop_frame() else {
                        break;
                    };
                    peer.learn(&frame);
                }
            }
        }
        let held = service.stats().buffered_bytes;
        assert!(held <= MEMORY_BOUND, "{held} bytes held");
    }
    drain(&mut service, now);
    service
}

proptest! {
    // A failure prints its input; files beside integration tests aren't kept.
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_guests(actions in prop::collection::vec(action(), 0..300)) {
        run(&actions);
    }

    #[test]
    fn random_headers_never_break_the_classifier(frame in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = wants(&frame);
    }

    #[test]
    fn random_requests_leave_the_service_working(requests in prop::collection::vec(http_bytes(), 1..8)) {
        let mut guest = Guest::new(DOCUMENT, TokenPolicy::Optional);
        for request in requests {
            let handle = guest.connect();
            // The service may close before all of it is sent.
            let _ = guest.socket(handle).send_slice(&request);
            guest.run_for(Duration::from_millis(5));
            prop_assert!(guest.service.stats().buffered_bytes <= MEMORY_BOUND);
        }
        let answer = guest.get("/latest/user-data", "");
        prop_assert_eq!(answer.text(), "hello\n");
        guest.lose_every = 1;
        drain(&mut guest.service, guest.now);
    }
}

/// The strategy above must reach requests, or it proves little.
#[test]
fn scripted_segments_reach_http() {
    let segment = |flags: u8, payload: &[u8]| {
        Action::Segment(Segment {
            host: 0,
            port: 1,
            to_http: true,
            seq_offset: 0,
            ack_offset: 0,
            flags,
            window: 65_535,
            options: Vec::new(),
            payload: payload.to_vec(),
        })
    };
    let service = run(&[
        segment(0x02, b""),
        Action::Take(9),
        segment(0x18, b"GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n"),
        Action::Take(9),
    ]);
    let stats = service.stats();
    assert_eq!((stats.connections_opened, stats.requests), (1, 1), "{stats:?}");
}

#[test]
fn a_flood_of_connection_requests_is_bounded() {
    let mut service = service(DOCUMENT, TokenPolicy::Optional);
    let now = Duration::from_secs(5);
    for i in 0..10_000u32 {
        let mut tcp = vec![0u8; 20];
        tcp[0..2].copy_from_slice(&u16::try_from(1 + i % 60_000).expect("a port").to_be_bytes());
        tcp[3] = 80;
        tcp[12..14].copy_from_slice(&[0x50, 0x02]);
        let source = [10, (i >> 8) as u8, i as u8, 1];
        service.ingest(&ipv4(source, 6, 0, &tcp), now);
        if i % 10 == 0 {
            service.poll(now);
            while service.pop_frame().is_some() {}
        }
        let stats = service.stats();
        assert!(stats.connections <= MAX_CONNECTIONS);
        assert!(stats.buffered_bytes <= MEMORY_BOUND);
    }
    assert!(service.stats().connections_refused > 9_000);
    drain(&mut service, now);
    let held = service.stats().buffered_bytes;
    assert!(held < 16 * 1024, "{held} bytes held while idle");
}

#[test]
fn tokens_are_bounded() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Required);
    let handle = guest.connect();
    let request = "PUT /latest/api/token HTTP/1.1\r\nHost: 169.254.169.254\r\nX-metadata-token-ttl-seconds: 21600\r\n\r\n";
    let mut rest = Vec::new();
    for _ in 0..MAX_TOKENS / 8 + 50 {
        guest.send(handle, request.repeat(8).as_bytes());
        for _ in 0..8 {
            assert_eq!(guest.answer_with(handle, false, &mut rest).status, 200);
        }
    }
    assert!(guest.service.stats().buffered_bytes <= MEMORY_BOUND);
}

#[test]
fn malformed_frames_are_dropped_and_counted() {
    let mut service = service(DOCUMENT, TokenPolicy::Optional);
    let good = ipv4([10, 0, 0, 2], 1, 0, &[8, 0, 0xf7, 0xff, 0, 0, 0, 0]);
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        frame
    };
    let bad = [
        Vec::new(),
        good[..33].to_vec(),
        good[..good.len() - 1].to_vec(),
        ipv4([10, 0, 0, 2], 6, 0x2000, &[0; 20]),
        ipv4([10, 0, 0, 2], 6, 0x0001, &[0; 20]),
        ipv4([0, 0, 0, 0], 6, 0, &[0; 20]),
        ipv4([127, 0, 0, 1], 6, 0, &[0; 20]),
        ipv4([224, 0, 0, 1], 6, 0, &[0; 20]),
        ipv4([255, 255, 255, 255], 6, 0, &[0; 20]),
        ipv4(SERVICE_ADDRESS, 6, 0, &[0; 20]),
        ipv4([10, 0, 0, 2], 6, 0, &[0; MAX_FRAME_BYTES]),
        changed(&|frame| frame[6] |= 1),
        changed(&|frame| frame[6..12].fill(0)),
        changed(&|frame| frame[14] = 0x65),
        changed(&|frame| frame[14] = 0x44),
        changed(&|frame| frame[14] = 0x4f),
        changed(&|frame| frame[16..18].fill(0)),
        changed(&|frame| frame[33] ^= 1),
    ];
    for (count, frame) in bad.iter().enumerate() {
        service.ingest(frame, Duration::ZERO);
        assert_eq!(service.stats().traffic.dropped_malformed, count as u64 + 1, "{frame:?}");
    }
    service.poll(Duration::ZERO);
    assert!(service.pop_frame().is_none());
    // The unchanged one is a ping, and answered.
    service.ingest(&good, Duration::ZERO);
    service.poll(Duration::ZERO);
    let reply = service.pop_frame().expect("a reply");
    assert_eq!(reply[0..6], GUEST_MAC);
    assert_eq!((reply[23], reply[34]), (1, 0), "an echo reply");
}

#[test]
fn a_full_queue_drops_and_counts() {
    let mut service = service(DOCUMENT, TokenPolicy::Optional);
    let frame = ipv4([10, 0, 0, 2], 1, 0, &[0; 64]);
    for _ in 0..MAX_QUEUED_FRAMES + 5 {
        service.ingest(&frame, Duration::ZERO);
    }
    assert_eq!(service.stats().traffic.dropped_queue_full, 5);
    assert_eq!(service.next_deadline(Duration::ZERO), Some(Duration::ZERO));
}

#[test]
fn a_clock_that_jumps_or_goes_back_does_no_harm() {
    let mut guest = Guest::new(DOCUMENT, TokenPolicy::Optional);
    let handle = guest.connect();
    guest.send(handle, b"GET / HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n");
    guest.service.poll(Duration::ZERO);
    let _ = guest.service.next_deadline(Duration::ZERO);
    for now in [Duration::from_secs(1 << 40), Duration::MAX, Duration::ZERO, Duration::MAX] {
        guest.service.poll(now);
        let _ = guest.service.next_deadline(now);
        guest.service.ingest(&ipv4([10, 0, 0, 2], 6, 0, &[0; 20]), now);
    }
    for _ in 0..10 {
        guest.service.poll(Duration::MAX);
        while guest.service.pop_frame().is_some() {}
    }
    assert!(!guest.service.is_active(), "{:?}", guest.service.stats());
}
