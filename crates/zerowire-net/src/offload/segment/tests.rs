use proptest::prelude::*;
use zerowire_wire::vnet::Gso;

use super::super::testing::{Example, cut, naive, segments_of};
use super::*;

fn examples() -> impl Strategy<Value = Example> {
    let kinds = prop_oneof![Just(Gso::TcpV4), Just(Gso::TcpV6), Just(Gso::UdpL4)];
    (kinds, any::<bool>(), 0usize..3, 0usize..11, any::<u8>(), 0usize..9000, any::<u32>()).prop_map(
        |(kind, v6, tags, options, flags, payload, seed)| Example {
            kind,
            v6: kind == Gso::TcpV6 || v6 && kind == Gso::UdpL4,
            tags,
            options,
            flags,
            payload,
            seed,
        },
    )
}

#[test]
fn a_long_frame_becomes_what_the_model_says() {
    for kind in [Gso::TcpV4, Gso::TcpV6, Gso::UdpL4] {
        let example = Example {
            kind,
            v6: kind == Gso::TcpV6,
            tags: 0,
            options: 3,
            flags: 0xff,
            payload: 60_000,
            seed: 1,
        };
        let frames = cut(&example.header(1400), &example.frame(), 1518, 1).expect("segments");
        assert_eq!(frames.len(), 43);
        assert!(frames == naive(&example.frame(), &example, 1400));
        if kind != Gso::UdpL4 {
            let flags = |i: usize| frames[i][example.transport_at() + 13];
            assert_eq!([flags(0), flags(1), flags(41), flags(42)], [0xf6, 0x76, 0x76, 0x7f]);
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let example =
        Example { kind: Gso::TcpV4, v6: false, tags: 0, options: 0, flags: 0x10, payload: 5000, seed: 2 };
    let frame = example.frame();
    let headers = Headers::find(&frame[..100], Gso::TcpV4, 34, 16).expect("headers");
    let new = |len, size, longest| Segmenter::new(&frame[..100], len, headers, size, longest);
    assert!(new(5054, 1464, 1518).is_ok());
    let long = SegmentError::TooLong { size: 1465, headers: 54, longest: 1518 };
    assert_eq!(new(5054, 1465, 1518).err(), Some(long));
    assert_eq!(new(5054, 0, 1518).err(), Some(SegmentError::NoSize));
    for len in [0, 33, 53, 1 << 20] {
        assert_eq!(new(len, 1448, 1518).err(), Some(SegmentError::FrameLength(len)), "{len}");
    }
    // Lengths of 16 bits never wrap, whatever the port takes.
    assert!(new(65_557, 65_496, usize::MAX).is_err());
    assert!(new(65_557, 65_495, usize::MAX).is_ok());
    // A frame without payload is one frame.
    let bare = new(54, 1448, 1518).expect("a frame");
    assert_eq!((bare.frames(), bare.payload_len(0), bare.payload_len(1)), (1, 0, 0));
}

#[test]
fn a_checksum_is_completed_where_it_is_asked_for() {
    let example =
        Example { kind: Gso::UdpL4, v6: false, tags: 1, options: 2, flags: 0, payload: 777, seed: 3 };
    let mut frame = example.frame();
    let start = example.transport_at();
    let want = example.checksum(&frame);
    let (head, rest) = frame.split_at_mut(start + 9);
    let mut sum = Checksum::new();
    segments_of(rest, 100).iter().for_each(|s| add_guest(&mut sum, s));
    assert!(complete(head, start as u16, 6, sum));
    assert_eq!(head[start + 6..start + 8], want.to_be_bytes());
    let before = head.to_vec();
    assert!(!complete(head, start as u16, 8, sum), "outside");
    assert!(!complete(head, u16::MAX, u16::MAX, sum), "far outside");
    assert_eq!(head, before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_frame_in_any_pieces_becomes_what_the_model_says(
        example in examples(), size in 1u16..3000, piece in 1usize..5000,
    ) {
        let frame = example.frame();
        match cut(&example.header(size), &frame, 3838, piece) {
            Ok(frames) => {
                // One that is not longer than a segment stays as it is, but for its checksum.
                if example.payload > usize::from(size) {
                    prop_assert!(frames == naive(&frame, &example, usize::from(size)));
                } else {
                    prop_assert_eq!(frames.len(), 1);
                    let field = example.transport_at() + usize::from(example.kind.checksum_at());
                    prop_assert_eq!(&frames[0][field..field + 2], &example.checksum(&frame).to_be_bytes());
                    prop_assert_eq!(&frames[0][..field], &frame[..field]);
                    prop_assert_eq!(&frames[0][field + 2..], &frame[field + 2..]);
                }
            }
            Err(e) => prop_assert!(e.contains("longer than 3838"), "{}", e),
        }
    }

    #[test]
    fn hostile_headers_never_lead_outside(
        example in examples(),
        header in prop::array::uniform10(any::<u8>()),
        wild in any::<bool>(),
        changes in prop::collection::vec((0usize..150, any::<u8>()), 0..5),
        keep in 0usize..400,
    ) {
        let mut frame = example.frame();
        for (at, value) in changes {
            if let Some(byte) = frame.get_mut(at) {
                *byte = value;
            }
        }
        if keep < 150 {
            frame.truncate(keep);
        }
        let asked = if wild { header } else { example.header(u16::from_le_bytes([header[4], header[5]])) };
        if let Ok(frames) = cut(&asked, &frame, 1518, 1000) {
            prop_assert!(!frames.is_empty());
            let bytes: usize = frames.iter().map(Vec::len).sum();
            prop_assert!(bytes >= frame.len());
            prop_assert!(frames.len() == 1 || frames.iter().all(|f| f.len() <= 1518));
        }
    }
}
