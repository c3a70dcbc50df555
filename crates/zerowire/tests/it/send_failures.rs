//! What goes wrong on sockets. Receivers stall, reset or are not there; notifications are missing,
//! or somebody else's. Calls fail after they took a number, and senders end with memory lent.

use crate::support::sockets::{
    area, lease, pattern, sender, set_int, socket_options, take_notification, tcp_pair, udp_pair,
};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};
use zerowire::area::Area;
use zerowire::send::{
    Close, Notifications, Payload, SendError, SendMode, Sender, SocketError, Ticket, orphans,
};
use zerowire_testkit::own_process;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

/// Fills a connection whose receiver reads nothing, until nothing more is taken. Returns how many
/// payloads were.
fn fill(s: &mut Sender, mode: SendMode, area: &Area) -> usize {
    let mut refusals = 0;
    let mut n = 0;
    while n < area.buffers() - 1 {
        match s.try_send(lease(area, &pattern(n, 65_536))) {
            Ok(_) => {
                // One more may wait in part, to be copied.
                let copied = usize::from(mode == SendMode::Auto);
                assert!(s.outstanding() <= 8 + copied, "{mode:?}: {} outstanding", s.outstanding());
                assert!(s.outstanding_bytes() <= (512 << 10) + copied * 65_536, "{mode:?}: the limits hold");
                n += 1;
                refusals = 0;
            }
            Err(refused) => {
                assert!(refused.error.is_would_block(), "{}", refused.error);
                assert_eq!(refused.payload.segments()[0].bytes().unwrap(), pattern(n, 65_536));
                // The receiver's kernel makes a little more room for a while.
                refusals += 1;
                if refusals == 10 {
                    return n;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
    }
    panic!("a stalled receiver took {} bytes", area.len());
}

fn stalled(mode: SendMode) -> (Sender, TcpStream, Area, usize) {
    let (a, b) = tcp_pair();
    set_int(&a, libc::SO_SNDBUF, 1 << 20);
    set_int(&b, libc::SO_RCVBUF, 256 << 10);
    let area = area(512, 65_536);
    let limits = socket_options(mode).max_lent(8).max_lent_bytes(512 << 10).timeout(Some(SHORT));
    let mut s = sender(a, limits);
    let n = fill(&mut s, mode, &area);
    (s, b, area, n)
}

#[test]
fn a_stalled_receiver_is_waited_for_and_loses_nothing() {
    for mode in [SendMode::Copy, SendMode::ZeroCopy, SendMode::Auto] {
        let (mut s, mut b, area, mut n) = stalled(mode);
        // On a busy machine the kernel may make its little more room only now.
        let out = loop {
            let before = s.outstanding();
            match s.send(lease(&area, &pattern(n, 65_536))) {
                Err(SendError::TimedOut { outstanding, .. }) => {
                    assert!(outstanding <= before, "{mode:?}: {outstanding} of {before}");
                    break outstanding;
                }
                Ok(_) if n < area.buffers() - 1 => n += 1,
                other => panic!("{mode:?}: {other:?}"),
            }
        };
        if out > 0 && mode != SendMode::Auto {
            match s.wait(Ticket::new(n as u32 - 1), SHORT) {
                Err(SendError::TimedOut { .. }) => {}
                other => assert!(other.is_ok() && s.outstanding() < out, "{mode:?}: {other:?}"),
            }
        }
        assert!(matches!(s.wait(Ticket::new(n as u32 + 9), SHORT), Err(SendError::UnknownTicket(_))));
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; n * 65_536];
            b.read_exact(&mut got).unwrap();
            for (i, c) in got.chunks(65_536).enumerate() {
                assert!(c == pattern(i, 65_536), "payload {i}");
            }
        });
        s.wait_all(LONG).unwrap();
        reader.join().unwrap();
        assert_eq!((area.free(), s.outstanding_bytes()), (area.buffers(), 0));
    }
}

#[test]
fn a_reset_gives_everything_back_and_is_told() {
    own_process!();
    for mode in [SendMode::Copy, SendMode::ZeroCopy, SendMode::Auto] {
        let (mut s, b, area, _) = stalled(mode);
        // Unread bytes at the close: the connection is reset.
        drop(b);
        let told = match s.wait_all(LONG) {
            Err(SendError::Disconnected(_)) => true,
            Ok(()) => false,
            Err(e) => panic!("{mode:?}: {e}"),
        };
        s.wait_all(LONG).unwrap();
        assert_eq!((s.outstanding(), area.free()), (0, area.buffers()), "{mode:?}");
        match s.send(lease(&area, &pattern(0, 65_536))) {
            Err(SendError::Disconnected(_)) => {}
            Err(e) => panic!("{mode:?}: told: {told}; {e}"),
            Ok(_) => panic!("{mode:?}: told: {told}; sent over a connection that was reset"),
        }
        assert_eq!(area.free(), area.buffers());
    }
}

#[test]
fn an_end_with_memory_lent_leaks_nothing() {
    for how in [None, Some(Close::Abort), Some(Close::Drain(SHORT))] {
        let (s, b, area, _) = stalled(SendMode::ZeroCopy);
        let out = s.outstanding();
        assert!(out > 0 && area.free() < area.buffers());
        match how {
            None => drop(s),
            Some(how) => {
                let closed = s.close(how).unwrap();
                // Some may come back before the end.
                assert!((1..=out).contains(&closed.aborted) && closed.kept == 0, "{how:?}: {closed:?}");
            }
        }
        let until = Instant::now() + LONG;
        while area.free() < area.buffers() {
            assert!(
                Instant::now() < until,
                "{how:?}: {} of {} buffers are back",
                area.free(),
                area.buffers()
            );
            orphans();
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(b);
    }
    // Nothing lent: the end is an orderly one, and what was sent arrives.
    for mode in [SendMode::Copy, SendMode::ZeroCopy] {
        let (a, mut b) = tcp_pair();
        let mut s = sender(a, socket_options(mode));
        s.send(pattern(1, 5000)).unwrap();
        s.wait_all(LONG).unwrap();
        assert_eq!(s.close(Close::Abort).unwrap().aborted, 0);
        let mut got = Vec::new();
        b.read_to_end(&mut got).unwrap();
        assert!(got == pattern(1, 5000));
    }
}

#[test]
fn notifications_that_somebody_else_read_are_recovered() {
    let (a, b) = udp_pair();
    let thief = a.try_clone().unwrap();
    let area = area(8, 65_536);
    let mut s = sender(a, socket_options(SendMode::ZeroCopy));
    let mut got = vec![0; 70_000];
    for round in 0..3 {
        for i in 0..8 {
            s.send(lease(&area, &[i; 60_000])).unwrap();
            assert_eq!((b.recv(&mut got).unwrap(), got[0]), (60_000, i));
        }
        assert!(take_notification(&thief), "round {round}");
        while take_notification(&thief) {}
        s.wait_all(LONG).unwrap();
        assert_eq!(area.free(), 8);
    }
    // The numbers still fit: a round that nobody interferes with.
    let t = s.send(lease(&area, &[0; 100])).unwrap();
    s.wait(t, LONG).unwrap();
    let c = s.counters().snapshot();
    assert_eq!((c.frames, c.bytes), (25, 24 * 60_000 + 100));
}

#[test]
fn somebody_else_who_lends_is_found_out() {
    let (a, b) = udp_pair();
    let other = a.try_clone().unwrap();
    let mut s = sender(a, socket_options(SendMode::ZeroCopy));
    let bytes = [7u8; 3000];
    // SAFETY: bytes is valid for reads, and outlives the test's use of the socket.
    let n = unsafe { libc::send(other.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_ZEROCOPY) };
    assert_eq!(n, 3000);
    s.send(vec![1; 2000]).unwrap();
    let e = s.wait_all(LONG).unwrap_err();
    assert!(matches!(e, SendError::Foreign { .. }), "{e}");
    // From now on it copies, and what was lent comes back when the socket holds nothing.
    s.send(vec![2; 1000]).unwrap();
    s.wait_all(LONG).unwrap();
    let c = s.counters().snapshot();
    assert_eq!((c.bytes, c.copied_bytes["numbering"]), (3000, 1000), "{c:?}");
    assert!(s.path().contains("another handle"), "{}", s.path());
    let mut got = [0; 4000];
    for len in [3000, 2000, 1000] {
        assert_eq!(b.recv(&mut got).unwrap(), len);
    }
}

/// One call may be cut into at most 128 datagrams. More are refused after the packet was built, and
/// the number of the call is used up.
#[test]
fn calls_that_fail_late_do_not_shift_the_numbers() {
    let (a, b) = udp_pair();
    let mut s = sender(a, socket_options(SendMode::ZeroCopy).segment_bytes(Some(100)));
    let mut got = [0; 200];
    for i in 0..20u8 {
        if i % 3 == 0 {
            let e = s.try_send(vec![0; 30_000]).unwrap_err();
            assert_eq!((e.error.errno(), e.payload.len()), (Some(libc::EINVAL), 30_000), "{e}");
        }
        let t = s.send(vec![i; 90]).unwrap();
        assert_eq!((b.recv(&mut got).unwrap(), got[0]), (90, i));
        if i % 2 == 0 {
            s.wait(t, LONG).unwrap();
        }
    }
    // In a batch: the good ones before it are sent, the rest is given back.
    let mut batch: Vec<Payload> =
        [90, 90, 30_000, 90].into_iter().map(|n| Payload::from(vec![3; n])).collect();
    assert!(s.send_many(&mut batch).is_err());
    assert_eq!(batch.iter().map(Payload::len).collect::<Vec<_>>(), [30_000, 90]);
    s.wait_all(LONG).unwrap();
    s.send(vec![9; 90]).unwrap();
    s.wait_all(LONG).unwrap();
    assert_eq!(s.counters().snapshot().frames, 23);
}

#[test]
fn a_tiny_receive_buffer_loses_no_notification() {
    let (a, b) = udp_pair();
    // The error queue shares the receive buffer's account.
    set_int(&a, libc::SO_RCVBUF, 1);
    let area = area(64, 65_536);
    let mut s = sender(a, socket_options(SendMode::ZeroCopy));
    let mut got = vec![0; 70_000];
    for i in 0..2000u32 {
        let l = loop {
            match area.lease() {
                Some(l) => break l,
                None => s.wait_all(LONG).unwrap(),
            }
        };
        s.send(l.freeze_part(1000 + i as usize)).unwrap();
        if i % 8 == 7 {
            for _ in 0..8 {
                b.recv(&mut got).unwrap();
            }
        }
    }
    s.wait_all(LONG).unwrap();
    assert_eq!(area.free(), 64);
    assert_eq!(s.counters().snapshot().frames, 2000);
}

trait FreezePart {
    fn freeze_part(self, len: usize) -> Payload;
}

impl FreezePart for zerowire::area::Lease {
    fn freeze_part(self, len: usize) -> Payload {
        Payload::from(zerowire::send::Segment::Frozen(self.freeze(), 0..len))
    }
}

#[test]
fn nobody_listening_is_told_and_loses_no_notification() {
    own_process!();
    for report in [false, true] {
        let (a, b) = udp_pair();
        if report {
            let on = 1i32;
            // SAFETY: the value is valid for reads for the call.
            let r = unsafe {
                libc::setsockopt(a.as_raw_fd(), libc::SOL_IP, libc::IP_RECVERR, (&raw const on).cast(), 4)
            };
            assert_eq!(r, 0);
        }
        drop(b);
        let area = area(4, 65_536);
        let mut s = sender(a, socket_options(SendMode::ZeroCopy));
        let mut refused = 0;
        let mut sent = 0;
        for _ in 0..6 {
            match s.send(lease(&area, &[0; 5000])) {
                Ok(_) => sent += 1,
                Err(SendError::NoListener) => refused += 1,
                Err(e) => panic!("{e}"),
            }
            while s.outstanding() > 0 {
                match s.wait_all(LONG) {
                    Ok(()) => {}
                    Err(SendError::NoListener) => refused += 1,
                    Err(e) => panic!("{e}"),
                }
            }
        }
        assert!(refused > 0 && sent > 0, "{sent} sent, {refused} refused");
        assert_eq!((s.outstanding(), area.free()), (0, 4));
        assert_eq!(s.counters().snapshot().frames, sent);
    }
}

#[test]
fn datagrams_that_are_too_long_and_sockets_without_a_peer() {
    let (a, _b) = udp_pair();
    let mut s = sender(a, socket_options(SendMode::ZeroCopy));
    let e = s.try_send(vec![0; 65_508]).unwrap_err();
    assert!(matches!(e.error, SendError::TooLong { len: 65_508 }), "{}", e.error);
    assert_eq!(e.payload.len(), 65_508);
    let many: Payload = (0..70).map(|_| zerowire::send::Segment::Vec(vec![0; 1000])).collect();
    assert!(matches!(s.send(many), Err(SendError::TooLong { len: 70_000 })));
    assert_eq!(s.counters().snapshot().bytes, 0);
    let alone = UdpSocket::bind("127.0.0.1:0").unwrap();
    assert!(matches!(
        Sender::new(alone.into(), socket_options(SendMode::Auto)),
        Err(SocketError { error: SendError::NotConnected, .. })
    ));
    let file = tempfile::tempfile().unwrap();
    let e = Sender::new(file.into(), socket_options(SendMode::Auto)).unwrap_err();
    assert_eq!(e.error.errno(), Some(libc::ENOTSOCK), "{e}");
    let (a, _b) = udp_pair();
    let none = socket_options(SendMode::Auto).max_lent(0);
    assert!(matches!(Sender::new(a.into(), none), Err(SocketError { error: SendError::NoWindow, .. })));
}

/// The payload was taken, so the call can't fail; it is not back, and the ticket says so.
#[test]
fn a_wait_for_each_notification_ends_with_the_timeout() {
    let (a, mut b) = tcp_pair();
    set_int(&b, libc::SO_RCVBUF, 4096);
    let each_one =
        socket_options(SendMode::ZeroCopy).notifications(Notifications::EachOne).timeout(Some(SHORT));
    let mut s = sender(a, each_one);
    let ticket = s.send(pattern(1, 200_000)).unwrap();
    assert_eq!(s.outstanding(), 1);
    assert!(matches!(s.wait(ticket, Duration::ZERO), Err(SendError::TimedOut { outstanding: 1, .. })));
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; 200_000];
        b.read_exact(&mut got).unwrap();
        assert!(got == pattern(1, 200_000));
        b
    });
    s.wait(ticket, LONG).unwrap();
    assert_eq!(s.outstanding(), 0);
    reader.join().unwrap();
}

/// Who waits for a buffer is told who has them: the network, or somebody else.
#[test]
fn a_wait_for_a_buffer_blames_no_network_that_has_none() {
    let area = area(2, 65_536);
    let held = [area.lease().unwrap(), area.lease().unwrap()];
    let (a, _stalled) = tcp_pair();
    let mut s = sender(a, socket_options(SendMode::ZeroCopy));
    for timeout in [Duration::ZERO, SHORT] {
        let e = s.lease(&area, Some(timeout)).unwrap_err();
        assert!(matches!(e, SendError::NoFreeBuffer { waited } if waited >= timeout), "{e}");
        assert_eq!(e.errno(), Some(libc::ETIMEDOUT));
        assert!(e.to_string().starts_with("no buffer of the area became free"), "{e}");
    }
    for lease in held {
        s.send(lease).unwrap();
    }
    // As many as the stalled receiver and the sender's buffer have room for come back.
    while let Ok(lease) = s.lease(&area, Some(SHORT)) {
        s.send(lease).unwrap();
    }
    let e = s.lease(&area, Some(SHORT)).unwrap_err();
    assert!(matches!(e, SendError::TimedOut { outstanding: 1.., .. }), "{e}");
}

/// A half-sent payload goes on with `poll`, and what comes after it stays behind it.
#[test]
fn the_rest_of_a_payload_goes_first() {
    for mode in [SendMode::Copy, SendMode::ZeroCopy] {
        let (a, mut b) = tcp_pair();
        set_int(&a, libc::SO_SNDBUF, 64 << 10);
        let mut s = sender(a, socket_options(mode));
        let big = pattern(1, 12 << 20);
        let t = s.try_send(big.clone()).unwrap();
        assert_eq!(s.outstanding(), 1, "a part is still here");
        assert!(s.try_send(vec![5]).unwrap_err().error.is_would_block());
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; big.len() + 3];
            b.read_exact(&mut got).unwrap();
            assert!(got[..big.len()] == big && got[big.len()..] == [1, 2, 3]);
            b.write_all(b"!").unwrap();
        });
        s.wait(t, LONG).unwrap();
        s.send(vec![1, 2, 3]).unwrap();
        s.wait_all(LONG).unwrap();
        reader.join().unwrap();
        let c = s.counters().snapshot();
        assert_eq!((c.frames, c.bytes), (2, (12 << 20) + 3));
    }
}
