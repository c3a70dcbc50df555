use super::*;

#[test]
fn quick_sessions_wait_longer_and_longer_and_a_calm_one_ends_that() {
    let mut pace = Pace::default();
    let mut now = Instant::now();
    let waits: Vec<_> = (0..FREE + 10)
        .map(|_| {
            let wait = pace.ended(now);
            now += wait + Duration::from_micros(300);
            wait
        })
        .collect();
    let (free, paid) = waits.split_at(FREE as usize + 1);
    assert!(free.iter().all(Duration::is_zero), "{free:?}");
    assert_eq!(paid[..3], [10, 20, 40].map(Duration::from_millis));
    assert_eq!(paid.last(), Some(&LONGEST));
    assert!(paid.is_sorted());
    now += CALM;
    assert_eq!(pace.ended(now), Duration::ZERO);
    assert_eq!(pace.quick, 0);
}

#[test]
fn the_third_front_end_in_a_row_that_leaves_at_the_queues_is_told_of() {
    let mut pace = Pace::default();
    let said: Vec<_> = [
        Progress::CountedQueues,
        Progress::CountedQueues,
        Progress::SetUp,
        Progress::CountedQueues,
        Progress::Asked,
    ]
    .into_iter()
    .chain([Progress::CountedQueues; 5])
    .map(|p| pace.leaves_at_queues(p))
    .collect();
    assert_eq!(said.iter().position(|s| *s), Some(7));
    assert_eq!(said.iter().filter(|s| **s).count(), 1, "{said:?}");
}
