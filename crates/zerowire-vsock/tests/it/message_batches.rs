//! SEQPACKET in batches: few system calls for many messages, and nothing lost where a batch can't
//! go as it is.

use crate::support::raw::{RawConn, RawGuest};
use crate::support::vsock::{Messages, VsockBackend, pattern};
use zerowire_guest::vsock::{HOST_CID, Op, PacketHeader, RW_EOM, SocketType};

const PORT: u32 = 1234;

/// A connection whose guest takes `buf_alloc` bytes.
fn open(backend: &VsockBackend, guest: &mut RawGuest, buf_alloc: u32) -> (RawConn, Messages) {
    let listener = backend.listen_messages("vm", PORT);
    let header =
        PacketHeader { buf_alloc, ..guest.header(HOST_CID, PORT, SocketType::SeqPacket, Op::Request) };
    guest.put(&header, &[]);
    guest.next_of(Op::Response);
    let host = listener.accept();
    std::fs::remove_file(backend.port_path("vm", PORT)).expect("removed");
    (RawConn { header: PacketHeader { op: Op::Rw as u16, ..header }, sent: 0 }, host)
}

/// Shows the device all messages at once.
fn batch(guest: &mut RawGuest, conn: &RawConn, messages: &[Vec<u8>]) {
    guest.flush();
    for m in messages {
        let header = PacketHeader { len: m.len() as u32, flags: RW_EOM, ..conn.header };
        assert!(guest.queues.tx.send(&header, m).expect("sound"), "room for the whole batch");
    }
    guest.queues.tx.publish().expect("published");
}

/// The guest's next message.
fn next(guest: &mut RawGuest, conn: &mut RawConn) -> Vec<u8> {
    let mut whole = Vec::new();
    loop {
        let (header, bytes) = guest.next_of(Op::Rw);
        conn.header.fwd_cnt = conn.header.fwd_cnt.wrapping_add(header.len);
        whole.extend(bytes);
        if header.flags & RW_EOM != 0 {
            return whole;
        }
    }
}

#[test]
fn a_batch_goes_to_the_program_by_one_call() {
    let backend = VsockBackend::one();
    let mut guest = RawGuest::start(&backend, "vm");
    let (conn, host) = open(&backend, &mut guest, 256 << 10);
    let calls = || backend.stats("vm").totals.transmit.system_calls;
    for round in 0..20 {
        let before = calls();
        let messages: Vec<_> = (0..32).map(|n| pattern(n * 97 % 3000, round + n)).collect();
        batch(&mut guest, &conn, &messages);
        for m in &messages {
            assert!(host.recv() == *m, "round {round}");
        }
        guest.flush();
        guest.discard();
        assert_eq!(calls() - before, 1, "round {round}");
    }
    let transmit = backend.stats("vm").totals.transmit;
    assert_eq!((transmit.frames, transmit.zero_copied_frames), (20 * 32, 20 * 32));
    assert!(transmit.copied_bytes.is_empty(), "{transmit:?}");
}

#[test]
fn what_the_socket_has_no_room_for_comes_in_order() {
    let backend = VsockBackend::one();
    let mut guest = RawGuest::start(&backend, "vm");
    let (conn, host) = open(&backend, &mut guest, 256 << 10);
    // Short ones cost the kernel more room than the guest credit.
    let messages: Vec<_> = (0..31).map(|n| pattern(1 + n, n)).collect();
    let held = || backend.stats("vm").totals.transmit.copied_bytes.get("held").copied();
    let mut batches = 0;
    while held().is_none() {
        assert!(batches < 200, "everything has room");
        batch(&mut guest, &conn, &messages);
        guest.flush();
        batches += 1;
    }
    batch(&mut guest, &conn, &messages);
    for _ in 0..=batches {
        for m in &messages {
            assert!(host.recv() == *m);
        }
    }
    // An end that comes with a batch is behind it.
    batch(&mut guest, &conn, &messages[..20]);
    guest.say(&conn, Op::Shutdown, 2);
    for m in &messages[..20] {
        assert!(host.recv() == *m);
    }
    assert!(host.recv().is_empty(), "the end");
    let totals = backend.stats("vm").totals;
    assert_eq!((totals.transmit.dropped_total(), totals.resets), (0, 0));
}

#[test]
fn a_program_that_is_gone_costs_its_connection_only() {
    let backend = VsockBackend::one();
    let mut guest = RawGuest::start(&backend, "vm");
    let (sound, sound_host) = open(&backend, &mut guest, 256 << 10);
    let messages: Vec<_> = (0..10).map(|n| pattern(100, n)).collect();
    for _ in 0..20 {
        let (conn, host) = open(&backend, &mut guest, 256 << 10);
        drop(host);
        batch(&mut guest, &conn, &messages);
        let (end, _) = guest.next_of(Op::Shutdown);
        assert_eq!(end.dst_port, conn.header.src_port);
        guest.say(&conn, Op::Rst, 0);
    }
    batch(&mut guest, &sound, &messages);
    for m in &messages {
        assert!(sound_host.recv() == *m);
    }
}

#[test]
fn short_messages_to_the_guest_take_a_call_each_and_a_long_one_among_them_is_whole() {
    /// Looked at before they are read, until the longest of them is known.
    const LOOKED_AT: usize = 16 + 10;
    const MESSAGES: usize = 60;
    let backend = VsockBackend::one();
    let mut guest = RawGuest::start(&backend, "vm");
    // The guest takes one message, and the others only when all are there.
    let (mut conn, host) = open(&backend, &mut guest, 10);
    host.send(&pattern(10, 0));
    guest.recv(&mut conn, 10);
    for n in 0..MESSAGES {
        host.send(&pattern(n % 11, n));
    }
    let before = backend.stats("vm").totals.receive;
    conn.header.buf_alloc = 256 << 10;
    guest.say(&conn, Op::CreditUpdate, 0);
    for n in 0..MESSAGES {
        assert!(next(&mut guest, &mut conn) == pattern(n % 11, n), "message {n}");
    }
    let after = backend.stats("vm").totals.receive;
    // And one or two that find nothing.
    let calls = after.system_calls - before.system_calls;
    assert!(
        calls <= (2 * LOOKED_AT + MESSAGES - LOOKED_AT + 2) as u64,
        "{calls} calls for {MESSAGES} messages"
    );
    assert_eq!(after.copied_bytes.get("message"), None, "{after:?}");

    // What is longer than all before is put aside, once.
    for round in 0..3u64 {
        let long = pattern(100_000, 7);
        host.send(&long);
        host.send(b"behind it");
        assert!(next(&mut guest, &mut conn) == long);
        assert_eq!(next(&mut guest, &mut conn), b"behind it");
        let copied = backend.stats("vm").totals.receive.copied_bytes.get("message").copied();
        assert_eq!(copied, Some(100_000), "round {round}: the length of the others was looked at");
        guest.say(&conn, Op::CreditUpdate, 0);
    }
    assert_eq!(backend.stats("vm").totals.resets, 0);
}

#[test]
fn messages_of_several_buffers_take_a_call_each_and_no_copy() {
    let backend = VsockBackend::one();
    let mut guest = RawGuest::start(&backend, "vm");
    for len in [4052, 4053, 4096, 20_000, 65_536] {
        let (mut conn, host) = open(&backend, &mut guest, 256 << 10);
        for n in 0..40 {
            host.send(&pattern(len, n));
            assert!(next(&mut guest, &mut conn) == pattern(len, n), "{len} bytes, message {n}");
            guest.say(&conn, Op::CreditUpdate, 0);
        }
    }
    let receive = backend.stats("vm").totals.receive;
    assert!(receive.copied_bytes.is_empty(), "{receive:?}");
    // A look at an empty socket. Then a look and a read of each of the first ones, and a read of
    // each of the others. Then one each that finds nothing.
    let most = 5 * (1 + 17 * 3 + 23 * 2);
    assert!(receive.system_calls <= most, "{} calls, {most} at most", receive.system_calls);
}

#[test]
fn an_unexpected_message_beyond_the_credit_waits_for_more() {
    let backend = VsockBackend::one();
    let mut guest = RawGuest::start(&backend, "vm");
    let (mut conn, host) = open(&backend, &mut guest, 40_000);
    for round in 0..5 {
        // Read, and not told of: a quarter of the credit is left. There may be 39 such messages.
        for n in 0..30 {
            host.send(&pattern(1000, n));
            assert!(next(&mut guest, &mut conn) == pattern(1000, n), "message {n} of round {round}");
        }
        let long = pattern(18_000 + round, round);
        host.send(&long);
        host.send(b"behind it");
        guest.next_of(Op::CreditRequest);
        guest.say(&conn, Op::CreditUpdate, 0);
        // What came of it before the device asked was passed over; the rest ends it.
        let rest = next(&mut guest, &mut conn);
        assert!(long.ends_with(&rest) && rest.len() >= 4000, "round {round}: {} bytes", rest.len());
        conn.header.fwd_cnt = conn.header.fwd_cnt.wrapping_add((long.len() - rest.len()) as u32);
        assert_eq!(next(&mut guest, &mut conn), b"behind it");
        guest.say(&conn, Op::CreditUpdate, 0);
    }
    assert_eq!(backend.stats("vm").totals.resets, 0);
}

#[test]
fn an_unexpected_message_that_the_guest_does_not_take_ends_its_connection() {
    let backend = VsockBackend::one();
    let mut guest = RawGuest::start(&backend, "vm");
    let (mut conn, host) = open(&backend, &mut guest, 20_000);
    for n in 0..40 {
        host.send(&pattern(10, n));
        assert_eq!(guest.recv(&mut conn, 10), pattern(10, n));
        guest.say(&conn, Op::CreditUpdate, 0);
    }
    host.send(&pattern(20_001, 1));
    let (end, _) = guest.next_of(Op::Rst);
    assert_eq!(end.dst_port, conn.header.src_port);
    assert_eq!(backend.stats("vm").totals.resets, 1);
}
