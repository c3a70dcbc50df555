use super::*;

#[test]
fn every_byte_is_in_the_sum_once() {
    let c = Counters::default();
    c.frames.add(2);
    c.zero_copied_bytes.add(1000);
    c.copied(CopyReason::Small, 64);
    c.copied(CopyReason::Header, 66);
    c.dropped(DropReason::TooLong);
    let mut t = c.snapshot();
    assert_eq!(t.bytes, 1130);
    assert_eq!(c.delivered(), (2, 1130));
    assert_eq!(t.copied_total(), 130);
    assert_eq!(t.dropped_frames["too_long"], 1);
    t.add(&c.snapshot());
    assert_eq!((t.frames, t.bytes, t.dropped_total()), (4, 2260, 2));
}

#[test]
fn names_are_distinct() {
    let names: std::collections::BTreeSet<_> =
        CopyReason::ALL.iter().map(|r| r.name()).chain(DropReason::ALL.iter().map(|r| r.name())).collect();
    assert_eq!(names.len(), COPY_REASONS + DROP_REASONS);
}
