use super::*;

#[test]
fn slots_come_out_in_the_order_in_which_they_went_in() {
    let mut list = SlotList::default();
    assert_eq!(list.pop(), None);
    for slot in [3, 0, 7] {
        list.push(slot);
    }
    list.push_front(9);
    assert_eq!(list.iter().collect::<Vec<_>>(), [9, 3, 0, 7]);
    assert_eq!([(); 5].map(|()| list.pop()), [Some(9), Some(3), Some(0), Some(7), None]);
}

#[test]
fn a_slot_is_in_a_list_once() {
    let mut list = SlotList::default();
    for slot in [1, 2, 1, 1, 2] {
        list.push(slot);
        list.push_front(slot);
    }
    assert_eq!((list.len(), list.contains(1), list.contains(0)), (2, true, false));
    assert_eq!(list.pop(), Some(1));
    assert!(!list.contains(1));
    list.push(1);
    assert_eq!(list.iter().collect::<Vec<_>>(), [2, 1]);
    list.clear();
    assert!(list.is_empty() && !list.contains(2));
    list.push(2);
    assert_eq!(list.len(), 1);
}

/// Against a list that looks for each slot.
#[test]
fn lists_and_their_marks_agree() {
    let (mut list, mut model, mut x) = (SlotList::default(), VecDeque::new(), 1u64);
    for _ in 0..100_000 {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let slot = (x >> 40) as u32 % 50;
        match (x >> 33) % 8 {
            0..=2 => {
                list.push(slot);
                if !model.contains(&slot) {
                    model.push_back(slot);
                }
            }
            3 => {
                list.push_front(slot);
                if !model.contains(&slot) {
                    model.push_front(slot);
                }
            }
            4..=6 => assert_eq!(list.pop(), model.pop_front()),
            _ => assert_eq!(list.contains(slot), model.contains(&slot)),
        }
        assert_eq!((list.len(), list.is_empty()), (model.len(), model.is_empty()));
    }
    assert!(list.iter().eq(model.iter().copied()));
}
