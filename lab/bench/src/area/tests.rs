use super::*;

#[test]
fn slots_fill_the_working_set_and_wrap() {
    let slots = Slots::new(256 * 1024, 76);
    assert_eq!(slots.offset(1), 2048);
    assert_eq!(slots.offset(128), 128);
    assert_eq!(slots.places(), 128 * 16);
    assert_eq!(slots.offset(slots.places()), 0);
    let large = Slots::new(256 * 1024, 60_012);
    assert_eq!(large.offset(1) % 4096, 0);
    assert_eq!(large.places(), 4);
    assert!(large.total() <= 256 * 1024);
    assert_eq!(Slots::new(10, 60_012).places(), 1);
}

#[test]
fn receive_buffers_lie_as_linux_cuts_them() {
    let slots = Slots::received(256 * 1024, RECEIVE_BUFFER);
    assert_eq!((slots.places(), slots.total()), (8 * 21, 256 * 1024));
    assert_eq!([0, 1, 20, 21, 22].map(|i| slots.offset(i)), [0, 1536, 30_720, 32_768, 34_304]);
    assert_eq!(Slots::received(100, RECEIVE_BUFFER).places(), 1, "there is always one");
    assert_eq!(Slots::received(256 * 1024, 4096), Slots::new(256 * 1024, 4096));
}

#[test]
fn places_never_overlap_and_stay_inside() {
    let lens = [1, 64, 76, 1512, 1536, 2048, 2049, 9012, 60_012];
    let both =
        |len| [Slots::new(256 * 1024, len), Slots::received(256 * 1024, len)].map(|slots| (len, slots));
    for (len, slots) in lens.into_iter().flat_map(both) {
        let mut starts: Vec<usize> = (0..slots.places()).map(|i| slots.offset(i)).collect();
        starts.sort_unstable();
        assert!(starts.windows(2).all(|pair| pair[0] + len <= pair[1]));
        assert!(starts.last().unwrap() + len <= slots.total());
    }
}

#[test]
fn an_area_keeps_what_is_written() {
    let mut area = Area::new(10_000).unwrap();
    area.bytes_mut()[9_999] = 7;
    assert_eq!(area.bytes()[9_999], 7);
    assert_eq!(area.bytes().len(), 10_000);
}
