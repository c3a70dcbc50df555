use super::*;

#[test]
fn the_sum_does_not_depend_on_the_cuts() {
    let bytes: Vec<u8> = (0..1000).map(pattern).collect();
    let mut whole = StreamSum::default();
    whole.update(&bytes);
    for cut in [1, 3, 7, 8, 9, 64, 999] {
        let mut sum = StreamSum::default();
        bytes.chunks(cut).for_each(|part| sum.update(part));
        assert_eq!(sum, whole, "cut {cut}");
    }
    let mut swapped = bytes;
    swapped.swap(10, 500);
    let mut other = StreamSum::default();
    other.update(&swapped);
    assert_ne!(other, whole);
}

#[test]
fn segments_cover_the_stream_around_the_end() {
    let memory = GuestMemory::new(&[(crate::GuestAddr(0), 1 << 20)]).unwrap();
    let pool = PayloadPool::new(&memory, 10_000, Some(4096)).unwrap();
    let segments: Vec<BufferPiece> = pool.pieces(19_000, 6000).collect();
    let mut bytes = Vec::new();
    for segment in &segments {
        memory.at(segment.addr, segment.len as usize).unwrap().append_to(0, segment.len as usize, &mut bytes);
    }
    let expected: Vec<u8> = (19_000..25_000).map(|at| pattern(at % 10_000)).collect();
    assert_eq!(bytes, expected);
    assert_eq!(segments.iter().map(|s| s.len).collect::<Vec<_>>(), [1000, 4096, 904]);
}
