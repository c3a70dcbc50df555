use super::*;
use crate::limit::{Limit, Meter};

fn limiter(limit: &str) -> Limiter {
    Limiter::new(Some(limit.parse().unwrap_or_else(|e| panic!("{e}"))))
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[test]
fn without_a_limit_nothing_is_asked_and_nothing_counts() {
    let (limiter, mut pace) = (Limiter::default(), LimitPace::default());
    assert!(pace.begin(&limiter, Instant::now).is_none());
    pace.passed(&limiter, (5, 5000), Instant::now);
    assert_eq!((pace.nap(&limiter, Instant::now), limiter.stats().waits), (None, 0));
    assert!(Meter::default().has_room());
}

#[test]
fn a_ring_waits_until_there_is_a_batch_and_the_wait_is_counted() {
    let (limiter, mut pace) = (limiter("1M/s,burst=100k"), LimitPace::default());
    let start = Instant::now();
    let allowed = pace.allow(&limiter, start);
    assert_eq!((allowed.bytes, allowed.operations), (100_000, u64::MAX));
    pace.passed(&limiter, (70, 104_000), || start);
    pace.hold(&limiter);
    assert!(pace.is_waiting() && pace.nap(&limiter, Instant::now).is_some_and(|nap| nap <= ms(5)));
    // 4000 bytes of debt, and the 1000 of a millisecond.
    assert!(pace.allow(&limiter, start + ms(4)).is_none());
    assert!(pace.is_waiting(), "the same wait");
    let allowed = pace.allow(&limiter, start + ms(6));
    assert!((1000..=2000).contains(&allowed.bytes), "{allowed:?}");
    let stats = limiter.stats();
    assert_eq!((stats.waits, stats.waited), (1, ms(6)));
    assert!(!pace.is_waiting() && pace.nap(&limiter, Instant::now).is_none());
}

#[test]
fn operations_and_bytes_both_count() {
    let (limiter, mut pace) = (limiter("1M/s,burst=1M,ops=1000/s,ops-burst=10"), LimitPace::default());
    let start = Instant::now();
    assert_eq!(pace.allow(&limiter, start).operations, 10);
    pace.passed(&limiter, (10, 640), || start);
    assert!(pace.allow(&limiter, start).is_none(), "bytes are left, operations are not");
    let allowed = pace.allow(&limiter, start + ms(3));
    assert!((1..=3).contains(&allowed.operations), "{allowed:?}");
}

#[test]
fn rings_of_a_vm_share_its_limit() {
    let limiter = limiter("1M/s,burst=100k");
    let [mut first, mut second] = [LimitPace::default(), LimitPace::default()];
    let start = Instant::now();
    let _ = first.allow(&limiter, start);
    first.passed(&limiter, (1, 60_000), || start);
    let left = second.allow(&limiter, start).bytes;
    assert!((40_000..42_000).contains(&left), "{left}");
    second.passed(&limiter, (1, 60_000), || start);
    assert!(first.allow(&limiter, start).is_none());
}

/// Both are served in turns of one frame, and neither pays for each.
#[test]
fn rings_of_a_vm_lengthen_a_burst_by_a_64th_each() {
    let limiter = limiter("64M/s,burst=6400k");
    let mut rings = [LimitPace::default(), LimitPace::default()];
    let (start, mut sum, mut blocked) = (Instant::now(), 0, 0);
    while blocked < 2 {
        blocked = 0;
        for ring in &mut rings {
            let allowed = ring.begin(&limiter, || start).expect("a limit");
            if allowed.is_none() {
                blocked += 1;
                continue;
            }
            sum += 1500;
            ring.passed(&limiter, (1, 1500), || start);
        }
    }
    assert!((6_400_000..6_400_000 + 2 * (100_000 + 1500)).contains(&sum), "{sum}");
}

#[test]
fn one_answer_holds_for_several_turns_and_not_beyond_a_sleep() {
    let (limiter, mut pace) = (limiter("1G/s"), LimitPace::default());
    let (start, mut asked) = (Instant::now(), 0);
    let mut turn = |pace: &mut LimitPace, at: Instant| {
        let allowed = pace.begin(&limiter, || {
            asked += 1;
            at
        });
        pace.passed(&limiter, (1, 1500), || start);
        (allowed.expect("a limit").bytes, asked)
    };
    let turns: Vec<_> = (0..2 * TURNS).map(|_| turn(&mut pace, start)).collect();
    let wanted: Vec<_> = (0..2 * TURNS).map(|n| (100_000_000 - 1500 * u64::from(n), 1 + n / TURNS)).collect();
    assert_eq!(turns, wanted);
    assert_eq!(turn(&mut pace, start).1, 3);
    assert_eq!(pace.nap(&limiter, || start), None);
    // What came while the thread slept fills the bucket, from which all turns were paid.
    assert_eq!(turn(&mut pace, start + ms(1)), (100_000_000, 4));
}

/// Time in which nothing passed and the bucket was full is none that fills it.
#[test]
fn turns_without_a_frame_make_no_tokens() {
    let (limiter, mut pace) = (limiter("1M/s,burst=20k"), LimitPace::default());
    let start = Instant::now();
    for _ in 0..10 {
        assert_eq!(pace.begin(&limiter, || start).map(|allowed| allowed.bytes), Some(20_000));
        pace.end(&limiter);
    }
    pace.passed(&limiter, (20, 20_000), || start + ms(6));
    assert!(pace.begin(&limiter, || start + ms(6)).is_some_and(|allowed| allowed.is_none()));
    assert_eq!(pace.begin(&limiter, || start + ms(8)).map(|allowed| allowed.bytes), Some(2000));
}

/// Beside the tests of the bucket, which is asked in each turn there.
#[test]
fn turns_of_one_frame_have_the_rate_within_two_percent() {
    for (mbit, len, time) in
        [(1, 64, 20_000), (100, 1514, 2000), (1000, 64, 400), (1000, 65_549, 2000), (40_000, 1514, 100)]
    {
        let rate = mbit * 125_000;
        let (limiter, mut pace) = (limiter(&format!("{rate}/s")), LimitPace::default());
        let start = Instant::now();
        let (mut now, mut bytes) = (start, 0);
        while now < start + ms(time) {
            let allowed = pace.begin(&limiter, || now).expect("a limit");
            if allowed.is_none() {
                pace.hold(&limiter);
                // A thread that sleeps wakes up late.
                now += pace.nap(&limiter, || now).expect("something waits") + Duration::from_micros(60);
            } else {
                bytes += len;
                pace.passed(&limiter, (1, len), || now);
                now += Duration::from_nanos(50);
            }
        }
        let wanted = rate / 10 + rate * time / 1000;
        assert!(bytes.abs_diff(wanted) * 50 < wanted, "{mbit} Mb/s, {len} bytes: {bytes} of {wanted}");
    }
}

#[test]
fn what_passed_under_one_limit_is_not_taken_from_the_next() {
    let (limiter, mut pace) = (limiter("1G/s"), LimitPace::default());
    let start = Instant::now();
    assert!(pace.begin(&limiter, || start).is_some());
    pace.passed(&limiter, (1000, 1_500_000), || start);
    limiter.set(Some("1M/s".parse().unwrap_or_else(|e| panic!("{e}"))));
    assert_eq!(pace.allow(&limiter, start).bytes, 100_000);
}

/// It was asked for in a turn of the old one, which holds for more.
#[test]
fn another_limit_holds_from_the_next_turn_on() {
    let (limiter, mut pace) = (limiter("1G/s"), LimitPace::default());
    let start = Instant::now();
    for (limit, allowed) in [(Some("1M/s"), 100_000), (Some("2M/s"), 200_000), (None, u64::MAX)] {
        assert!(pace.begin(&limiter, || start).is_some_and(|allowed| allowed.bytes > 0));
        pace.passed(&limiter, (1, 1500), || start);
        limiter.set(limit.map(|text| text.parse().unwrap_or_else(|e| panic!("{e}"))));
        assert_eq!(pace.begin(&limiter, || start).map_or(u64::MAX, |a| a.bytes), allowed, "{limit:?}");
    }
}

#[test]
fn what_has_passed_is_paid_before_a_sleep_and_by_a_ring_that_stops() {
    let limiter = limiter("1G/s");
    let start = Instant::now();
    let mut left = 100_000_000;
    for n in 0..20 {
        let mut pace = LimitPace::default();
        assert_eq!(pace.begin(&limiter, || start).map(|allowed| allowed.bytes), Some(left));
        pace.passed(&limiter, (1000, 1_500_000), || start);
        left -= 1_500_000;
        if n % 2 == 0 {
            pace.finish(&limiter, || start)
        } else {
            assert_eq!(pace.nap(&limiter, || start), None)
        }
    }
}

#[test]
fn a_limit_that_changes_is_seen_before_a_long_wait_is_over() {
    let (limiter, mut pace) = (limiter("10/s,burst=10"), LimitPace::default());
    let start = Instant::now();
    let _ = pace.allow(&limiter, start);
    pace.passed(&limiter, (1, 1_000_000), || start);
    pace.hold(&limiter);
    assert!(pace.nap(&limiter, Instant::now).is_some_and(|nap| nap <= LONGEST_NAP), "of a day");
    let old: Limit = "10/s,burst=10".parse().unwrap_or_else(|e| panic!("{e}"));
    limiter.set(Some(old));
    assert!(pace.allow(&limiter, start + LONGEST_NAP).is_none(), "the same one: the debt stays");
    limiter.set(Some("1M/s".parse().unwrap_or_else(|e| panic!("{e}"))));
    assert_eq!(pace.allow(&limiter, start + 3 * LONGEST_NAP).bytes, 100_000);
    limiter.set(None);
    assert_eq!(pace.begin(&limiter, Instant::now), Some(Allowance::ALL), "the turn that learns of it");
    assert_eq!(pace.begin(&limiter, Instant::now), None);
}

#[test]
fn the_wait_of_a_ring_that_stops_ends() {
    let (limiter, mut pace) = (limiter("1M/s"), LimitPace::default());
    let _ = pace.allow(&limiter, Instant::now());
    pace.passed(&limiter, (1, 1_000_000), Instant::now);
    pace.hold(&limiter);
    pace.end(&limiter);
    assert_eq!(pace.nap(&limiter, Instant::now), None);
    assert_eq!(limiter.stats().waits, 1);
}

#[test]
fn a_meter_stops_at_the_first_that_goes_beyond() {
    let mut meter = Meter::new(Allowance { operations: 3, bytes: 1000, most_bytes: 2000 });
    meter.pass(900);
    assert!(meter.has_room());
    meter.pass(900);
    assert!(!meter.has_room(), "bytes are used up");
    meter.take_back(900);
    meter.pass(1);
    meter.pass(1);
    assert!(!meter.has_room() && !meter.is_cut(), "operations are used up");
    meter.cut();
    assert_eq!((meter.passed(), meter.is_cut()), ((3, 902), true));
}

#[test]
fn what_is_yet_to_be_read_is_bounded_by_the_longest() {
    let allowed = Allowance { operations: u64::MAX, bytes: 100_000, most_bytes: 300_000 };
    assert_eq!(allowed.blind(1000, 1000), 100);
    assert_eq!(allowed.blind(64, 65_000), 4, "all of them may be as long as any");
    assert_eq!(Allowance { bytes: 10, ..allowed }.blind(1500, 65_000), 1, "a token is enough for one");
    assert_eq!(Allowance { operations: 2, ..allowed }.blind(64, 64), 2);
    assert_eq!(Allowance::NONE.blind(64, 65_000), 0);
    assert!(Allowance::ALL.blind(64, 65_000) > 1 << 30);
}
