use super::*;

#[test]
fn packets_are_bounded_beside_bytes() {
    let mut o = ToGuest::default();
    o.update(16 << 10, 0).expect("sound");
    for n in 0..16 {
        assert_eq!(o.stream_room(10), 10 * (16 - n));
        assert!(o.message_may_begin(10 * (16 - n), 10));
        assert!(n == 0 || !o.message_may_begin(10 * (16 - n) + 1, 10));
        o.send(5, 1, true);
    }
    assert!(o.stream_room(4096) == 0 && o.free() > 0);
    assert!(!o.message_may_begin(0, 4096), "an empty one takes a packet, too");
    // Four packets to a group: they count until the last of them was read.
    o.update(16 << 10, 19).expect("sound");
    assert_eq!(o.unread_packets(), 16);
    o.update(16 << 10, 20).expect("sound");
    assert_eq!((o.unread_packets(), o.stream_room(10)), (12, 40));
    o.update(16 << 10, 80).expect("sound");
    assert_eq!((o.unread_packets(), o.stream_room(4096)), (0, 16 << 10));
    // With nothing unread any message may begin, and goes on.
    assert!(o.message_may_begin(16 << 10, 10));
    o.send(100, 40, false);
    assert!(o.message_may_begin(1000, 10));
    o.send(100, 1, true);
    assert!(!o.message_may_begin(1, 10));
    // However small the buffer, one packet may go.
    let mut o = ToGuest::default();
    o.update(100, 0).expect("sound");
    assert_eq!(o.stream_room(10), 10);
    o.send(10, 1, true);
    assert_eq!(o.stream_room(10), 0);
}

/// Against a list of all packets.
#[test]
fn groups_of_packets_are_late_by_a_quarter_at_most() {
    let (mut o, mut all) = (ToGuest::default(), std::collections::VecDeque::new());
    let (alloc, bound) = (64 << 10, 64);
    // The counts wrap around meanwhile.
    let (mut sent, mut read, mut x) = (u32::MAX - 100_000, u32::MAX - 100_000, 1u64);
    (o.sent, o.forwarded) = (sent, sent);
    o.update(alloc, read).expect("sound");
    for _ in 0..200_000 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let n = (x >> 40) as u32;
        if !n.is_multiple_of(3) {
            let (packet, packets) = (1 + n % 900, 1 + n % 5);
            let bytes = packet * packets;
            if o.stream_room(packet as usize) < bytes as usize {
                continue;
            }
            for i in 1..=packets {
                all.push_back(sent.wrapping_add(i * packet));
            }
            sent = sent.wrapping_add(bytes);
            o.send(bytes, packets, true);
        } else if sent != read {
            read = read.wrapping_add(1 + n % sent.wrapping_sub(read));
            o.update(alloc, read).expect("sound");
            while all.front().is_some_and(|end| end.wrapping_sub(read) > alloc || *end == read) {
                all.pop_front();
            }
        }
        let (counted, there) = (o.unread_packets() as usize, all.len());
        assert!(there <= counted && counted <= bound, "{there} are unread, {counted} counted");
        assert!(counted < there + bound / 4 + 5, "{there} are unread, {counted} counted");
    }
    assert!(read < sent && sent < u32::MAX / 2, "they wrapped around");
}

#[test]
fn what_a_guest_says_is_bounded_by_what_was_sent() {
    let mut o = ToGuest::default();
    assert_eq!(o.update(100, 1), Err(BeyondSent));
    o.update(100, 0).expect("sound");
    o.send(80, 1, true);
    assert_eq!(o.free(), 20);
    assert_eq!(o.update(100, 60), Ok(Credit::New));
    assert_eq!(o.free(), 80);
    for (alloc, forwarded) in [(100, 40), (0, 59), (u32::MAX, 0), (1000, 60 + (1 << 31)), (1000, u32::MAX)] {
        assert_eq!(o.update(alloc, forwarded), Ok(Credit::Stale), "older counts");
        assert_eq!((o.free(), o.alloc, o.forwarded), (80, 100, 60));
    }
    assert_eq!(o.update(100, 81), Err(BeyondSent));
    o.update(10, 60).expect("a smaller buffer");
    assert_eq!(o.free(), 0);
}
