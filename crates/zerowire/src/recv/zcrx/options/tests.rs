use super::*;

/// Calls beside the one a turn, and how often the area was empty, of a sender that has `batch`
/// buffers of data for each turn. Leases are dropped at once.
fn run(flush: Flush, buffers: u32, batch: u32) -> (u32, u32) {
    let (mut free, mut untaken, mut came) = (buffers, 0, 0);
    let (mut calls, mut empty, mut left) = (0, 0, 0);
    for _ in 0..1000 {
        if left > 0 || (untaken > 0 && flush.is_due(buffers, untaken, Some(free), came)) {
            calls += 1;
            (free, untaken) = (free + untaken, 0);
        }
        // What a receive left that found no buffer is received by another turn.
        let wanted = if left > 0 { left } else { batch };
        came = wanted.min(free);
        left = wanted - came;
        calls += u32::from(left > 0);
        empty += u32::from(left > 0);
        (free, untaken) = (free - came, untaken + came);
    }
    (calls, empty)
}

#[test]
fn late_never_costs_more_calls_than_early() {
    for buffers in [4, 64, 256] {
        for batch in 1..=buffers {
            let (eager, lazy) = (run(Flush::Eager, buffers, batch), run(Flush::Lazy, buffers, batch));
            assert!(lazy.0 <= eager.0, "{buffers} buffers, {batch} a turn: {lazy:?}, early {eager:?}");
            assert_eq!(lazy.1, 0, "{buffers} buffers, {batch} a turn: the area was empty");
        }
    }
    // One at a time: once for the whole area, not for half of it.
    assert_eq!((run(Flush::Eager, 64, 1).0, run(Flush::Lazy, 64, 1).0), (31, 15));
}

#[test]
fn what_others_have_is_not_known() {
    assert!(!Flush::Lazy.is_due(64, 63, None, 64));
    assert!(Flush::Eager.is_due(64, 32, None, 64) && !Flush::Eager.is_due(64, 31, None, 64));
}
