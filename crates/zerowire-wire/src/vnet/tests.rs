use super::*;
use proptest::prelude::*;

#[test]
fn segments_are_checked() {
    let tcp = VnetHeader::segments(Gso::TcpV4, 54, 1448, 34, 16).unwrap();
    assert_eq!(tcp.to_bytes()[..2], [1, 1]);
    assert_eq!(tcp.to_bytes()[2..4], 54u16.to_ne_bytes());
    assert_eq!((tcp.longest_segment(64_000), tcp.longest_segment(60)), (1502, 60));
    assert!(tcp.check(53).is_err() && tcp.check(54).is_ok());
    assert_eq!(VnetHeader::segments(Gso::TcpV4, 54, 0, 34, 16), Err(VnetError::NoSegment));
    let e = VnetHeader::segments(Gso::UdpL4, 42, 1400, 34, 16).unwrap_err().to_string();
    assert!(e.contains("csum_offset is 16") && e.contains("at 6"), "{e}");
    let e = VnetHeader::segments(Gso::TcpV6, 60, 1400, 54, 16).unwrap_err().to_string();
    assert!(e.contains("hdr_len 60") && e.contains("20 bytes"), "{e}");
    assert!(VnetHeader::segments(Gso::TcpV6, u16::MAX, 1, u16::MAX, 16).is_err());
}

#[test]
fn a_header_that_is_plain_asks_for_neither() {
    let plain = |header: &[u8]| Fields::of(header).is_plain();
    assert!(plain(&[0xfe, 0, 9, 9, 9, 9, 9, 9, 9, 9]) && plain(&[1, 3]));
    assert!(!plain(&[1, 0, 0, 0, 0, 0, 0, 0, 0, 0]) && !plain(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0]));
}

#[test]
fn a_checksum_outside_is_found() {
    assert_eq!(VnetHeader::checksum(34, 6).check(42), Ok(()));
    assert_eq!(VnetHeader::checksum(34, 6).check(41), Err(VnetError::Outside { end: 42, frame_bytes: 41 }));
    assert!(VnetHeader::checksum(u16::MAX, u16::MAX).check(65_550).is_err());
    assert_eq!(VnetHeader::NONE.check(14), Ok(()));
    assert_eq!(VnetHeader::NONE.to_bytes(), [0; 10]);
}

/// A TCP or UDP frame whose headers were changed, or any bytes.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((12usize..90, any::<u8>()), 0..6);
    let like = (any::<bool>(), any::<bool>(), 0usize..4, changes, 0usize..300, 0usize..200).prop_map(
        |(v6, tcp, tags, changes, payload, cut)| {
            let mut f = vec![2; 12];
            f.extend([0x81, 0, 0, 5].repeat(tags));
            let (protocol, transport) = if tcp { (6, 20) } else { (17, 8) };
            let said = (transport + payload) as u16;
            if v6 {
                f.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                f.extend(said.to_be_bytes());
                f.extend([protocol, 64]);
                f.extend([0xfe; 32]);
            } else {
                f.extend([8, 0, 0x45, 0]);
                f.extend((said + 20).to_be_bytes());
                f.extend([0, 0, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            }
            f.extend(vec![0x50; transport + payload]);
            for (at, value) in changes {
                if let Some(byte) = f.get_mut(at) {
                    *byte = value;
                }
            }
            f.truncate(f.len() - cut.min(f.len()));
            f
        },
    );
    prop_oneof![4 => like, 1 => prop::collection::vec(any::<u8>(), 0..200)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn whatever_is_prepared_lies_within_the_frame(
        frame in frames(), gso_size in prop::option::of(any::<u16>())
    ) {
        let mut prepared = frame.clone();
        match VnetHeader::prepare(&mut prepared, gso_size) {
            Ok(h) => {
                prop_assert!(h.check(frame.len()).is_ok());
                prop_assert_eq!(h.is_segmented(), gso_size.is_some());
                prop_assert!(gso_size != Some(0));
                prop_assert!(h.longest_segment(frame.len()) <= frame.len());
                // Nothing but the checksum was changed.
                let at = usize::from(h.csum_start) + usize::from(h.csum_offset);
                prop_assert_eq!(&prepared[..at], &frame[..at]);
                prop_assert_eq!(&prepared[at + 2..], &frame[at + 2..]);
            }
            Err(_) => prop_assert_eq!(prepared, frame),
        }
    }
}
