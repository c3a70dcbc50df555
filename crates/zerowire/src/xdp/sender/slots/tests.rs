use super::*;

#[test]
fn a_place_is_free_when_all_pieces_are_back() {
    let mut slots = XdpSlots::new(2);
    assert_eq!(slots.next(), Some(0));
    slots.lend(7, 5000, 3);
    assert_eq!(slots.next(), Some(1));
    slots.lend(8, 60, 1);
    assert_eq!(slots.next(), None);
    assert_eq!(slots.oldest(), Some((7, 5000)));
    assert_eq!((slots.piece_back(0), slots.piece_back(0)), (None, None));
    assert_eq!(slots.piece_back(0), Some(5000));
    assert_eq!(slots.next(), Some(0));
    assert_eq!(slots.oldest(), Some((8, 60)));
}

#[test]
fn the_next_place_stays_that_whatever_comes_back() {
    let mut slots = XdpSlots::new(3);
    assert_eq!(slots.next(), Some(0));
    slots.lend(0, 60, 1);
    assert_eq!(slots.next(), Some(1));
    assert_eq!(slots.piece_back(0), Some(60));
    assert_eq!(slots.next(), Some(1));
    slots.lend(1, 60, 1);
    assert_eq!(slots.next(), Some(0), "the one that came back last");
}

#[test]
fn a_piece_that_was_not_lent_changes_nothing() {
    let mut slots = XdpSlots::new(1);
    assert_eq!((slots.piece_back(0), slots.piece_back(9)), (None, None));
    assert_eq!((slots.next(), slots.is_out(0)), (Some(0), false));
    slots.lend(0, 60, 1);
    assert!(slots.is_out(0) && !slots.is_out(9));
    assert_eq!(slots.piece_back(0), Some(60));
    assert_eq!((slots.piece_back(0), slots.is_out(0)), (None, false));
    assert_eq!(slots.free, [0]);
}
