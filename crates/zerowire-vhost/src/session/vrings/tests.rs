use super::*;

fn text(refused: Result<impl Sized, SessionError>) -> String {
    refused.err().expect("it is refused").to_string()
}

#[test]
fn a_queue_that_is_not_there_is_told_with_what_helps() {
    let mut rings = Vrings::new(2, "ask for fewer");
    assert!(rings.named(Request::SetVringNum, 1).is_ok());
    assert!(text(rings.named(Request::SetVringNum, 2)).contains("queue 2 of 2: ask for fewer"));
    assert_eq!((rings.count(), rings.describe().as_str()), (2, "2 queues; ask for fewer"));
}

#[test]
fn rings_are_forgotten_together() {
    let mut rings = Vrings::new(3, "");
    rings.enable_all();
    for i in 0..3 {
        rings.get_mut(i).expect("it is there").started = i == 1;
    }
    let ring = rings.get_mut(2).expect("it is there");
    (ring.size, ring.log_at) = (256, Some(0x1000));
    assert_eq!(rings.any_started(), Some(1));
    assert_eq!(rings.logged().collect::<Vec<_>>(), [(2, 0x1000 + used_ring_bytes(256))]);
    assert!(rings.rings.iter().all(|r| r.state == RingState::Enabled));
    rings.forget();
    assert_eq!((rings.any_started(), rings.logged().count()), (None, 0));
    assert!(rings.rings.iter().all(|r| r.state == RingState::Waiting));
}
