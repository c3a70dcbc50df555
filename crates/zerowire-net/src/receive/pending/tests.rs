use super::*;

fn push(pending: &mut Pending<HeldFrame>, frame: &[u8]) -> bool {
    pending.push(frame.len(), || HeldFrame { bytes: frame.to_vec(), reason: CopyReason::Rebuilt })
}

#[test]
fn what_waits_is_bounded_in_frames_and_bytes() {
    for (len, most) in [(67, MAX_FRAMES), (SCRATCH_BYTES, READ_BATCH), (SCRATCH_BYTES - 1, READ_BATCH)] {
        let mut pending = Pending::default();
        let frame = vec![1; len];
        let taken = (0..2 * MAX_FRAMES).filter(|_| push(&mut pending, &frame)).count();
        assert_eq!((taken, pending.len()), (most, most), "frames of {len} bytes");
        // Room comes back with each that goes, and one that is put back takes it again.
        let first = pending.pop().expect("a frame");
        assert_eq!((first.bytes.len(), first.reason), (len, CopyReason::Rebuilt));
        pending.put_back(first);
        assert!(!push(&mut pending, &frame));
        assert!(pending.pop().is_some() && push(&mut pending, &frame) && !push(&mut pending, &frame));
        while pending.pop().is_some() {}
        assert_eq!((pending.bytes, pending.is_empty()), (0, true));
    }
    let mut pending = Pending::default();
    assert!(push(&mut pending, &[1; 100]));
    pending.trim();
    assert_eq!(pending.len(), 1, "a frame that waits stays");
    assert!(push(&mut pending, &[2; 10]));
    assert_eq!(pending.remove(|frame| frame.bytes.len() == 100), 1);
    assert_eq!((pending.len(), pending.bytes), (1, 10));
    assert_eq!(pending.remove(|_| true), 1);
    assert_eq!((pending.len(), pending.bytes), (0, 0));
}
