use super::*;

const LINGER: u32 = 32;
const UNASKED: u32 = 16;

fn worked(cadence: &mut Cadence) -> Next {
    cadence.worked(LINGER, true, UNASKED)
}

fn idled(cadence: &mut Cadence) -> Next {
    cadence.idled(LINGER, None, || false)
}

#[test]
fn a_thread_that_works_asks_for_events_now_and_then() {
    let mut cadence = Cadence::new();
    for _ in 0..3 {
        let skipped = (0..).take_while(|_| worked(&mut cadence) == Next::Turn).count();
        assert_eq!(skipped, UNASKED as usize - 1);
        cadence.asked();
    }
    assert_eq!(cadence.worked(LINGER, false, UNASKED), Next::Ask, "what they say is not known");
    // Turns without work between do not put it off.
    cadence.asked();
    let mut turns = 0;
    while worked(&mut cadence) == Next::Turn {
        assert_eq!(idled(&mut cadence), Next::Turn);
        cadence.blocked();
        turns += 1;
    }
    assert_eq!(turns, UNASKED - 1);
}

#[test]
fn a_thread_without_work_lingers_before_it_rests() {
    let mut cadence = Cadence::new();
    assert_eq!(idled(&mut cadence), Next::Rest);
    for looks in [LINGER, 0] {
        cadence.worked(looks, true, UNASKED);
        let lingered = (0..).take_while(|_| idled(&mut cadence) == Next::Turn).count();
        assert_eq!(lingered, looks as usize);
        assert_eq!(idled(&mut cadence), Next::Rest);
    }
    cadence.linger(LINGER);
    assert_eq!(idled(&mut cadence), Next::Turn);
    cadence.rest();
    assert_eq!(idled(&mut cadence), Next::Rest);
}

#[test]
fn looks_may_ask_for_events_and_a_guest_that_must_wait_is_not_held_up() {
    let mut cadence = Cadence::new();
    worked(&mut cadence);
    let looks: Vec<_> = (0..LINGER).map(|_| cadence.idled(LINGER, Some(8), || false)).collect();
    for (i, look) in looks.iter().enumerate() {
        assert_eq!(*look, if i % 8 == 0 { Next::Ask } else { Next::Turn }, "{i}");
    }
    assert_eq!(cadence.idled(LINGER, Some(8), || false), Next::Rest);
    worked(&mut cadence);
    assert_eq!(cadence.idled(LINGER, Some(8), || true), Next::Rest);
    assert_eq!(idled(&mut cadence), Next::Rest, "it does not begin again");
    // Once the thread has begun to linger, it does not check the guest.
    worked(&mut cadence);
    idled(&mut cadence);
    assert_eq!(cadence.idled(LINGER, None, || panic!("asked")), Next::Turn);
}

#[test]
fn a_port_that_takes_nothing_is_looked_at_ever_less_often() {
    let naps: Vec<_> = (TURNS_BLOCKED..TURNS_BLOCKED + 9).map(blocked_nap).collect();
    assert_eq!(naps[0], BLOCKED_NAP[0]);
    assert!(naps.windows(2).all(|n| n[1] == (n[0] * 2).min(BLOCKED_NAP[1])), "{naps:?}");
    assert_eq!(blocked_nap(u32::MAX), BLOCKED_NAP[1]);
}

#[test]
fn a_thread_is_blocked_until_something_moves_or_nothing_is_left() {
    let mut cadence = Cadence::new();
    let begin: [fn(&mut Cadence); 4] =
        [|_| {}, |c| c.rest(), |c| c.linger(0), |c| _ = c.worked(0, true, UNASKED)];
    for begin in begin {
        begin(&mut cadence);
        for turn in 1..TURNS_BLOCKED {
            assert_eq!(cadence.blocked(), None, "{turn}");
            assert_eq!(idled(&mut cadence), Next::Rest, "its rings are asked again");
        }
        for turns in TURNS_BLOCKED..TURNS_BLOCKED + 5 {
            assert_eq!(cadence.blocked(), Some(blocked_nap(turns)));
        }
    }
}
