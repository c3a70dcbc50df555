use super::*;

#[test]
fn a_socket_has_one_lender_and_counts_on() {
    let mut t = NumberTable::new();
    assert_eq!(t.claim(7), Some(Some(0)));
    assert_eq!(t.claim(7), None);
    t.release(7, Some(u32::MAX), 10);
    assert_eq!(t.claim(7), Some(Some(u32::MAX)));
    t.release(7, None, 10);
    assert_eq!(t.claim(7), Some(None), "one that doesn't know enters nothing");
    assert_eq!(t.claim(8), Some(Some(0)));
    t.release(8, Some(0), 10);
    assert!(!t.sockets.contains_key(&8), "nothing was lent on it");
}

#[test]
fn what_was_forgotten_is_not_taken_for_new() {
    let mut t = NumberTable::new();
    for cookie in 1..=4 {
        t.claim(cookie);
    }
    for cookie in [1, 3] {
        t.release(cookie, Some(5), 2);
    }
    assert_eq!(t.sockets.keys().copied().collect::<Vec<_>>(), [2, 4], "those with a sender stay");
    assert_eq!((t.claim(1), t.claim(3), t.claim(5)), (Some(None), Some(None), Some(Some(0))));
    assert_eq!(t.claim(4), None);
    t.release(3, Some(0), 10);
    assert_eq!(t.claim(3), Some(Some(0)), "what is known of one that had been forgotten stays");
}
