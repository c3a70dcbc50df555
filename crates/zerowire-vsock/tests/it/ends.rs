//! How streams between a guest and host programs begin and end: refusals, half-closes, ends in any
//! order, with bytes on their way and without.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use crate::support::vsock::{
    Guest, Messages, Vm, VsockBackend, accept, pattern, read_exact, read_ok, read_to_end, try_accept,
};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::vsock::{
    ConnId, ConnState, HOST_CID, SHUTDOWN_RCV, SHUTDOWN_SEND, SocketType, StackOptions, VsockOptions,
};
use zerowire_testkit::own_process;

/// Runs `test` on a connection that the guest made, and on one that the host made; each must leave
/// nothing behind.
fn on_both(test: impl Fn(&VsockBackend, &mut Guest, ConnId, UnixStream)) {
    on_both_with(256 << 10, test);
}

/// As [`on_both`], with `buffer` bytes of credit for the guest.
fn on_both_with(buffer: u32, test: impl Fn(&VsockBackend, &mut Guest, ConnId, UnixStream)) {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(buffer)]);
    let mut guest = backend.guest("vm");
    for host_made in [false, true] {
        let (conn, stream) = match host_made {
            false => backend.open("vm", &mut guest, 1234),
            true => backend.dial_in("vm", &mut guest, 80),
        };
        test(&backend, &mut guest, conn, stream);
        let _ = guest.stack.close(conn);
        guest
            .until("the device knows of no connection", |_| backend.stats("vm").totals.connections_open == 0);
    }
    assert_eq!(backend.stats("vm").totals.ring_errors, 0);
    // Another connection finds all in order.
    let (conn, mut stream) = backend.open("vm", &mut guest, 5);
    guest.ping(conn, &mut stream);
}

#[test]
fn the_guest_ends_its_sending_and_the_reply_still_comes() {
    on_both(|_, guest, conn, mut stream| {
        let (out, back) = (pattern(300_000, 1), pattern(400_000, 2));
        let (got, ()) = guest.both(
            |g| {
                g.send(conn, &out);
                g.stack.shutdown(conn, SHUTDOWN_SEND).expect("open");
                g.recv_to_end(conn)
            },
            || {
                assert!(read_to_end(&mut stream) == out);
                stream.write_all(&back).expect("written");
                drop(stream);
            },
        );
        assert!(got == back);
        assert_eq!(guest.ended(conn), ConnState::Closed);
    });
}

#[test]
fn the_host_program_ends_its_sending_and_the_reply_still_comes() {
    on_both(|_, guest, conn, mut stream| {
        let (out, back) = (pattern(300_000, 1), pattern(400_000, 2));
        let ((), got) = guest.both(
            |g| {
                assert!(g.recv_to_end(conn) == back);
                assert_eq!(g.stack.peer_shutdown(conn), SHUTDOWN_SEND);
                g.send(conn, &out);
                g.stack.close(conn).expect("open");
            },
            || {
                stream.write_all(&back).expect("written");
                stream.shutdown(Shutdown::Write).expect("open");
                read_to_end(&mut stream)
            },
        );
        assert!(got == out);
    });
}

#[test]
fn the_host_program_closes_with_its_bytes_still_on_their_way() {
    on_both(|_, guest, conn, mut stream| {
        let bytes = pattern(100_000, 3);
        stream.write_all(&bytes).expect("room");
        drop(stream);
        assert!(guest.recv_to_end(conn) == bytes);
        assert_eq!(guest.ended(conn), ConnState::Closed);
    });
}

#[test]
fn the_guest_closes_while_bytes_of_its_wait() {
    on_both_with(16 << 20, |backend, guest, conn, mut stream| {
        let bytes = pattern(24 << 20, 3);
        let before = backend.stats("vm").totals.transmit.copied_bytes.get("held").copied().unwrap_or(0);
        let mut sent = 0;
        guest.until("no room", |s| {
            sent += s.send(conn, &bytes[sent..]).expect("open");
            let held = backend.stats("vm").totals.transmit.copied_bytes.get("held").copied().unwrap_or(0);
            held > before && s.credit(conn) == 0 && s.queues().tx.in_flight() == 0
        });
        guest.stack.close(conn).expect("open");
        let got = guest.with_host(|| read_to_end(&mut stream));
        assert!(got == bytes[..sent], "{} of {sent}", got.len());
    });
}

#[test]
fn the_guest_aborts_while_bytes_of_its_wait() {
    on_both_with(16 << 20, |backend, guest, conn, mut stream| {
        let bytes = pattern(24 << 20, 3);
        let before = backend.stats("vm").totals.transmit.copied_bytes.get("held").copied().unwrap_or(0);
        let mut sent = 0;
        guest.until("no room", |s| {
            sent += s.send(conn, &bytes[sent..]).expect("open");
            let held = backend.stats("vm").totals.transmit.copied_bytes.get("held").copied().unwrap_or(0);
            held > before && s.credit(conn) == 0 && s.queues().tx.in_flight() == 0
        });
        let port = guest.stack.header(conn, zerowire_guest::vsock::Op::Rst).expect("open").src_port;
        guest.stack.abort(conn).expect("open");
        guest.stack.flush(PATIENCE).expect("sound");
        // The same ports may be used again at once.
        let listener = backend.listen("vm", 99);
        let again = guest.stack.connect_from(port, HOST_CID, 99, SocketType::Stream).expect("free");
        assert!(guest.stack.wait_connected(again, PATIENCE).expect("answered"));
        let mut other = accept(&listener);
        guest.ping(again, &mut other);
        std::fs::remove_file(backend.port_path("vm", 99)).expect("removed");
        let got = guest.with_host(|| read_to_end(&mut stream));
        assert!(got == bytes[..sent], "{} of {sent}", got.len());
        drop(other);
        assert!(guest.recv_to_end(again).is_empty());
    });
}

#[test]
fn the_host_program_closes_while_the_guest_sends() {
    on_both(|_, guest, conn, mut stream| {
        let bytes = pattern(64 << 10, 3);
        guest.both(
            |g| {
                // Until the device says that nobody reads any more.
                g.until("the end", |s| s.send(conn, &bytes).is_err());
                g.stack.close(conn).expect("sound");
            },
            || {
                read_exact(&mut stream, 100_000);
                drop(stream);
            },
        );
    });
}

#[test]
fn the_guest_closes_while_the_host_program_sends() {
    on_both(|_, guest, conn, mut stream| {
        let ((), error) = guest.both(
            |g| {
                g.recv(conn, 100_000);
                g.stack.close(conn).expect("open");
            },
            || {
                let bytes = pattern(64 << 10, 3);
                loop {
                    if let Err(e) = stream.write_all(&bytes) {
                        break e;
                    }
                }
            },
        );
        assert!(matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{error}");
    });
}

#[test]
fn the_guest_receives_no_more_and_sends_on() {
    on_both(|_, guest, conn, mut stream| {
        guest.stack.shutdown(conn, SHUTDOWN_RCV).expect("open");
        guest.stack.flush(PATIENCE).expect("sound");
        let bytes = pattern(500_000, 3);
        let ((), got) = guest.both(
            |g| g.send(conn, &bytes),
            || {
                let got = read_exact(&mut stream, bytes.len());
                let error = stream.write_all(&[1]).expect_err("nobody reads");
                assert_eq!(error.kind(), ErrorKind::BrokenPipe);
                got
            },
        );
        assert!(got == bytes);
    });
}

#[test]
fn the_host_program_ends_its_receiving_and_sends_on() {
    on_both(|_, guest, conn, mut stream| {
        stream.shutdown(Shutdown::Read).expect("open");
        guest.until("told", |s| s.send(conn, &[1; 100]).is_err());
        assert_eq!(guest.stack.peer_shutdown(conn), SHUTDOWN_RCV);
        let bytes = pattern(500_000, 3);
        let (got, ()) = guest.both(|g| g.recv(conn, bytes.len()), || stream.write_all(&bytes).expect("open"));
        assert!(got == bytes);
        drop(stream);
        assert!(guest.recv_to_end(conn).is_empty());
    });
}

#[test]
fn both_close_at_once() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let listener = backend.listen("vm", 1234);
    for round in 0..300 {
        let conn = guest.connect(1234);
        let mut stream = accept(&listener);
        if round % 3 > 0 {
            guest.send(conn, &[1; 100]);
            stream.write_all(&[2; 100]).expect("room");
        }
        if round % 2 == 0 {
            guest.stack.close(conn).expect("sound");
            drop(stream);
        } else {
            drop(stream);
            guest.stack.close(conn).expect("sound");
        }
    }
    guest.until("all gone", |s| s.connections() == 0);
    wait_until("all closed", || backend.stats("vm").totals.connections_open == 0);
}

#[test]
fn who_is_not_served_is_refused() {
    own_process!();
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    // Nobody serves the port, as stream or as messages; the path is a file; the program has gone.
    std::fs::write(backend.port_path("vm", 7), "").expect("a file");
    drop(backend.listen("vm", 8));
    let listener = backend.listen("vm", 9);
    for (cid, port, kind) in [
        (HOST_CID, 1, SocketType::Stream),
        (HOST_CID, 7, SocketType::Stream),
        (HOST_CID, 8, SocketType::Stream),
        (HOST_CID, 9, SocketType::SeqPacket),
        (HOST_CID, u32::MAX - 1, SocketType::Stream),
        (77, 9, SocketType::Stream),
    ] {
        let conn = guest.stack.connect(cid, port, kind).expect("asked");
        assert!(!guest.stack.wait_connected(conn, PATIENCE).expect("answered"), "{cid} {port} {kind:?}");
        assert_eq!(guest.stack.state(conn), ConnState::Refused);
        guest.stack.close(conn).expect("sound");
    }
    assert!(try_accept(&listener).is_none());
    // Host programs: nobody listens in the guest.
    for port in [1, 0, u32::MAX - 1] {
        let mut stream = backend.dial("vm", port);
        assert_eq!(guest.with_host(|| read_ok(&mut stream)), None);
    }
    let stats = backend.stats("vm").totals;
    assert_eq!((stats.connections_refused, stats.connections_opened, stats.resets), (9, 0, 0));
    let conn = guest.connect(9);
    guest.ping(conn, &mut accept(&listener));
}

#[test]
fn connections_beyond_the_limit_are_refused_until_others_end() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).most(3)]);
    let mut guest = backend.guest("vm");
    let listener = backend.listen("vm", 1);
    guest.stack.listen(80, SocketType::Stream);
    for _ in 0..3 {
        let mut open: Vec<_> = (0..3).map(|_| (guest.connect(1), accept(&listener))).collect();
        let conn = guest.stack.connect(HOST_CID, 1, SocketType::Stream).expect("asked");
        assert!(!guest.stack.wait_connected(conn, PATIENCE).expect("answered"));
        guest.stack.close(conn).expect("sound");
        let mut stream = backend.dial("vm", 80);
        assert_eq!(guest.with_host(|| read_ok(&mut stream)), None);
        for (conn, stream) in &mut open {
            guest.ping(*conn, stream);
        }
        for (conn, _) in &open {
            guest.stack.close(*conn).expect("sound");
        }
        guest.until("all gone", |s| s.connections() == 0);
    }
}

#[test]
fn a_host_program_with_a_full_backlog_gets_all_that_asked() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let path = backend.port_path("vm", 1);
    let listener = {
        use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType as Host};
        let s = rustix::net::socket_with(AddressFamily::UNIX, Host::STREAM, SocketFlags::CLOEXEC, None)
            .expect("a socket");
        rustix::net::bind(&s, &SocketAddrUnix::new(&path).expect("a path")).expect("free");
        rustix::net::listen(&s, 1).expect("listening");
        std::os::unix::net::UnixListener::from(s)
    };
    let conns: Vec<_> =
        (0..8).map(|_| guest.stack.connect(HOST_CID, 1, SocketType::Stream).expect("asked")).collect();
    guest.until("the backlog is full", |s| {
        conns.iter().filter(|c| s.state(**c) == ConnState::Established).count() == 2
    });
    guest.stack.flush(PATIENCE).expect("sound");
    assert_eq!(conns.iter().filter(|c| guest.stack.state(**c) == ConnState::Connecting).count(), 6);
    let mut streams: Vec<_> = guest.with_host(|| (0..8).map(|_| accept(&listener)).collect());
    for conn in &conns {
        assert!(guest.stack.wait_connected(*conn, PATIENCE).expect("answered"));
        guest.send(*conn, &pattern(100, 1));
    }
    for stream in &mut streams {
        assert!(read_exact(stream, 100) == pattern(100, 1));
    }
    // One that gives up before its answer leaves nothing behind.
    let more: Vec<_> =
        (0..4).map(|_| guest.stack.connect(HOST_CID, 1, SocketType::Stream).expect("asked")).collect();
    for conn in more {
        guest.stack.close(conn).expect("sound");
    }
    for conn in conns {
        guest.stack.close(conn).expect("sound");
    }
    guest.until("all gone", |s| s.connections() == 0);
    wait_until("all closed", || backend.stats("vm").totals.connections_open == 0);
}

#[test]
fn a_host_program_may_send_before_it_is_answered() {
    let backend = VsockBackend::one();
    let options = VsockOptions { rx_limit: 1, ..VsockOptions::default() };
    let mut guest = backend.guest_with("vm", &options, StackOptions::default());
    guest.stack.listen(80, SocketType::Stream);
    for cut in [0, 1, 8, 10] {
        let line = b"CONNECT 80\nand then some";
        let mut stream = UnixStream::connect(backend.uds("vm")).expect("the device listens");
        crate::support::vsock::patient(&stream);
        stream.write_all(&line[..cut]).expect("room");
        guest.stack.turn(std::time::Duration::from_millis(1)).expect("sound");
        stream.write_all(&line[cut..]).expect("room");
        let conn = guest.accept(80);
        assert_eq!(guest.recv(conn, 13), b"and then some");
        guest.send(conn, b"hello");
        guest.with_host(|| {
            assert!(read_ok(&mut stream).is_some());
            assert_eq!(read_exact(&mut stream, 5), b"hello");
        });
        // A reader that is gone before the guest answers.
        let mut stream = backend.dial("vm", 80);
        stream.write_all(b"x").expect("room");
        drop(stream);
        let conn = guest.accept(80);
        guest.until("the end", |s| s.state(conn) != ConnState::Established || s.peer_shutdown(conn) != 0);
        guest.stack.close(conn).expect("sound");
    }
    let mut stream = backend.dial("vm", 80);
    let conn = guest.accept(80);
    guest.with_host(|| read_ok(&mut stream));
    guest.ping(conn, &mut stream);
    guest.stack.abort(conn).expect("sound");
    assert_eq!(guest.with_host(|| stream.read_to_end(&mut Vec::new())).expect("the end"), 0);
}

/// It has left when the guest accepts. The guest gets what it sent, and then the end.
#[test]
fn a_host_program_may_leave_before_it_is_answered() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    guest.stack.listen(80, SocketType::Stream);
    guest.stack.listen(81, SocketType::SeqPacket);
    for bytes in [pattern(100_000, 1), Vec::new()] {
        let mut stream = backend.dial("vm", 80);
        stream.write_all(&bytes).expect("room");
        drop(stream);
        let conn = guest.accept(80);
        assert!(guest.recv_to_end(conn) == bytes);
        let _ = guest.stack.close(conn);
        assert_eq!(guest.ended(conn), ConnState::Closed);
    }
    let messages = Messages::connect(&backend.uds("vm").with_extension("seqpacket"));
    messages.send(b"CONNECT 81\n");
    messages.send(b"a message");
    drop(messages);
    let conn = guest.accept(81);
    assert_eq!(guest.recv(conn, 9), b"a message");
    let _ = guest.stack.close(conn);
    guest.until("the device knows of no connection", |_| backend.stats("vm").totals.connections_open == 0);
    let totals = backend.stats("vm").totals;
    assert_eq!((totals.connections_opened, totals.resets, totals.ring_errors), (3, 0, 0));
}

#[test]
fn a_guest_that_receives_no_more_hears_that_the_program_closed() {
    on_both(|_, guest, conn, stream| {
        // Before the program closes, and behind it.
        guest.stack.shutdown(conn, SHUTDOWN_RCV).expect("open");
        guest.stack.flush(PATIENCE).expect("sound");
        drop(stream);
        guest.until("the end", |s| s.peer_shutdown(conn) == SHUTDOWN_RCV | SHUTDOWN_SEND);
    });
}

#[test]
fn a_guest_without_credit_that_then_receives_no_more_hears_that_the_program_closed() {
    let backend = VsockBackend::one();
    let small = StackOptions { buf_alloc: 4096, ..StackOptions::default() };
    let mut guest = backend.guest_with("vm", &VsockOptions::default(), small);
    let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
    stream.write_all(&pattern(64 << 10, 1)).expect("room in the socket");
    let to_guest = |b: &VsockBackend| b.stats("vm").totals.receive.bytes;
    guest.until("its buffer is full", |_| to_guest(&backend) == 4096);
    drop(stream);
    // The device has seen the hang-up, and can't tell of it behind bytes that don't fit.
    let start = std::time::Instant::now();
    guest.until("some turns", |_| start.elapsed().as_millis() > 100);
    assert_eq!(guest.stack.peer_shutdown(conn) & SHUTDOWN_SEND, 0);
    guest.stack.shutdown(conn, SHUTDOWN_RCV).expect("open");
    guest.until("the end", |s| s.peer_shutdown(conn) == SHUTDOWN_RCV | SHUTDOWN_SEND);
    guest.stack.close(conn).expect("open");
    guest.until("no connection", |_| backend.stats("vm").totals.connections_open == 0);
}
