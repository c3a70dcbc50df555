use super::*;
use proptest::prelude::*;

const fn spec(rate: u64, size: u64, one_time_burst: u64) -> BucketSpec {
    BucketSpec { rate, size, one_time_burst }
}

/// Sends frames of `len` bytes whenever the bucket lets them pass, and sleeps as it says. Returns
/// the bytes of `seconds`, behind a second that empties the bucket.
fn sent(spec: BucketSpec, len: u64, seconds: u64, oversleep: Duration) -> u64 {
    let start = Instant::now();
    let mut bucket = TokenBucket::new(spec, start);
    let (mut now, mut bytes) = (start, 0);
    let begin = start + Duration::from_secs(1);
    let end = begin + Duration::from_secs(seconds);
    bucket.take(spec.size + spec.one_time_burst);
    while now < end {
        bucket.refill(now);
        let mut left = bucket.tokens();
        let mut passed = 0;
        // A batch at a time, cut to what there is.
        while left > 0 && passed < 64 * len {
            left = left.saturating_sub(len);
            passed += len;
        }
        bucket.take(passed);
        if now >= begin {
            bytes += passed;
        }
        now += match bucket.wait() {
            Duration::ZERO => Duration::from_micros(1),
            nap => nap + oversleep,
        };
    }
    bytes
}

#[test]
fn a_window_has_the_rate_within_two_percent() {
    // From 1 Mb/s to 40 Gb/s; short frames, and segments to be cut. A thread that sleeps wakes up
    // late.
    for (mbit, seconds) in [(1, 60), (10, 10), (100, 10), (1_000, 4), (10_000, 1), (40_000, 1)] {
        let rate = mbit * 125_000;
        for len in [64, 1514, 65_549] {
            // Fewer frames than bits: a frame in a window more or less is more than 2 %.
            if rate * seconds < 100 * len || (len == 64 && mbit > 1_000) {
                continue;
            }
            let bytes = sent(spec(rate, rate / 10, 0), len, seconds, Duration::from_micros(60));
            let wanted = rate * seconds;
            let off = bytes.abs_diff(wanted) as f64 / wanted as f64;
            assert!(off < 0.02, "{mbit} Mb/s, {len} bytes: {bytes} of {wanted}");
        }
    }
}

#[test]
fn short_frames_at_the_highest_rate_are_as_exact() {
    let rate = 40_000 * 125_000;
    let start = Instant::now();
    let mut bucket = TokenBucket::new(spec(rate, rate / 10, 0), start);
    bucket.take(rate / 10);
    let mut bytes = 0;
    // 20 ms, in turns of 64 frames that take 0.5 µs.
    for turn in 1..=40_000u32 {
        bucket.refill(start + turn * Duration::from_nanos(500));
        let frames = bucket.tokens().div_ceil(64).min(64);
        bucket.take(frames * 64);
        bytes += frames * 64;
    }
    let wanted = rate / 50;
    assert!(bytes.abs_diff(wanted) * 50 < wanted, "{bytes} of {wanted}");
}

#[test]
fn a_full_bucket_lets_one_frame_pass_that_is_longer_than_it() {
    let start = Instant::now();
    let mut bucket = TokenBucket::new(spec(1000, 100, 0), start);
    assert_eq!((bucket.tokens(), bucket.wait()), (100, Duration::ZERO));
    bucket.take(1100);
    assert_eq!(bucket.tokens(), 0);
    // 1000 of debt, and the batch that ends a wait: 1 token.
    assert_eq!(bucket.wait(), Duration::from_millis(1001));
    bucket.refill(start + Duration::from_millis(1000));
    assert_eq!(bucket.tokens(), 0, "the debt is paid, and nothing has come beside it");
    bucket.refill(start + Duration::from_millis(1001));
    assert_eq!((bucket.tokens(), bucket.wait()), (1, Duration::ZERO));
}

#[test]
fn the_one_time_burst_is_used_first_and_never_comes_again() {
    let start = Instant::now();
    let mut bucket = TokenBucket::new(spec(1000, 100, 500), start);
    assert_eq!(bucket.tokens(), 600);
    let later = start + Duration::from_secs(10);
    bucket.refill(later);
    assert_eq!(bucket.tokens(), 600, "nothing comes on top of it");
    bucket.take(550);
    bucket.refill(later + Duration::from_secs(10));
    assert_eq!(bucket.tokens(), 100, "full is full from then on");
}

#[test]
fn a_clock_that_goes_back_gives_nothing() {
    let start = Instant::now() + Duration::from_secs(1);
    let mut bucket = TokenBucket::new(spec(1000, 100, 0), start);
    bucket.take(100);
    bucket.refill(start + Duration::from_millis(10));
    bucket.refill(start);
    bucket.refill(start + Duration::from_millis(10));
    assert_eq!(bucket.tokens(), 10);
}

#[test]
fn the_largest_values_don_t_overflow() {
    let start = Instant::now();
    let most = spec(u64::MAX, u64::MAX, u64::MAX);
    let mut bucket = TokenBucket::new(most, start);
    assert_eq!(bucket.tokens(), 2 * MAX_TOKENS);
    for _ in 0..4 {
        bucket.take(u64::MAX);
    }
    assert!(bucket.wait() > Duration::ZERO);
    bucket.refill(start + Duration::from_secs(1 << 30));
    assert!(bucket.tokens() <= MAX_TOKENS);
    let mut least = TokenBucket::new(spec(0, 0, 0), start);
    least.take(u64::MAX);
    assert!(least.wait() > Duration::from_secs(1 << 30));
}

#[derive(Clone, Debug)]
enum Act {
    Pass(u64),
    Take(u64),
}

proptest! {
    /// Beside a model that remembers every act and counts in whole numbers from the begin.
    #[test]
    fn nothing_is_rounded(
        rate in 1u64..10_000_000_000,
        size in 1u64..10_000_000,
        one_time_burst in 0u64..1_000_000,
        acts in proptest::collection::vec(
            prop_oneof![
                (0u64..3_000_000_000).prop_map(Act::Pass),
                (0u64..200_000).prop_map(Act::Take),
            ],
            1..200,
        ),
    ) {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(spec(rate, size, one_time_burst), start);
        let mut nanos = 0;
        // In parts of a token: a billion of them are one.
        let full = u128::from(size) * 1_000_000_000;
        let mut have = full as i128 + i128::from(one_time_burst) * 1_000_000_000;
        for act in acts {
            match act {
                Act::Pass(time) => {
                    nanos += time;
                    bucket.refill(start + Duration::from_nanos(nanos));
                    if have < full as i128 {
                        let come = u128::from(time) * u128::from(rate);
                        have = (have + come as i128).min(full as i128);
                    }
                }
                Act::Take(tokens) => {
                    bucket.take(tokens);
                    have -= i128::from(tokens) * 1_000_000_000;
                }
            }
            let tokens = if have < 0 { 0 } else { (have / 1_000_000_000) as u64 };
            prop_assert_eq!(bucket.tokens(), tokens);
            prop_assert_eq!(bucket.wait() == Duration::ZERO, tokens > 0);
        }
    }

    /// What a wait says is enough, and a nanosecond less than what ends in one token is not.
    #[test]
    fn a_wait_ends_with_a_token(rate in 1u64..10_000_000_000, size in 1u64..10_000_000, debt in 0u64..1_000_000) {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(spec(rate, size, 0), start);
        bucket.take(size + debt);
        let wait = bucket.wait();
        prop_assert!(wait > Duration::ZERO);
        bucket.refill(start + wait);
        prop_assert!(bucket.tokens() > 0, "{:?}", bucket);
        // The bucket is not full yet, or holds one token alone: nothing that came is lost.
        prop_assert!(bucket.tokens() <= (size / 2).max(1) + rate / 1_000_000_000 + 1);
    }
}
