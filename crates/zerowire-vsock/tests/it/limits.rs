//! Limits of the rate: what is beyond them waits, and comes whole and in its order.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use crate::support::harness::{one_guest, received, start};
use crate::support::vsock::{Vm, VsockBackend, pattern, read_exact};
use zerowire_vsock::packet::{Header, Kind, Op};
use zerowire_vsock::testing::{Flow, Layout};
use zerowire_vsock::{Limits, RX_QUEUE, TX_QUEUE, VsockLimits};

/// A VM with these limits, if any.
fn limited(transmit: Option<&str>, receive: Option<&str>) -> Vm {
    let parsed = |text: &str| text.parse().unwrap_or_else(|e| panic!("{e}"));
    let rates = Limits { transmit: transmit.map(parsed), receive: receive.map(parsed) };
    Vm { rates, ..Vm::new("vm", 3) }
}

#[test]
fn a_limited_guest_sends_all_and_its_packets_wait_in_its_ring() {
    let backend = VsockBackend::start(&[limited(Some("2M/s,burst=100k"), None)]);
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
    let bytes = pattern(500_000, 1);
    let start = Instant::now();
    let ((), got) = guest.both(|g| g.send(conn, &bytes), || read_exact(&mut stream, bytes.len()));
    let took = start.elapsed();
    assert!(got == bytes);
    // The burst passes at once, and the last packet while there is a token.
    assert!(took >= Duration::from_millis(160), "500 kB in {took:?}");
    let totals = backend.stats("vm").totals;
    assert!(totals.limits.transmit_limit_waits > 0 && totals.limits.transmit_limit_wait_seconds > 0.0);
    assert_eq!(totals.limits.receive_limit_waits, 0);
    assert_eq!(totals.transmit.dropped_total(), 0);
}

#[test]
fn payload_for_a_limited_guest_waits_in_the_sockets_and_none_is_forgotten() {
    let backend = VsockBackend::start(&[limited(None, Some("2M/s,burst=50k"))]);
    let mut guest = backend.guest("vm");
    let mut open: Vec<_> = (0..5).map(|n| backend.open("vm", &mut guest, 1234 + n)).collect();
    let bytes: Vec<_> = (0..open.len()).map(|seed| pattern(100_000, seed)).collect();
    let start = Instant::now();
    let conns: Vec<_> = open.iter().map(|(conn, _)| *conn).collect();
    guest.both(
        |g| {
            for (conn, bytes) in conns.iter().zip(&bytes) {
                assert!(g.recv(*conn, bytes.len()) == *bytes);
            }
        },
        || {
            std::thread::scope(|s| {
                for ((_, stream), bytes) in open.iter_mut().zip(&bytes) {
                    s.spawn(move || stream.write_all(bytes).expect("written"));
                }
            });
        },
    );
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(220), "500 kB in {took:?}");
    let totals = backend.stats("vm").totals;
    assert!(totals.limits.receive_limit_waits > 0 && totals.limits.receive_limit_wait_seconds > 0.0);
    assert_eq!((totals.limits.transmit_limit_waits, totals.receive.bytes), (0, 500_000));
}

/// What a guest sends needs packets to it: credit, and the answer to a request. They have no
/// payload, and don't wait.
#[test]
fn the_limit_of_what_a_guest_receives_does_not_hold_up_what_it_sends() {
    let backend = VsockBackend::start(&[limited(None, Some("10/s,burst=10"))]);
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
    // Hours of it.
    stream.write_all(&pattern(100_000, 7)).expect("written");
    let bytes = pattern(4 << 20, 1);
    let ((), got) = guest.both(|g| g.send(conn, &bytes), || read_exact(&mut stream, bytes.len()));
    assert!(got == bytes);
    let (other, mut second) = backend.open("vm", &mut guest, 1235);
    let ((), got) = guest.both(|g| g.send(other, &bytes), || read_exact(&mut second, bytes.len()));
    assert!(got == bytes);
    assert!(backend.stats("vm").totals.limits.receive_limit_waits > 0);
}

#[test]
fn packets_are_operations() {
    let backend = VsockBackend::start(&[limited(Some("ops=100/s,ops-burst=5"), None)]);
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
    let start = Instant::now();
    for n in 0..15u8 {
        let ((), got) = guest.both(|g| g.send(conn, &[n; 10]), || read_exact(&mut stream, 10));
        assert_eq!(got, [n; 10]);
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(90), "15 packets in {took:?}");
}

/// A second in steps of 50 ms, by a clock that the test sets.
#[test]
fn connections_of_a_limited_guest_take_turns_within_its_rate() {
    const RATE: usize = 100_000;
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
    let receive = Some("100k/s,burst=6k".parse().unwrap_or_else(|e| panic!("{e}")));
    harness.limit(0, Limits { receive, transmit: None });
    let start = Instant::now();
    let listener = UnixListener::bind(dir.path().join("3_1")).expect("a free path");
    let streams = [100, 101].map(|port| {
        let flow = Flow::new(3, port, 1, Kind::Stream);
        assert!(flow.control(&mut guest, Op::Request, 0), "room");
        harness.rest();
        guest.reap(TX_QUEUE, |_| {});
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(&[port as u8; 60_000]).expect("written");
        (flow, stream)
    });
    let mut came = [0; 2];
    for _ in 0..20 {
        harness.pass(Duration::from_millis(50));
        harness.rest();
        for (header, payload) in received(&mut guest) {
            came[header.dst_port as usize - 100] += payload.len();
        }
        // On a busy machine the device has the time for many short packets, and a guest that tells
        // of no reads gets a bounded number.
        for ((flow, _), came) in streams.iter().zip(came) {
            let read = Header { fwd_cnt: came as u32, ..flow.header(Op::CreditUpdate, 0) };
            assert!(guest.send(&read.to_bytes(), 0, Layout(0)), "room");
        }
        harness.rest();
        guest.reap(TX_QUEUE, |_| {});
    }
    drop(streams);
    let total = came[0] + came[1];
    let most = 6_000.0 + RATE as f64 * (1.0 + start.elapsed().as_secs_f64());
    assert!(total >= RATE * 95 / 100 && total as f64 <= most, "{came:?}");
    assert!(came.iter().all(|n| n * 4 >= total), "{came:?}");
    assert!(harness.totals(0).limits.receive_limit_waits >= 10, "in nearly each step");
}

/// The payload goes with its connection. A thread that still waited for tokens would not sleep.
#[test]
fn nothing_waits_for_a_limit_once_its_connection_is_gone() {
    for resets_device in [false, true] {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
        let receive = Some("10/s,burst=10".parse().unwrap_or_else(|e| panic!("{e}")));
        harness.limit(0, Limits { receive, transmit: None });
        let listener = UnixListener::bind(dir.path().join("3_1")).expect("a free path");
        let flow = Flow::new(3, 100, 1, Kind::Stream);
        assert!(flow.control(&mut guest, Op::Request, 0), "room");
        harness.rest();
        guest.reap(TX_QUEUE, |_| {});
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(&pattern(1000, 1)).expect("written");
        harness.rest();
        assert!(harness.nap().is_some_and(|nap| !nap.is_zero()), "payload waits");
        let mut next = None;
        if resets_device {
            for queue in [RX_QUEUE, TX_QUEUE] {
                harness.stop(0, queue).expect("a ring that runs");
            }
            next = Some(start(&mut harness, 0));
        } else {
            assert!(flow.control(&mut guest, Op::Rst, 0), "room");
        }
        harness.rest();
        harness.pass(Duration::from_secs(1));
        harness.rest();
        assert_eq!(harness.nap(), None, "resets_device: {resets_device}");
        drop(next);
    }
}
