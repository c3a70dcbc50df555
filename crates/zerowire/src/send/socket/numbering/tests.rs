//! The kernel's numbers where they wrap around, and the ways from one state to another.

use super::*;

const LAST: u32 = u32::MAX;

/// Numbering that gave `next_id - 1` out last, and whose last `failed` lent calls failed.
fn numbering(next_id: u32, failed: u32) -> Numbering {
    let mut n = Numbering::known(next_id);
    n.failed = failed;
    n
}

/// As `numbering`, after a call of several packets that failed.
fn unknown(next_id: u32) -> Numbering {
    let mut n = numbering(next_id, 0);
    n.several_failed();
    n
}

#[test]
fn notifications_of_calls_that_were_taken_are_ours_on_both_sides_of_the_wrap() {
    for (lo, hi) in [(LAST - 1, LAST), (LAST - 1, 1), (0, 1), (1, 1)] {
        let mut n = numbering(2, 0);
        assert_eq!(n.ours(lo, hi).unwrap(), Some((lo, hi)));
        assert_eq!((n.next_id, n.knowledge), (2, Knowledge::Known));
    }
}

#[test]
fn numbers_that_failed_calls_used_up_are_left_out_across_the_wrap() {
    // One failed call that used the last number up.
    let mut n = numbering(LAST, 1);
    assert_eq!(n.ours(LAST, LAST).unwrap(), None);
    assert_eq!((n.next_id, n.failed), (0, 0));
    assert_eq!(n.take_id(), 0);
    // Two, whose notification was joined with the notification of two that were taken.
    let mut n = numbering(LAST, 2);
    assert_eq!(n.ours(LAST - 2, 0).unwrap(), Some((LAST - 2, LAST - 1)));
    assert_eq!((n.next_id, n.failed), (1, 0));
    // Of three one used a number up.
    let mut n = numbering(0, 3);
    assert_eq!(n.ours(LAST, 0).unwrap(), Some((LAST, LAST)));
    assert_eq!((n.next_id, n.failed), (1, 2));
}

#[test]
fn failed_calls_are_forgotten_when_the_queue_was_read() {
    let mut n = numbering(5, 0);
    n.one_failed();
    n.queue_was_read();
    assert_eq!(n.ours(5, 5), Err(ForeignNumbers));
}

/// The number is learned from one call alone. Ids go on as they were.
#[test]
fn an_unknown_number_is_learned_from_the_notification_of_one_call() {
    for number in [0, 5, LAST, LAST / 2] {
        let mut n = unknown(7);
        // What comes before it is somebody else's, or of a call that failed.
        assert_eq!(n.ours(7, 9).unwrap(), None);
        assert!(n.may_try() && !n.is_known());
        assert_eq!(n.take_id(), 7);
        assert_eq!((n.may_try(), n.next_number(), n.knowledge), (false, None, Knowledge::Trial(7)));
        assert_eq!(n.ours(number, number).unwrap(), Some((7, 7)));
        let next = number.wrapping_add(1);
        assert_eq!((n.knowledge, n.next_number()), (Knowledge::Known, Some(next)));
        assert_eq!(n.take_id(), 8);
        assert_eq!(n.ours(next, next).unwrap(), Some((8, 8)));
    }
}

/// A call of several packets failed: its number may be in use for a while. Those before it come
/// back meanwhile.
#[test]
fn while_the_numbers_are_unknown_those_before_come_back() {
    let mut n = unknown(3);
    assert_eq!(n.ours(1, 3).unwrap(), Some((1, 2)));
    assert_eq!(n.ours(3, 3).unwrap(), None);
    assert_eq!((n.next_id, n.knowledge), (3, Knowledge::Unknown));
}

#[test]
fn a_trial_ends_without_a_notification_when_nothing_is_out() {
    let mut n = unknown(0);
    n.take_id();
    n.end_trial();
    assert_eq!((n.knowledge, n.next_id), (Knowledge::Unknown, 1));
    // Its failure ends it, too.
    n.take_id();
    n.several_failed();
    assert!(n.may_try());
    // What is known stays so.
    let mut n = numbering(4, 0);
    n.end_trial();
    assert_eq!(n.next_number(), Some(4));
}

#[test]
fn nothing_leads_out_of_foreign() {
    let two_numbers = || {
        let mut n = unknown(0);
        n.take_id();
        (n, 3, 4)
    };
    for (mut n, lo, hi) in [(numbering(9, 1), 9, 10), two_numbers()] {
        assert_eq!(n.ours(lo, hi), Err(ForeignNumbers));
        for step in [Numbering::several_failed, Numbering::end_trial, Numbering::queue_was_read] {
            step(&mut n);
            assert_eq!(n.knowledge, Knowledge::Foreign);
        }
        assert_eq!(n.ours(lo, lo), Ok(None), "nothing is believed any more");
        assert_eq!((n.may_try(), n.is_known(), n.next_number()), (false, false, None));
    }
}

#[test]
fn a_socket_whose_numbers_tell_nothing_is_never_on_trial() {
    let mut n = Numbering::unknown();
    n.ignore_numbers();
    assert_eq!((n.take_id(), n.take_id()), (0, 1));
    assert!(n.is_known());
}
