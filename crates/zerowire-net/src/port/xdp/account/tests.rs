use zerowire::ledger::Totals;

use super::*;

fn totals(a: &mut Account) -> (u64, u64, u64, u64) {
    let t = all(a);
    (t.frames, t.zero_copied_frames, t.zero_copied_bytes, t.dropped_total())
}

fn all(a: &mut Account) -> Totals {
    let c = Counters::default();
    a.settle(&c);
    c.snapshot()
}

#[test]
fn a_frame_is_counted_once_and_when_its_last_piece_was_taken() {
    let mut a = Account::new();
    a.queue(0, Frame::lent(1, 12, 100));
    a.queue(0, Frame::lent(3, 12, 1000));
    a.queue(0, Frame::copied(CopyReason::Held, 70, 0));
    a.taken(5, false, |_| {});
    assert_eq!(totals(&mut a), (0, 0, 0, 0));
    a.taken(3, false, |_| {});
    assert_eq!(totals(&mut a), (1, 1, 100, 0), "a frame of which a piece was taken is still there");
    a.taken(0, false, |_| {});
    assert_eq!(totals(&mut a), (2, 1, 1000, 0));
    a.taken(0, true, |_| {});
    assert_eq!(totals(&mut a), (0, 0, 0, 0), "nothing was taken that could have been refused");
}

#[test]
fn a_refused_frame_is_the_last_one_and_not_sent() {
    let mut a = Account::new();
    for _ in 0..4 {
        a.queue(0, Frame::lent(2, 12, 50));
    }
    a.taken(4, true, |_| {});
    assert_eq!(totals(&mut a), (1, 1, 50, 1));
    a.lost();
    assert_eq!(totals(&mut a), (0, 0, 0, 2), "what is left when the socket closes was not sent");
    a.queue(0, Frame::lent(1, 12, 7));
    a.taken(0, false, |_| {});
    assert_eq!(totals(&mut a), (1, 1, 7, 0));
}

#[test]
fn what_was_copied_is_counted_with_its_frame() {
    let mut a = Account::new();
    a.queue(0, Frame::copied(CopyReason::Cheaper, 100, 12));
    a.queue(0, Frame::lent(2, 154, 500));
    a.queue(0, Frame::copied(CopyReason::Small, 60, 0));
    a.queue(0, Frame::copied(CopyReason::Cheaper, 1000, 0));
    assert_eq!(all(&mut a).bytes, 0, "nothing was taken yet");
    a.taken(1, false, |_| {});
    let copied: Vec<_> = all(&mut a).copied_bytes.into_iter().collect();
    assert_eq!(copied, [("cheaper", 100), ("header", 166), ("small", 60)]);
    a.taken(0, true, |_| {});
    a.queue(0, Frame::copied(CopyReason::Small, 60, 0));
    a.lost();
    let totals = all(&mut a);
    assert_eq!((totals.bytes, totals.dropped_total()), (0, 2), "refused or lost");
}
