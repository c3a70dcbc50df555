//! What the stack says and does, packet by packet, and what it notices when
//! the device breaks a rule.

use std::time::Duration;

use crate::support::backend::PATIENCE;
use crate::support::vsock::{Direct, from_host, guest};
use zerowire_guest::GuestError;
use zerowire_guest::vsock::{
    ConnId, ConnState, Op, PacketHeader, RW_EOM, SHUTDOWN_BOTH, SHUTDOWN_SEND, SocketType, StackOptions,
    VsockOptions, VsockStack,
};

const CID: u64 = 5;
const PORT: u32 = 70;

/// A stack with a connection to port 9 of the host, and the peer's header for
/// each operation.
fn connected(kind: SocketType, buf_alloc: u32) -> (VsockStack, ConnId, Direct, impl Fn(Op) -> PacketHeader) {
    let (_, queues, direct) = guest(CID, &VsockOptions::default());
    let mut stack = VsockStack::new(queues, StackOptions { buf_alloc, ..StackOptions::default() });
    let conn = stack.connect_from(PORT, 2, 9, kind).unwrap();
    let (request, payload) = direct.ports().pop().expect("a request");
    let expected = PacketHeader {
        src_cid: CID,
        dst_cid: 2,
        src_port: PORT,
        dst_port: 9,
        kind: kind as u16,
        op: Op::Request as u16,
        buf_alloc,
        ..PacketHeader::default()
    };
    assert_eq!((request, payload.len()), (expected, 0));
    let peer = move |op| PacketHeader { kind: kind as u16, ..from_host(CID, 9, PORT, op) };
    assert!(direct.ports().push(&peer(Op::Response), &[]));
    assert!(stack.wait_connected(conn, PATIENCE).unwrap());
    assert_eq!(stack.credit(conn), 65536);
    (stack, conn, direct, peer)
}

fn turn(stack: &mut VsockStack) -> Result<usize, GuestError> {
    stack.turn(Duration::ZERO)
}

#[test]
fn credit_is_told_when_the_peer_knows_of_less_than_half() {
    let (mut stack, conn, direct, peer) = connected(SocketType::Stream, 1000);
    let mut bytes = Vec::new();
    let mut send = |stack: &mut VsockStack, len: usize| {
        assert!(direct.ports().push(&peer(Op::Rw), &vec![1; len]));
        turn(stack).unwrap();
        stack.recv(conn, &mut bytes).unwrap();
        direct.ports().pop().map(|(header, _)| (header.op(), header.fwd_cnt))
    };
    assert_eq!(send(&mut stack, 300), None);
    assert_eq!(send(&mut stack, 200), None);
    assert_eq!(send(&mut stack, 1), Some((Some(Op::CreditUpdate), 501)));
    assert_eq!(send(&mut stack, 500), None);
    assert_eq!(send(&mut stack, 500), Some((Some(Op::CreditUpdate), 1501)));
    assert_eq!(bytes.len(), 1501);
}

/// A device may leave only a limited number of packets unread, and learns from credit alone that
/// they were read.
#[test]
fn credit_is_told_when_many_small_packets_were_read() {
    let (mut stack, conn, direct, peer) = connected(SocketType::Stream, 128 << 10);
    let mut bytes = Vec::new();
    for told in [32, 64] {
        for n in told - 31..=told {
            assert!(direct.ports().push(&peer(Op::Rw), &[1]));
            turn(&mut stack).unwrap();
            stack.recv(conn, &mut bytes).unwrap();
            let update = direct.ports().pop().map(|(header, _)| (header.op(), header.fwd_cnt));
            assert_eq!(update, (n == told).then_some((Some(Op::CreditUpdate), told)));
        }
    }
    // While some of them are unread no credit goes out.
    for _ in 0..40 {
        assert!(direct.ports().push(&peer(Op::Rw), &[1]));
    }
    turn(&mut stack).unwrap();
    assert!(direct.ports().pop().is_none());
    stack.recv(conn, &mut bytes).unwrap();
    assert_eq!(direct.ports().pop().map(|(header, _)| header.fwd_cnt), Some(104));
    assert_eq!(bytes.len(), 104);
}

#[test]
fn a_message_longer_than_the_credit_left_gets_more() {
    let (mut stack, conn, direct, peer) = connected(SocketType::SeqPacket, 1000);
    assert!(direct.ports().push(&PacketHeader { flags: RW_EOM, ..peer(Op::Rw) }, &[1; 400]));
    assert_eq!(stack.recv_message(conn, PATIENCE).unwrap(), Some(vec![1; 400]));
    assert!(direct.ports().pop().is_none(), "the peer knows of more than half");
    assert!(direct.ports().push(&peer(Op::Rw), &[2; 600]));
    turn(&mut stack).unwrap();
    let (update, _) = direct.ports().pop().expect("nothing can be read, so this is the moment");
    assert_eq!((update.op(), update.fwd_cnt), (Some(Op::CreditUpdate), 400));
    assert!(direct.ports().push(&PacketHeader { flags: RW_EOM, ..peer(Op::Rw) }, &[2; 100]));
    assert_eq!(stack.recv_message(conn, PATIENCE).unwrap(), Some(vec![2; 700]));
}

#[test]
fn sending_stops_at_the_credit_and_asks_once() {
    let (mut stack, conn, direct, peer) = connected(SocketType::Stream, 1000);
    assert_eq!(stack.send(conn, &[7; 100_000]).unwrap(), 65536);
    assert_eq!(stack.send(conn, &[7; 100]).unwrap(), 0);
    let (data, payload) = direct.ports().pop().unwrap();
    assert_eq!((data.op(), data.len, payload.len()), (Some(Op::Rw), 65536, 65536));
    assert_eq!(direct.ports().pop().unwrap().0.op(), Some(Op::CreditRequest));
    assert!(direct.ports().pop().is_none());
    // The same figures again add nothing; a larger buffer adds credit; then fwd_cnt does.
    for (update, credit) in [
        (peer(Op::CreditUpdate), 0),
        (PacketHeader { buf_alloc: 65546, ..peer(Op::CreditUpdate) }, 10),
        (PacketHeader { fwd_cnt: 65536, ..peer(Op::CreditUpdate) }, 65536),
        (PacketHeader { fwd_cnt: 65536, buf_alloc: 5, ..peer(Op::CreditUpdate) }, 5),
    ] {
        assert!(direct.ports().push(&update, &[]));
        turn(&mut stack).unwrap();
        assert_eq!(stack.credit(conn), credit);
    }
    assert_eq!(stack.send(conn, &[7; 10]).unwrap(), 5);
    // A buffer that shrinks below what is on its way leaves no credit.
    assert!(
        direct.ports().push(&PacketHeader { fwd_cnt: 65536, buf_alloc: 1, ..peer(Op::CreditUpdate) }, &[])
    );
    turn(&mut stack).unwrap();
    assert_eq!(stack.credit(conn), 0);
    assert_eq!(stack.counters().credit_updates_received, 5);
}

#[test]
fn requests_for_credit_and_strays_are_answered() {
    let (mut stack, _conn, direct, peer) = connected(SocketType::Stream, 1000);
    assert!(direct.ports().push(&peer(Op::CreditRequest), &[]));
    for op in [Op::Rw, Op::Shutdown, Op::CreditUpdate, Op::CreditRequest, Op::Response, Op::Rst, Op::Request]
    {
        let flags = if op == Op::Shutdown { SHUTDOWN_SEND } else { 0 };
        assert!(direct.ports().push(&PacketHeader { flags, src_port: 10, ..peer(op) }, &[]));
    }
    turn(&mut stack).unwrap();
    let (update, _) = direct.ports().pop().unwrap();
    assert_eq!((update.op(), update.buf_alloc), (Some(Op::CreditUpdate), 1000));
    for _ in 0..6 {
        let (reset, _) = direct.ports().pop().unwrap();
        let expected = PacketHeader { src_port: 10, ..peer(Op::Rst) }.answer(Op::Rst);
        assert_eq!(reset, expected);
    }
    assert!(direct.ports().pop().is_none(), "an RST is not answered");
    let counters = stack.counters();
    assert_eq!((counters.stray, counters.stray_resets, counters.resets_sent), (5, 1, 6));
}

/// Changes a sound packet.
type Change = fn(PacketHeader) -> PacketHeader;

/// A connection with 100 bytes sent, 10 of which were taken, and a sound packet of its peer,
/// changed and received.
fn after(len: usize, change: Change) -> (VsockStack, ConnId, Direct, Result<usize, GuestError>) {
    let (mut stack, conn, direct, peer) = connected(SocketType::Stream, 1000);
    stack.send(conn, &[1; 100]).unwrap();
    let sound = PacketHeader { fwd_cnt: 10, ..peer(Op::Rw) };
    assert!(direct.ports().push(&PacketHeader { op: Op::CreditUpdate as u16, ..sound }, &[]));
    turn(&mut stack).unwrap();
    while direct.ports().pop().is_some() {}
    assert!(direct.ports().push(&change(sound), &vec![1; len]));
    let result = turn(&mut stack);
    (stack, conn, direct, result)
}

/// No device passes these on, whoever sends them.
#[test]
fn packets_that_the_device_must_not_pass_on_are_its_fault() {
    let changes: &[(&str, usize, Change)] = &[
        ("another guest's CID", 1, |h| PacketHeader { dst_cid: 6, ..h }),
        ("the guest's own CID", 1, |h| PacketHeader { src_cid: CID, ..h }),
        ("a reserved CID", 1, |h| PacketHeader { src_cid: 1, ..h }),
        ("a CID of more than 32 bits", 1, |h| PacketHeader { src_cid: 1 << 32 | 2, ..h }),
        ("an unknown operation", 1, |h| PacketHeader { op: 8, ..h }),
        ("operation 0", 1, |h| PacketHeader { op: 0, ..h }),
        ("an unknown type", 1, |h| PacketHeader { kind: 3, ..h }),
        ("flags of a message", 1, |h| PacketHeader { flags: RW_EOM, ..h }),
        ("payload of an update", 1, |h| PacketHeader { op: Op::CreditUpdate as u16, ..h }),
        ("a shutdown of nothing", 0, |h| PacketHeader { op: Op::Shutdown as u16, ..h }),
        ("unknown flags", 0, |h| PacketHeader { op: Op::Shutdown as u16, flags: 4, ..h }),
    ];
    for &(name, len, change) in changes {
        let (_, _, _, result) = after(len, change);
        assert!(matches!(result, Err(GuestError::DeviceBrokeRule(_))), "{name}: {result:?}");
    }
}

/// What a peer does wrong ends its connection by RST. Another connection goes on.
#[test]
fn what_a_peer_does_wrong_ends_its_connection_alone() {
    let changes: &[(&str, usize, Change)] = &[
        ("beyond the credit", 1001, |h| h),
        ("is of type Stream", 1, |h| PacketHeader { kind: 2, ..h }),
        ("fwd_cnt went back, or beyond", 1, |h| PacketHeader { fwd_cnt: 101, ..h }),
        ("fwd_cnt went back", 1, |h| PacketHeader { fwd_cnt: 9, ..h }),
        ("Response in state", 0, |h| PacketHeader { op: Op::Response as u16, ..h }),
        ("Request in state", 0, |h| PacketHeader { op: Op::Request as u16, ..h }),
        ("fwd_cnt of a REQUEST", 0, |h| PacketHeader { op: Op::Request as u16, src_port: 10, ..h }),
    ];
    for &(name, len, change) in changes {
        let (mut stack, conn, direct, result) = after(len, change);
        assert!(result.is_ok(), "{name}: {result:?}");
        let text = stack.last_fault().unwrap_or_default();
        assert!(text.contains(name) && stack.counters().faults == 1, "{name}: {text}");
        let (reset, _) = direct.ports().pop().expect("an answer");
        assert_eq!(reset.op(), Some(Op::Rst), "{name}");
        if reset.dst_port == 9 {
            assert_eq!(stack.state(conn), ConnState::Reset, "{name}");
        }
        let other = stack.connect_from(PORT + 1, 2, 9, SocketType::Stream).unwrap();
        assert!(direct.ports().push(&from_host(CID, 9, PORT + 1, Op::Response), &[]));
        assert!(stack.wait_connected(other, PATIENCE).unwrap(), "{name}");
    }
    for (name, op) in [("payload before the response", Op::Rw), ("an update before it", Op::CreditUpdate)] {
        let (_, queues, direct) = guest(CID, &VsockOptions::default());
        let mut stack = VsockStack::new(queues, StackOptions::default());
        let conn = stack.connect_from(PORT, 2, 9, SocketType::Stream).unwrap();
        assert!(direct.ports().push(&from_host(CID, 9, PORT, op), &[]));
        turn(&mut stack).unwrap();
        assert_eq!((stack.state(conn), stack.counters().faults), (ConnState::Reset, 1), "{name}");
    }
    let (mut stack, conn, direct, peer) = connected(SocketType::Stream, 1000);
    assert!(direct.ports().push(&PacketHeader { flags: SHUTDOWN_SEND, ..peer(Op::Shutdown) }, &[]));
    turn(&mut stack).unwrap();
    assert!(direct.ports().push(&peer(Op::Rw), &[1]));
    turn(&mut stack).unwrap();
    assert_eq!((stack.state(conn), stack.counters().faults), (ConnState::Reset, 1), "payload after the end");
}

#[test]
fn a_whole_shutdown_is_answered_when_all_was_read() {
    let (mut stack, conn, direct, peer) = connected(SocketType::Stream, 1000);
    assert!(direct.ports().push(&peer(Op::Rw), &[1; 10]));
    assert!(direct.ports().push(&PacketHeader { flags: SHUTDOWN_BOTH, ..peer(Op::Shutdown) }, &[]));
    turn(&mut stack).unwrap();
    assert!(direct.ports().pop().is_none());
    assert_eq!(stack.state(conn), ConnState::Established);
    assert_eq!(stack.recv_to_end(conn, PATIENCE).unwrap(), [1; 10]);
    assert_eq!(direct.ports().pop().unwrap().0.op(), Some(Op::Rst));
    assert_eq!(stack.state(conn), ConnState::Closed);
}

#[test]
fn payload_that_crosses_a_close_is_dropped() {
    let (mut stack, conn, direct, peer) = connected(SocketType::Stream, 1000);
    stack.close(conn).unwrap();
    let (shutdown, _) = direct.ports().pop().unwrap();
    assert_eq!((shutdown.op(), shutdown.flags), (Some(Op::Shutdown), SHUTDOWN_BOTH));
    assert!(direct.ports().push(&peer(Op::Rw), &[1; 10]));
    turn(&mut stack).unwrap();
    assert_eq!(stack.state(conn), ConnState::Closing);
    assert!(direct.ports().push(&peer(Op::Rst), &[]));
    turn(&mut stack).unwrap();
    assert_eq!((stack.state(conn), stack.connections()), (ConnState::Closed, 0));
    assert!(direct.ports().pop().is_none());
}

#[test]
fn connecting_ones_and_the_replaced_device() {
    let (mut driver, queues, direct) = guest(CID, &VsockOptions::default());
    let mut stack = VsockStack::new(queues, StackOptions::default());
    let conn = stack.connect(2, 9, SocketType::Stream).unwrap();
    let same = stack.connect_from(stack.header(conn, Op::Rw).unwrap().src_port, 2, 9, SocketType::Stream);
    assert!(matches!(same, Err(GuestError::BadSetting { .. })));
    assert_eq!(direct.ports().pop().unwrap().0.op(), Some(Op::Request));
    stack.abort(conn).unwrap();
    assert_eq!(direct.ports().pop().unwrap().0.op(), Some(Op::Rst));

    let lost = stack.connect(2, 9, SocketType::Stream).unwrap();
    let fresh = Direct::new(driver.memory(), CID);
    driver.reconnect(fresh.clone(), stack.queues()).unwrap();
    stack.reset_connections();
    assert_eq!(stack.state(lost), ConnState::Reset);
    assert_eq!(fresh.ports().pop().unwrap().0.op(), Some(Op::Request), "what the old device left");
    stack.listen(80, SocketType::Stream);
    assert!(fresh.ports().push(&from_host(CID, 1, 80, Op::Request), &[]));
    let conn = stack.accept_wait(80, PATIENCE).unwrap();
    assert_eq!(fresh.ports().pop().unwrap().0.op(), Some(Op::Response));
    assert_eq!(stack.state(conn), ConnState::Established);
}

#[test]
fn an_error_that_the_device_reports_ends_the_wait() {
    let (mut stack, conn, direct, _) = connected(SocketType::Stream, 1000);
    direct.ports().report_error();
    let result = stack.recv_exact(conn, 1, PATIENCE);
    assert!(matches!(result, Err(GuestError::DeviceBrokeRule(_))), "{result:?}");
}

#[test]
fn raw_packets_go_out_beside_connections() {
    let (mut stack, conn, direct, _) = connected(SocketType::Stream, 1000);
    let sound = stack.header(conn, Op::Rw).unwrap();
    let wrong = PacketHeader { len: 5000, src_cid: 77, flags: 99, ..sound };
    assert!(stack.send_raw(&wrong, &[1, 2, 3]).unwrap());
    assert_eq!(direct.ports().pop().unwrap(), (wrong, vec![1, 2, 3]));
}
