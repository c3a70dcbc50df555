use std::time::Duration;

use super::*;

const OUT: PortWatch = PortWatch::Unwatched { ready: false };
const OUT_READY: PortWatch = PortWatch::Unwatched { ready: true };

#[test]
fn a_port_is_read_once_it_may_have_frames_and_watched_once_it_is_empty() {
    use PortWatch::{Armed, Gone, Ready};
    for (state, is_ready, when_ready, when_empty, asks) in [
        (Armed, false, Ready, Armed, true),
        (Ready, true, Ready, Armed, true),
        (OUT, false, OUT_READY, OUT, false),
        (OUT_READY, true, OUT_READY, OUT, false),
        (Gone, false, Ready, Armed, true),
    ] {
        assert_eq!(state.is_ready(), is_ready, "{state:?}");
        let mut port = state;
        port.set_ready();
        assert_eq!(port, when_ready, "{state:?}");
        let mut port = state;
        assert_eq!((port.set_empty(), port), (asks, when_empty), "{state:?}");
    }
}

#[test]
fn a_port_that_gives_no_events_is_looked_at_in_each_turn() {
    use PortWatch::{Armed, Gone, Ready};
    for (state, in_turn, out, back) in [
        (Armed, Armed, OUT, Armed),
        (Ready, Ready, OUT_READY, Ready),
        (OUT, OUT_READY, OUT, Armed),
        (OUT_READY, OUT_READY, OUT_READY, Ready),
        (Gone, Gone, OUT, Armed),
    ] {
        let mut port = state;
        port.begin_turn();
        assert_eq!(port, in_turn, "{state:?}");
        let mut port = state;
        assert_eq!(port.put_in(), state.is_unwatched(), "{state:?}");
        let mut port = state;
        port.take_out();
        assert_eq!(port, out, "{state:?}");
        assert!(port.put_in());
        assert_eq!(port, back, "{state:?}");
    }
}

fn wait(wake: Wake, buffers: Buffers) -> RxWait {
    RxWait { wake, buffers }
}

fn short(look_at: Option<Instant>, frame: bool) -> Buffers {
    Buffers::Short { look_at, frame }
}

#[test]
fn what_a_turn_found_says_what_is_waited_for() {
    let at = Instant::now();
    for (wake, found, after) in [
        (Wake::Batch, (false, false), wait(Wake::Batch, Buffers::Posted)),
        (Wake::Any, (false, false), wait(Wake::Batch, Buffers::Posted)),
        (Wake::Any, (false, true), wait(Wake::Batch, Buffers::Retry)),
        (Wake::Batch, (true, false), wait(Wake::Batch, short(Some(at), false))),
        (Wake::Batch, (true, true), wait(Wake::Batch, short(Some(at), true))),
        // The guest had its time.
        (Wake::Any, (true, false), wait(Wake::Any, short(None, false))),
        (Wake::Any, (true, true), wait(Wake::Any, short(Some(at), true))),
    ] {
        for before in [Buffers::Posted, Buffers::Retry, short(None, false), short(Some(at), true)] {
            let mut rx = wait(wake, before);
            rx.ran(found.0, found.1, || at);
            assert_eq!(rx, after, "{wake:?} {before:?} {found:?}");
        }
    }
}

#[test]
fn buffers_that_come_have_the_receive_side_run() {
    for (before, posted) in [
        (Buffers::Posted, Buffers::Posted),
        (Buffers::Retry, Buffers::Retry),
        (short(None, false), Buffers::Posted),
        (short(None, true), Buffers::Retry),
    ] {
        for wake in [Wake::Batch, Wake::Any] {
            let mut rx = wait(wake, before);
            assert_eq!(rx.is_short(), matches!(before, Buffers::Short { .. }), "{before:?}");
            assert_eq!(rx.has_frame(), posted == Buffers::Retry, "{before:?}");
            rx.posted();
            assert_eq!(rx, wait(wake, posted), "{before:?}");
            // A kick does not end the impatience: a turn that has enough does.
            assert_eq!(rx.has_frame(), posted == Buffers::Retry, "{before:?}");
            rx.begin();
            assert_eq!(rx, wait(wake, Buffers::Posted));
        }
    }
}

#[test]
fn a_guest_has_some_time_to_post_a_good_part_of_its_ring() {
    let (before, at) = (Instant::now(), Instant::now() + Duration::from_secs(1));
    let mut rx = RxWait::new();
    rx.slept();
    assert!(rx == RxWait::new() && !rx.is_patient() && !rx.is_due(|| at));
    rx.ran(true, false, || at);
    assert!(rx.is_patient() && !rx.is_due(|| before));
    assert_eq!([rx.wanted(256), rx.wanted(2)], [64, 1]);
    let mut slept = rx;
    slept.slept();
    assert!(rx.is_due(|| at));
    for mut rx in [rx, slept] {
        assert_eq!(rx.wanted(256), 1, "any will do");
        assert!(!rx.is_patient());
        rx.ran(true, false, || at);
        assert!(!rx.is_patient() && !rx.is_due(|| at), "it had its time");
        rx.ran(true, true, || at);
        assert!(rx.is_patient() && rx.is_due(|| at), "a frame waits");
        rx.ran(false, false, || at);
        assert_eq!(rx, RxWait::new());
    }
    // The next turn takes what has come since anyhow.
    rx.posted();
    assert!(!rx.is_due(|| at));
}
