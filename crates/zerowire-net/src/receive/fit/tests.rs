use super::*;

// A plain checksum of the tests' own.

fn get(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

fn put(frame: &mut [u8], at: usize, word: u16) {
    frame[at..at + 2].copy_from_slice(&word.to_be_bytes());
}

/// Adds words of 16 bits (RFC 1071).
fn add(start: u64, bytes: &[u8]) -> u64 {
    let word = |w: &[u8]| u64::from(w[0]) << 8 | u64::from(*w.get(1).unwrap_or(&0));
    start + bytes.chunks(2).map(word).sum::<u64>()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

const ALL: Offloads = Offloads { csum: true, tso4: true, tso6: true, ecn: true, ufo: true, uso: true };

fn header(flags: u8, gso: u8, size: u16, start: u16, offset: u16) -> Vec<u8> {
    let mut h = vec![flags, gso, 0, 0];
    [size, start, offset, 0].iter().for_each(|w| h.extend_from_slice(&w.to_le_bytes()));
    h
}

/// Ethernet with `tags` tags, IPv4 or IPv6, TCP or UDP, and `payload` bytes of payload.
fn frame(tags: usize, v6: bool, tcp: bool, payload: usize) -> (Vec<u8>, usize) {
    let mut f = vec![2; 12];
    (0..tags).for_each(|_| f.extend_from_slice(&[0x81, 0, 0, 5]));
    let transport_len = if tcp { 20 } else { 8 } + payload;
    if v6 {
        f.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0]);
        f.extend_from_slice(&(transport_len as u16).to_be_bytes());
        f.extend_from_slice(&[if tcp { 6 } else { 17 }, 64]);
        f.extend_from_slice(&[0xfd; 32]);
    } else {
        f.extend_from_slice(&[0x08, 0, 0x45, 0]);
        f.extend_from_slice(&(20 + transport_len as u16).to_be_bytes());
        f.extend_from_slice(&[0xff, 0xfe, 0, 0, 64, if tcp { 6 } else { 17 }, 0, 0]);
        f.extend_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    }
    let start = f.len();
    f.extend_from_slice(&[1, 2, 3, 4]);
    match tcp {
        true => f.extend_from_slice(&[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0x50, 0x99, 0, 9, 0, 0, 0, 0]),
        false => {
            f.extend_from_slice(&(transport_len as u16).to_be_bytes());
            f.extend_from_slice(&[0, 0]);
        }
    }
    f.extend((0..payload).map(|i| (i * 7 + i / 251) as u8));
    // The field holds the pseudo header's sum, as the kernel leaves it (virtio 1.3 §5.1.6.4).
    let (protocol, field) = if tcp { (6, start + 16) } else { (17, start + 6) };
    let addresses = if v6 { start - 32..start } else { start - 8..start };
    let pseudo = fold(add(protocol + transport_len as u64, &f[addresses]));
    put(&mut f, field, pseudo);
    (f, start)
}

/// The frame is one that a receiver takes.
fn check(f: &[u8], start: usize) {
    let network = if f[start - 20] >> 4 == 4 && f[start - 22] == 8 { start - 20 } else { start - 40 };
    let (protocol, addresses) = match f[network] >> 4 {
        4 => {
            assert_eq!(fold(add(0, &f[network..network + 20])), 0xffff, "IPv4 header");
            assert_eq!(usize::from(get(f, network + 2)), f.len() - network);
            (f[network + 9], network + 12..network + 20)
        }
        _ => {
            assert_eq!(usize::from(get(f, network + 4)), f.len() - start);
            (f[network + 6], network + 8..network + 40)
        }
    };
    let pseudo = add(u64::from(protocol) + (f.len() - start) as u64, &f[addresses]);
    assert_eq!(fold(pseudo + u64::from(fold(add(0, &f[start..])))), 0xffff, "checksum");
}

fn pieces(header_len: usize, header: &[u8], frame: &[u8]) -> Result<Vec<Vec<u8>>, Unfit> {
    let mut whole = header.to_vec();
    whole.resize(header_len, 0);
    whole.extend_from_slice(frame);
    let mut all = Vec::new();
    rebuild(&mut whole, header_len, &mut Vec::new(), |p| {
        assert!(p[..header_len].iter().all(|b| *b == 0), "asks for nothing");
        all.push(p[header_len..].to_vec());
        true
    })?;
    Ok(all)
}

#[test]
fn what_was_negotiated_passes() {
    let h = |flags, gso| [flags, gso, 0, 0, 0, 0, 0, 0, 0, 0];
    for gso in [0, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, GSO_TCPV4 | GSO_ECN] {
        assert!(passes(&h(1, gso), ALL) && passes(&h(2, gso), ALL));
        assert_eq!(passes(&h(0, gso), Offloads::default()), gso == 0);
    }
    assert!(!passes(&h(1, 0), Offloads::default()) && !passes(&h(2, 0), Offloads::default()));
    assert!(!passes(&h(1, GSO_TCPV4 | GSO_ECN), Offloads { ecn: false, ..ALL }));
    assert!(!passes(&h(1, 9), ALL));
}

/// What frames are cut by: the header's type, whether it is of IPv6, whether it is of TCP, and
/// where the transport header has its checksum.
const KINDS: [(u8, bool, bool, u16); 4] = [
    (GSO_TCPV4, false, true, 16),
    (GSO_TCPV6, true, true, 16),
    (GSO_UDP_L4, false, false, 6),
    (GSO_UDP_L4, true, false, 6),
];

#[test]
fn each_segment_is_a_frame_that_a_receiver_takes() {
    for (gso, v6, tcp, checksum_at) in KINDS {
        for tags in 0..3 {
            let (long, start) = frame(tags, v6, tcp, 2500);

            let segments = pieces(12, &header(1, gso, 1000, start as u16, checksum_at), &long).expect("good");

            assert_eq!(segments.len(), 3);
            segments.iter().for_each(|segment| check(segment, start));
        }
    }
}

#[test]
fn segments_carry_the_payload_in_order() {
    for (gso, v6, tcp, checksum_at) in KINDS {
        for (payload, last) in [(1, 1), (999, 999), (1000, 1000), (1001, 1), (60_001, 1)] {
            let (long, start) = frame(0, v6, tcp, payload);
            let headers_len = long.len() - payload;

            let segments = pieces(12, &header(1, gso, 1000, start as u16, checksum_at), &long).expect("good");

            let (end, whole) = segments.split_last().expect("a segment");
            assert_eq!((whole.len(), end.len()), ((payload - 1) / 1000, headers_len + last));
            assert!(whole.iter().all(|segment| segment.len() == headers_len + 1000));
            segments.iter().for_each(|segment| check(segment, start));
            let payloads: Vec<&[u8]> = segments.iter().map(|segment| &segment[headers_len..]).collect();
            assert_eq!(payloads.concat(), long[headers_len..]);
        }
    }
}

/// CWR goes with the first segment, FIN and PSH with the last one (RFC 3168 §6.1.2).
#[test]
fn flags_of_tcp_go_with_the_segment_that_they_belong_to() {
    let flags = |payload| -> Vec<u8> {
        let (long, start) = frame(0, false, true, payload);
        let segments = pieces(12, &header(1, GSO_TCPV4, 1000, start as u16, 16), &long).expect("good");
        segments.iter().map(|segment| segment[start + 13]).collect()
    };
    assert_eq!(flags(1000), [0x99], "one segment has all that the frame has: CWR, ACK, PSH, FIN");
    assert_eq!(flags(2000), [0x90, 0x19]);
    assert_eq!(flags(4000), [0x90, 0x10, 0x10, 0x19]);
}

#[test]
fn sequence_numbers_of_tcp_count_the_payload_modulo_2_to_the_32() {
    let (long, start) = frame(0, false, true, 2500);
    assert_eq!(long[start + 4..start + 8], [0xff, 0xff, 0xff, 0x00]);

    let segments = pieces(12, &header(1, GSO_TCPV4, 1000, start as u16, 16), &long).expect("good");

    let numbers: Vec<&[u8]> = segments.iter().map(|segment| &segment[start + 4..start + 8]).collect();
    assert_eq!(numbers, [[0xff, 0xff, 0xff, 0x00], [0, 0, 0x02, 0xe8], [0, 0, 0x06, 0xd0]]);
}

#[test]
fn no_segment_is_made_that_nobody_takes() {
    let (f, start) = frame(0, false, true, 10_000);
    for taken in [1, 3, 9999, 10_000] {
        let mut whole = [header(1, GSO_TCPV4, 1, start as u16, 16), f.clone()].concat();
        let mut given = 0;
        let left = rebuild(&mut whole, 12, &mut Vec::new(), |_| {
            given += 1;
            given < taken
        });
        assert_eq!((given, left), (taken, Ok(10_000 - taken)));
    }
}

#[test]
fn a_partial_checksum_is_completed() {
    let (f, start) = frame(0, false, false, 77);
    let all = pieces(10, &header(1, 0, 0, start as u16, 6), &f).expect("good");
    // The IPv4 header's own checksum is not this code's.
    let ip = !fold(add(0, &f[14..34]));
    let mut got = all[0].clone();
    put(&mut got, 24, ip);
    check(&got, start);
    // A checksum that was found right is just not mentioned.
    assert_eq!(pieces(12, &header(2, 0, 0, 0, 0), &f), Ok(vec![f.clone()]));
}

#[test]
fn fields_that_do_not_fit_are_refused_and_nothing_is_read_outside() {
    let (f, start) = frame(0, false, true, 3000);
    let start = start as u16;
    for h in [
        header(1, GSO_TCPV4, 0, start, 16),
        header(1, GSO_TCPV6, 1000, start, 16),
        header(1, 3, 1000, start, 16),
        header(1, GSO_TCPV4, 1000, 20, 16),
        header(1, GSO_TCPV4, 1000, 0xffff, 0xffff),
        header(1, GSO_NONE, 0, 0xffff, 16),
        header(1, GSO_NONE, 0, start, 0xffff),
    ] {
        assert_eq!(pieces(12, &h, &f), Err(Unfit), "{h:?}");
    }
    for len in 0..f.len().min(54) {
        assert_eq!(pieces(12, &header(1, GSO_TCPV4, 1000, start, 16), &f[..len]), Err(Unfit));
    }
}
