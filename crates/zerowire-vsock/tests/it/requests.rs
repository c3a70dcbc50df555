//! A guest that makes more connection requests than the back end examines. What comes beyond its
//! rate is answered, and costs others nothing.
//!
//! Where a count depends on time, time passes as it likes: bounds are those of the time that has
//! really passed. Packets that the device takes together have one clock.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use crate::support::harness::{one_guest, received, start};
use crate::support::raw::{RawConn, RawGuest};
use crate::support::vsock::{Vm, VsockBackend, accept, read_exact, try_accept};
use crate::support::wait_until;
use zerowire_guest::vsock::{HOST_CID, Op as GuestOp, PacketHeader, SocketType};
use zerowire_vsock::packet::{Header, Kind, Op};
use zerowire_vsock::testing::{Flow, Guest, Harness, Layout};
use zerowire_vsock::{TX_QUEUE, VsockLimits};

/// Requests between which an established connection moves its bytes.
const BATCH: u32 = 64;

/// A batch of requests to a port on which nobody listens, with bytes of `conn` amid them: each has
/// its RST, and the bytes arrive.
fn flood(guest: &mut RawGuest, conn: &mut RawConn, host: &mut (impl Read + Write)) {
    let mut asked = BTreeSet::new();
    for n in 0..BATCH {
        if n == BATCH / 2 {
            guest.send(conn, b"to the host", 0);
        }
        let request = guest.header(HOST_CID, 9, SocketType::Stream, GuestOp::Request);
        guest.put(&request, &[]);
        asked.insert(request.src_port);
    }
    let mut bytes = [0; 11];
    host.read_exact(&mut bytes).expect("the bytes");
    assert_eq!(&bytes, b"to the host");
    host.write_all(b"back").expect("room");
    let mut back = Vec::new();
    while !asked.is_empty() || back.len() < 4 {
        let (header, payload) = guest.next();
        match header.op() {
            Some(GuestOp::Rst) => {
                assert_eq!((header.src_cid, header.src_port), (HOST_CID, 9));
                assert!(asked.remove(&header.dst_port), "one answer each: {header:?}");
            }
            Some(GuestOp::Rw) => {
                conn.header.fwd_cnt = conn.header.fwd_cnt.wrapping_add(header.len);
                back.extend(payload);
            }
            _ => assert_eq!(header.op(), Some(GuestOp::CreditUpdate)),
        }
    }
    assert_eq!(back, b"back");
}

#[test]
fn each_request_beyond_the_rate_is_reset_and_connections_go_on() {
    const RATE: u32 = 100;
    let backend = VsockBackend::start(&[Vm::new("vm", 3).request_rate(RATE), Vm::new("other", 4)]);
    let listener = backend.listen("vm", 1);
    let mut guest = RawGuest::start(&backend, "vm");
    let mut other = backend.guest("other");
    let mut conn = guest.open(HOST_CID, 1, SocketType::Stream);
    let mut host = accept(&listener);
    let start = Instant::now();
    let mut batches = 0;
    // More than may have been looked at, however slow this is.
    let asked = loop {
        flood(&mut guest, &mut conn, &mut host);
        batches += 1;
        if batches % 10 == 0 {
            // Another VM's requests are its own.
            let (conn, mut stream) = backend.open("other", &mut other, 1);
            other.ping(conn, &mut stream);
        }
        let asked = u64::from(batches * BATCH);
        if batches >= 100 && backend.stats("vm").totals.requests_over_rate > asked / 2 {
            break asked;
        }
        assert!(batches < 10_000, "{:?}", backend.stats("vm").totals);
    };
    let most = f64::from(RATE) * (1.0 + start.elapsed().as_secs_f64());
    let totals = backend.stats("vm").totals;
    assert_eq!(totals.connections_refused, asked);
    let looked_at = asked - totals.requests_over_rate;
    // The connection took one.
    assert!(
        (u64::from(RATE) - 1..=most as u64).contains(&looked_at),
        "{looked_at} of {asked}, {most} at most"
    );
    assert_eq!((totals.connections_open, totals.resets, totals.transmit.dropped_total()), (1, 0, 0));
    let others = backend.stats("other").totals;
    assert_eq!((others.requests_over_rate, others.connections_refused), (0, 0));
    assert_eq!(others.connections_opened, u64::from(batches / 10));
    // Later there is room again.
    wait_until("a request is granted", || {
        let request = guest.header(HOST_CID, 1, SocketType::Stream, GuestOp::Request);
        guest.put(&request, &[]);
        // Credit that is due on the other connection comes when the device is idle, if ever.
        let answer = loop {
            let (answer, _) = guest.next();
            if answer.op() != Some(GuestOp::CreditUpdate) {
                break answer;
            }
        };
        assert_eq!(answer.dst_port, request.src_port);
        answer.op() == Some(GuestOp::Response)
    });
    assert!(try_accept(&listener).is_some(), "its program has it");
}

#[test]
fn without_a_bound_nothing_is_over_it() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).request_rate(0)]);
    let listener = backend.listen("vm", 1);
    let mut guest = RawGuest::start(&backend, "vm");
    let mut conn = guest.open(HOST_CID, 1, SocketType::Stream);
    let mut host = accept(&listener);
    // More than come through at once where there is one.
    let batches = 2 * VsockLimits::default().request_rate / BATCH;
    for _ in 0..batches {
        flood(&mut guest, &mut conn, &mut host);
    }
    let totals = backend.stats("vm").totals;
    assert_eq!((totals.connections_refused, totals.requests_over_rate), (u64::from(batches * BATCH), 0));
}

/// At most `request_rate` requests a second, and at once.
fn limits(request_rate: u32) -> VsockLimits {
    VsockLimits::default().request_rate(request_rate)
}

/// What the device answers: ports of the guest and operations, in order of the ports.
fn answers(guest: &mut Guest) -> Vec<(u32, Op)> {
    guest.reap(TX_QUEUE, |_| {});
    let mut all: Vec<_> =
        received(guest).iter().map(|(h, _)| (h.dst_port, Op::new(h.op).expect("an operation"))).collect();
    all.sort_by_key(|(port, _)| *port);
    all
}

fn ask(guest: &mut Guest, port: u32, host_port: u32) {
    assert!(Flow::new(3, port, host_port, Kind::Stream).control(guest, Op::Request, 0), "room");
}

#[test]
fn as_many_as_a_second_has_come_through_at_once_and_again_a_second_later() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), limits(4));
    let listener = UnixListener::bind(dir.path().join("3_1")).expect("a free path");
    let begin = Instant::now();
    let mut port = 100;
    let mut granted = 0;
    for round in 1..=5 {
        let mut taken = 0;
        for _ in 0..6 {
            port += 1;
            ask(&mut guest, port, 1);
            harness.rest();
            match answers(&mut guest)[..] {
                [(p, Op::Response)] if p == port => taken += 1,
                [(p, Op::Rst)] if p == port => {}
                ref other => panic!("{other:?}"),
            }
        }
        assert!(taken >= 4, "round {round}: {taken}");
        granted += taken;
        let most = 4.0 * f64::from(round) + 4.0 * begin.elapsed().as_secs_f64();
        assert!(f64::from(granted) <= most, "{granted} in {round} rounds, {most} at most");
        harness.pass(Duration::from_secs(1));
    }
    let totals = harness.totals(0);
    assert_eq!(totals.connections_opened, granted as u64);
    assert_eq!(
        (totals.requests_over_rate, totals.connections_refused),
        (30 - granted as u64, 30 - granted as u64)
    );
    assert_eq!((0..granted).filter(|_| try_accept(&listener).is_some()).count(), granted as usize);
}

/// One that is refused costs a turn as much as any small packet.
#[test]
fn requests_beyond_the_rate_go_in_one_turn() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), limits(1));
    harness.rest();
    for port in 100..116 {
        ask(&mut guest, port, 9);
    }
    // The first turn may only hear that there is something.
    while harness.totals(0).connections_refused == 0 {
        harness.turn();
    }
    assert_eq!(harness.totals(0).requests_over_rate, 15);
    harness.rest();
    assert_eq!(answers(&mut guest).len(), 15 + 1);
}

/// A guest that asks anew has forgotten the old connection: it is over, also where the new one is
/// refused.
#[test]
fn a_connection_that_is_asked_for_again_ends_beyond_the_rate_too() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), limits(1));
    let listener = UnixListener::bind(dir.path().join("3_1")).expect("a free path");
    ask(&mut guest, 100, 1);
    harness.rest();
    assert_eq!(answers(&mut guest), [(100, Op::Response)]);
    let mut program = try_accept(&listener).expect("a connection");
    let over = harness.totals(0).requests_over_rate;
    // Whether there is one left or not: the second of these is beyond it.
    ask(&mut guest, 101, 9);
    ask(&mut guest, 100, 1);
    harness.rest();
    assert_eq!(answers(&mut guest), [(100, Op::Rst), (101, Op::Rst)]);
    assert_eq!(program.read(&mut [0; 8]).expect("the end"), 0);
    let totals = harness.totals(0);
    assert!(totals.requests_over_rate > over);
    assert_eq!((totals.connections_open, totals.connections_refused, harness.connections(0)), (0, 2, 0));
    assert!(try_accept(&listener).is_none(), "it was not looked at");
}

/// They make no socket.
#[test]
fn requests_to_other_guests_do_not_count() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let mut harness = Harness::new(dir.path(), &[3, 4], limits(1)).expect("a device");
    let (mut hostile, mut sound) = (start(&mut harness, 0), start(&mut harness, 1));
    harness.rest();
    let to_guest = Header { dst_cid: 4, ..Flow::new(3, 101, 7, Kind::Stream).header(Op::Request, 0) };
    ask(&mut hostile, 100, 9);
    ask(&mut hostile, 102, 9);
    assert!(hostile.send(&to_guest.to_bytes(), 0, Layout(0)), "room");
    harness.rest();
    assert_eq!(answers(&mut hostile), [(100, Op::Rst), (102, Op::Rst)]);
    assert_eq!(answers(&mut sound), [(7, Op::Request)]);
    assert_eq!(harness.totals(0).requests_over_rate, 1);
}

/// Of wrong ones nothing comes, and none of the good ones is lost for them.
#[test]
fn wrong_requests_are_not_counted_against_the_rate() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), limits(1));
    let _listener = UnixListener::bind(dir.path().join("3_1")).expect("a free path");
    harness.rest();
    for port in 100..108 {
        let wrong = Header { kind: 99, ..Flow::new(3, port, 1, Kind::Stream).header(Op::Request, 0) };
        assert!(guest.send(&wrong.to_bytes(), 0, Layout(0)), "room");
    }
    ask(&mut guest, 108, 1);
    harness.rest();
    let told = answers(&mut guest);
    assert_eq!(told.last(), Some(&(108, Op::Response)), "{told:?}");
    let totals = harness.totals(0);
    assert_eq!((totals.requests_over_rate, totals.transmit.dropped_frames["bad_packet"]), (0, 8));
}

/// Whoever disconnects and comes again finds no new bucket.
#[test]
fn a_new_front_end_has_no_new_rate() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).request_rate(1)]);
    let begin = Instant::now();
    let mut asked = 0;
    for _ in 0..20 {
        let mut guest = RawGuest::start(&backend, "vm");
        let request = guest.header(HOST_CID, 9, SocketType::Stream, GuestOp::Request);
        guest.put(&PacketHeader { src_port: 5, ..request }, &[]);
        assert_eq!(guest.next_of(GuestOp::Rst).0.dst_port, 5);
        asked += 1;
        drop(guest);
        wait_until("gone", || !backend.stats("vm").connected);
    }
    let totals = backend.stats("vm").totals;
    let most = 1 + begin.elapsed().as_secs();
    assert_eq!(totals.connections_refused, asked);
    assert!(asked - totals.requests_over_rate <= most, "{} over", totals.requests_over_rate);
}

/// Host programs ask as often as they like.
#[test]
fn requests_of_host_programs_do_not_count() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).request_rate(1)]);
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = backend.open("vm", &mut guest, 1);
    guest.ping(conn, &mut stream);
    // Host programs are not the guest's requests.
    for port in 80..90 {
        let (conn, mut stream) = backend.dial_in("vm", &mut guest, port);
        guest.ping(conn, &mut stream);
    }
    assert_eq!(backend.stats("vm").totals.requests_over_rate, 0);
    guest.send(conn, b"still");
    assert_eq!(read_exact(&mut stream, 5), b"still");
}
