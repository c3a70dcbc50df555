use super::*;

#[test]
fn frames_go_round_from_free_to_free() {
    let mut order = SlotOrder::new(3);
    for round in 0..2 {
        for n in 0..3 {
            assert_eq!((order.head(), order.next_number()), (n, (3 * round + n) as u64));
            assert!(!order.is_full() && !order.in_use(n));
            order.push();
            assert!(order.in_use(n));
        }
        assert!(order.is_full() && !order.is_oldest_handed_over());
        for n in 0..3 {
            assert_eq!((order.first_unsent(), order.unsent()), (n, 3 - n));
            order.hand_over();
        }
        for n in 0..3 {
            assert_eq!((order.oldest(), order.is_oldest_handed_over()), (n, true));
            order.collect();
        }
        assert_eq!((order.used(), order.unsent()), (0, 0));
    }
}

#[test]
fn what_was_not_handed_over_can_be_taken_back() {
    let mut order = SlotOrder::new(3);
    (0..2).for_each(|_| order.push());
    order.hand_over();
    order.push();
    let slots: Vec<_> = order.unsent_positions().map(|p| order.slot_at(p)).collect();
    assert_eq!(slots, [1, 2]);
    order.take_back_last();
    assert_eq!((order.head(), order.unsent(), order.used()), (2, 1, 2));
    order.take_back_unsent();
    assert_eq!((order.head(), order.unsent(), order.used()), (1, 0, 1));
    assert_eq!(order.next_number(), 3, "numbers only grow");
}
