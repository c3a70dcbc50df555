use super::*;

#[test]
fn datagrams_follow_the_path_unless_their_length_is_asked_for() {
    for (asked, longest, is_unix, bytes, together, segmented) in [
        (None, Some(1472), false, 1400, 46, true),
        (None, Some(1392), false, 1392, 47, true),
        (None, Some(65_508), false, 1400, 46, true),
        (None, None, false, 1400, 46, true),
        (None, None, true, 1400, 1, false),
        (Some(1472), Some(1472), false, 1472, 44, true),
        (Some(1473), Some(1472), false, 1473, 44, false),
        (Some(1400), Some(1392), false, 1400, 46, false),
        (Some(32_753), Some(1472), false, 32_753, 2, false),
        (Some(32_754), Some(1472), false, 32_754, 1, false),
        (Some(65_507), Some(1472), false, 65_507, 1, false),
        (Some(1), Some(1472), false, 1, 64, true),
    ] {
        let d = Datagrams::of(asked, longest, is_unix);
        let case = format!("{asked:?} {longest:?}: {d}");
        assert_eq!((d.bytes, d.together, d.segmented), (bytes, together, segmented), "{case}");
        assert_eq!(d.segment().map(|n| usize::from(n.get())), segmented.then_some(bytes), "{case}");
        assert_eq!(d.unsegmented_because.is_some(), d.cut_here(), "{case}");
        assert_eq!(d.cut_here(), together > 1 && !segmented, "{case}");
    }
}

#[test]
fn only_errors_of_segments_end_segments() {
    let mut d = Datagrams::of(None, Some(1472), false);
    assert!(!d.give_up_segments(&SendError::NoListener) && d.segmented);
    let e = SendError::SegmentTooLong { segment_bytes: 1400, longest: Some(1252) };
    assert!(d.give_up_segments(&e) && d.cut_here());
    assert!(d.to_string().contains("not segmented") && d.to_string().contains("1252 bytes"), "{d}");
    assert!(!d.give_up_segments(&e), "once");
}
