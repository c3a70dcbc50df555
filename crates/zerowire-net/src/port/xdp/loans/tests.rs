use super::*;

#[test]
fn a_chain_comes_back_with_its_last_piece_in_any_order() {
    let mut l = Loans::new();
    let mut numbers = Vec::new();
    for (head, pieces) in [(7, 1), (8, 3), (9, 2)] {
        numbers.push(l.next().unwrap_or(u16::MAX));
        l.lend(Lent::Chain(head), pieces);
    }
    assert_eq!((l.chains, &numbers[..]), (3, &[0, 1, 2][..]));
    assert_eq!([l.back(1), l.back(2), l.back(1), l.back(0)], [None, None, None, Some(7)]);
    assert_eq!([l.back(2), l.back(1)], [Some(9), Some(8)]);
    assert!(l.is_empty());
    // Once more, or never lent: ignored.
    assert_eq!([l.back(1), l.back(0), l.back(400), l.back(MAX_COOKIE)], [None; 4]);
}

#[test]
fn a_chain_that_is_held_comes_back_with_its_last_part() {
    for last_first in [false, true] {
        let mut l = Loans::new();
        let holder = l.next().unwrap_or_default();
        l.hold(9);
        assert!(l.is_empty() && l.chains == 1, "nothing is in the kernel's hands");
        let mut parts = Vec::new();
        for pieces in [1, 2] {
            parts.push(l.next().unwrap_or_default());
            l.lend(Lent::Part(holder), pieces);
        }
        assert_eq!([l.back(parts[0]), l.back(parts[1])], [None; 2]);
        assert!(!l.is_empty());
        let end = |l: &mut Loans, first: bool| if first { l.back(parts[1]) } else { l.let_go(holder) };
        assert_eq!(end(&mut l, last_first), None);
        assert_eq!(end(&mut l, !last_first), Some(9));
        assert_eq!((l.is_empty(), l.chains, l.let_go(holder)), (true, 0, None));
    }
    // Without any part, and with a socket that goes.
    let mut l = Loans::new();
    l.hold(3);
    assert_eq!(l.let_go(0), Some(3));
    l.hold(4);
    l.lend(Lent::Part(1), 1);
    l.lend(Lent::Head, 1);
    let mut ended = Vec::new();
    l.end(|head| ended.push(head));
    assert_eq!((ended, l.let_go(1), l.is_empty(), l.chains), (vec![4], None, true, 0));
}

#[test]
fn a_chain_that_was_copied_is_back_and_its_number_is_not() {
    let mut l = Loans::new();
    l.lend(Lent::Chain(7), 2);
    let holder = l.next().unwrap_or_default();
    l.hold(8);
    let parts = [1, 2].map(|pieces| {
        let number = l.next().unwrap_or_default();
        l.lend(Lent::Part(holder), pieces);
        number
    });
    let place = l.place().unwrap_or_default();
    let number = l.next().unwrap_or_default();
    l.lend(Lent::Place(place), 1);
    assert_eq!([l.copied(0), l.copied(0), l.copied(99)], [Some(7), None, None]);
    assert_eq!([l.copied(parts[0]), l.back(parts[0])], [None; 2]);
    assert_eq!((l.let_go(holder), l.copied(parts[1])), (None, Some(8)));
    assert_eq!((l.copied(number), l.chains, l.is_empty()), (None, 0, false));
    let places = l.places.len();
    assert_eq!([l.back(0), l.back(0), l.back(parts[1]), l.back(parts[1]), l.back(number)], [None; 5]);
    assert_eq!((l.places.len(), l.is_empty()), (places + 1, true));
    // Nothing of the guest's ends with the socket.
    l.lend(Lent::Chain(9), 1);
    assert_eq!(l.copied(l.next.wrapping_sub(1)), Some(9));
    l.end(|head| panic!("{head} was given back before"));
}

#[test]
fn places_are_free_again_and_bounded() {
    let mut l = Loans::new();
    for i in 0..SEND_PLACES {
        let place = l.place();
        assert!(place.is_some(), "{i}");
        l.lend(Lent::Place(place.unwrap_or_default()), 1);
    }
    assert_eq!((l.place(), l.chains, l.is_empty()), (None, 0, false));
    assert_eq!(l.back(5), None);
    assert!(l.place().is_some() && l.place().is_none());
}

#[test]
fn one_that_never_comes_back_is_passed_over() {
    let mut l = Loans::new();
    l.lend(Lent::Chain(u16::MAX), 1);
    for i in 0..3 * LOANS as u16 {
        let number = l.next().unwrap_or(u16::MAX);
        assert_ne!(usize::from(number) % LOANS, 0, "{i}");
        l.lend(Lent::Chain(i), 1);
        assert_eq!(l.back(number), Some(i));
    }
    assert_eq!((l.chains, l.back(0)), (1, Some(u16::MAX)));
}

#[test]
fn numbers_wrap_and_never_name_two_loans() {
    let mut l = Loans::new();
    for i in 0..3 * u32::from(MAX_COOKIE) {
        let number = l.next().unwrap_or(u16::MAX);
        assert!(number <= MAX_COOKIE);
        l.lend(Lent::Chain(i as u16), 1);
        assert_eq!(l.back(number), Some(i as u16));
    }
    for _ in 0..LOANS {
        assert!(l.next().is_some());
        l.lend(Lent::Chain(1), 1);
    }
    assert_eq!(l.next(), None);
    let mut ended = 0;
    l.end(|head| ended += usize::from(head == 1));
    assert_eq!((ended, l.is_empty(), l.next().is_some()), (LOANS, true, true));
}
