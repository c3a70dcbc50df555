use super::*;
use proptest::prelude::*;

#[test]
fn short_frames_share_a_chunk_and_long_ones_begin_one() {
    let mut r = Residents::new(8192, 5 * 2048, 2048);
    let starts: Vec<_> = [60, 1500, 1500, 3000, 60].map(|n| r.add(n).expect("room").address - 8192).to_vec();
    assert_eq!(starts, [0, 64, 2048, 4096, 4096 + 3008]);
    assert_eq!(r.add(3000), None);
    assert_eq!(r.last_piece(8192 + 4096), None, "not the last one");
    assert_eq!(r.last_piece(8192 + 6144), Some(3000));
    assert_eq!(r.last_piece(0), None);
    assert_eq!(Residents::needed(2048, [60, 1500, 1500, 3000, 60]), Some(4 * 2048));
    let first = Resident { address: 8192, len: 60 };
    assert!(r.has(&first) && !r.has(&Resident { len: 61, ..first }));
    r.clear();
    assert!(!r.has(&first));
}

#[test]
fn no_room_at_all() {
    let mut r = Residents::new(0, 0, 2048);
    assert_eq!(r.add(60), None);
    assert_eq!(Residents::new(0, 2048, 2048).add(0), None);
    assert_eq!(Residents::needed(2048, [usize::MAX, 1]), None);
}

proptest! {
    #[test]
    fn frames_never_overlap(lens in prop::collection::vec(1usize..7000, 1..60)) {
        let need = Residents::needed(2048, lens.iter().copied()).expect("a sum");
        let mut r = Residents::new(4096, need, 2048);
        let mut end = 4096;
        for len in lens {
            let frame = r.add(len).expect("as much as was said to be needed");
            prop_assert!(frame.address >= end);
            end = frame.address + len as u64;
            prop_assert!(frame.address.is_multiple_of(2048) || frame.address % 2048 + len as u64 <= 2048);
            prop_assert!(r.has(&frame));
            let last = (len - 1) / 2048;
            for piece in 0..=last {
                let told = r.last_piece(frame.address + piece as u64 * 2048);
                prop_assert_eq!(told, (piece == last).then_some(len as u32));
            }
        }
        prop_assert!(end <= 4096 + need as u64);
    }
}
