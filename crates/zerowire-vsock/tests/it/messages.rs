//! SEQPACKET between a guest and host programs: messages keep their bounds.

use std::time::Duration;

use crate::support::raw::RawGuest;
use crate::support::vsock::{Guest, Messages, Vm, VsockBackend, pattern};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::features;
use zerowire_guest::vsock::{
    ConnId, ConnState, HOST_CID, Layout, RW_EOM, RW_EOR, Received, SHUTDOWN_SEND, SocketType, StackOptions,
    VsockOptions,
};

const SIZES: [usize; 13] = [1, 2, 43, 44, 1000, 4051, 4052, 4053, 8104, 65_535, 65_536, 65_537, 200_000];

fn open(backend: &VsockBackend, guest: &mut Guest, port: u32) -> (ConnId, Messages) {
    let listener = backend.listen_messages("vm", port);
    let conn = guest.connect_to(HOST_CID, port, SocketType::SeqPacket);
    let host = listener.accept();
    std::fs::remove_file(backend.port_path("vm", port)).expect("removed");
    (conn, host)
}

fn dial_in(backend: &VsockBackend, guest: &mut Guest, port: u32) -> (ConnId, Messages) {
    guest.stack.listen(port, SocketType::SeqPacket);
    let mut path = backend.uds("vm").into_os_string();
    path.push(".seqpacket");
    let host = Messages::connect(path.as_ref());
    guest.with_host(|| host.handshake(port));
    (guest.accept(port), host)
}

fn recv(guest: &mut Guest, conn: ConnId) -> Vec<u8> {
    guest.stack.recv_message(conn, PATIENCE).unwrap_or_else(|e| panic!("{e}")).expect("a message")
}

/// Messages of each size both ways at the same time.
fn echo(guest: &mut Guest, conn: ConnId, host: &Messages, sizes: &[usize]) {
    let out: Vec<_> = sizes.iter().enumerate().map(|(n, len)| pattern(*len, n)).collect();
    let back: Vec<_> = sizes.iter().enumerate().map(|(n, len)| pattern(*len, n + 1000)).collect();
    guest.both(
        |g| {
            std::thread::scope(|_| {
                for message in &out {
                    g.send(conn, message);
                }
            });
            for message in &back {
                assert!(recv(g, conn) == *message, "host to guest, {} bytes", message.len());
            }
        },
        || {
            std::thread::scope(|s| {
                s.spawn(|| back.iter().for_each(|message| host.send(message)));
                for message in &out {
                    let got = host.recv();
                    assert!(got == *message, "guest to host, {} and {}", message.len(), got.len());
                }
            });
        },
    );
}

#[test]
fn bounds_are_kept_both_ways_on_connections_of_both_makers() {
    let backend = VsockBackend::one();
    let layouts = [
        (Layout::Split, false, 4096, 1),
        (Layout::Single, true, 4096, 3),
        (Layout::Pieces(1000), false, 100_000, 2),
        (Layout::Pieces(4096), true, 4096, 1),
    ];
    for (layout, indirect, rx_buffer_len, rx_descriptors) in layouts {
        let options =
            VsockOptions { layout, indirect, rx_buffer_len, rx_descriptors, ..VsockOptions::default() };
        let mut guest = backend.guest_with("vm", &options, StackOptions::default());
        let (conn, host) = open(&backend, &mut guest, 1234);
        echo(&mut guest, conn, &host, &SIZES);
        let (conn, host) = dial_in(&backend, &mut guest, 80);
        echo(&mut guest, conn, &host, &SIZES);
        echo(&mut guest, conn, &host, &[10; 500]);
    }
    let stats = backend.stats("vm").totals;
    assert_eq!((stats.resets, stats.ring_errors, stats.transmit.dropped_total()), (0, 0, 0));
}

/// A program reads no bytes from a SEQPACKET socket both for an empty message and at the end
/// (unix(7)). So what comes behind an empty message tells it from the end.
#[test]
fn empty_messages_are_messages() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (conn, host) = open(&backend, &mut guest, 1234);
    for message in [&b"a"[..], b"", b"", b"b"] {
        assert!(guest.stack.send_message(conn, message, false).expect("open"));
        host.send(message);
    }
    guest.with_host(|| {
        for message in [&b"a"[..], b"", b"", b"b"] {
            assert_eq!(host.recv(), message);
        }
    });
    for message in [&b"a"[..], b"", b"", b"b"] {
        assert_eq!(recv(&mut guest, conn), message);
    }
    drop(host);
    assert!(guest.stack.recv_message(conn, PATIENCE).expect("in order").is_none());
}

#[test]
fn a_message_that_comes_in_parts_is_put_together() {
    let backend = VsockBackend::one();
    let listener = backend.listen_messages("vm", 1234);
    let mut guest = RawGuest::start(&backend, "vm");
    let mut conn = guest.open(HOST_CID, 1234, SocketType::SeqPacket);
    let host = listener.accept();
    for round in 0..20 {
        // Each part is given back before the next one comes.
        let bytes = pattern(20_000, round);
        for (n, part) in bytes.chunks(7000).enumerate() {
            guest.send(&mut conn, part, if n == 2 { RW_EOM } else { 0 });
            guest.flush();
        }
        // One of a single packet behind it, and one that ends with an empty packet.
        guest.send(&mut conn, b"one", RW_EOM | RW_EOR);
        guest.send(&mut conn, b"two", 0);
        guest.send(&mut conn, b"", RW_EOM);
        assert!(host.recv() == bytes);
        assert_eq!(host.recv(), b"one");
        assert_eq!(host.recv(), b"two");
        // The credit that comes back.
        guest.discard();
    }
    // Counted before the packets come back.
    guest.flush();
    let stats = backend.stats("vm").totals;
    assert!(stats.transmit.copied_bytes["message"] >= 20 * 14_000, "{:?}", stats.transmit);
    assert_eq!(stats.transmit.bytes, 20 * 20_006);
    assert_eq!(stats.transmit.dropped_total(), 0);
}

#[test]
fn messages_for_a_slow_host_program_wait() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(64 << 10)]);
    let mut guest = backend.guest("vm");
    let (conn, host) = open(&backend, &mut guest, 1234);
    let messages: Vec<_> = (0..200).map(|n| pattern(1 + n * 37 % 9000, n)).collect();
    let mut sent = 0;
    guest.until("no room", |s| {
        if sent < messages.len() && s.send_message(conn, &messages[sent], false).expect("open") {
            sent += 1;
        }
        let held = backend.stats("vm").totals.transmit.copied_bytes.contains_key("held");
        held && s.credit(conn) == 0 && s.queues().tx.in_flight() == 0
    });
    assert!(sent < messages.len());
    guest.both(
        |g| {
            for m in &messages[sent..] {
                g.send(conn, m);
            }
            g.stack.shutdown(conn, SHUTDOWN_SEND).expect("open");
        },
        || {
            for m in &messages {
                assert!(host.recv() == *m);
            }
            assert!(host.recv().is_empty());
        },
    );
}

#[test]
fn messages_for_a_guest_with_few_buffers_wait() {
    let backend = VsockBackend::one();
    for rx_limit in [1, 2, 5] {
        let options = VsockOptions { rx_limit, ..VsockOptions::default() };
        let mut guest = backend.guest_with("vm", &options, StackOptions::default());
        let (conn, host) = open(&backend, &mut guest, 1234);
        let messages: Vec<_> = (0..100).map(|n| pattern(1 + n * 613 % 60_000, n)).collect();
        guest.both(
            |g| {
                for m in &messages {
                    assert!(recv(g, conn) == *m);
                }
                assert!(g.stack.recv_message(conn, PATIENCE).expect("in order").is_none());
            },
            || {
                for m in &messages {
                    host.send(m);
                }
                drop(host);
            },
        );
    }
    // What did not fit was put aside, and counted.
    let stats = backend.stats("vm").totals;
    assert!(stats.receive.copied_bytes["message"] > 0, "{:?}", stats.receive);
}

#[test]
fn a_message_longer_than_the_guest_takes_ends_its_connection() {
    let backend = VsockBackend::one();
    let stack = StackOptions { buf_alloc: 10_000, ..StackOptions::default() };
    let mut guest = backend.guest_with("vm", &VsockOptions::default(), stack);
    let (sound, sound_host) = open(&backend, &mut guest, 1);
    let (conn, host) = open(&backend, &mut guest, 1234);
    echo(&mut guest, conn, &host, &[9999, 10_000, 1, 10_000]);
    host.send(b"before");
    host.send(&pattern(10_001, 1));
    assert_eq!(recv(&mut guest, conn), b"before");
    assert_eq!(guest.ended(conn), ConnState::Reset);
    guest.with_host(|| {
        // The host program sees its end.
        wait_until("the end", || rustix::net::send(&host.0, b"x", rustix::net::SendFlags::NOSIGNAL).is_err());
    });
    echo(&mut guest, sound, &sound_host, &[1, 10_000]);
    assert_eq!(backend.stats("vm").totals.resets, 1);
}

#[test]
fn records_of_a_guest_end_as_messages_and_the_ends_are_ordered() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (conn, host) = dial_in(&backend, &mut guest, 80);
    let (out, back) = (pattern(70_000, 1), pattern(90_000, 2));
    guest.both(
        |g| {
            g.until("sent", |s| s.send_message(conn, &out, true).expect("open"));
            g.stack.shutdown(conn, SHUTDOWN_SEND).expect("open");
            let mut bytes = Vec::new();
            g.until("the reply", |s| match s.recv(conn, &mut bytes).expect("open") {
                Received::Empty => false,
                Received::Data(n) => n == back.len(),
                other => panic!("{other:?}"),
            });
            assert!(bytes == back);
            assert!(g.stack.recv_message(conn, PATIENCE).expect("in order").is_none());
        },
        || {
            assert!(host.recv() == out);
            assert!(host.recv().is_empty(), "the end");
            host.send(&back);
            drop(host);
        },
    );
    assert_eq!(guest.ended(conn), ConnState::Closed);
}

#[test]
fn a_type_that_is_not_the_connections_is_refused() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    // The path of streams takes no messages, and the other way round.
    let _listener = backend.listen_messages("vm", 1);
    let conn = guest.stack.connect(HOST_CID, 1, SocketType::Stream).expect("asked");
    assert!(!guest.stack.wait_connected(conn, PATIENCE).expect("answered"));
    // A guest that serves streams only.
    guest.stack.listen(80, SocketType::Stream);
    let mut path = backend.uds("vm").into_os_string();
    path.push(".seqpacket");
    let host = Messages::connect(path.as_ref());
    host.send(b"CONNECT 80\n");
    assert!(guest.with_host(|| host.recv()).is_empty());
    // A first message that isn't a line.
    for line in [&b"CONNECT 80"[..], b"hello\n", b"\n", &[b'x'; 100]] {
        let host = Messages::connect(path.as_ref());
        host.send(line);
        let mut byte = [0; 10];
        let end =
            guest.with_host(|| rustix::net::recv(&host.0, &mut byte[..], rustix::net::RecvFlags::empty()));
        assert!(matches!(end, Ok((0, _)) | Err(rustix::io::Errno::CONNRESET)), "{end:?}");
    }
    guest.stack.turn(Duration::ZERO).expect("sound");
    assert_eq!(backend.stats("vm").totals.bad_handshakes, 4);
}

/// The kernel reports the close before the messages that still wait (ECONNRESET). That can be
/// before the device looks at a message, or between the look and the read. No message may be lost.
#[test]
fn a_program_that_closes_with_something_unread_loses_nothing_of_its_own() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    for round in 1..=200 {
        let (conn, host) = open(&backend, &mut guest, 77);
        guest.send(conn, b"never read");
        guest.stack.flush(PATIENCE).expect("sent");
        let arrived = || backend.stats("vm").totals.transmit.bytes == 10 * round;
        wait_until("the message is in the socket", arrived);
        // The device reads them while they come, and in the middle of that comes the close.
        for n in 0..40 {
            host.send(&pattern(100, n));
        }
        drop(host);
        for n in 0..40 {
            assert_eq!(recv(&mut guest, conn), pattern(100, n), "message {n} of round {round}");
        }
        assert_eq!(guest.stack.recv_message(conn, PATIENCE).expect("the end"), None);
    }
}

#[test]
fn a_driver_without_messages_neither_sends_nor_gets_them() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3), Vm::new("other", 4)]);
    let all = VsockOptions::default();
    let streams = VsockOptions { wanted: all.wanted & !features::VSOCK_SEQPACKET, ..all };
    let mut guest = backend.guest_with("vm", &streams, StackOptions::default());
    let mut other = backend.guest("other");
    // To the host, though a program listens there.
    let _listener = backend.listen_messages("vm", 7);
    let conn = guest.stack.connect(HOST_CID, 7, SocketType::SeqPacket).expect("asked");
    assert!(!guest.stack.wait_connected(conn, PATIENCE).expect("answered"), "refused");
    // From the host.
    guest.stack.listen(8, SocketType::SeqPacket);
    let mut path = backend.uds("vm").into_os_string();
    path.push(".seqpacket");
    let host = Messages::connect(path.as_ref());
    let before = backend.stats("vm").totals.connections_refused;
    host.send(b"CONNECT 8\n");
    guest.until("it is refused", |_| backend.stats("vm").totals.connections_refused > before);
    // From another guest, which has messages.
    let conn = other.stack.connect(3, 8, SocketType::SeqPacket).expect("asked");
    assert!(!other.stack.wait_connected(conn, PATIENCE).expect("answered"), "refused");
    assert!(guest.stack.accept(8).is_none());
    // Streams work.
    let (conn, mut stream) = backend.open("vm", &mut guest, 9);
    guest.ping(conn, &mut stream);
}
