use super::*;

#[test]
fn runs_follow_each_other_and_end_with_the_segments() {
    let segments: Vec<_> = [(0x1000, 3), (0x2000, 1), (0x3000, 5)]
        .map(|(at, len)| Segment { ptr: std::ptr::without_provenance_mut::<u8>(at).into(), len, region: 7 })
        .into();
    let mut cursor = Cursor::at(&segments, 1);
    let mut next = |len| {
        let mut runs = Vec::new();
        cursor.take(&segments, len, |s| runs.push((s.ptr.addr(), s.len, s.region)));
        runs
    };
    assert_eq!(next(0), []);
    assert_eq!(next(2), [(0x1001, 2, 7)]);
    assert_eq!(next(3), [(0x2000, 1, 7), (0x3000, 2, 7)]);
    assert_eq!(next(100), [(0x3002, 3, 7)]);
    assert_eq!(next(1), []);
    assert_eq!(Cursor::at(&segments, 1000), cursor);
}

#[test]
fn bytes_are_read_one_behind_the_other() {
    let bytes: Vec<u8> = (0..200).collect();
    let segments = crate::offload::testing::segments_of(&bytes, 7);
    let mut cursor = Cursor::at(&segments, 5);
    let mut to = [0; 90];
    cursor.read(&segments, &mut to);
    assert_eq!(to[..], bytes[5..95]);
    cursor.read(&segments, &mut to);
    assert_eq!(to[..], bytes[95..185]);
    cursor.read(&segments, &mut to);
    assert_eq!((&to[..15], to[15]), (&bytes[185..], 110), "no more than there is");
}
