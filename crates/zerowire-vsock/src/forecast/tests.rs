use super::*;

#[test]
fn sixteen_messages_that_are_no_longer_tell_of_the_next_one() {
    let mut f = MessageForecast::default();
    f.came(100);
    for n in 0..16 {
        assert_eq!(f.expected(), None, "after {n}");
        f.came(n);
    }
    assert_eq!(f.expected(), Some(100));
    f.came(101);
    assert_eq!(f.expected(), None, "one was longer");
    (0..16).for_each(|_| f.came(101));
    assert_eq!(f.expected(), Some(101));
}

#[test]
fn long_messages_are_measured_and_forgotten() {
    let mut f = MessageForecast::default();
    f.came(SHORT + 1);
    (0..16).for_each(|_| f.came(7));
    assert_eq!(f.expected(), None, "one as long may come");
    f.came(7);
    (0..16).for_each(|_| f.came(7));
    assert_eq!(f.expected(), Some(7));
}
