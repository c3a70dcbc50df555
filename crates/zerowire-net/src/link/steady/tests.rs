use super::*;

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_short_interruption_is_none() {
    let start = Instant::now();
    let mut link = Steady::new(true, start);
    for n in 0..100 {
        let at = start + n * 2 * DOWN;
        assert!(!link.update(false, at));
        assert_eq!(link.due(at), Some(DOWN));
        assert!(!link.update(false, at + DOWN - MS));
        assert!(!link.update(true, at + DOWN - MS));
        assert!(link.up && link.due(at).is_none());
    }
}

#[test]
fn a_state_that_stands_counts_once() {
    let start = Instant::now();
    let mut link = Steady::new(true, start);
    let down = start + 2 * STANDS;
    assert!(!link.update(false, down));
    assert!(link.update(false, down + DOWN));
    assert!(!link.up && !link.update(false, down + 2 * DOWN));
    let up = down + STANDS;
    assert!(!link.update(true, up) && !link.update(true, up + UP.0 - MS));
    assert!(link.update(true, up + UP.0));
    assert!(link.up && link.due(up).is_none());
}

/// Goes down and up for good, and returns how long up took to count.
fn down_and_up(link: &mut Steady, at: &mut Instant) -> Duration {
    assert!(!link.update(false, *at) && link.update(false, *at + DOWN));
    *at += DOWN;
    assert!(!link.update(true, *at));
    let took = link.due(*at).expect("a change that is due");
    *at += took;
    assert!(link.update(true, *at));
    took
}

#[test]
fn one_that_flaps_comes_back_more_and_more_seldom_and_one_that_stands_soon() {
    let mut at = Instant::now() + STANDS;
    let mut link = Steady::new(true, at - STANDS);
    let took: Vec<_> = (0..8).map(|_| down_and_up(&mut link, &mut at).as_millis()).collect();
    assert_eq!(took, [500, 1000, 2000, 4000, 8000, 16_000, 16_000, 16_000]);
    at += STANDS;
    assert_eq!(down_and_up(&mut link, &mut at), UP.0);
}

#[test]
fn while_it_flaps_faster_than_it_settles_it_stays_down() {
    let start = Instant::now();
    let mut link = Steady::new(false, start);
    for n in 0..100 {
        let at = start + n * UP.0;
        assert!(!link.update(true, at));
        assert!(!link.update(true, at + UP.0 - MS));
        assert!(!link.update(false, at + UP.0 - MS));
    }
    assert!(!link.up);
}
