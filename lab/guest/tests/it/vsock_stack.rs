//! Connections from guest to guest through a switch that knows no rules: all
//! checks are those of the stacks at both ends.

use std::time::Duration;

use crate::support::backend::PATIENCE;
use crate::support::vsock::{A, B, Pair, pair};
use zerowire_guest::GuestError;
use zerowire_guest::vsock::{
    ConnId, ConnState, Drain, Layout, PayloadPool, Received, SHUTDOWN_BOTH, SHUTDOWN_RCV, SHUTDOWN_SEND,
    SocketType, StackOptions, StreamSum, VsockOptions, VsockStack,
};

const TURN: Duration = Duration::from_millis(1);
const PORT: u32 = 1234;

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed * 13 + at / 251) as u8).collect()
}

/// Connects `a` to `b`.
fn connect(pair: &mut Pair, kind: SocketType) -> (ConnId, ConnId) {
    pair.b.listen(PORT, kind);
    let ours = pair.a.connect(B, PORT, kind).unwrap();
    let theirs = pair.b.accept_wait(PORT, PATIENCE).unwrap();
    assert!(pair.a.wait_connected(ours, PATIENCE).unwrap());
    assert_eq!(pair.a.state(ours), ConnState::Established);
    assert_eq!(pair.b.peer(theirs).unwrap().0, A);
    (ours, theirs)
}

/// Makes turns of both until `done`.
fn run(pair: &mut Pair, mut done: impl FnMut(&mut VsockStack, &mut VsockStack) -> bool) {
    let start = std::time::Instant::now();
    while !done(&mut pair.a, &mut pair.b) {
        assert!(start.elapsed() < PATIENCE, "stuck: {:?} {:?}", pair.a.counters(), pair.b.counters());
        pair.a.turn(TURN).unwrap();
        pair.b.turn(TURN).unwrap();
    }
}

/// Sends `sent` from `a` to `b` and expects it there.
fn transfer(pair: &mut Pair, (from, to): (ConnId, ConnId), sent: &[u8]) {
    let (mut at, mut got) = (0, Vec::new());
    run(pair, |a, b| {
        at += a.send(from, &sent[at..]).unwrap();
        b.recv(to, &mut got).unwrap();
        got.len() == sent.len()
    });
    assert!(got == sent, "{} bytes differ", sent.len());
}

#[test]
fn streams_of_many_sizes_with_little_and_much_credit() {
    for (buf_alloc, layout, queue_size) in
        [(1000, Layout::Single, 128), (65_536, Layout::Pieces(4096), 32), (256 << 10, Layout::Split, 8)]
    {
        let options = VsockOptions { layout, queue_size, ..VsockOptions::default() };
        let mut pair = pair(&options, StackOptions { buf_alloc, ..StackOptions::default() });
        let conns = connect(&mut pair, SocketType::Stream);
        for (seed, len) in [1, 2, 999, 1000, 1001, 4052, 4053, 65_536, 300_000].into_iter().enumerate() {
            transfer(&mut pair, conns, &bytes(len, seed));
        }
        assert_eq!((pair.a.counters().stray, pair.b.counters().stray), (0, 0));
        assert!(pair.b.counters().credit_updates_sent > 0);
    }
}

#[test]
fn messages_keep_their_bounds() {
    let stack = StackOptions { buf_alloc: 10_000, ..StackOptions::default() };
    let mut pair = pair(&VsockOptions::default(), stack);
    let (ours, theirs) = connect(&mut pair, SocketType::SeqPacket);
    let lens = [0, 1, 4052, 4053, 10_000, 0, 9999, 5000, 5001, 3, 10_000];
    let (mut next, mut got) = (0, Vec::new());
    run(&mut pair, |a, b| {
        while next < lens.len() && a.send_message(ours, &bytes(lens[next], next), next % 2 == 1).unwrap() {
            next += 1;
        }
        let mut message = Vec::new();
        match b.recv(theirs, &mut message).unwrap() {
            Received::Data(len) => got.push((false, len, message)),
            Received::Record(len) => got.push((true, len, message)),
            Received::Empty => {}
            Received::End => panic!("ended"),
        }
        got.len() == lens.len()
    });
    for (seed, (record, len, message)) in got.into_iter().enumerate() {
        assert_eq!((record, len), (seed % 2 == 1, lens[seed]));
        assert!(message == bytes(lens[seed], seed), "message {seed}");
    }
    let long = pair.a.send_message(ours, &[0; 10_001], false);
    assert!(matches!(long, Err(GuestError::MessageTooLong { len: 10_001, capacity: 10_000 })));
}

#[test]
fn a_message_under_way_goes_out_before_the_shutdown() {
    let stack = StackOptions { buf_alloc: 8000, ..StackOptions::default() };
    let mut pair = pair(&VsockOptions::default(), stack);
    let (ours, theirs) = connect(&mut pair, SocketType::SeqPacket);
    assert!(pair.a.send_message(ours, &bytes(7000, 1), false).unwrap());
    assert!(pair.a.send_message(ours, &bytes(7500, 2), false).unwrap());
    assert!(!pair.a.send_message(ours, &[1], false).unwrap(), "the second one is not wholly sent");
    pair.a.close(ours).unwrap();
    let mut got = Vec::new();
    run(&mut pair, |_, b| {
        let mut message = Vec::new();
        match b.recv(theirs, &mut message).unwrap() {
            Received::Data(_) => got.push(message),
            Received::End => return true,
            _ => {}
        }
        false
    });
    assert_eq!(got, [bytes(7000, 1), bytes(7500, 2)]);
    run(&mut pair, |a, _| a.connections() == 0);
}

#[test]
fn half_closed_connections_carry_the_reply() {
    let mut pair = pair(&VsockOptions::default(), StackOptions::default());
    let (ours, theirs) = connect(&mut pair, SocketType::Stream);
    pair.a.send_all(ours, b"question", PATIENCE).unwrap();
    pair.a.shutdown(ours, SHUTDOWN_SEND).unwrap();
    assert!(matches!(pair.a.send(ours, b"more"), Err(GuestError::NotConnected { .. })));
    assert_eq!(pair.b.recv_to_end(theirs, PATIENCE).unwrap(), b"question");
    assert_eq!(pair.b.peer_shutdown(theirs), SHUTDOWN_SEND);
    pair.b.send_all(theirs, &bytes(100_000, 3), PATIENCE).unwrap();
    pair.b.close(theirs).unwrap();
    let mut got = Vec::new();
    run(&mut pair, |a, b| {
        let received = a.recv(ours, &mut got).unwrap();
        b.turn(TURN).unwrap();
        received == Received::End
    });
    assert!(got == bytes(100_000, 3));
    assert_eq!(pair.a.peer_shutdown(ours), SHUTDOWN_BOTH);
    assert_eq!(pair.a.state(ours), ConnState::Closed, "all was read, so the shutdown was answered");
    run(&mut pair, |_, b| b.connections() == 0);
    pair.a.close(ours).unwrap();
    assert_eq!(pair.a.connections(), 0);
    assert_eq!((pair.a.counters().stray, pair.b.counters().stray), (0, 0));
}

#[test]
fn connections_end_as_they_should() {
    let mut pair = pair(&VsockOptions::default(), StackOptions { backlog: 2, ..StackOptions::default() });
    // Nobody listens; another type; no such guest; the backlog is full.
    pair.b.listen(PORT, SocketType::Stream);
    for (cid, port, kind) in
        [(B, 1, SocketType::Stream), (B, PORT, SocketType::SeqPacket), (99, PORT, SocketType::Stream)]
    {
        let refused = pair.a.connect(cid, port, kind).unwrap();
        run(&mut pair, |a, _| a.state(refused) != ConnState::Connecting);
        assert_eq!(pair.a.state(refused), ConnState::Refused);
        let mut none = Vec::new();
        assert!(matches!(pair.a.recv(refused, &mut none), Err(GuestError::NotConnected { .. })));
        pair.a.close(refused).unwrap();
    }
    let three = [0; 3].map(|_| pair.a.connect(B, PORT, SocketType::Stream).unwrap());
    run(&mut pair, |a, _| three.iter().all(|&conn| a.state(conn) != ConnState::Connecting));
    let states = three.map(|conn| pair.a.state(conn));
    assert_eq!(states, [ConnState::Established, ConnState::Established, ConnState::Refused]);
    let theirs = [0; 2].map(|_| pair.b.accept(PORT).unwrap());

    // An RST; what came before it can be read.
    pair.a.send_all(three[0], b"last words", PATIENCE).unwrap();
    pair.a.abort(three[0]).unwrap();
    assert_eq!(pair.a.state(three[0]), ConnState::Closed, "it is forgotten");
    assert_eq!(pair.b.wait_closed(theirs[0], PATIENCE).unwrap(), ConnState::Reset);
    assert_eq!(pair.b.recv_exact(theirs[0], 10, PATIENCE).unwrap(), b"last words");
    assert!(pair.b.recv_exact(theirs[0], 1, PATIENCE).is_err());

    // A shutdown of both sides, answered at once where nothing is unread.
    pair.a.shutdown(three[1], SHUTDOWN_RCV).unwrap();
    pair.a.shutdown(three[1], SHUTDOWN_SEND).unwrap();
    assert_eq!(pair.a.state(three[1]), ConnState::Closing);
    run(&mut pair, |a, _| a.state(three[1]) == ConnState::Closed);
    assert_eq!(pair.b.state(theirs[1]), ConnState::Closed);
    for conn in theirs {
        pair.b.close(conn).unwrap();
    }
    assert_eq!(pair.b.connections(), 0);
}

#[test]
fn both_may_close_at_once() {
    let mut pair = pair(&VsockOptions::default(), StackOptions::default());
    let (ours, theirs) = connect(&mut pair, SocketType::Stream);
    pair.a.close(ours).unwrap();
    pair.b.close(theirs).unwrap();
    run(&mut pair, |a, b| a.connections() + b.connections() == 0);
}

#[test]
fn a_thousand_connections_at_once() {
    let mut pair = pair(&VsockOptions::default(), StackOptions::default());
    pair.b.listen(PORT, SocketType::Stream);
    let ours: Vec<_> = (0..1000).map(|_| pair.a.connect(B, PORT, SocketType::Stream).unwrap()).collect();
    let mut theirs = Vec::new();
    run(&mut pair, |_, b| {
        theirs.extend(std::iter::from_fn(|| b.accept(PORT)));
        theirs.len() == 1000
    });
    let mut next = 0;
    run(&mut pair, |a, b| {
        // The other side must take packets, or its queue fills up.
        b.turn(Duration::ZERO).unwrap();
        let Some(&conn) = ours.get(next) else { return true };
        if a.state(conn) == ConnState::Established && a.send(conn, &bytes(100, next)).unwrap() > 0 {
            a.close(conn).unwrap();
            next += 1;
        }
        false
    });
    let mut seen = 0;
    run(&mut pair, |_, b| {
        theirs.retain(|&conn| {
            let mut got = Vec::new();
            if b.recv(conn, &mut got).unwrap() == Received::Empty {
                return true;
            }
            assert_eq!(got.len(), 100);
            b.close(conn).unwrap();
            seen += 1;
            false
        });
        seen == 1000
    });
    run(&mut pair, |a, b| a.connections() + b.connections() == 0);
}

#[test]
fn bulk_from_a_pool_arrives_in_order() {
    for (kind, piece, write_len) in [
        (SocketType::Stream, None, 4096),
        (SocketType::Stream, Some(4096), 200_000),
        (SocketType::SeqPacket, Some(3000), 30_000),
    ] {
        let stack = StackOptions { buf_alloc: 65_536, ..StackOptions::default() };
        let mut pair = pair(&VsockOptions::default(), stack);
        let (ours, theirs) = connect(&mut pair, kind);
        let pool = PayloadPool::new(pair.drivers[0].memory(), 100_001, piece).unwrap();
        pair.b.drain_payload(theirs, Drain::Sum).unwrap();
        let total = 10 * write_len as u64;
        let mut sent = 0;
        run(&mut pair, |a, b| {
            // Whole writes only, so that the sum is of a known length.
            while sent < total {
                let before = a.counters().payload_sent;
                if a.send_from_pool(ours, &pool, write_len, 1).unwrap() == 0 {
                    break;
                }
                sent += a.counters().payload_sent - before;
            }
            b.drained(theirs).bytes == total
        });
        let mut sum = StreamSum::default();
        sum.update(&pool.to_vec().into_iter().cycle().take(total as usize).collect::<Vec<_>>());
        let drained = pair.b.drained(theirs);
        assert_eq!(drained.sum, sum.value());
        assert_eq!(drained.messages, if kind == SocketType::SeqPacket { 10 } else { 0 });
        pair.a.flush(PATIENCE).unwrap();
        assert_eq!(pair.a.queues().tx.in_flight(), 0);
    }
}
