use super::*;

#[test]
fn bytes_come_back_in_the_order_in_which_they_went_out() {
    let mut out = OutWindows::new(4);
    assert!(out.is_empty() && out.take(|_| true) == 0);
    for (window, bytes) in [(0, 10), (1, 20), (2, 30)] {
        out.push(window, bytes);
    }
    assert_eq!(out.take(|window| window == 1), 0, "the first one is still out");
    assert_eq!(out.take(|window| window <= 1), 30);
    assert!(!out.is_empty());
    assert_eq!(out.take(|_| true), 30);
    assert!(out.is_empty());
}

#[test]
fn a_window_that_is_filled_again_has_come_back() {
    let mut out = OutWindows::new(2);
    for (window, bytes) in [(0, 1), (1, 2), (0, 4), (1, 8), (0, 16)] {
        out.push(window, bytes);
    }
    assert_eq!(out.take(|_| false), 1 + 2 + 4);
    assert_eq!(out.take(|_| true), 8 + 16);
}

#[test]
fn the_window_to_wait_for_is_the_last_one_that_is_needed() {
    let mut out = OutWindows::new(4);
    for (window, bytes) in [(0, 10), (1, 20), (2, 30)] {
        out.push(window, bytes);
    }
    let none = |_: u32| false;
    assert_eq!([1, 10, 11, 30, 31, 99].map(|n| out.last_of(n, none)), [0, 0, 1, 1, 2, 2].map(Some));
    assert_eq!(out.last_of(31, |window| window == 2), Some(1));
    assert_eq!(out.last_of(99, |_| true), None);
}
