use super::*;

#[test]
fn messages_keep_their_bounds() {
    let mut h = Held::default();
    h.push_bytes(b"abc");
    h.mark(3, None);
    assert_eq!(h.message(), None);
    h.push_bytes(b"de");
    h.mark(2, Some(1));
    h.push_bytes(&[7; 300]);
    h.mark(300, Some(3));
    h.mark(0, Some(1));
    assert_eq!(h.message(), Some((5, 1)));
    h.consume(4);
    assert_eq!(h.message(), Some((1, 1)));
    assert_eq!(h.first(1).0, b"e");
    h.consume(1);
    assert_eq!(h.message(), Some((300, 3)));
    h.consume(300);
    assert!(!h.is_empty(), "an empty message waits");
    assert_eq!(h.message(), Some((0, 1)));
    h.consume(0);
    assert!(h.is_empty());
}

#[test]
fn a_message_may_go_in_parts() {
    let mut h = Held::default();
    h.push_bytes(b"abc");
    h.mark(3, None);
    assert_eq!(h.part(), 3);
    h.consume(2);
    assert_eq!((h.part(), h.message()), (1, None));
    h.push_bytes(b"d");
    h.mark(1, Some(1));
    assert_eq!((h.part(), h.message()), (0, Some((2, 1))));
    h.consume(2);
    assert!(h.is_empty());
}

#[test]
fn marks_of_one_byte_messages_are_one_byte() {
    let mut h = Held::default();
    for _ in 0..1000 {
        h.push_bytes(&[1]);
        h.mark(1, Some(1));
    }
    assert_eq!(h.marks.len(), 1000);
}
