use std::io::{Cursor, Read, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::error::{MAX_BLOCK_BYTES, MAX_PACKET_BYTES};
use super::input::unpack;
use super::testing::*;
use super::*;

/// What a capture holds: time, bytes, wire length.
type Seen = (Option<i128>, Vec<u8>, u32);

fn read(bytes: &[u8]) -> (Vec<Seen>, Option<CaptureError>) {
    collect(Cursor::new(bytes.to_vec()))
}

fn collect(from: impl Read) -> (Vec<Seen>, Option<CaptureError>) {
    let mut seen = Vec::new();
    let mut reader = match Reader::open(from) {
        Ok(r) => r,
        Err(e) => return (seen, Some(e)),
    };
    loop {
        match reader.next() {
            Ok(Some(p)) => {
                assert_eq!(p.number, seen.len() as u64 + 1);
                seen.push((p.time, p.data.to_vec(), p.wire_bytes));
            }
            Ok(None) => return (seen, None),
            Err(e) => return (seen, Some(e)),
        }
    }
}

fn all(bytes: &[u8]) -> Vec<Seen> {
    let (seen, error) = read(bytes);
    assert!(error.is_none(), "{error:?}");
    seen
}

fn error(bytes: &[u8]) -> String {
    read(bytes).1.expect("an error").to_string()
}

fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no '{word}' in: {text}");
    }
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut to = GzEncoder::new(Vec::new(), Compression::fast());
    to.write_all(bytes).expect("packed");
    to.finish().expect("packed")
}

fn packets() -> Vec<P> {
    vec![
        P::at(1_700_000_000_123_456_789, &frame(1, 60)),
        P { wire: 1514, ..P::at(1_700_000_000_123_457_000, &frame(2, 96)) },
        P::at(1_700_000_001_000_000_000, &frame(3, 1514)),
    ]
}

#[test]
fn pcap_of_both_orders_and_units() {
    for order in Order::BOTH {
        for nanoseconds in [false, true] {
            let seen = all(&pcap(order, nanoseconds, &packets()));
            assert_eq!(seen.len(), 3);
            for (s, p) in seen.iter().zip(packets()) {
                let nsec = if nanoseconds { p.nsec } else { p.nsec / 1000 * 1000 };
                let time = i128::from(p.sec) * 1_000_000_000 + i128::from(nsec);
                assert_eq!(*s, (Some(time), p.data, p.wire), "{order:?} {nanoseconds}");
            }
        }
    }
    assert!(all(&simple(&[])).is_empty());
}

#[test]
fn a_frame_check_sequence_is_left_out() {
    // Two units of 16 bits, present.
    let mut bytes = pcap_header(Order::Little, true, 1 | 1 << 26 | 2 << 28);
    bytes.extend(pcap(Order::Little, true, &packets()).split_off(24));
    let seen = all(&bytes);
    assert_eq!((seen[0].1.len(), seen[0].2), (56, 56));
    // Of a packet that was not captured whole, the end is missing anyway.
    assert_eq!((seen[1].1.len(), seen[1].2), (96, 1510));
}

#[test]
fn pcapng_of_both_orders_with_sections_interfaces_and_other_blocks() {
    let mut bytes = Vec::new();
    let f: Vec<_> = (0..6).map(|n| frame(n, 60 + n as usize)).collect();
    for order in Order::BOTH {
        bytes.extend(section(order));
        bytes.extend(interface(order, 1, 0, &[]));
        // Interface 1 counts nanoseconds from 1000 s, interface 2 units of 2^-10 s.
        let options =
            [option(order, 2, b"eth1"), option(order, 9, &[9]), option(order, 14, &order.u64(1000))].concat();
        bytes.extend(interface(order, 1, 96, &options));
        bytes.extend(interface(order, 1, 0, &option(order, 9, &[0x80 | 10])));
        bytes.extend(enhanced(order, 0, 5_000_001, &f[0], 60));
        // Name resolution, statistics, custom: nothing to send.
        for kind in [4, 5, 0xbad] {
            bytes.extend(block(order, kind, &[1; 40]));
        }
        bytes.extend(enhanced(order, 1, 7, &f[1], 61));
        bytes.extend(enhanced(order, 2, 512, &f[2], 1514));
        bytes.extend(plain(order, &f[3], 63));
    }
    let seen = all(&bytes);
    assert_eq!(seen.len(), 8);
    assert_eq!(seen[..4], seen[4..]);
    assert_eq!(seen[0], (Some(5_000_001_000), f[0].clone(), 60));
    assert_eq!(seen[1], (Some(1_000_000_000_007), f[1].clone(), 61));
    assert_eq!(seen[2], (Some(500_000_000), f[2].clone(), 1514));
    assert_eq!(seen[3], (None, f[3].clone(), 63));
}

#[test]
fn simple_packets_are_as_long_as_the_snap_length_lets_them() {
    let order = Order::Big;
    let bytes = [section(order), interface(order, 1, 33, &[]), plain(order, &frame(1, 36), 1000)].concat();
    assert_eq!(all(&bytes), [(None, frame(1, 36)[..33].to_vec(), 1000)]);
}

#[test]
fn old_packet_blocks_are_read() {
    let order = Order::Little;
    let f = frame(9, 61);
    let mut body = [&order.u16(0)[..], &order.u16(3)].concat();
    for n in [0, 2_000_000, 61, 61] {
        body.extend(order.u32(n));
    }
    body.extend(&f);
    let bytes = [section(order), interface(order, 1, 0, &[]), block(order, 2, &body)].concat();
    assert_eq!(all(&bytes), [(Some(2_000_000_000), f, 61)]);
}

#[test]
fn gzip_also_in_several_members() {
    let whole = simple(&packets());
    let (a, b) = whole.split_at(100);
    for packed in [gz(&whole), [gz(a), gz(b)].concat()] {
        let (seen, e) = collect(unpack(Box::new(Cursor::new(packed))).expect("gzip"));
        assert!(e.is_none(), "{e:?}");
        assert_eq!(seen, all(&whole));
    }
    let (seen, e) = collect(unpack(Box::new(Cursor::new(whole.clone()))).expect("no gzip"));
    assert!(e.is_none() && seen.len() == 3);
    let (_, e) = collect(unpack(Box::new(Cursor::new(gz(&gz(&whole))))).expect("gzip"));
    has(&e.expect("an error").to_string(), &["gzip within gzip"]);
}

#[test]
fn a_cut_gzip_stream_is_truncated_and_a_damaged_one_is_named() {
    let packed = gz(&simple(&packets()));
    // The checksum at the end is missing: all packets are there, and yet the stream is not whole.
    let (seen, e) =
        collect(unpack(Box::new(Cursor::new(packed[..packed.len() - 5].to_vec()))).expect("gzip"));
    assert_eq!(seen.len(), 3);
    has(&e.expect("an error").to_string(), &["gzip stream", "the 3 packets", "--ignore-truncated"]);
    let mut wrong = packed;
    let last = wrong.len() - 1;
    wrong[last] ^= 1;
    let (_, e) = collect(unpack(Box::new(Cursor::new(wrong))).expect("gzip"));
    has(&e.expect("an error").to_string(), &["reading failed after 3 whole packets"]);
}

#[test]
fn every_cut_is_named_with_the_packet_and_what_is_whole() {
    let order = Order::Big;
    let mut ng = [section(order), interface(order, 1, 0, &[])].concat();
    let mut ends = vec![ng.len()];
    for n in 0..3 {
        ng.extend(enhanced(order, 0, u64::from(n), &frame(n, 60), 60));
        ends.push(ng.len());
    }
    let classic = pcap(order, false, &packets());
    for (bytes, ends) in [(ng, ends), (classic, vec![24, 24 + 76, 24 + 76 + 112, 24 + 76 + 112 + 1530])] {
        assert_eq!(bytes.len(), ends[3]);
        for len in 1..bytes.len() {
            let (seen, e) = read(&bytes[..len]);
            let whole = ends[1..].iter().filter(|e| **e <= len).count();
            assert_eq!(seen.len(), whole, "at {len}");
            if ends.contains(&len) {
                assert!(e.is_none(), "at {len}: {e:?}");
                continue;
            }
            // A pcapng file may end after any block.
            let Some(e) = e else {
                assert!(len == 28 && bytes[0] == 0x0a, "at {len}");
                continue;
            };
            assert!(matches!(e, CaptureError::Truncated { .. }), "at {len}: {e:?}");
            if len > ends[0] {
                has(&e.to_string(), &[&format!("inside packet {}", whole + 1)]);
            }
        }
    }
}

#[test]
fn what_is_no_capture_is_named() {
    has(&error(b""), &["empty"]);
    has(&error(b"\xd4\xc3"), &["ends inside the capture's header"]);
    has(&error(b"GET / HTTP/1.1"), &["47455420", "d4c3b2a1", "0a0d0d0a"]);
    has(&error(b"\x28\xb5\x2f\xfd0000"), &["zstd", "zstdcat"]);
    has(&error(b"\xfd7zXZ\x00\x00"), &["xzcat"]);
    has(&error(b"BZh91AY"), &["bzcat"]);
    has(&error(b"snoop\0\0\0"), &["snoop", "editcap"]);
    let mut old = simple(&[]);
    old[4] = 3;
    has(&error(&old), &["pcap version 3.4", "2.x"]);
    let mut ng = section(Order::Little);
    ng[12] = 9;
    has(&error(&ng), &["pcapng version 9.0"]);
}

#[test]
fn other_link_types_are_refused_by_name_and_number() {
    for (link, name) in [(101, "RAW"), (113, "LINUX_SLL"), (276, "LINUX_SLL2"), (127, "RADIOTAP")] {
        has(&error(&pcap_header(Order::Big, false, link)), &[name, &format!("link type {link}")]);
    }
    let order = Order::Little;
    let bytes = [
        section(order),
        interface(order, 1, 0, &[]),
        interface(order, 101, 0, &[]),
        enhanced(order, 0, 0, &frame(0, 60), 60),
        enhanced(order, 1, 0, &frame(0, 60), 60),
    ]
    .concat();
    let (seen, e) = read(&bytes);
    assert_eq!(seen.len(), 1);
    has(&e.expect("an error").to_string(), &["packet 2", "interface 1", "101"]);
    // An interface that has no packet does no harm.
    assert_eq!(all(&bytes[..bytes.len() - 92]).len(), 1);
}

#[test]
fn damaged_lengths_are_named_before_they_cost_memory() {
    let mut bytes = simple(&packets());
    bytes[24 + 76 + 8..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    has(&error(&bytes), &["packet 2", "4294967295", &MAX_PACKET_BYTES.to_string(), "byte 100"]);

    let order = Order::Little;
    let head = [section(order), interface(order, 1, 0, &[])].concat();
    let good = enhanced(order, 0, 0, &frame(1, 60), 60);
    let with = |at: usize, n: u32| {
        let mut bad = good.clone();
        bad[at..at + 4].copy_from_slice(&order.u32(n));
        error(&[head.clone(), good.clone(), bad].concat())
    };
    has(&with(4, 0), &["packet 2", "length 0"]);
    has(&with(4, 93), &["packet 2", "length 93"]);
    has(&with(4, u32::MAX - 3), &["packet 2", &MAX_BLOCK_BYTES.to_string()]);
    has(&with(4, 12), &["packet 2", "disagree"]);
    has(&with(8, 5), &["packet 2", "interface 5", "1 were described"]);
    has(&with(20, 61), &["packet 2", "61 captured bytes", "room for 60"]);
    has(&with(20, u32::MAX), &["packet 2", "4294967295"]);
    has(&with(good.len() - 4, 8), &["packet 2", "disagree"]);
    let tiny = block(order, 6, &[]);
    has(&error(&[head.clone(), tiny].concat()), &["packet 1", "only 12 bytes"]);
    let fine = interface(order, 1, 0, &option(order, 9, &[30]));
    has(&error(&[section(order), fine].concat()), &["if_tsresol 0x1e"]);
    let mut bom = section(order);
    bom[8] = 0;
    has(&error(&bom), &["byte-order magic"]);
}

#[test]
fn a_long_foreign_block_is_passed_over_in_little_memory() {
    let order = Order::Little;
    let long = 64u64 << 20;
    let start = [
        section(order),
        interface(order, 1, 0, &[]),
        order.u32(0x0bad).to_vec(),
        order.u32(long as u32 + 12).to_vec(),
    ]
    .concat();
    let end = [order.u32(long as u32 + 12).to_vec(), enhanced(order, 0, 1, &frame(1, 60), 60)].concat();
    let (seen, e) = collect(Cursor::new(start).chain(std::io::repeat(0).take(long)).chain(Cursor::new(end)));
    assert!(e.is_none(), "{e:?}");
    assert_eq!(seen.len(), 1);
}

/// A good capture of either format, with some bytes changed and the end cut off.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let good = (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(ng, big, nanoseconds)| {
        let order = if big { Order::Big } else { Order::Little };
        if !ng {
            return pcap(order, nanoseconds, &packets());
        }
        let options = [option(order, 9, &[9]), option(order, 14, &order.u64(7))].concat();
        [
            section(order),
            interface(order, 1, 0, &options),
            enhanced(order, 0, 1 << 40, &frame(1, 61), 61),
            block(order, 5, &[3; 17]),
            plain(order, &frame(2, 64), 64),
            section(order),
            interface(order, 1, 60, &[]),
            enhanced(order, 0, 3, &frame(3, 1514), 9000),
        ]
        .concat()
    });
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    (good, changes, any::<prop::sample::Index>(), any::<bool>()).prop_map(
        |(mut bytes, changes, cut, whole)| {
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            if !whole {
                bytes.truncate(cut.index(bytes.len()));
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn damaged_captures_end_in_packets_and_at_most_one_error(bytes in damaged()) {
        let (seen, _) = read(&bytes);
        // No more can come out than was put in.
        prop_assert!(seen.iter().map(|s| s.1.len()).sum::<usize>() <= bytes.len());
        for (_, data, wire) in &seen {
            prop_assert!(data.len() <= *wire as usize);
        }
    }

    #[test]
    fn random_bytes_behind_a_good_start_do_no_harm(
        start in prop::sample::select(vec![
            pcap_header(Order::Little, false, 1),
            pcap_header(Order::Big, true, 1),
            [section(Order::Little), interface(Order::Little, 1, 0, &[])].concat(),
            [section(Order::Big), interface(Order::Big, 1, 0, &[])].concat(),
            vec![0x34, 0xcd, 0xb2, 0xa1],
            Vec::new(),
        ]),
        noise in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        let bytes = [start, noise].concat();
        read(&bytes);
        if let Ok(stream) = unpack(Box::new(Cursor::new(bytes))) {
            collect(stream);
        }
    }
}

#[test]
fn a_cause_is_told_once() {
    let cause = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let text = cause().to_string();
    for error in [anyhow::Error::from(CaptureError::Read { packets: 7, cause: cause() }), {
        anyhow::Error::from(zerowire::recv::RecvError::System { call: "socket", cause: cause() })
    }] {
        let said = format!("{:#}", error.context("capture.pcap"));
        assert_eq!(said.matches(&text).count(), 1, "{said}");
    }
}
