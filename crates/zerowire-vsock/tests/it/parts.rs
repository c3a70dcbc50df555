//! What waits for a guest or a program, and headers, against simple models.

use std::collections::VecDeque;

use proptest::prelude::*;
use zerowire_vsock::held::Held;
use zerowire_vsock::packet::{Fault, HEADER_LEN, Header};

/// The bytes of `messages`, each with its flags, as they wait.
#[derive(Debug, Default)]
struct Naive {
    whole: VecDeque<(Vec<u8>, u32)>,
    partial: Vec<u8>,
}

fn header() -> impl Strategy<Value = Header> {
    let a = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), prop_oneof![0u32..100, any::<u32>()]);
    let b = (0u16..4, 0u16..10, prop_oneof![0u32..5, any::<u32>()], any::<u32>(), any::<u32>());
    (a, b).prop_map(|((src_cid, dst_cid, src_port, dst_port, len), (kind, op, flags, buf_alloc, fwd_cnt))| {
        Header { src_cid, dst_cid, src_port, dst_port, len, kind, op, flags, buf_alloc, fwd_cnt }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_waits_is_what_was_put_in(
        steps in proptest::collection::vec((0u8..8, 0usize..400, 0u32..4), 0..150),
    ) {
        let (mut held, mut naive) = (Held::default(), Naive::default());
        let mut next = 0u8;
        for (what, n, flags) in steps {
            match what {
                0..=3 => {
                    let bytes: Vec<u8> = (0..n).map(|_| { next = next.wrapping_add(1); next }).collect();
                    held.push_bytes(&bytes);
                    naive.partial.extend(&bytes);
                    let ends = what > 1;
                    held.mark(n as u32, ends.then_some(flags));
                    if ends {
                        naive.whole.push_back((std::mem::take(&mut naive.partial), flags));
                    }
                }
                4 if n % 5 == 0 => {
                    prop_assert_eq!(held.drop_partial() as usize, naive.partial.len());
                    naive.partial.clear();
                }
                _ => {
                    let first = naive.whole.front().map(|(m, flags)| (m.len() as u32, *flags));
                    prop_assert_eq!(held.message(), first);
                    if let Some((message, _)) = naive.whole.front_mut() {
                        let (a, b) = held.first(n.min(message.len()));
                        let got = [a, b].concat();
                        prop_assert_eq!(&got[..], &message[..n.min(message.len())]);
                        held.consume(got.len());
                        message.drain(..got.len());
                        if message.is_empty() {
                            naive.whole.pop_front();
                        }
                    }
                }
            }
            let bytes = naive.partial.len() + naive.whole.iter().map(|(m, _)| m.len()).sum::<usize>();
            prop_assert_eq!(held.len(), bytes);
            prop_assert_eq!(held.is_empty(), naive.whole.is_empty() && naive.partial.is_empty());
        }
    }

    #[test]
    fn headers_are_the_same_in_memory_and_are_checked(h in header(), room in 0usize..200, own: bool) {
        let bytes = h.to_bytes();
        prop_assert_eq!(bytes.len(), HEADER_LEN);
        prop_assert_eq!(Header::from_bytes(&bytes), h);
        let cid = if own { h.src_cid } else { h.src_cid.wrapping_add(1) };
        // The rules, once more in other words.
        let known = matches!(h.kind, 1 | 2) && matches!(h.op, 1..=7);
        let len_fits = if h.op == 5 { h.len as usize <= room } else { h.len == 0 };
        let flags_fit = match (h.op, h.kind) {
            (4, _) | (5, 2) => h.flags <= 3,
            _ => h.flags == 0,
        };
        match h.check(cid, room) {
            Err(Fault::Forged) => prop_assert!(!own),
            Err(Fault::Wrong) => prop_assert!(own && !(known && len_fits && flags_fit)),
            Ok((op, kind)) => {
                prop_assert!(own && known && len_fits && flags_fit);
                prop_assert_eq!((op as u16, kind as u16), (h.op, h.kind));
            }
        }
    }
}
