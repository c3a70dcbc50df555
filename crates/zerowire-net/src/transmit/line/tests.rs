use super::*;

fn give(line: &mut Line, late: Late) -> (Vec<u16>, u64) {
    let mut given = Vec::new();
    let passed = line.give(|| late, |head| given.push(head));
    (given, passed)
}

fn pass(now: Instant) -> Late {
    Late::Pass { now, most: 4 }
}

#[test]
fn what_comes_back_in_order_goes_back_at_once() {
    let mut l = Line::default();
    (0..3).for_each(|head| l.lent(head));
    assert_eq!([0, 1, 2].map(|head| l.back(head)), [true; 3]);
    assert!(l.is_empty() && l.due().is_none());
    assert_eq!(give(&mut l, Late::PassAll), (vec![], 0));
}

#[test]
fn what_is_done_waits_for_those_before_it() {
    let (mut l, now) = (Line::default(), Instant::now());
    l.lent(7);
    l.done(8, now);
    l.lent(9);
    l.done(10, now);
    assert!(!l.back(9));
    assert_eq!(give(&mut l, Late::Wait), (vec![], 0));
    assert_eq!(give(&mut l, pass(now)), (vec![], 0));
    assert_eq!(l.due(), Some(now + HOLD));
    assert!(l.back(7));
    assert_eq!(give(&mut l, Late::Wait), (vec![8, 9, 10], 0));
    assert!(l.is_empty() && !l.is_broken() && l.due().is_none());
}

#[test]
fn what_has_waited_long_enough_passes_and_the_order_comes_back_with_the_last_that_was_passed() {
    let (mut l, start) = (Line::default(), Instant::now());
    l.lent(1);
    l.lent(2);
    l.done(3, start);
    l.lent(4);
    assert_eq!(give(&mut l, pass(start + HOLD - Duration::from_nanos(1))), (vec![], 0));
    assert_eq!(give(&mut l, pass(start + HOLD)), (vec![3], 1));
    assert!(l.is_broken() && l.due().is_none());
    assert_eq!(l.taken.len(), 3);
    // There is nothing left to be kept.
    l.done(5, start);
    assert_eq!(give(&mut l, pass(start)), (vec![5], 1));
    assert!(!l.back(4));
    assert_eq!(give(&mut l, pass(start)), (vec![4], 1));
    assert!(l.back(1) && l.is_broken());
    assert!(l.back(2) && !l.is_broken() && l.is_empty());
    l.lent(6);
    l.done(7, start);
    assert_eq!(give(&mut l, pass(start)), (vec![], 0), "as if nothing had been");
}

#[test]
fn chains_behind_those_that_were_passed_keep_their_order() {
    let (mut l, start) = (Line::default(), Instant::now());
    l.lent(1);
    l.done(2, start);
    assert_eq!(give(&mut l, Late::PassAll), (vec![2], 1));
    // Taken later, and not passed by anything.
    l.lent(3);
    assert!(l.back(1) && !l.is_broken());
    l.done(4, start);
    assert_eq!(give(&mut l, pass(start)), (vec![], 0));
}

#[test]
fn no_more_than_so_many_wait() {
    let (mut l, now) = (Line::default(), Instant::now());
    l.lent(0);
    for head in 1..4 {
        l.done(head, now);
        assert_eq!(give(&mut l, pass(now)), (vec![], 0), "{head}");
    }
    l.done(4, now);
    assert_eq!(give(&mut l, pass(now)), (vec![1, 2, 3, 4], 4));
}

/// Each waits for `HOLD` at most, whoever went on waiting before.
#[test]
fn the_time_is_that_of_each_chain() {
    let (mut l, start) = (Line::default(), Instant::now());
    l.lent(0);
    l.done(1, start);
    l.lent(2);
    let later = start + HOLD / 2;
    l.done(3, later);
    assert!(l.back(0));
    assert_eq!(give(&mut l, pass(later)), (vec![1], 0));
    assert_eq!(give(&mut l, pass(start + HOLD)), (vec![], 0), "3 came later");
    assert_eq!(l.due(), Some(later + HOLD));
    assert_eq!(give(&mut l, pass(later + HOLD)), (vec![3], 1));
}

#[test]
fn a_head_that_is_there_twice_comes_back_twice() {
    let (mut l, now) = (Line::default(), Instant::now());
    l.lent(5);
    l.lent(5);
    l.done(5, now);
    assert!(l.back(5) && l.back(5));
    assert_eq!(give(&mut l, Late::Wait), (vec![5], 0));
    assert!(l.is_empty());
    l.lent(1);
    l.clear();
    assert!(l.is_empty() && !l.is_broken());
}
