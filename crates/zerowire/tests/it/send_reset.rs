//! A peer that resets a TCP connection gives memory back that it never acknowledged. Who waits for
//! everything hears of it, and the error stays in the socket for a program that reads from it.

use crate::support::sockets::{pattern, sender, set_int, tcp_pair};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::{ErrorKind, Read};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};
use zerowire::send::{Close, SendBackend, SendError, SendMode, SendOptions, Sender};
use zerowire_testkit::PATIENCE;

const LEN: usize = 100_000;
/// The kernel doubles it.
const SEND_BUFFER: i32 = 200_000;

/// A sender whose payload the socket took wholly, a duplicate of its socket, and the peer, whose
/// buffer is too small for the payload.
fn sent(mode: SendMode, backend: SendBackend) -> (Sender, TcpStream, TcpStream) {
    let (socket, peer) = tcp_pair();
    set_int(&socket, libc::SO_SNDBUF, SEND_BUFFER);
    set_int(&peer, libc::SO_RCVBUF, 4096);
    let duplicate = socket.try_clone().unwrap();
    let mut s = sender(socket, SendOptions::default().mode(mode).backend(backend));
    s.send(pattern(1, LEN)).unwrap();
    assert!(!s.is_partly_sent());
    (s, duplicate, peer)
}

/// Closes the socket with a reset, and waits until the connection has ended here.
fn reset(peer: TcpStream, here: &TcpStream) {
    rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
    drop(peer);
    let start = Instant::now();
    loop {
        let mut fds = [PollFd::new(here, PollFlags::empty())];
        poll(&mut fds, None).unwrap();
        if fds[0].revents().contains(PollFlags::HUP | PollFlags::ERR) {
            return;
        }
        // Notifications make the socket ready, too.
        assert!(start.elapsed() < PATIENCE, "no reset");
    }
}

fn each(test: impl Fn(SendMode, SendBackend)) {
    for mode in [SendMode::ZeroCopy, SendMode::Copy] {
        for backend in [SendBackend::Socket, SendBackend::Uring] {
            test(mode, backend);
        }
    }
}

fn is_told(told: Result<(), SendError>, case: &str) {
    assert!(matches!(told, Err(SendError::Disconnected(_))), "{case}: {told:?}");
}

#[test]
fn who_waits_for_all_hears_of_the_reset_once() {
    each(|mode, backend| {
        let case = format!("{mode:?} {backend:?}");
        let (mut s, mut duplicate, peer) = sent(mode, backend);
        reset(peer, &duplicate);
        is_told(s.wait_all(PATIENCE), &case);
        s.wait_all(PATIENCE).unwrap_or_else(|e| panic!("{case}: again: {e}"));
        // Not an end of what the peer sent: a reader must not take it for one.
        let error = duplicate.read(&mut [0; 10]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{case}");
    });
}

#[test]
fn an_error_that_a_reader_took_is_told_all_the_same() {
    each(|mode, backend| {
        let (mut s, mut duplicate, peer) = sent(mode, backend);
        reset(peer, &duplicate);
        assert_eq!(duplicate.read(&mut [0; 10]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        is_told(s.wait_all(PATIENCE), &format!("{mode:?} {backend:?}"));
    });
}

#[test]
fn the_end_of_a_sender_hears_of_the_reset() {
    each(|mode, backend| {
        let case = format!("{mode:?} {backend:?}");
        let (s, duplicate, peer) = sent(mode, backend);
        reset(peer, &duplicate);
        let ended = s.close(Close::Drain(PATIENCE)).unwrap_err();
        assert_eq!(ended.closed.aborted, 0, "{case}: all memory was back");
        is_told(Err(ended.error), &case);

        let (s, duplicate, peer) = sent(mode, backend);
        reset(peer, &duplicate);
        is_told(s.into_socket(PATIENCE).map(drop).map_err(|e| e.error), &case);
    });
}

#[test]
fn an_orderly_end_of_the_connection_is_no_error() {
    each(|mode, backend| {
        let case = format!("{mode:?} {backend:?}");
        let (mut s, mut duplicate, mut peer) = sent(mode, backend);
        peer.read_exact(&mut vec![0; LEN]).unwrap();
        drop(peer);
        s.wait_all(PATIENCE).unwrap_or_else(|e| panic!("{case}: {e}"));
        duplicate.shutdown(Shutdown::Write).unwrap();
        assert_eq!(duplicate.read(&mut [0; 10]).unwrap(), 0);
        let closed = s.close(Close::Drain(PATIENCE)).unwrap_or_else(|e| panic!("{case}: {e}"));
        assert_eq!(closed.aborted, 0, "{case}");
    });
}

/// As [`sent`], but both sides have shut down: the socket hangs up, while the peer can still read.
/// `poll` was called for it.
fn half_closed(mode: SendMode, backend: SendBackend, case: &str) -> (Sender, TcpStream, TcpStream) {
    let (mut s, mut duplicate, peer) = sent(mode, backend);
    peer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(duplicate.read(&mut [0; 10]).unwrap(), 0);
    duplicate.shutdown(Shutdown::Write).unwrap();
    let mut fds = [PollFd::new(&s, PollFlags::empty())];
    poll(&mut fds, None).unwrap();
    assert_eq!(fds[0].revents(), PollFlags::HUP, "{case}");
    // The first one follows a send, and asks for no error.
    for _ in 0..2 {
        assert_eq!(s.poll().unwrap_or_else(|e| panic!("{case}: {e}")), 0);
    }
    (s, duplicate, peer)
}

#[test]
fn a_connection_that_both_sides_shut_down_lasts_until_the_peer_has_everything() {
    each(|mode, backend| {
        let case = format!("{mode:?} {backend:?}");
        let (mut s, _, mut peer) = half_closed(mode, backend, &case);
        peer.read_exact(&mut vec![0; LEN]).unwrap();
        s.wait_all(PATIENCE).unwrap_or_else(|e| panic!("{case}: {e}"));
    });
}

#[test]
fn a_reset_after_both_sides_shut_down_is_told() {
    each(|mode, backend| {
        let case = format!("{mode:?} {backend:?}");
        let (mut s, duplicate, peer) = half_closed(mode, backend, &case);
        reset(peer, &duplicate);
        is_told(s.wait_all(PATIENCE), &case);
    });
}
