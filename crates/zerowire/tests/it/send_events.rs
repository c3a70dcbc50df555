//! What an event loop that sleeps on a sender's socket is told when the socket has an error, or its
//! connection has ended, while nothing is lent.

use crate::support::sockets::{pattern, sender, set_int, tcp_pair, udp_pair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{ErrorKind, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use zerowire::send::{SendBackend, SendError, SendMode, SendOptions, Sender};
use zerowire_testkit::{PATIENCE, own_process};

const LEN: usize = 1000;

fn each(test: impl Fn(SendOptions, &str)) {
    for mode in [SendMode::Auto, SendMode::Copy, SendMode::ZeroCopy] {
        for backend in [SendBackend::Socket, SendBackend::Uring] {
            let case = format!("{mode:?} {backend:?}");
            test(SendOptions::default().mode(mode).backend(backend), &case);
        }
    }
}

/// Sleeps until the socket is ready, at most for `patience`; what it is ready for.
fn sleep(s: &Sender, patience: Duration) -> PollFlags {
    let mut fds = [PollFd::new(s, PollFlags::empty())];
    poll(&mut fds, Some(&Timespec::try_from(patience).unwrap())).unwrap();
    fds[0].revents()
}

/// Sends one payload that the peer reads, until all is back.
fn sent(s: &mut Sender, peer: &mut impl Read) {
    s.send(pattern(1, LEN)).unwrap();
    peer.read_exact(&mut [0; LEN]).unwrap();
    s.wait_all(PATIENCE).unwrap();
    // What came back meanwhile.
    s.poll().unwrap();
}

/// The loop of the documentation: sleeps, then polls. What the sender tells at last.
fn told(s: &mut Sender, case: &str) -> SendError {
    let start = Instant::now();
    loop {
        assert!(!sleep(s, PATIENCE).is_empty(), "{case}: nobody woke the loop");
        match s.poll() {
            Ok(_) => assert!(start.elapsed() < PATIENCE, "{case}: woken for nothing"),
            Err(e) => return e,
        }
    }
}

#[test]
fn a_reset_is_told_once_and_left_for_a_reader() {
    each(|options, case| {
        let (socket, mut peer) = tcp_pair();
        let mut duplicate = socket.try_clone().unwrap();
        let mut s = sender(socket, options);
        sent(&mut s, &mut peer);
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        let e = told(&mut s, case);
        assert!(matches!(e, SendError::Disconnected(_)), "{case}: {e}");
        assert_eq!(s.poll().unwrap(), 0, "{case}: again");
        let error = duplicate.read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{case}");
    });
}

#[test]
fn a_reset_that_gives_memory_back_is_told() {
    each(|options, case| {
        let (socket, peer) = tcp_pair();
        // The socket takes the payload wholly, so that nothing is left to send and to fail. The
        // peer's buffer is too small for it.
        set_int(&socket, libc::SO_SNDBUF, 200_000);
        set_int(&peer, libc::SO_RCVBUF, 4096);
        let mut s = sender(socket, options);
        s.send(pattern(1, 100_000)).unwrap();
        assert!(!s.is_partly_sent(), "{case}");
        rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
        drop(peer);
        let e = told(&mut s, case);
        assert!(matches!(e, SendError::Disconnected(_)), "{case}: {e}");
    });
}

#[test]
fn an_icmp_answer_is_told_and_taken() {
    own_process!();
    each(|options, case| {
        let (socket, peer) = udp_pair();
        let mut s = sender(socket, options);
        drop(peer);
        s.send(pattern(1, LEN)).unwrap();
        let e = told(&mut s, case);
        assert!(matches!(e, SendError::NoListener), "{case}: {e}");
        s.wait_all(PATIENCE).unwrap();
        while s.poll().unwrap() > 0 {}
        assert_eq!(sleep(&s, Duration::ZERO), PollFlags::empty(), "{case}: the loop sleeps again");
    });
}

/// A program may poll behind each payload; the next send would tell the error.
#[test]
fn a_poll_behind_a_send_asks_for_no_error() {
    own_process!();
    let (socket, peer) = udp_pair();
    let mut s = sender(socket, SendOptions::default().mode(SendMode::Copy));
    drop(peer);
    s.send(pattern(1, LEN)).unwrap();
    assert_eq!(sleep(&s, PATIENCE), PollFlags::ERR);
    assert_eq!(s.poll().unwrap(), 0);
    assert_eq!(sleep(&s, Duration::ZERO), PollFlags::ERR);
    assert!(matches!(s.poll(), Err(SendError::NoListener)));
}

#[test]
fn a_peer_that_closes_is_told_of_where_that_ends_the_connection() {
    each(|options, case| {
        let (socket, mut peer) = UnixStream::pair().unwrap();
        let mut s = sender(socket, options.clone());
        sent(&mut s, &mut peer);
        drop(peer);
        let e = told(&mut s, case);
        assert!(matches!(e, SendError::Disconnected(_)), "{case}: {e}");
        assert_eq!(s.poll().unwrap(), 0, "{case}: again");

        // Over TCP the program can still send.
        let (socket, mut peer) = tcp_pair();
        let mut s = sender(socket, options);
        peer.shutdown(Shutdown::Write).unwrap();
        sent(&mut s, &mut peer);
        // The peer's end has come.
        poll(&mut [PollFd::new(&s, PollFlags::IN)], None).unwrap();
        assert_eq!(s.poll().unwrap(), 0, "{case}");
    });
}

/// Under a limit the socket stays writable: a loop that asked for that would never sleep.
#[test]
fn a_sender_tells_whether_room_or_a_limit_is_waited_for() {
    each(|options, case| {
        let (socket, mut peer) = tcp_pair();
        let is_writable = |s: &Sender| {
            let mut fds = [PollFd::new(s, PollFlags::OUT)];
            poll(&mut fds, Some(&Timespec::default())).unwrap();
            fds[0].revents().contains(PollFlags::OUT)
        };
        let lends = options.mode == SendMode::ZeroCopy;
        let mut s = sender(socket, options.max_lent(2));
        let stays_writable = loop {
            while s.try_send(pattern(1, LEN)).is_ok() {}
            // Meanwhile the peer's kernel may have taken some.
            let is_writable = is_writable(&s);
            if lends || !is_writable {
                break is_writable;
            }
        };
        assert_eq!((s.wants_room(), stays_writable), (!lends, lends), "{case}");
        if lends {
            // A part of a payload waits for room, whatever the one before it waited for.
            let reader = std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()));
            while s.try_send(pattern(1, 8 << 20)).is_err() {
                s.wait_any(PATIENCE).unwrap();
            }
            assert!(s.is_partly_sent() && s.wants_room(), "{case}: a part waits");
            drop(s);
            let _ = reader.join().unwrap();
        }
    });
}
