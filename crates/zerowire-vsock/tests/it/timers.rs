//! What the vsock device waits for, and for how long: what holds before that, and what comes behind
//! it. Time passes by itself only as far as the tests let it.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::support::harness::{one_guest, received, start};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use zerowire_testkit::own_process;
use zerowire_vsock::packet::{HOST_CID, Header, Kind, Op, SHUT_BOTH};
use zerowire_vsock::testing::{Flow, Guest, Harness, Layout};
use zerowire_vsock::{TX_QUEUE, VsockLimits};

/// Lets time pass, and the device see it.
fn pass(harness: &mut Harness, seconds: u64) {
    harness.pass(Duration::from_secs(seconds));
    harness.rest();
}

/// A host program that has said this.
fn program(dir: &Path, says: &str) -> UnixStream {
    let mut stream = UnixStream::connect(dir.join("3")).expect("the device listens");
    stream.write_all(says.as_bytes()).expect("room");
    stream.set_nonblocking(true).expect("non-blocking");
    stream
}

fn socket(kind: SocketType, path: &Path) -> (OwnedFd, SocketAddrUnix) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).expect("a socket");
    (socket, SocketAddrUnix::new(path).expect("an address"))
}

/// Whether a socket was closed; nothing may have come before.
fn is_closed(socket: &impl std::os::fd::AsFd) -> bool {
    match rustix::net::recv(socket, &mut [0u8; 64][..], RecvFlags::DONTWAIT) {
        // A line that is not read any more goes with the socket.
        Ok((0, _)) | Err(rustix::io::Errno::CONNRESET) => true,
        Err(rustix::io::Errno::AGAIN) => false,
        other => panic!("neither open nor closed: {other:?}"),
    }
}

/// What the guest was told: operations and flags.
fn told(guest: &mut Guest) -> Vec<(Op, u32)> {
    guest.reap(TX_QUEUE, |_| {});
    let each = |(h, _): (Header, _)| (Op::new(h.op).expect("an operation"), h.flags);
    received(guest).into_iter().map(each).collect()
}

/// A guest says something to the guest with this CID.
fn say(guest: &mut Guest, flow: &Flow, dst_cid: u64, op: Op, flags: u32) {
    let header = Header { dst_cid, flags, ..flow.header(op, 0) };
    assert!(guest.send(&header.to_bytes(), 0, Layout(0)), "room");
}

/// A guest closes, and the other one never confirms it.
#[test]
fn the_end_between_guests_waits_30_s_for_the_other_one() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let mut harness = Harness::new(dir.path(), &[3, 4], VsockLimits::default()).expect("a device");
    let [mut a, mut b] = [0, 1].map(|vm| start(&mut harness, vm));
    let (from_a, from_b) = (Flow::new(3, 100, 80, Kind::Stream), Flow::new(4, 80, 100, Kind::Stream));
    say(&mut a, &from_a, 4, Op::Request, 0);
    harness.rest();
    assert_eq!(told(&mut b), [(Op::Request, 0)]);
    say(&mut b, &from_b, 3, Op::Response, 0);
    harness.rest();
    assert_eq!(told(&mut a), [(Op::Response, 0)]);
    say(&mut a, &from_a, 4, Op::Shutdown, SHUT_BOTH);
    harness.rest();
    assert_eq!(told(&mut b), [(Op::Shutdown, SHUT_BOTH)]);
    pass(&mut harness, 29);
    assert_eq!((told(&mut a), told(&mut b)), (vec![], vec![]));
    pass(&mut harness, 1);
    assert_eq!((told(&mut a), told(&mut b)), (vec![(Op::Rst, 0)], vec![(Op::Rst, 0)]));
    assert_eq!((harness.connections(0), harness.connections(1)), (0, 0));
}

/// The guest asks for a connection.
fn ask(guest: &mut Guest, port: u32, host_port: u32) -> Flow {
    let flow = Flow::new(3, port, host_port, Kind::Stream);
    assert!(flow.control(guest, Op::Request, 0), "room");
    flow
}

/// A connection that the guest asked for, and its host program.
fn open(harness: &mut Harness, guest: &mut Guest, dir: &Path) -> (Flow, UnixStream) {
    let listener = UnixListener::bind(dir.join("3_1")).expect("a free path");
    let mut flow = ask(guest, 100, 1);
    harness.rest();
    let [(answer, _)] = received(guest)[..] else { panic!("one packet: the answer") };
    flow.take(&answer);
    assert!(flow.open);
    let (stream, _) = listener.accept().expect("a connection");
    stream.set_nonblocking(true).expect("non-blocking");
    (flow, stream)
}

/// A host program has 10 s for its line.
#[test]
fn a_line_that_is_not_complete_is_waited_for() {
    own_process!();
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
    let half = program(dir.path(), "CONNECT 9");
    let mut late = program(dir.path(), "CONNECT 9");
    let silent = program(dir.path(), "");
    let (messages, at) = socket(SocketType::SEQPACKET, &dir.path().join("3.seqpacket"));
    rustix::net::connect(&messages, &at).expect("the device listens");
    harness.rest();
    pass(&mut harness, 5);
    assert!(!is_closed(&half) && !is_closed(&late) && !is_closed(&silent) && !is_closed(&messages));
    assert_eq!((told(&mut guest), harness.totals(0).bad_handshakes), (vec![], 0));
    late.write_all(b"\n").expect("room");
    harness.rest();
    assert_eq!(told(&mut guest), [(Op::Request, 0)]);
    pass(&mut harness, 6);
    assert!(is_closed(&half) && is_closed(&silent) && is_closed(&messages));
    assert!(!is_closed(&late), "its line came in time");
    assert_eq!((told(&mut guest), harness.totals(0).bad_handshakes), (vec![], 3));
}

/// A guest has 10 s to answer a host program.
#[test]
fn a_guest_that_does_not_answer_has_refused() {
    own_process!();
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
    let late = program(dir.path(), "CONNECT 9\n");
    let mut answered = program(dir.path(), "CONNECT 9\n");
    harness.rest();
    let [(first, _), (second, _)] = received(&mut guest)[..] else { panic!("two packets: the requests") };
    let [first, second] = [first, second].map(|h| Flow::offered(&h).expect("an offer"));
    pass(&mut harness, 5);
    assert!(!is_closed(&late) && !is_closed(&answered));
    assert_eq!((told(&mut guest), harness.connections(0)), (vec![], 2));
    assert!(second.control(&mut guest, Op::Response, 0), "room");
    harness.rest();
    pass(&mut harness, 6);
    assert!(is_closed(&late));
    assert_eq!((told(&mut guest), harness.connections(0)), (vec![(Op::Rst, 0)], 1));
    let t = harness.totals(0);
    assert_eq!((t.connections_refused, t.connections_opened), (1, 1));
    // An answer that comes now is of no connection.
    assert!(first.control(&mut guest, Op::Response, 0), "room");
    harness.rest();
    assert_eq!(told(&mut guest), [(Op::Rst, 0)]);
    assert_eq!(harness.totals(0).transmit.dropped_frames["no_connection"], 1);
    // The other one is there for ever.
    pass(&mut harness, 1000);
    let mut line = [0; 64];
    let n = answered.read(&mut line).expect("a line");
    assert!(line[..n].starts_with(b"OK "));
    assert!(!is_closed(&answered));
    assert_eq!((told(&mut guest), harness.connections(0)), (vec![], 1));
}

/// So has a guest that another one asks, and both get the refusal.
#[test]
fn a_sibling_that_does_not_answer_has_refused() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let mut harness = Harness::new(dir.path(), &[3, 4], VsockLimits::default()).expect("a device");
    let (mut guest, mut sibling) = (start(&mut harness, 0), start(&mut harness, 1));
    let request = Flow::new(3, 100, 7, Kind::Stream).header(Op::Request, 0);
    assert!(guest.send(&Header { dst_cid: 4, ..request }.to_bytes(), 0, Layout(0)), "room");
    harness.rest();
    assert_eq!(told(&mut sibling), [(Op::Request, 0)]);
    pass(&mut harness, 5);
    assert_eq!((told(&mut guest), told(&mut sibling)), (vec![], vec![]));
    assert_eq!((harness.connections(0), harness.connections(1)), (1, 1));
    pass(&mut harness, 6);
    assert_eq!((told(&mut guest), told(&mut sibling)), (vec![(Op::Rst, 0)], vec![(Op::Rst, 0)]));
    assert_eq!((harness.connections(0), harness.connections(1)), (0, 0));
}

/// A guest has 8 s to confirm that it knows of its program's end.
#[test]
fn a_guest_that_does_not_confirm_the_end_is_reset() {
    own_process!();
    for confirms in [false, true] {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
        let (flow, stream) = open(&mut harness, &mut guest, dir.path());
        // As long as the program is there nothing happens.
        pass(&mut harness, 1000);
        assert_eq!(told(&mut guest), []);
        drop(stream);
        harness.rest();
        assert_eq!(told(&mut guest), [(Op::Shutdown, SHUT_BOTH)]);
        pass(&mut harness, 4);
        assert_eq!((told(&mut guest), harness.connections(0)), (vec![], 1));
        let mut over = vec![(Op::Rst, 0)];
        if confirms {
            assert!(flow.control(&mut guest, Op::Rst, 0), "room");
            over.clear();
            harness.rest();
        }
        assert_eq!(harness.connections(0), over.len());
        pass(&mut harness, 5);
        assert_eq!((told(&mut guest), harness.connections(0)), (over, 0));
        assert_eq!(harness.totals(0).connections_open, 0);
    }
}

/// Bytes of a guest that has ended its connection, by RST or by SHUTDOWN, wait 30 s for a program
/// that does not read.
#[test]
fn bytes_of_an_ended_connection_linger() {
    own_process!();
    for (op, reads) in [(Op::Rst, false), (Op::Shutdown, false), (Op::Rst, true), (Op::Shutdown, true)] {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        let limits = VsockLimits::default().buffer_bytes(16 << 20);
        let (mut harness, mut guest) = one_guest(dir.path(), limits);
        let (mut flow, mut stream) = open(&mut harness, &mut guest, dir.path());
        // More than the socket takes.
        while harness.held_bytes(0) < 100_000 {
            assert!(flow.send(&mut guest, 8000, 0, Layout(0)), "room");
            harness.rest();
            told(&mut guest);
        }
        // For an open connection they wait for as long as it takes.
        pass(&mut harness, 1000);
        let held = harness.held_bytes(0);
        assert!(held >= 100_000);
        let flags = if op == Op::Shutdown { SHUT_BOTH } else { 0 };
        assert!(flow.control(&mut guest, op, flags), "room");
        harness.rest();
        assert_eq!(told(&mut guest), []);
        pass(&mut harness, 15);
        assert_eq!((told(&mut guest), harness.held_bytes(0), harness.connections(0)), (vec![], held, 1));
        let mut got = 0;
        if reads {
            got = read_all(&mut harness, &mut stream);
            assert_eq!(got, flow.sent as usize, "all of it, and the end");
        }
        pass(&mut harness, 16);
        assert_eq!((harness.held_bytes(0), harness.connections(0)), (0, 0));
        // A guest that waits for the confirmation gets it, late or not; one that has reset hears no
        // more.
        let end = if op == Op::Shutdown { vec![(Op::Rst, 0)] } else { vec![] };
        assert_eq!(told(&mut guest), end);
        if !reads {
            got = read_all(&mut harness, &mut stream);
            assert_eq!(got, flow.sent as usize - held, "what the socket took before, and the end");
        }
        assert!(got > 0);
        assert_eq!(harness.totals(0).connections_open, 0);
    }
}

/// Reads up to the end. Returns how many bytes that were.
fn read_all(harness: &mut Harness, stream: &mut UnixStream) -> usize {
    let (mut all, mut buffer) = (0, vec![0; 65_536]);
    loop {
        harness.rest();
        match stream.read(&mut buffer) {
            Ok(0) => return all,
            Ok(n) => all += n,
            Err(e) => panic!("{e} after {all} bytes"),
        }
    }
}

/// The device tries a program whose backlog is full for 10 s.
#[test]
fn a_full_backlog_is_tried_again() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
    let (listener, at) = socket(SocketType::STREAM, &dir.path().join("3_1"));
    rustix::net::bind(&listener, &at).expect("a free path");
    rustix::net::listen(&listener, 1).expect("listening");
    let accept = || rustix::net::accept_with(&listener, SocketFlags::NONBLOCK).expect("one waits");
    let mut answered = Vec::new();
    let mut asked = 0;
    // As many as wait to be accepted are connected.
    while answered.len() == asked {
        ask(&mut guest, 100 + asked as u32, 1);
        asked += 1;
        harness.rest();
        answered.extend(told(&mut guest));
        assert!(asked < 10, "there is no bound");
    }
    assert!(!answered.is_empty() && answered.iter().all(|a| *a == (Op::Response, 0)), "{answered:?}");
    // Another one that waits, for longer than it is patient.
    ask(&mut guest, 200, 1);
    harness.rest();
    pass(&mut harness, 5);
    assert_eq!((told(&mut guest), harness.connections(0)), (vec![], asked + 1));
    assert_eq!(harness.totals(0).connections_opened as usize, asked - 1);
    let _first = accept();
    pass(&mut harness, 1);
    let [(response, _)] = received(&mut guest)[..] else { panic!("one packet: an answer") };
    assert_eq!((response.op, response.src_cid), (Op::Response as u16, HOST_CID));
    pass(&mut harness, 5);
    let [(refusal, _)] = received(&mut guest)[..] else { panic!("one packet: the other one's answer") };
    assert_eq!(refusal.op, Op::Rst as u16);
    let mut ports = [response.dst_port, refusal.dst_port];
    ports.sort_unstable();
    assert_eq!(ports, [100 + asked as u32 - 1, 200]);
    let t = harness.totals(0);
    assert_eq!((t.connections_opened as usize, t.connections_refused), (asked, 1));
    assert_eq!(harness.connections(0), asked);
    // Those that were answered wait to be accepted for as long as it takes.
    pass(&mut harness, 1000);
    assert_eq!(told(&mut guest), []);
    for _ in 1..asked {
        assert!(!is_closed(&accept()));
    }
    assert!(rustix::net::accept_with(&listener, SocketFlags::NONBLOCK).is_err(), "nobody else");
}
