use super::*;

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[test]
fn a_packet_has_its_fields_where_readers_look() {
    let fields = PacketFields {
        interface: 3,
        time: 0x0102_0304_0506_0708,
        captured: 5,
        original: 1514,
        direction: PacketDirection::Outbound,
    };
    let mut out = vec![0xaa; 8];
    enhanced_packet(&mut out, &fields, |out| out.extend(b"hello, and what is too much"));
    let block = &out[8..];
    assert_eq!(block.len() as u64, enhanced_packet_bytes(5));
    let words: Vec<u32> = (0..7).map(|i| word(block, 4 * i)).collect();
    assert_eq!(words, [ENHANCED_PACKET, block.len() as u32, 3, 0x0102_0304, 0x0506_0708, 5, 1514]);
    assert_eq!(&block[28..36], b"hello\0\0\0");
    assert_eq!((word(block, 36), word(block, 40), word(block, 44)), (4 << 16 | 2, 2, 0));
    assert_eq!(word(block, 48), block.len() as u32, "the length once more");
}

#[test]
fn sections_and_interfaces_are_told() {
    let mut out = Vec::new();
    section_header(&mut out, "zerowire");
    assert_eq!((word(&out, 0), word(&out, 8)), (SECTION_HEADER, BYTE_ORDER_MAGIC));
    assert_eq!(word(&out, 24), 8 << 16 | 4, "shb_userappl");
    let at = out.len();
    interface_description(&mut out, LINKTYPE_ETHERNET, 96, "web", "tap:web0");
    let block = &out[at..];
    assert_eq!((word(block, 0), word(block, 8), word(block, 12)), (INTERFACE_DESCRIPTION, 1, 96));
    assert_eq!(&block[16..24], [2, 0, 3, 0, b'w', b'e', b'b', 0]);
    assert!(block.windows(5).any(|b| b == [9, 0, 1, 0, 9]), "if_tsresol in nanoseconds");
    let at = out.len();
    interface_statistics(&mut out, 0, 1, InterfaceCounts { captured: 7, lost: 2 });
    let block = &out[at..];
    assert_eq!((word(block, 0), word(block, 16)), (INTERFACE_STATISTICS, 1));
    let options = [(20, 4, 9), (32, 5, 2), (44, 8, 7)];
    for (at, code, value) in options {
        assert_eq!((word(block, at), word(block, at + 4)), (8 << 16 | code, value));
    }
}

fn whole_bytes(bytes: &[u8]) -> usize {
    whole_blocks(bytes).map(<[u8]>::len).sum()
}

#[test]
fn what_is_cut_ends_with_its_last_whole_block() {
    let mut out = Vec::new();
    section_header(&mut out, "");
    let first = out.len();
    interface_description(&mut out, LINKTYPE_ETHERNET, 0, "", "");
    assert_eq!(whole_bytes(&out), out.len());
    for cut in first..out.len() {
        assert_eq!(whole_bytes(&out[..cut]), first, "{cut}");
    }
    for cut in 0..first {
        assert_eq!(whole_bytes(&out[..cut]), 0, "{cut}");
    }
    assert_eq!(whole_bytes(&[0; 64]), 0, "a length that no block has");
}

#[test]
fn a_long_text_is_cut_to_what_an_option_holds() {
    let mut out = Vec::new();
    interface_description(&mut out, LINKTYPE_ETHERNET, 0, &"x".repeat(70_000), "");
    assert_eq!(word(&out, 16), 0xffff << 16 | 2);
    assert_eq!(whole_bytes(&out), out.len());
}

#[test]
fn what_was_written_is_read_again() {
    for (direction, len) in [(PacketDirection::Inbound, 0), (PacketDirection::Outbound, 61)] {
        let fields = PacketFields {
            interface: 3,
            time: 0x0102_0304_0506_0708,
            captured: len,
            original: 9000,
            direction,
        };
        let bytes: Vec<_> = (0..len as u8).collect();
        let mut block = Vec::new();
        enhanced_packet(&mut block, &fields, |out| out.extend(&bytes));
        let body = &block[8..block.len() - 4];
        assert_eq!(parse_enhanced_packet(body), Some((fields, &bytes[..])));
        // Its end may be missing, not its flags.
        let whole = body.len() - 4;
        assert!((0..whole).all(|end| parse_enhanced_packet(&body[..end]).is_none()));
        let mut other = body.to_vec();
        other[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse_enhanced_packet(&other).is_none(), "more bytes than there are");
    }
    let mut block = Vec::new();
    interface_statistics(&mut block, 0, 1, InterfaceCounts { captured: 5, lost: 7 });
    let body = &block[8..block.len() - 4];
    assert_eq!(parse_lost(body), Some(7));
    assert!((0..36).all(|end| parse_lost(&body[..end]).is_none()));
    assert_eq!(parse_lost(&[0; 64]), None);
}
