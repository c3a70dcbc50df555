//! Guests of one server reach each other: streams and messages, groups, and neighbours that are
//! slow, leave or lie.

use crate::support::raw::RawGuest;
use crate::support::vsock::{Guest, Vm, VsockBackend, exchange, join, pattern, together};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::vsock::{
    ConnId, ConnState, Layout, Op, PacketHeader, Received, SHUTDOWN_SEND, SocketType, StackOptions,
    VsockOptions,
};

const SIZES: [usize; 9] = [1, 44, 4052, 4096, 4097, 65_536, 65_537, 262_144, 1 << 20];

fn two() -> VsockBackend {
    VsockBackend::start(&[Vm::new("a", 3), Vm::new("b", 4)])
}

/// Bytes of each size both ways at the same time.
fn echo(a: &mut Guest, b: &mut Guest, conns: (ConnId, ConnId), sizes: &[usize]) {
    for (seed, &len) in sizes.iter().enumerate() {
        let out = [pattern(len, seed), pattern(len, seed + 1000)];
        exchange(a, b, conns, [&out[0], &out[1]]);
    }
}

#[test]
fn bytes_arrive_both_ways_with_one_copy() {
    let backend = two();
    let (mut a, mut b) = (backend.guest("a"), backend.guest("b"));
    let from_a = join(&mut a, &mut b, 80, SocketType::Stream);
    echo(&mut a, &mut b, from_a, &SIZES);
    let (at_b, at_a) = join(&mut b, &mut a, 80, SocketType::Stream);
    echo(&mut a, &mut b, (at_a, at_b), &SIZES);
    echo(&mut a, &mut b, from_a, &[5]);
    let total = 2 * SIZES.iter().sum::<usize>() as u64 + 5;
    for vm in ["a", "b"] {
        let stats = backend.stats(vm).totals;
        assert_eq!(stats.transmit.bytes, total, "{vm}");
        assert_eq!(stats.receive.bytes, total, "{vm}");
        // Both guests have buffers posted for all that they gave credit for: nothing waits.
        for moved in [&stats.transmit, &stats.receive] {
            assert_eq!(moved.copied_bytes.iter().collect::<Vec<_>>(), [(&"sibling", &total)], "{vm}");
        }
        assert_eq!((stats.connections_opened, stats.resets, stats.ring_errors), (2, 0, 0));
        assert_eq!(stats.transmit.system_calls, 0, "no call moves bytes between guests");
    }
}

#[test]
fn every_layout_into_buffers_of_any_size() {
    let backend = two();
    let layouts = [Layout::Single, Layout::Split, Layout::Pieces(1000), Layout::Pieces(4096)];
    let buffers = [(45, 2), (100, 1), (4096, 3), (70_000, 7)];
    for (layout, (rx_buffer_len, rx_descriptors)) in layouts.into_iter().zip(buffers) {
        for indirect in [false, true] {
            let options =
                VsockOptions { layout, indirect, rx_buffer_len, rx_descriptors, ..VsockOptions::default() };
            let mut a = backend.guest_with("a", &options, StackOptions::default());
            let mut b = backend.guest("b");
            let both = join(&mut a, &mut b, 80, SocketType::Stream);
            echo(&mut a, &mut b, both, if rx_buffer_len < 1000 { &SIZES[..5] } else { &SIZES[..8] });
        }
    }
}

#[test]
fn credit_is_what_the_receiver_gives() {
    let backend = VsockBackend::start(&[Vm::new("a", 3), Vm::new("b", 4).buffer(16 << 10)]);
    for buf_alloc in [2, 100, 5000, 1 << 20] {
        let mut a = backend.guest("a");
        let stack = StackOptions { buf_alloc, ..StackOptions::default() };
        let mut b = backend.guest_with("b", &VsockOptions::default(), stack);
        let both = join(&mut a, &mut b, 80, SocketType::Stream);
        // No more than the device would keep if the receiver had no buffers.
        assert_eq!(a.stack.credit(both.0), buf_alloc.min(16 << 10));
        echo(&mut a, &mut b, both, &[1, 99, 4096, if buf_alloc == 2 { 200 } else { 50_000 }]);
    }
}

#[test]
fn messages_and_records_keep_their_bounds() {
    let backend = two();
    for (rx_buffer_len, rx_limit) in [(4096, usize::MAX), (4096, 2), (100, usize::MAX), (70_000, 1)] {
        let options = VsockOptions { rx_buffer_len, rx_limit, ..VsockOptions::default() };
        let mut a = backend.guest("a");
        let mut b = backend.guest_with("b", &options, StackOptions::default());
        let (at_a, at_b) = join(&mut a, &mut b, 80, SocketType::SeqPacket);
        let lens: &[usize] =
            if rx_buffer_len == 100 { &[1, 56, 57, 1000] } else { &[1, 0, 4052, 4053, 200_000, 3] };
        for round in 0..3 {
            let messages: Vec<_> = lens.iter().map(|len| pattern(*len, round)).collect();
            let (mut sent, mut got) = (0, Vec::new());
            together([&mut a, &mut b], "all messages", |[a, b]| {
                if sent < messages.len()
                    && a.stack.send_message(at_a, &messages[sent], sent % 2 == 1).expect("open")
                {
                    sent += 1;
                }
                let mut bytes = Vec::new();
                match b.stack.recv(at_b, &mut bytes).expect("open") {
                    Received::Data(_) => got.push((bytes, false)),
                    Received::Record(_) => got.push((bytes, true)),
                    Received::Empty => {}
                    Received::End => panic!("an end"),
                }
                got.len() == messages.len()
            });
            for (n, (bytes, record)) in got.into_iter().enumerate() {
                assert!(bytes == messages[n], "{} bytes", bytes.len());
                assert_eq!(record, n % 2 == 1, "the end of a record is kept");
            }
        }
    }
}

#[test]
fn groups_keep_strangers_apart() {
    let backend = VsockBackend::start(&[
        Vm::new("a", 3).groups(&["x"]),
        Vm::new("b", 4).groups(&["x", "y"]),
        Vm::new("c", 5).groups(&["y"]),
        Vm::new("d", 6),
    ]);
    let mut guests: Vec<_> = ["a", "b", "c", "d"].iter().map(|vm| backend.guest(vm)).collect();
    for g in &mut guests {
        g.stack.listen(80, SocketType::Stream);
    }
    for from in 0..4 {
        for to in 0..4 {
            if from == to {
                continue;
            }
            let [a, b] = guests.get_disjoint_mut([from, to]).expect("two");
            let conn = a.stack.connect(b.stack.cid(), 80, SocketType::Stream).expect("asked");
            let reached = [from, to].contains(&1) && ![from, to].contains(&3);
            let mut taken = None;
            together([a, b], "an answer", |[a, b]| {
                taken = taken.or_else(|| b.stack.accept(80));
                a.stack.state(conn) != ConnState::Connecting
            });
            let want = if reached { ConnState::Established } else { ConnState::Refused };
            assert_eq!((a.stack.state(conn), taken.is_some()), (want, reached), "{from} to {to}");
            if let Some(taken) = taken {
                echo(a, b, (conn, taken), &[10, 5000]);
            }
        }
    }
}

#[test]
fn refusals_and_limits() {
    let backend = VsockBackend::start(&[Vm::new("a", 3), Vm::new("b", 4).most(2), Vm::new("c", 5)]);
    let (mut a, mut b) = (backend.guest("a"), backend.guest("b"));
    // No such port; no such type; a VM without a guest; no such VM.
    b.stack.listen(80, SocketType::Stream);
    for (cid, port, kind) in [
        (4, 81, SocketType::Stream),
        (4, 80, SocketType::SeqPacket),
        (5, 80, SocketType::Stream),
        (6, 80, SocketType::Stream),
    ] {
        let conn = a.stack.connect(cid, port, kind).expect("asked");
        together([&mut a, &mut b], "an answer", |[a, _]| a.stack.state(conn) != ConnState::Connecting);
        assert_eq!(a.stack.state(conn), ConnState::Refused, "{cid} {port} {kind:?}");
    }
    for _ in 0..3 {
        let open = [(); 2].map(|()| join(&mut a, &mut b, 80, SocketType::Stream));
        let conn = a.stack.connect(4, 80, SocketType::Stream).expect("asked");
        together([&mut a, &mut b], "an answer", |[a, _]| a.stack.state(conn) != ConnState::Connecting);
        assert_eq!(a.stack.state(conn), ConnState::Refused, "beyond the limit of the other one");
        for both in open {
            echo(&mut a, &mut b, both, &[100]);
            a.stack.close(both.0).expect("sound");
            b.stack.close(both.1).expect("sound");
        }
        together([&mut a, &mut b], "the ends", |_| {
            ["a", "b"].iter().all(|vm| backend.stats(vm).totals.connections_open == 0)
        });
    }
}

#[test]
fn ends_in_any_order_with_the_reply_on_its_way() {
    let backend = two();
    let (mut a, mut b) = (backend.guest("a"), backend.guest("b"));
    let (question, answer) = (pattern(300_000, 1), pattern(500_000, 2));
    for round in 0..4 {
        let (at_a, at_b) = join(&mut a, &mut b, 80, SocketType::Stream);
        let (mut sent, mut replied, mut asked, mut got) = (0, 0, Vec::new(), Vec::new());
        let (mut shut, mut closed) = (false, false);
        together([&mut a, &mut b], "the reply", |[a, b]| {
            if sent < question.len() {
                sent += a.stack.send(at_a, &question[sent..]).expect("open");
            } else if !shut {
                a.stack.shutdown(at_a, SHUTDOWN_SEND).expect("open");
                shut = true;
            }
            let end = b.stack.recv(at_b, &mut asked);
            // The answer begins before the end of the question, or behind it.
            if !closed && (round % 2 == 0 || end.expect("open") == Received::End) {
                replied += b.stack.send(at_b, &answer[replied..]).expect("open");
                if replied == answer.len() && (round < 2 || asked.len() == question.len()) {
                    b.stack.shutdown(at_b, SHUTDOWN_SEND).expect("open");
                    closed = true;
                }
            }
            a.stack.recv(at_a, &mut got).expect("in order") == Received::End && asked.len() == question.len()
        });
        assert!(asked == question && got == answer);
        a.stack.close(at_a).expect("sound");
        b.stack.close(at_b).expect("sound");
        together([&mut a, &mut b], "the end", |[a, b]| {
            a.stack.connections() == 0 && b.stack.connections() == 0
        });
    }
    for vm in ["a", "b"] {
        wait_until("all closed", || backend.stats(vm).totals.connections_open == 0);
        assert_eq!(backend.stats(vm).totals.connections_opened, 4);
    }
}

#[test]
fn what_a_guest_sent_before_it_closed_arrives() {
    let backend = two();
    let mut a = backend.guest("a");
    let mut b = backend.guest_with(
        "b",
        &VsockOptions { rx_limit: 4, ..VsockOptions::default() },
        StackOptions::default(),
    );
    for abort in [false, true] {
        let (at_a, at_b) = join(&mut a, &mut b, 80, SocketType::Stream);
        // More than the four buffers hold: the rest waits in the device.
        let bytes = pattern(100_000, 3);
        a.send(at_a, &bytes);
        if abort {
            a.stack.abort(at_a).expect("sound");
        } else {
            a.stack.close(at_a).expect("sound");
        }
        a.stack.flush(PATIENCE).expect("sound");
        let mut got = Vec::new();
        together([&mut b, &mut a], "all bytes", |[b, _]| {
            b.stack.recv(at_b, &mut got).is_err() || got.len() == bytes.len()
        });
        assert!(got == bytes, "{} bytes", got.len());
        b.stack.close(at_b).expect("sound");
        together([&mut b, &mut a], "the end", |[b, a]| {
            a.stack.connections() == 0 && b.stack.connections() == 0
        });
    }
}

#[test]
fn a_starved_guest_holds_up_nobody_else() {
    let backend = VsockBackend::start(&[Vm::new("a", 3), Vm::new("b", 4), Vm::new("c", 5)]);
    let (mut a, mut b, mut c) = (backend.guest("a"), backend.guest("b"), backend.guest("c"));
    let to_b = join(&mut a, &mut b, 80, SocketType::Stream);
    let to_c = join(&mut a, &mut c, 80, SocketType::Stream);
    let (host, mut stream) = backend.open("a", &mut a, 1234);
    // `b` makes no turns: its buffers run out, then the credit that it gave.
    let bytes = pattern(1 << 20, 5);
    let mut sent = 0;
    a.until("no credit", |s| {
        sent += s.send(to_b.0, &bytes[sent..]).expect("open");
        s.credit(to_b.0) == 0 && s.queues().tx.in_flight() == 0
    });
    assert_eq!(sent, 256 << 10);
    echo(&mut a, &mut c, to_c, &SIZES);
    a.ping(host, &mut stream);
    let conn = a.stack.connect(4, 81, SocketType::Stream).expect("asked");
    let mut got = Vec::new();
    together([&mut a, &mut b, &mut c], "the rest", |[a, b, _]| {
        if sent < bytes.len() {
            sent += a.stack.send(to_b.0, &bytes[sent..]).expect("open");
        }
        b.stack.recv(to_b.1, &mut got).expect("open");
        got.len() == bytes.len()
    });
    assert!(got == bytes);
    together([&mut a, &mut b], "the answer", |[a, _]| a.stack.state(conn) == ConnState::Refused);
}

#[test]
fn connections_to_a_guest_that_is_reset_or_leaves_are_reset() {
    let backend = two();
    let mut a = backend.guest("a");
    for leaves in [false, true, false] {
        let mut b = backend.guest("b");
        let conns: Vec<_> = (0..20)
            .map(|n| {
                if n % 2 == 0 {
                    join(&mut a, &mut b, 80, SocketType::Stream).0
                } else {
                    join(&mut b, &mut a, 80, SocketType::Stream).1
                }
            })
            .collect();
        a.send(conns[0], &pattern(100_000, 1));
        // One that `b` never answers.
        let late = a.stack.connect(4, 80, SocketType::Stream).expect("asked");
        a.stack.flush(PATIENCE).expect("sound");
        if leaves {
            drop(b);
        } else {
            let queues = b.driver.reset(&VsockOptions::default()).expect("reset");
            b.stack = zerowire_guest::vsock::VsockStack::new(queues, StackOptions::default());
            b.stack.turn(std::time::Duration::ZERO).expect("sound");
        }
        for conn in conns {
            assert_eq!(a.ended(conn), ConnState::Reset);
            a.stack.close(conn).expect("sound");
        }
        assert_eq!(a.ended(late), ConnState::Refused);
        a.stack.close(late).expect("sound");
        assert_eq!(backend.stats("a").totals.connections_open, 0);
        wait_until("gone", || leaves || backend.stats("b").connected);
        if leaves {
            wait_until("gone", || !backend.stats("b").connected);
        }
    }
}

#[test]
fn a_guest_that_sends_beyond_the_credit_is_reset() {
    let backend = two();
    let mut a = RawGuest::start(&backend, "a");
    let mut b = backend.guest("b");
    b.stack.listen(80, SocketType::Stream);
    let header = a.header(4, 80, SocketType::Stream, Op::Request);
    a.put(&header, &[]);
    let at_b = b.accept(80);
    let (answer, _) = a.next();
    assert_eq!((answer.op(), answer.buf_alloc), (Some(Op::Response), 256 << 10));
    // `b` makes no turns.
    let packet = PacketHeader { op: Op::Rw as u16, len: 65_536, ..header };
    for _ in 0..12 {
        a.put(&packet, &pattern(65_536, 1));
    }
    a.flush();
    assert_eq!(a.next_of(Op::Rst).0.dst_port, header.src_port);
    // The receiver gets what the device had taken before, and then its end; never more than it has
    // room for, which its stack checks.
    let mut got = Vec::new();
    b.until("the end", |s| {
        let end = s.recv(at_b, &mut got);
        end.is_err() && s.state(at_b) == ConnState::Reset
    });
    assert!(got.len() <= 512 << 10 && got.chunks(65_536).all(|c| c == &pattern(65_536, 1)[..c.len()]));
    assert_eq!(backend.stats("a").totals.transmit.dropped_frames["beyond_credit"], 1);
}

/// A neighbour that got a connection request sends credit, and asks for some, before it answers.
/// The one that made the request hears nothing but the answer.
#[test]
fn nothing_of_credit_is_said_before_the_answer() {
    let backend = two();
    let (mut a, mut b) = (RawGuest::start(&backend, "a"), RawGuest::start(&backend, "b"));
    let request = a.header(4, 80, SocketType::Stream, Op::Request);
    a.put(&request, &[]);
    let (offer, _) = b.next_of(Op::Request);
    a.put(&PacketHeader { op: Op::CreditRequest as u16, ..request }, &[]);
    let answer = |op| PacketHeader { buf_alloc: 256 << 10, ..offer.answer(op) };
    for op in [Op::CreditUpdate, Op::CreditRequest, Op::CreditUpdate, Op::Response] {
        b.put(&answer(op), &[]);
        // Each has been looked at before the next one comes.
        b.flush();
    }
    let (first, _) = a.next();
    assert_eq!(first.op(), Some(Op::Response));
    // The answer to a's earlier question goes out by then; b's own question still waits for its
    // answer.
    a.put(&PacketHeader { op: Op::CreditUpdate as u16, ..request }, &[]);
    b.next_of(Op::CreditUpdate);
}
