use super::*;
use proptest::prelude::*;

const RECORDED: ReplayPace = ReplayPace::Recorded { speed: 1.0 };

fn packet(number: u64, time: Option<i128>) -> CapturedPacket<'static> {
    CapturedPacket { number, time, wire_bytes: 0, data: &[] }
}

fn dues(t: &mut Timeline, times: &[i128]) -> Vec<u64> {
    times.iter().map(|n| t.due(&packet(1, Some(*n))).expect("a time")).collect()
}

#[test]
fn recorded_times_count_from_the_first_packet() {
    let mut t = Timeline::new(&RECORDED, Backwards::Fail, None);
    assert_eq!(dues(&mut t, &[-5, -5, 7, 1_000_000_000]), [0, 0, 12, 1_000_000_005]);
    let mut t = Timeline::new(&RECORDED, Backwards::Fail, Some(Duration::from_nanos(100)));
    assert_eq!(dues(&mut t, &[0, 50, 1000, 1050]), [0, 50, 150, 200]);
    let mut t = Timeline::new(&RECORDED, Backwards::Fail, None);
    assert_eq!(dues(&mut t, &[i128::from(i64::MIN), i128::from(u64::MAX) * 4]), [0, u64::MAX]);
}

#[test]
fn times_that_go_back_or_are_missing_are_refused_where_they_matter() {
    let mut t = Timeline::new(&RECORDED, Backwards::Fail, None);
    assert_eq!(t.due(&packet(1, Some(100))), Ok(0));
    let e = t.due(&packet(2, Some(99))).expect_err("refused").to_string();
    for word in ["packet 2", "1 ns before", "--backwards send", "reordercap", "--pps"] {
        assert!(e.contains(word), "no '{word}' in {e}");
    }
    let e = t.due(&packet(3, None)).expect_err("refused").to_string();
    assert!(e.contains("packet 3") && e.contains("--topspeed"), "{e}");
    let mut t = Timeline::new(&RECORDED, Backwards::Send, None);
    assert_eq!(dues(&mut t, &[100, 50, 110, 120]), [0, 0, 10, 20]);
    let mut t = Timeline::new(&ReplayPace::Top, Backwards::Fail, None);
    assert_eq!(t.due(&packet(1, None)), Ok(0));
    assert_eq!(dues(&mut t, &[100, 50]), [0, 0]);
}

#[test]
fn rates_are_kept_without_drift() {
    let pps = ReplayPace::Pps(3.0);
    assert_eq!(pps.due(0, 0, 1, 0), 333_333_333);
    assert_eq!(pps.due(0, 0, 3_000_000, 0), 1_000_000_000_000_000);
    let mbps = ReplayPace::Mbps(100.0);
    assert_eq!(mbps.due(0, 0, 9, 12_500_000), 1_000_000_000);
    assert_eq!(ReplayPace::Recorded { speed: 2.0 }.due(1000, 500, 9, 9), 750);
    assert_eq!(RECORDED.due(u64::MAX, 1, 0, 0), u64::MAX);
    assert_eq!(ReplayPace::Top.due(9, 9, 9, 9), 0);
    assert_eq!(ReplayPace::Recorded { speed: 2.0 }.hours(7_200_000_000_000), Some(1.0));
    assert_eq!((RECORDED.hours(3_599_999_999_999), ReplayPace::Top.hours(u64::MAX)), (None, None));
}

proptest! {
    #[test]
    fn no_frame_is_due_before_its_predecessor(
        times in prop::collection::vec(any::<i64>(), 1..50), speed in 0.001f64..1000.0, rate in 0.001f64..1e9
    ) {
        let mut t = Timeline::new(&RECORDED, Backwards::Send, None);
        let mut last = [0; 3];
        let mut bytes = 0;
        for (n, time) in times.iter().enumerate() {
            let due = t.due(&packet(1, Some(i128::from(*time)))).expect("a time");
            let paces = [ReplayPace::Recorded { speed }, ReplayPace::Pps(rate), ReplayPace::Mbps(rate)];
            for (pace, last) in paces.iter().zip(&mut last) {
                let now = pace.due(due, 0, n as u64, bytes);
                prop_assert!(now >= *last);
                *last = now;
            }
            bytes += 60;
        }
    }
}
