use super::*;

#[test]
fn a_connection_is_what_it_brought_lately() {
    let (mut all, mut a, mut b) = (Messengers::default(), ArrivalPace::default(), ArrivalPace::default());
    assert!(all.none(), "silence is no message");
    all.arrived(&mut a, 65_536);
    assert!(all.none(), "one long arrival is bulk data");
    all.arrived(&mut b, 16);
    assert!(!all.none());
    all.arrived(&mut a, 65_536);
    assert!(!all.none(), "bulk data beside a message doesn't hide it");
    all.arrived(&mut b, 65_536);
    assert!(all.none(), "a transfer begins on the connection of messages");
    for _ in 0..8 {
        all.arrived(&mut b, 16);
    }
    assert!(!all.none(), "and is over");
    all.ended(&mut b);
    assert!(all.none());
    all.ended(&mut a);
    all.ended(&mut a);
    assert!(all.none(), "an end counts once");
}

#[test]
fn the_average_of_any_lengths_stays_in_bounds() {
    let (mut all, mut pace) = (Messengers::default(), ArrivalPace::default());
    for len in [usize::MAX, usize::MAX, 0, 1, usize::MAX] {
        all.arrived(&mut pace, len);
    }
    assert!(all.none());
}
