//! Several senders on one connection, and other code that lent on it. Memory comes back when the
//! kernel has let go of it, and not before. The receiver reads nothing meanwhile, so what is lent
//! stays in the sender's queue.

use crate::support::sockets::{area, lease, pattern, sender, set_int, take_notification, tcp_pair, udp_pair};
use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;
use zerowire::send::{Close, SendBackend, SendError, SendMode, SendOptions, Sender, orphans};
use zerowire_testkit::net::lab::{self, in_lab};
use zerowire_testkit::own_process;
use zerowire_testkit::{PATIENCE, wait_until};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);
/// More than the receiver's kernel takes before the program reads.
const BODY: usize = 1 << 20;
const HEAD: usize = 4096;

fn options(mode: SendMode) -> SendOptions {
    SendOptions::default().mode(mode).backend(SendBackend::Socket).max_lent_bytes(2 * BODY)
}

fn pair() -> (TcpStream, TcpStream) {
    let (a, b) = tcp_pair();
    set_int(&a, libc::SO_SNDBUF, 2 * BODY as i32);
    set_int(&b, libc::SO_RCVBUF, 128 << 10);
    b.set_read_timeout(Some(LONG)).unwrap();
    (a, b)
}

/// Sends a head and a body and reads nothing: the kernel keeps the body's buffer, so nobody may get
/// that. Then the receiver reads, and everything has to be as it was sent. `lends`: the body has to
/// be lent.
fn respond(s: &mut Sender, peer: &mut TcpStream, lends: bool) {
    let area = area(1, BODY);
    let copied_before = s.counters().snapshot().copied_bytes.get("numbering").copied();
    s.send(pattern(1, HEAD)).unwrap();
    let mut head = vec![0; HEAD];
    peer.read_exact(&mut head).unwrap();
    assert!(head == pattern(1, HEAD));
    s.wait_all(LONG).unwrap();
    let mut body = area.lease().unwrap();
    body.copy_from_slice(&pattern(2, BODY));
    // A short one before it: a number that is one too low would be that one's.
    s.send(pattern(3, HEAD)).unwrap();
    let ticket = s.send(body).unwrap();
    assert!(matches!(s.wait(ticket, SHORT), Err(SendError::TimedOut { .. })), "nobody has read it");
    if let Some(mut again) = area.lease() {
        again.fill(0);
        panic!("the buffer was given out while the kernel has it");
    }
    let got = read_beside(s, peer, HEAD + BODY);
    assert!(got[..HEAD] == pattern(3, HEAD) && got[HEAD..] == pattern(2, BODY), "other bytes arrived");
    assert_eq!(area.free(), 1);
    if lends {
        let copied = s.counters().snapshot().copied_bytes.get("numbering").copied();
        assert_eq!(copied, copied_before, "the body is lent: {:?}", s.counters().snapshot());
    }
}

/// Reads `len` bytes while the sender sends what waits.
fn read_beside(s: &mut Sender, peer: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut got = vec![0; len];
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| peer.read_exact(&mut got).unwrap());
        s.wait_all(LONG).unwrap();
        reader.join().unwrap();
    });
    got
}

#[test]
fn senders_that_follow_each_other_on_duplicates() {
    let (a, mut b) = pair();
    for _ in 0..3 {
        let mut s = sender(a.try_clone().unwrap(), options(SendMode::ZeroCopy));
        respond(&mut s, &mut b, true);
        assert_eq!(s.close(Close::Drain(LONG)).unwrap().aborted, 0);
    }
}

#[test]
fn a_socket_that_is_given_back_serves_on() {
    let (a, mut b) = pair();
    let number = a.as_raw_fd();
    let mut socket = a.into();
    for backend in [SendBackend::Socket, SendBackend::Uring, SendBackend::Socket] {
        let mut s = sender(socket, options(SendMode::ZeroCopy).backend(backend));
        respond(&mut s, &mut b, true);
        socket = s.into_socket(LONG).unwrap();
        assert_eq!(socket.as_raw_fd(), number, "the same descriptor");
        assert_eq!(option(&socket, libc::SO_ZEROCOPY), 0, "as it was");
    }
    // What waits keeps the sender.
    let mut s = sender(socket, options(SendMode::ZeroCopy));
    s.send(pattern(4, BODY)).unwrap();
    let unfinished = s.into_socket(SHORT).unwrap_err();
    assert!(matches!(unfinished.error, SendError::TimedOut { .. }), "{unfinished}");
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; BODY];
        b.read_exact(&mut got).unwrap();
        (got, b)
    });
    let socket = unfinished.sender.into_socket(LONG).unwrap();
    let (got, mut b) = reader.join().unwrap();
    assert!(got == pattern(4, BODY));
    drop(socket);
    assert_eq!(b.read_to_end(&mut Vec::new()).unwrap(), 0, "it was the only one");
}

fn option(socket: &impl AsRawFd, option: i32) -> i32 {
    let (mut value, mut len) = (0i32, 4);
    // SAFETY: value and len are valid for writes for the call.
    let r = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len)
    };
    assert_eq!(r, 0);
    value
}

#[test]
fn of_two_senders_one_lends() {
    for backend in [SendBackend::Socket, SendBackend::Auto] {
        let (a, mut b) = pair();
        let options = |mode| options(mode).backend(backend);
        let mut first = sender(a.try_clone().unwrap(), options(SendMode::ZeroCopy));
        first.send(pattern(0, 1000)).unwrap();
        let refused = Sender::new(a.try_clone().unwrap().into(), options(SendMode::ZeroCopy)).unwrap_err();
        assert!(matches!(refused.error, SendError::AlreadyLent), "{refused}");
        assert_eq!(refused.error.errno(), Some(libc::EBUSY));
        let mut second = sender(refused.socket, options(SendMode::Auto));
        assert!(second.path().contains("another sender"), "{}", second.path());
        for i in 0..50 {
            second.send(pattern(i, 2000)).unwrap();
            first.send(pattern(i, 2000)).unwrap();
            b.read_exact(&mut [0; 4000]).unwrap();
        }
        b.read_exact(&mut [0; 1000]).unwrap();
        second.wait_all(LONG).unwrap();
        first.wait_all(LONG).unwrap();
        let c = second.counters().snapshot();
        assert_eq!((c.zero_copied_bytes, c.copied_bytes["second_sender"]), (0, 100_000), "{c:?}");
        // The second one ends first: the first still lends.
        drop(second);
        respond(&mut first, &mut b, true);
        drop(first);
        respond(&mut sender(a, options(SendMode::ZeroCopy)), &mut b, true);
    }
}

/// Lends once without a sender, as other code does, and takes the notification.
fn foreign(a: &TcpStream, b: &mut TcpStream) {
    set_int(a, libc::SO_ZEROCOPY, 1);
    let bytes = [7u8; 500];
    // SAFETY: bytes is valid for reads; it is sent and its notification read before this ends.
    let n = unsafe { libc::send(a.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_ZEROCOPY) };
    assert_eq!(n, 500);
    b.read_exact(&mut [0; 500]).unwrap();
    wait_until("a notification", || take_notification(a));
    assert!(!take_notification(a), "a second one");
}

#[test]
fn code_that_lent_before() {
    let (a, mut b) = pair();
    for round in 0..3 {
        foreign(&a, &mut b);
        let mut s = sender(a.try_clone().unwrap(), options(SendMode::ZeroCopy));
        // The first loan goes alone, which the short one before the body is.
        respond(&mut s, &mut b, true);
        drop(s);
        assert_eq!(option(&a, libc::SO_ZEROCOPY), 1, "round {round}: as it was");
    }
}

/// A loan of somebody else is still out: nothing is lent before that is back.
#[test]
fn code_whose_loan_is_still_out() {
    let (a, mut b) = pair();
    set_int(&a, libc::SO_ZEROCOPY, 1);
    let bytes = vec![7u8; BODY];
    // SAFETY: bytes is valid for reads, and lives until the receiver has everything.
    let n = unsafe {
        let flags = libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT;
        libc::send(a.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags)
    };
    let n = usize::try_from(n).expect("sent");
    assert!(n > 64 << 10, "{n}");
    let mut s = sender(a.try_clone().unwrap(), options(SendMode::ZeroCopy));
    s.send(pattern(1, HEAD)).unwrap();
    let c = s.counters().snapshot();
    assert_eq!(c.copied_bytes["numbering"], HEAD as u64, "{c:?}");
    let mut got = vec![0; n + HEAD];
    b.read_exact(&mut got).unwrap();
    assert!(got[..n] == bytes[..n] && got[n..] == pattern(1, HEAD));
    // Its owner reads it, or the sender does, which ignores it.
    s.wait_all(LONG).unwrap();
    let start = std::time::Instant::now();
    loop {
        let before = s.counters().snapshot().copied_bytes["numbering"];
        s.send(pattern(2, HEAD)).unwrap();
        b.read_exact(&mut got[..HEAD]).unwrap();
        s.wait_all(LONG).unwrap();
        if s.counters().snapshot().copied_bytes["numbering"] == before {
            break;
        }
        assert!(start.elapsed() < LONG, "nothing is lent: {:?}", s.counters().snapshot());
    }
    respond(&mut s, &mut b, true);
}

/// A connection inherits SO_ZEROCOPY from its listener, and begins at 0 all the same.
#[test]
fn connections_of_a_listener_that_lends() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_int(&listener, libc::SO_ZEROCOPY, 1);
    set_int(&listener, libc::SO_SNDBUF, 2 * BODY as i32);
    for _ in 0..2 {
        let mut b = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        set_int(&b, libc::SO_RCVBUF, 128 << 10);
        b.set_read_timeout(Some(LONG)).unwrap();
        let (a, _) = listener.accept().unwrap();
        assert_eq!(option(&a, libc::SO_ZEROCOPY), 1);
        let mut s = sender(a.try_clone().unwrap(), options(SendMode::ZeroCopy));
        respond(&mut s, &mut b, true);
        drop(s);
        respond(&mut sender(a, options(SendMode::ZeroCopy)), &mut b, true);
    }
}

/// Copying needs no claim, and io_uring has no numbers: both may be beside a sender that lends.
#[test]
fn senders_without_numbers_of_the_socket_are_free() {
    let (a, mut b) = pair();
    let mut lends = sender(a.try_clone().unwrap(), options(SendMode::ZeroCopy));
    let copies = sender(a.try_clone().unwrap(), options(SendMode::Copy));
    let uring = options(SendMode::ZeroCopy).backend(SendBackend::Uring);
    let mut ring = sender(a.try_clone().unwrap(), uring);
    respond(&mut ring, &mut b, true);
    respond(&mut lends, &mut b, true);
    respond(&mut ring, &mut b, true);
    drop((copies, ring));
    respond(&mut lends, &mut b, true);
}

/// A sender ends while its datagrams wait in an interface. The next one on the socket takes over
/// what is lent.
#[test]
fn a_sender_after_one_whose_memory_is_still_lent() {
    own_process!();
    in_lab(|lab| {
        lab.veth();
        let (peer, address) = lab.udp();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(address).unwrap();
        let area = area(12, 1000);
        lab.hold(lab::HERE);
        let mut senders = 0;
        for round in 0..3 {
            let mut s = sender(socket.try_clone().unwrap(), options(SendMode::ZeroCopy));
            for i in 0..4 {
                s.send(lease(&area, &pattern(round * 4 + i, 1000))).unwrap();
            }
            assert_eq!((s.outstanding(), area.free()), (4, 8 - round * 4), "round {round}");
            if round < 2 {
                let closed = s.close(Close::Drain(Duration::from_millis(1))).unwrap();
                assert_eq!((closed.aborted, closed.kept), (4, 4));
                senders += 1;
                assert_eq!(orphans().senders, 1, "{senders} senders have ended; the last has what all left");
                assert_eq!(orphans().payloads, 4 * senders);
                continue;
            }
            assert_eq!(orphans().payloads, 0, "they are with the sender now");
            assert!(area.lease().is_none());
            lab.release(lab::HERE);
            // It gives the socket back when all is back, what was lent before included.
            let back = s.into_socket(PATIENCE).unwrap();
            assert_eq!(area.free(), 12);
            drop(back);
        }
        let mut got = [0; 2000];
        for n in 0..12 {
            let len = peer.recv(&mut got).unwrap();
            assert!(got[..len] == pattern(n, 1000), "datagram {n}");
        }
    });
}

#[test]
fn many_short_senders_on_one_socket() {
    let (a, b) = udp_pair();
    let mut got = [0; 2000];
    for i in 0..200 {
        let mut s = sender(a.try_clone().unwrap(), options(SendMode::ZeroCopy));
        for n in 0..i % 4 {
            s.send(pattern(n, 1000)).unwrap();
            assert_eq!(b.recv(&mut got).unwrap(), 1000);
        }
        s.wait_all(LONG).unwrap();
        assert_eq!(s.counters().snapshot().copied_bytes.get("numbering"), None);
    }
}
