use zerowire::ledger::CopyReason;
use zerowire_vhost::ring::inflight::testing::Driver;

use super::*;
use crate::Policy;
use crate::port::tap::TapInlet;
use crate::receive::ReceiveSetup;

/// Bytes of a virtio-net header.
const HEADER: usize = 12;

fn side() -> Receive<TapInlet> {
    let setup = ReceiveSetup { mergeable: true, header_len: HEADER, clears_flags: false };
    let inlet = TapInlet::new(Policy::default(), 1500, setup).expect("memory");
    Receive::new(Driver::new(0).device().0, inlet, setup)
}

/// The guest gets a frame.
fn deliver(counters: &Counters, len: usize) {
    counters.frames.add(1);
    counters.copied(CopyReason::Small, (HEADER + len) as u64);
}

/// A frame from this process itself is paid for. It says nothing of those that wait in the port.
#[test]
fn frames_between_two_turns_count_and_are_no_likely_ones() {
    let limiter = Limiter::new(Some("ops=1/s,ops-burst=3".parse().unwrap_or_else(|e| panic!("{e}"))));
    let (mut limits, mut side, counters) = (PairLimits::default(), side(), Counters::default());
    assert!(limits.begin_receive(&limiter, &mut side, &counters));
    deliver(&counters, 1500);
    limits.end_receive(&limiter, HEADER, &counters);
    assert_eq!(limits.likely_bytes, 1500);
    (0..5).for_each(|_| deliver(&counters, 60));
    assert!(limits.begin_receive(&limiter, &mut side, &counters));
    limits.end_receive(&limiter, HEADER, &counters);
    assert_eq!(limits.likely_bytes, 1500);
    assert!(!limits.begin_receive(&limiter, &mut side, &counters), "more than the burst has passed");
}
