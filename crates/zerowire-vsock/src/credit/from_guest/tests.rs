use super::*;

#[test]
fn a_guest_gets_what_it_was_given_and_no_more() {
    let mut c = FromGuest::new(100);
    assert!(c.receive(100));
    assert!(!c.receive(1));
    c.forward(50);
    assert!(!c.is_news(), "half is known");
    c.forward(1);
    assert!(c.is_news());
    assert_eq!(c.tell(), (100, 51));
    assert!(!c.is_news());
    assert!(c.receive(51));
    assert!(!c.receive(1));
}

#[test]
fn a_guest_with_a_small_buffer_is_told_by_half_of_that() {
    let mut c = FromGuest::new(1000);
    c.own = 100;
    assert!(c.receive(50));
    assert!(!c.is_used_up() && !c.lacks(50) && c.lacks(51));
    assert_eq!(c.short_of_news(), 51);
    assert!(c.receive(50));
    assert!(c.is_used_up(), "more is offered, and it does not use it");
    c.forward(51);
    assert!(c.is_news());
    c.tell();
    // A driver may use all that it is offered, whatever it says of its own buffer.
    assert!(c.receive(951) && !c.receive(1));
    c.own = 2000;
    c.forward(500);
    assert!(!c.is_news());
    c.own = 0;
    assert!(c.is_news());
}

#[test]
fn a_sender_to_a_sibling_gets_what_that_takes_within_what_may_wait() {
    let mut c = FromGuest::new(100);
    let mut sibling = ToGuest::default();
    sibling.update(60, 0).expect("sound");
    c.follow(&sibling);
    assert_eq!(c.tell(), (60, 0), "its buffer is smaller");
    sibling.update(1000, 0).expect("sound");
    assert!(c.receive(100));
    c.follow(&sibling);
    assert_eq!(c.tell(), (100, 0), "all of it waits here");
    sibling.send(70, 1, true);
    assert_eq!(c.sibling_took(&sibling), CreditReview { due: true, quiet: false });
    assert_eq!(c.tell(), (100, 70), "30 bytes wait");
    for _ in 0..9 {
        assert!(c.receive(70));
        sibling.send(70, 1, true);
        c.follow(&sibling);
        c.tell();
    }
    // 730 received, 700 with the sibling, of 1000.
    assert!(c.receive(70) && !c.receive(1));
    sibling.send(100, 1, true);
    c.follow(&sibling);
    assert_eq!(c.tell(), (100, 800));
    for sent in [100, 100] {
        assert!(c.receive(sent));
        sibling.send(sent, 1, true);
        c.follow(&sibling);
        c.tell();
    }
    assert_eq!(c.tell(), (100, 900), "the sibling's buffer is full");
    sibling.update(1000, 50).expect("sound");
    assert_eq!(c.sibling_took(&sibling), CreditReview { due: true, quiet: false });
    assert_eq!(c.tell(), (100, 950));
}
