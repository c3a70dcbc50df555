use super::*;

fn frame(payload: usize) -> Vec<u8> {
    let mut frame = vec![0; TCP_START + 24 + payload];
    frame[12..15].copy_from_slice(&[8, 0, 0x45]);
    frame[23] = 6;
    frame[26..34].copy_from_slice(&[10, 0, 0, 2, 10, 0, 0, 1]);
    frame[TCP_START + 12] = 6 << 4;
    frame
}

#[test]
fn long_segments_are_cut_and_short_ones_not() {
    let mut long = frame(3000);
    let header = prepare(&mut long, 1460);
    assert_eq!((header.gso_type, header.gso_size, header.hdr_len), (GSO_TCPV4, 1460, 58));
    // 0a00 + 0002 + 0a00 + 0001 + 6 + 3024 (0bd0)
    assert_eq!(long[50..52], [0x1f, 0xd9]);
    let header = prepare(&mut frame(1460), 1460);
    assert_eq!((header.gso_type, header.flags), (0, FLAG_NEEDS_CSUM));
}

#[test]
fn other_frames_are_left_alone() {
    let mut arp = vec![0; 60];
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(prepare(&mut arp, 1460), VirtioNetHdr::default());
    assert_eq!(raise_segment_limit(&mut arp), None);
}

#[test]
fn the_limit_is_found_behind_other_options() {
    let mut syn = frame(0);
    syn[TCP_START + 13] = 0x12;
    syn[TCP_START + 12] = 7 << 4;
    syn.extend_from_slice(&[0; 4]);
    syn[TCP_START + 20..].copy_from_slice(&[1, 1, 1, 2, 4, 5, 0xb4, 0]);
    assert_eq!(raise_segment_limit(&mut syn), Some(1460));
    assert_eq!(syn[TCP_START + 25..TCP_START + 27], LONGEST_PAYLOAD.to_be_bytes());
    // A length of zero must not hold the search up.
    syn[TCP_START + 20..].copy_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(raise_segment_limit(&mut syn), None);
}
