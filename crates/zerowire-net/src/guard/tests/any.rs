//! No frame passes that names another host, by a simple reading of frames.

use proptest::prelude::*;

use super::*;
use crate::guard::testing::{GUARD, names_another};

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let mac = prop_oneof![3 => Just(OWN), 1 => Just(OTHER)];
    let ipv4 = prop_oneof![3 => Just(OWN_V4), 1 => Just(OTHER_V4), 1 => Just([0; 4])];
    let ipv6 = || {
        prop_oneof![
            3 => Just(OWN_V6),
            1 => Just(LINK_LOCAL),
            1 => Just(OTHER_V6),
            1 => Just(NOBODY_V6),
        ]
    };
    let message = (130u8..139, ipv6(), 0u8..3, prop_oneof![3 => Just(OWN), 1 => Just(OTHER)]);
    let before = proptest::collection::vec((prop_oneof![Just(0u8), Just(60), Just(44)], 0u8..3), 0..3);
    let packet = (0u8..6, ipv4, ipv6(), mac, message, before);
    let framed = packet.prop_map(|(shape, ipv4, ipv6, mac, (kind, target, option, address), before)| {
        let message = discovery(kind, target, (option, address));
        match shape {
            0 => v4(ipv4, [255; 4], UDP, &udp(68, 67)),
            1 => v4(ipv4, OTHER_V4, TCP, &[7; 30]),
            2 => arp(kind % 3, mac, ipv4),
            3 => v6(ipv6, ICMPV6, &message),
            _ => {
                let mut next = ICMPV6;
                let mut payload = message;
                for (header, n) in before {
                    let fragment = header == 44;
                    let head = [next, if fragment { 0 } else { n }, 0, if fragment { n * 8 + 1 } else { 0 }];
                    let rest = if fragment { 4 } else { 4 + 8 * usize::from(n) };
                    payload = [&head[..], &vec![0; rest], &payload].concat();
                    next = header;
                }
                v6(ipv6, next, &payload)
            }
        }
    });
    let tags = proptest::collection::vec(prop_oneof![Just(0x8100u16), Just(0x88a8), Just(0x9100)], 0..4);
    let changes = proptest::collection::vec((any::<u8>(), any::<u8>()), 0..3);
    (framed, tags, changes, prop_oneof![9 => Just(usize::MAX), 1 => 14usize..150]).prop_map(
        |(mut frame, tags, changes, len)| {
            for tag in tags {
                frame = tagged(&frame, tag, 0);
            }
            for (at, byte) in changes {
                let at = usize::from(at) % frame.len();
                frame[at] = byte;
            }
            frame.truncate(len.max(14));
            frame
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the checksum's place, and whatever the checksum.
    #[test]
    fn no_frame_that_names_another_host_passes(
        mut frame in any_frame(),
        place in prop_oneof![Just(None), (14u16..70, 0u16..24, any::<[u8; 2]>()).prop_map(Some)],
    ) {
        let mut vnet = PLAIN;
        if let Some((start, offset, _)) = place {
            vnet[0] = 1;
            vnet[6..8].copy_from_slice(&start.to_le_bytes());
            vnet[8..10].copy_from_slice(&offset.to_le_bytes());
        }
        if guard(GUARD).check(&vnet, &frame).is_ok() {
            if let Some((start, offset, sum)) = place {
                let at = usize::from(start + offset);
                if let Some(field) = frame.get_mut(at..at + 2) {
                    field.copy_from_slice(&sum);
                }
            }
            prop_assert_ne!(names_another(&frame), Some(true), "{:02x?}", frame);
        }
    }
}
