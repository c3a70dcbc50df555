use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn granted(rate: &mut RequestRate, now: Instant, asked: u32) -> u32 {
    (0..asked).map(|_| u32::from(rate.take(now))).sum()
}

#[test]
fn a_second_s_worth_at_once_and_then_one_an_interval() {
    // Also of rates that don't divide a second.
    for n in [1, 3, 7, 1000, 9999, 10_000, 1_000_000] {
        let (mut rate, start) = (RequestRate::new(n), Instant::now());
        assert_eq!(granted(&mut rate, start, 2 * n), n, "{n} a second");
        let interval = Duration::from_secs(1) / n + Duration::from_nanos(1);
        assert!(!rate.take(start + interval / 2), "{n} a second");
        assert_eq!(granted(&mut rate, start + interval, 10), 1, "{n} a second");
        // However long the pause: no more than the bucket holds.
        let later = start + Duration::from_secs(3600);
        assert_eq!(granted(&mut rate, later, 2 * n), n, "{n} a second");
    }
}

#[test]
fn what_is_refused_takes_nothing() {
    let (mut rate, start) = (RequestRate::new(10), Instant::now());
    assert_eq!(granted(&mut rate, start, 1_000_000), 10);
    assert_eq!(granted(&mut rate, start + Duration::from_millis(500), 1_000_000), 5);
    assert_eq!(granted(&mut rate, start + Duration::from_millis(1500), 1_000_000), 10);
}

#[test]
fn without_a_bound_all_are_granted() {
    let (mut rate, start) = (RequestRate::new(0), Instant::now());
    assert!(!rate.is_bounded() && RequestRate::new(1).is_bounded());
    assert_eq!(granted(&mut rate, start, 1_000_000), 1_000_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_interval_has_more_than_the_bucket_and_its_rate(
        n in 1..5000u32,
        steps in prop::collection::vec((0..400_000u64, 0..600u32), 1..40),
    ) {
        let mut rate = RequestRate::new(n);
        let start = Instant::now();
        let (mut at, mut log) = (Duration::ZERO, Vec::new());
        for (micros, asked) in steps {
            at += Duration::from_micros(micros);
            let got = granted(&mut rate, start + at, asked);
            log.push((at, asked, got));
        }
        for (first, (from, ..)) in log.iter().enumerate() {
            let mut sum = 0u64;
            for (to, asked, got) in &log[first..] {
                sum += u64::from(*got);
                let filled = u128::from(n) * (*to - *from).as_nanos() / 1_000_000_000;
                prop_assert!(u128::from(sum) <= u128::from(n) + filled, "{sum} from {from:?} to {to:?}");
                // A guest below its rate is refused nothing.
                let all: u64 = log.iter().filter(|l| l.0 <= *to).map(|l| u64::from(l.1)).sum();
                prop_assert!(all > u64::from(n) || got == asked);
            }
        }
    }
}
