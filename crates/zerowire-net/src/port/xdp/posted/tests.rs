use super::*;

fn place(b: Option<Buffer>) -> Option<u16> {
    match b {
        Some(Buffer::Place(p)) => Some(p),
        _ => None,
    }
}

#[test]
fn buffers_are_found_in_any_order_and_once() {
    let mut p = Posted::new();
    for i in 0..10u16 {
        p.post(u64::from(i) * 100, Buffer::Place(i));
    }
    for i in [0u16, 1, 5, 6, 2, 9, 3, 4, 7, 8] {
        assert_eq!(place(p.back(u64::from(i) * 100)), Some(i));
        assert!(p.back(u64::from(i) * 100).is_none(), "{i} once");
    }
    assert!(p.back(12).is_none());
    assert_eq!((p.len(), p.entries.len(), p.due), (0, 0, 0));
}

#[test]
fn the_same_address_twice_comes_back_twice() {
    let mut p = Posted::new();
    for i in 0..3 {
        p.post(4096, Buffer::Place(i));
    }
    let back: Vec<_> = (0..4).map(|_| place(p.back(4096))).collect();
    assert_eq!(back, [Some(0), Some(1), Some(2), None]);
}

#[test]
fn what_is_left_is_told_apart() {
    let mut o = Order::new(8);
    let numbers: Vec<_> = (10..18).map(|h| o.take(h)).collect();
    assert!(!o.has_room());
    for i in [0, 1, 3, 4] {
        o.used(numbers[i]);
    }
    assert!(o.has_room());
    o.used(100);
    o.used(numbers[3]);
    assert_eq!(o.end(), (vec![12], vec![15, 16, 17]));
    let n = o.take(3);
    o.used(n);
    assert_eq!(o.end(), (vec![], vec![]));
}

#[test]
fn one_that_stays_out_holds_up_no_others() {
    let mut o = Order::new(4);
    o.take(9);
    for head in 0..1000 {
        assert!(o.has_room(), "{head}");
        let n = o.take(head);
        o.used(n);
    }
    let numbers: Vec<_> = (20..23).map(|head| o.take(head)).collect();
    assert!(!o.has_room());
    o.used(numbers[1]);
    assert_eq!(o.end(), (vec![9, 20], vec![22]));
}
