use super::*;
use zerowire::send::Segment;

fn payload(pieces: &[&'static [u8]]) -> Payload {
    pieces.iter().map(|p| Segment::Static(p)).collect()
}

fn pieces(checks: &Checks, ticket: u32) -> Vec<LentRange> {
    lock(&checks.0).remove(&ticket).unwrap()
}

#[test]
fn a_change_is_found_where_it_is() {
    let mut whole: Payload =
        [Segment::Static(b"head"), Segment::Static(b""), Segment::Vec(vec![7; 3 * BLOCK + 100])]
            .into_iter()
            .collect();
    for (place, block, len) in
        [(0, 0, BLOCK), (BLOCK - 1, 0, BLOCK), (2 * BLOCK + 9, 2, BLOCK), (3 * BLOCK + 99, 3, 100)]
    {
        let checks = Checks::default();
        checks.lend(1, &whole);
        // The bytes stay where they are.
        let mut segments = whole.into_segments();
        let Some(Segment::Vec(bytes)) = segments.last_mut() else { panic!("{segments:?}") };
        bytes[place] ^= 1;
        whole = segments.into_iter().collect();
        assert_eq!(changed(&pieces(&checks, 1), &whole), Some((4 + block * BLOCK, len)));
    }
    let checks = Checks::default();
    checks.lend(2, &whole);
    assert_eq!(changed(&pieces(&checks, 2), &whole), None);
}

#[test]
fn what_was_gathered_is_not_compared() {
    let checks = Checks::default();
    checks.lend(1, &payload(&[b"ab", b"cd"]));
    checks.back(1, &Payload::from(b"other".to_vec()));
    checks.lend(2, &payload(&[b"ab"]));
    checks.back(2, &Payload::from(b"xy".to_vec()));
    assert!(lock(&checks.0).is_empty());
}
