use super::*;

#[test]
fn slots_come_back_once_and_wake_a_sleeper_once() {
    let list: Returns = Returns::new(4);
    let push = |slot| list.push(slot, || ());
    let taken = || {
        let mut all = Vec::new();
        list.take(|s| all.push(s));
        all
    };
    assert_eq!((push(2), push(0)), (Back::Listed, Back::Listed));
    assert!(!list.sleep(), "slots are there");
    assert_eq!((taken(), taken()), (vec![0, 2], vec![]));
    assert!(list.sleep() && list.sleep());
    assert_eq!(taken(), []);
    assert_eq!(push(3), Back::Wake(()), "the receiver sleeps");
    assert_eq!(push(1), Back::Listed, "it was woken already");
    list.awake();
    assert_eq!(taken(), [1, 3]);
    assert!(list.sleep());
    list.awake();
    assert_eq!(push(0), Back::Listed, "it is awake");
    assert_eq!(taken(), [0]);
    assert_eq!(push(9), Back::Late, "no such slot");
    assert_eq!(taken(), []);
}

#[test]
fn slots_that_were_added_come_back_as_the_others() {
    let list: Returns = Returns::new(3);
    list.grow(2);
    assert_eq!(list.push(3, || ()), Back::Late, "no such slot");
    let mut slots = 3;
    for more in [1, 62, 65, 128, 1000] {
        slots += more;
        list.grow(slots as usize);
        (0..slots).for_each(|s| assert_eq!(list.push(s, || ()), Back::Listed));
        let mut all = Vec::new();
        assert_eq!(list.take(|s| all.push(s)), slots as usize);
        assert!(all.into_iter().eq((0..slots).rev()));
    }
    for never in [NONE, SLEEPS, CLOSED, CLOSED - 1] {
        assert_eq!(list.push(never, || ()), Back::Late);
    }
    assert_eq!(list.take(|_| ()), 0);
    // Places follow each other without gap or overlap.
    let places = (0..BLOCKS.min(6)).flat_map(|b| (0..FIRST_BLOCK << b).map(move |at| (b, at)));
    places.enumerate().for_each(|(at, place)| assert_eq!(block_of(at), place));
    assert!(block_of(MAX_SLOTS).0 < BLOCKS);
}

#[test]
fn the_last_lease_is_told() {
    let list: Returns = Returns::new(4);
    let mut left = 0;
    assert_eq!(list.push(0, || ()), Back::Listed);
    // Slot 0 is back, 1 and 2 are not.
    assert!(!list.close(3, || left += 1));
    assert_eq!((list.push(2, || ()), list.push(1, || ())), (Back::Late, Back::Last));
    let list: Returns = Returns::new(4);
    assert_eq!(list.push(0, || ()), Back::Listed);
    assert!(!list.close(1, || left += 1), "all are back");
    assert_eq!(left, 1);
}
