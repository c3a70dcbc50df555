use super::*;

fn addresses(
    p: &Payload,
    from: usize,
    max_bytes: usize,
    max_segments: usize,
) -> (usize, Vec<(usize, usize)>) {
    let mut out = Vec::new();
    let n = p.iovecs(from, max_bytes, max_segments, &mut out);
    (n, out.iter().map(|v| (v.iov_base as usize, v.iov_len)).collect())
}

#[test]
fn pieces_are_cut_where_asked() {
    static A: &[u8] = b"0123";
    static B: &[u8] = b"456789";
    let p: Payload = [Segment::Static(A), Segment::Static(b""), Segment::Static(B)].into_iter().collect();
    let (a, b) = (A.as_ptr() as usize, B.as_ptr() as usize);
    assert_eq!((p.len(), p.gather(3).unwrap().as_slice()), (10, &b"3456789"[..]));
    assert_eq!(addresses(&p, 0, usize::MAX, 9), (10, vec![(a, 4), (b, 6)]));
    assert_eq!(addresses(&p, 3, 4, 9), (4, vec![(a + 3, 1), (b, 3)]));
    assert_eq!(addresses(&p, 5, usize::MAX, 9), (5, vec![(b + 1, 5)]));
    assert_eq!(addresses(&p, 0, usize::MAX, 1), (4, vec![(a, 4)]));
    assert_eq!(addresses(&p, 10, usize::MAX, 9), (0, vec![]));
}

#[test]
fn splitting_keeps_every_byte_in_order_where_it_lies() {
    use crate::area::{Area, AreaOptions, MappedFile, Pages};
    use std::io::Write;
    let area = Area::new(AreaOptions { buffer_bytes: 8, buffers: 2, pages: Pages::Normal }).unwrap();
    let lease = |from: u8| {
        let mut lease = area.lease().unwrap();
        lease.iter_mut().zip(from..).for_each(|(to, n)| *to = n);
        lease
    };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&[0, 19, 20, 21, 22, 0]).unwrap();
    let file = MappedFile::open(file.path()).unwrap().slice(1..5).unwrap();
    let (first, frozen) = (lease(0), lease(7).freeze());
    let (at, at_frozen) = (first.as_ptr() as usize, frozen.as_ptr() as usize);
    let payload: Payload = [
        Segment::Lease(first),
        Segment::Frozen(frozen, 1..20),
        Segment::Vec(vec![15, 16]),
        Segment::Static(b""),
        Segment::Shared(Arc::from([17u8])),
        Segment::Bytes(Bytes::from_static(&[18])),
        Segment::File(file),
        Segment::Static(&[23]),
    ]
    .into_iter()
    .collect();
    let parts = payload.split(5);
    assert_eq!(parts.iter().map(Payload::len).collect::<Vec<_>>(), [5, 5, 5, 5, 4]);
    let all: Vec<u8> = parts.iter().flat_map(|p| p.gather(0).unwrap()).collect();
    assert_eq!(all, (0..24).collect::<Vec<u8>>());
    assert_eq!(addresses(&parts[1], 0, 9, 9), (5, vec![(at + 5, 3), (at_frozen + 1, 2)]), "not copied");
    assert_eq!(area.free(), 0, "the parts keep them");
    drop(parts);
    assert_eq!(area.free(), 2);

    for bytes in [0, 4, 5] {
        assert_eq!(Payload::from(vec![1, 2, 3, 4]).split(bytes).len(), 1, "{bytes}");
    }
    assert_eq!(Payload::from(vec![0; 8]).split(4).len(), 2);
}

#[test]
fn a_frozen_range_is_cut_to_the_buffer() {
    use crate::area::{Area, AreaOptions, Pages};
    let area = Area::new(AreaOptions { buffer_bytes: 8, buffers: 1, pages: Pages::Normal }).unwrap();
    let f = area.lease().unwrap().freeze();
    assert_eq!(Segment::Frozen(f.clone(), 6..20).len(), 2);
    assert_eq!(Segment::Frozen(f.clone(), 20..30).len(), 0);
    assert_eq!(Payload::from(f).len(), 8);
}
