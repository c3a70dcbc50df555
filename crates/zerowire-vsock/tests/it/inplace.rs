//! Receiving in place in the guest. The program reads the buffers of its own ring, from a real
//! device, and holds them as long as it likes.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support::vsock::{Guest, Vm, VsockBackend, accept, pattern, read_ok};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::GuestError;
use zerowire_guest::vsock::{
    ConnId, ConnState, Dequeued, HOST_CID, InPlaceCounters, POLL_DATA, POLL_END, POLL_NOTHING, PacketLease,
    SocketType, StackOptions, VsockOptions,
};

const STREAM: SocketType = SocketType::Stream;

/// A connection that is received in place, opened by the guest.
fn open(backend: &VsockBackend, guest: &mut Guest, port: u32) -> (ConnId, UnixStream) {
    let listener = backend.listen("vm", port);
    let conn = guest.stack.connect_in_place(HOST_CID, port, STREAM).expect("asked");
    assert!(guest.stack.wait_connected(conn, PATIENCE).expect("answered"));
    (conn, accept(&listener))
}

fn next(guest: &mut Guest, conn: ConnId, lowat: usize) -> Option<PacketLease> {
    guest.stack.dequeue_wait(conn, lowat, PATIENCE).unwrap_or_else(|e| panic!("{e}"))
}

/// Receives a stream to its end, each lease dropped at once.
fn all(guest: &mut Guest, conn: ConnId, lowat: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(lease) = next(guest, conn, lowat) {
        let before = bytes.len();
        lease.append_to(&mut bytes);
        assert_eq!(bytes.len() - before, lease.len());
        assert_eq!(lease.len(), lease.packets().map(|p| p.len()).sum::<usize>());
    }
    bytes
}

fn counters(guest: &Guest) -> InPlaceCounters {
    guest.stack.in_place_counters()
}

/// Sends all of it and ends the stream.
fn send(mut stream: UnixStream, bytes: &[u8]) {
    stream.write_all(bytes).expect("written");
    stream.shutdown(std::net::Shutdown::Write).expect("shut down");
}

#[test]
fn a_stream_is_read_where_the_device_wrote_it() {
    let sent = pattern(3_000_001, 1);
    let backend = VsockBackend::one();
    for (rx_buffer_len, rx_descriptors, indirect, rx_align_payload, lowat) in [
        (4096, 1, false, false, 1),
        (4096, 1, false, true, 100_000),
        (65_536 + 44, 1, true, true, 1),
        (65_536 + 44, 1, false, true, 60_000),
        (4096, 3, true, false, 1),
        (10_000, 2, false, true, 1),
    ] {
        let shape = VsockOptions {
            rx_buffer_len,
            rx_descriptors,
            indirect,
            rx_align_payload,
            ..VsockOptions::default()
        };
        let mut guest = backend.guest_with("vm", &shape, StackOptions::default());
        let (conn, stream) = open(&backend, &mut guest, 1234);
        let (got, ()) = guest.both(|g| all(g, conn, lowat), || send(stream, &sent));
        assert!(got == sent, "{shape:?}: {} bytes", got.len());
        let counted = counters(&guest);
        assert_eq!(counted.in_place_bytes + counted.held_bytes, sent.len() as u64);
        assert!(counted.in_place_bytes > 0, "{counted:?}");
        // All is given back: the ring is full again.
        guest.stack.turn(Duration::ZERO).expect("a turn");
        assert_eq!(guest.stack.queues().rx.lent(), 0);
        let full = if indirect { 128 } else { 128 / usize::from(rx_descriptors) };
        assert_eq!(guest.stack.queues().rx.posted(), full);
        std::fs::remove_file(backend.port_path("vm", 1234)).expect("removed");
    }
}

#[test]
fn a_program_may_spin_and_the_guest_may_listen() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    guest.stack.listen_in_place(80, STREAM);
    let mut stream = backend.dial("vm", 80);
    let conn = guest.accept(80);
    guest.with_host(|| assert!(read_ok(&mut stream).is_some()));
    assert_eq!(guest.stack.poll_value(conn).expect("sound"), POLL_NOTHING);
    let sent = pattern(1_000_000, 2);
    let (got, ()) = guest.both(
        |g| {
            let mut got = Vec::new();
            loop {
                match g.stack.poll_value(conn).unwrap_or_else(|e| panic!("{e}")) {
                    POLL_NOTHING => std::thread::yield_now(),
                    POLL_END => return got,
                    value => {
                        assert_eq!(value, POLL_DATA);
                        let Dequeued::Packets(lease) = g.stack.dequeue(conn).expect("sound") else {
                            panic!("nothing there")
                        };
                        lease.append_to(&mut got);
                    }
                }
            }
        },
        || send(stream, &sent),
    );
    assert!(got == sent);
    assert!(matches!(guest.stack.dequeue(conn), Ok(Dequeued::End)));
    let counted = counters(&guest);
    assert_eq!(counted.in_place_bytes + counted.held_bytes, sent.len() as u64);
}

#[test]
fn half_the_ring_is_held_and_the_rest_is_copied() {
    let backend = VsockBackend::one();
    // 16 buffers of 2000 bytes of payload; credit for more than all of them. The device leaves at
    // most a packet for each KiB of that unread: with shorter ones the credit would not be used up.
    let shape = VsockOptions { queue_size: 16, rx_buffer_len: 2044, ..VsockOptions::default() };
    let mut guest =
        backend.guest_with("vm", &shape, StackOptions { buf_alloc: 64_000, ..Default::default() });
    let (conn, mut stream) = open(&backend, &mut guest, 1234);
    let sent = pattern(64_000, 3);
    guest.with_host(|| stream.write_all(&sent[..20_000]).expect("written"));
    let first = next(&mut guest, conn, 20_000).expect("data");
    guest.with_host(|| stream.write_all(&sent[20_000..]).expect("written"));
    guest.until("all that fits the credit", |stack| first.len() + stack.readable(conn) == sent.len());
    assert_eq!(guest.stack.queues().rx.lent(), 8, "half of 16");
    let second = next(&mut guest, conn, 1).expect("data");
    let counted = counters(&guest);
    assert_eq!((counted.in_place_packets, counted.in_place_bytes), (8, 16_000));
    assert_eq!(counted.held_bytes, 48_000);
    let mut got = Vec::new();
    first.append_to(&mut got);
    second.append_to(&mut got);
    assert!(got == sent);
    assert_eq!(first.packets().filter(|p| p.is_in_place()).count(), 8);

    // The sender waits for credit, and another connection does not mind.
    let more = pattern(5000, 4);
    guest.with_host(|| stream.write_all(&more).expect("written"));
    let (other, mut beside) = open(&backend, &mut guest, 1235);
    guest.with_host(|| beside.write_all(&more).expect("written"));
    let copied = next(&mut guest, other, more.len()).expect("data");
    assert!(copied.packets().all(|p| !p.is_in_place()), "no buffer is left to hold");
    assert_eq!(guest.stack.readable(conn), 0, "no credit is left");

    // Out of order.
    drop(second);
    drop(first);
    let third = next(&mut guest, conn, more.len()).expect("data");
    let mut got = Vec::new();
    third.append_to(&mut got);
    assert!(got == more);
    assert!(third.packets().all(|p| p.is_in_place()), "buffers came back");
}

#[test]
fn messages_keep_their_bounds() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(1 << 20)]);
    let stack = StackOptions { buf_alloc: 1 << 20, ..StackOptions::default() };
    let mut guest = backend.guest_with("vm", &VsockOptions::default(), stack);
    let listener = backend.listen_messages("vm", 1234);
    let conn = guest.stack.connect_in_place(HOST_CID, 1234, SocketType::SeqPacket).expect("asked");
    assert!(guest.stack.wait_connected(conn, PATIENCE).expect("answered"));
    let host = listener.accept();
    let lens = [56, 4096, 8200, 1, 100_000, 4052, 4053];
    let messages: Vec<Vec<u8>> = lens.iter().enumerate().map(|(seed, &len)| pattern(len, seed)).collect();
    let (got, ()) = guest.both(
        |g| {
            let (mut got, mut message) = (Vec::new(), Vec::new());
            while got.len() < lens.len() {
                let lease = next(g, conn, 1).expect("more messages");
                for packet in lease.packets() {
                    packet.append_to(&mut message);
                    if packet.end_of_message() {
                        got.push(std::mem::take(&mut message));
                    }
                }
            }
            got
        },
        || messages.iter().for_each(|m| host.send(m)),
    );
    assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), lens);
    assert!(got == messages);
}

#[test]
fn leases_outlive_their_connection_and_the_stack() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = open(&backend, &mut guest, 1234);
    let sent = pattern(10_000, 5);
    guest.with_host(|| stream.write_all(&sent).expect("written"));
    let lease = next(&mut guest, conn, sent.len()).expect("data");
    guest.with_host(|| stream.write_all(&sent).expect("written"));
    guest.until("more that nobody dequeues", |stack| stack.readable(conn) == sent.len());
    guest.stack.abort(conn).expect("aborted");
    assert_eq!(guest.stack.poll_value(conn).expect("sound"), POLL_END);
    guest.stack.turn(Duration::ZERO).expect("a turn");
    assert_eq!(guest.stack.queues().rx.lent(), lease.packet_count(), "what waited went back");

    // A connection in the place of the first one is not credited for it.
    let (second, mut other) = open(&backend, &mut guest, 1235);
    let check = |lease: &PacketLease| {
        let mut got = Vec::new();
        lease.append_to(&mut got);
        assert!(got == sent);
    };
    check(&lease);
    drop(lease);
    guest.with_host(|| other.write_all(&sent).expect("written"));
    let lease = next(&mut guest, second, sent.len()).expect("data");
    let Guest { stack, driver, memory } = guest;
    drop(stack);
    drop(driver);
    drop(memory);
    check(&lease);
    std::thread::spawn(move || drop(lease)).join().expect("dropped by another thread");
    wait_until("the device has let the guest go", || backend.stats("vm").totals.connections_open == 0);
}

#[test]
fn copying_and_receiving_in_place_are_not_mixed() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (in_place, stream) = open(&backend, &mut guest, 1234);
    let (copying, _other) = backend.open("vm", &mut guest, 1235);
    let wrong = |result: Result<_, GuestError>, expected: bool| match result {
        Err(GuestError::WrongReceive { in_place }) => assert_eq!(in_place, expected),
        other => panic!("{other:?}"),
    };
    wrong(guest.stack.recv(in_place, &mut Vec::new()).map(drop), true);
    wrong(guest.stack.drain_payload(in_place, zerowire_guest::vsock::Drain::Count), true);
    wrong(guest.stack.dequeue(copying).map(drop), false);
    drop(stream);
    assert!(matches!(guest.ended(in_place), ConnState::Closed | ConnState::Reset));
    assert_eq!(guest.stack.poll_value(in_place).expect("sound"), POLL_END);
}

#[test]
fn data_before_the_end_is_not_lost() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (conn, mut stream) = open(&backend, &mut guest, 1234);
    let sent = pattern(50_000, 6);
    guest.with_host(|| {
        stream.write_all(&sent).expect("written");
        drop(stream);
    });
    let got = all(&mut guest, conn, 1);
    assert!(got == sent, "{} bytes", got.len());
    assert_eq!(guest.ended(conn), ConnState::Closed);
}
