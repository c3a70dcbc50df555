//! A guest's frames to the metadata service: any bytes, and segments of connections over IPv4 and
//! IPv6 that go on from what the service sent. Memory stays bounded, frames are whole, and all of
//! it ends.
#![no_main]

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use zerowire_metadata::{
    Config, DEFAULT_MAC, MAX_CONNECTIONS, MAX_QUEUED_BYTES, MAX_QUEUED_FRAMES, MAX_TOKENS, MetadataService,
    MetadataTree, SERVICE_ADDRESS, SERVICE_ADDRESS_V6, TokenPolicy, wants,
};

const GUEST_MAC: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

/// Connections with input and response, both queues, tokens, tables.
const MEMORY_BOUND: usize = MAX_CONNECTIONS * 40 * 1024
    + MAX_QUEUED_BYTES
    + MAX_QUEUED_FRAMES * 1600
    + 2 * MAX_TOKENS * 48
    + 16 * 1024;

/// Bytes of Ethernet and IP headers, by version.
const HEADERS: [usize; 2] = [34, 54];

/// What the guest knows of a connection.
#[derive(Clone, Copy, Default)]
struct Tcp {
    seq: u32,
    ack: u32,
}

fn frame(v6: bool, host: u8, payload: &[u8]) -> Vec<u8> {
    let mut f = [&DEFAULT_MAC[..], &GUEST_MAC].concat();
    let len = payload.len() as u16;
    if v6 {
        f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        f.extend(len.to_be_bytes());
        f.extend([6, 64, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]);
        f.extend(SERVICE_ADDRESS_V6.octets());
    } else {
        let mut ip = vec![0x45, 0];
        ip.extend((20 + len).to_be_bytes());
        ip.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, host]);
        ip.extend(SERVICE_ADDRESS);
        let sum: u32 = ip.chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ip[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
        f.extend([8, 0]);
        f.extend(ip);
    }
    f.extend(payload);
    f
}

/// Takes what the service sent; each of its segments says where its connection is.
fn take(service: &mut MetadataService, connections: &mut [[Tcp; 4]; 2]) {
    while let Some(f) = service.pop_frame() {
        assert!((42..=1514).contains(&f.len()) && f[6..12] == DEFAULT_MAC, "a frame of {} bytes", f.len());
        let (v6, tcp) = match f[12..14] {
            [8, 0] => (false, f[23] == 6),
            [0x86, 0xdd] => (true, f[20] == 6),
            _ => continue,
        };
        let at = HEADERS[usize::from(v6)];
        let Some(segment) = f.get(at..at + 20).filter(|_| tcp) else { continue };
        let word =
            |i: usize| u32::from_be_bytes([segment[i], segment[i + 1], segment[i + 2], segment[i + 3]]);
        let port = usize::from(segment[3]);
        if let Some(c) = connections[usize::from(v6)].get_mut(port) {
            let header = usize::from(segment[12] >> 4) * 4;
            let more =
                f.len() - at - header + usize::from(segment[13] & 1) + usize::from(segment[13] >> 1 & 1);
            c.ack = word(4).wrapping_add(more as u32);
        }
    }
    let stats = service.stats();
    assert!(stats.connections <= MAX_CONNECTIONS && stats.buffered_bytes <= MEMORY_BOUND, "{stats:?}");
}

fuzz_target!(|bytes: &[u8]| {
    static TREE: OnceLock<Arc<MetadataTree>> = OnceLock::new();
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    let tree = TREE.get_or_init(|| {
        let text = format!(
            r#"{{"latest": {{"a": "b", "c": [1, {{"d": null}}]}}, "long": "{}"}}"#,
            "x".repeat(40_000)
        );
        Arc::new(MetadataTree::from_json_str(&text).expect("a tree"))
    });
    let token_policy = if choice & 1 == 0 { TokenPolicy::Optional } else { TokenPolicy::Required };
    let config = Config::new(tree.clone()).token_policy(token_policy);
    let mut service = MetadataService::new(config).expect("a service");
    let mut connections = [[Tcp { seq: 1, ack: 0 }; 4]; 2];
    let mut now = Duration::ZERO;
    // Each record: what, how many bytes follow, and for a segment where and which flags.
    while let Some((&[what, len, place, flags], behind)) = rest.split_first_chunk() {
        let (payload, behind) = behind.split_at(behind.len().min(usize::from(len)));
        rest = behind;
        let (v6, port) = (place & 1 != 0, usize::from(place >> 1 & 3));
        match what % 4 {
            0 => {
                if wants(payload) {
                    service.ingest(payload, now);
                }
            }
            1 => now += Duration::from_millis(u64::from(len) * u64::from(flags)),
            _ => {
                let c = &mut connections[usize::from(v6)][port];
                // What opens a connection, what goes on with it, and whatever there may be.
                let flags = [2, 0x10, 0x18, 0x18, 0x11, 4, flags][usize::from(flags % 7)];
                let skew = if place & 0x80 != 0 { u32::from(place >> 3) } else { 0 };
                let mut segment = vec![0x90, port as u8, 0, 80];
                segment.extend(c.seq.wrapping_add(skew).to_be_bytes());
                segment.extend(c.ack.to_be_bytes());
                segment.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
                segment.extend(payload);
                let ends = u32::from(flags & 1) + u32::from(flags >> 1 & 1);
                c.seq = c.seq.wrapping_add(payload.len() as u32 + ends);
                let f = frame(v6, 1 + (place >> 6), &segment);
                assert!(wants(&f));
                service.ingest(&f, now);
            }
        }
        service.poll(now);
        take(&mut service, &mut connections);
    }
    // Every connection has a time limit.
    for _ in 0..5000 {
        let Some(next) = service.next_deadline(now) else {
            assert!(!service.is_active());
            return;
        };
        now = now.max(next);
        service.poll(now);
        take(&mut service, &mut connections);
    }
    panic!("still busy: {:?}", service.stats());
});
