//! Bounds: on what is lent, on notifications, on segments; interfaces that vanish; ends that fail.
//! Parts need root.

use crate::support::sockets::{area, lease, pattern, set_int, socket_options, tcp_pair, udp_pair};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zerowire::area::Area;
use zerowire::send::uring::{Engine, EngineOptions};
use zerowire::send::{Close, Closed, Payload, SendError, SendMode, Sender, orphans};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, in_lab};
use zerowire_testkit::own_process;

const LONG: Duration = Duration::from_secs(20);
const LEN: usize = 1200;

fn all_free(area: &Area) {
    let end = Instant::now() + LONG;
    while area.free() < area.buffers() {
        assert!(Instant::now() < end, "{} of {} buffers are back", area.free(), area.buffers());
        orphans();
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn udp_to(address: std::net::SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(address).unwrap();
    socket
}

/// Sends of a trial before the first one that is lent.
const COPIES: usize = zerowire::send::testing::BLOCK as usize;

/// A block of copies comes first in a trial; of the eight that follow two are lent, and the others
/// go out all the same.
#[test]
fn auto_copies_past_the_limit_and_goes_on() {
    in_lab(|lab| {
        lab.veth();
        let area = area(64, LEN);
        let (peer, address) = lab.udp();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let limits = socket_options(SendMode::Auto).max_lent(2).timeout(Some(LONG));
        let mut s = Sender::new(udp_to(address).into(), limits).unwrap();
        lab.hold(lab::HERE);
        for i in 0..COPIES + 8 {
            s.send(lease(&area, &pattern(i, LEN))).unwrap();
        }
        let c = s.counters().snapshot();
        assert_eq!((s.outstanding(), area.free()), (2, 62), "{c:?}");
        assert_eq!(
            (c.copied_bytes["trial"], c.copied_bytes["held"]),
            (COPIES as u64 * 1200, 6 * 1200),
            "{c:?}"
        );
        lab.release(lab::HERE);
        let mut got = [0; 2000];
        for i in 0..COPIES + 8 {
            let n = peer.recv(&mut got).unwrap();
            assert!(got[..n] == pattern(i, LEN), "datagram {i}");
        }
        s.wait_all(LONG).unwrap();
        let c = s.counters().snapshot();
        assert_eq!((c.frames, c.bytes), (COPIES as u64 + 8, (COPIES as u64 + 8) * LEN as u64), "{c:?}");
    });
}

/// Each notification that is out is charged to the socket: past net.core.optmem_max ZeroCopy waits,
/// and Auto copies.
#[test]
fn too_many_notifications_for_the_socket() {
    const ALL: usize = COPIES + 16;
    in_lab(|lab| {
        std::fs::write("/proc/sys/net/core/optmem_max", "4000")
            .expect("optmem_max of a namespace (Linux 6.9): run the tests on a newer kernel");
        lab.veth();
        for mode in [SendMode::ZeroCopy, SendMode::Auto] {
            let area = area(64, LEN);
            let (peer, address) = lab.udp();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut s = Sender::new(udp_to(address).into(), socket_options(mode)).unwrap();
            lab.hold(lab::HERE);
            let mut sent = 0;
            while sent < ALL {
                match s.try_send(lease(&area, &pattern(sent, LEN))) {
                    Ok(_) => sent += 1,
                    Err(refused) => {
                        assert!(refused.error.is_would_block(), "{mode:?}: {}", refused.error);
                        break;
                    }
                }
            }
            let out = s.outstanding();
            assert!((1..10).contains(&out), "{mode:?}: {out} are lent");
            lab.release(lab::HERE);
            if mode == SendMode::ZeroCopy {
                assert_eq!(sent, out);
                while sent < ALL {
                    s.send(lease(&area, &pattern(sent, LEN))).unwrap();
                    sent += 1;
                }
            }
            let mut got = [0; 2000];
            for i in 0..ALL {
                let n = peer.recv(&mut got).unwrap();
                assert!(got[..n] == pattern(i, LEN), "{mode:?}: datagram {i}");
            }
            s.wait_all(LONG).unwrap();
            assert_eq!(area.free(), area.buffers());
            let c = s.counters().snapshot();
            assert_eq!((c.frames, c.bytes), (ALL as u64, ALL as u64 * LEN as u64), "{c:?}");
            assert_eq!(c.copied_bytes.contains_key("memlock"), mode == SendMode::Auto, "{c:?}");
        }
    });
}

/// The socket's buffer is full when a batch comes. Its first payload waits, and is lent all the
/// same, though a short one behind it is copied. The policy chooses the first eight lent sends of a
/// trial alike.
#[test]
fn what_a_batch_had_no_room_for_goes_by_its_own_turn() {
    in_lab(|lab| {
        lab.veth();
        let area = area(64, LEN);
        let (peer, address) = lab.udp();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut got = [0; 2000];
        let socket = udp_to(address);
        set_int(&socket, libc::SO_SNDBUF, 8 << 10);
        let mut s = Sender::new(socket.into(), socket_options(SendMode::Auto).timeout(Some(LONG))).unwrap();
        for i in 0..COPIES {
            s.send(lease(&area, &pattern(i, LEN))).unwrap();
            assert_eq!(peer.recv(&mut got).unwrap(), LEN);
        }
        // Some 20 ms a frame.
        lab.tbf(lab::HERE, "500kbit", 1514, 1 << 20);
        let mut lent = 0;
        let waits = loop {
            match s.try_send(lease(&area, &pattern(lent, LEN))) {
                Ok(_) => lent += 1,
                Err(refused) => break refused,
            }
            assert!(lent < 8, "{lent} are lent: the buffer of the socket is too large for this test");
        };
        assert!(waits.error.is_would_block(), "{}", waits.error);
        let mut all = vec![waits.payload, Payload::from(vec![1; 10])];
        assert_eq!(s.send_many(&mut all).unwrap(), 2);
        for i in 0..=lent {
            let n = peer.recv(&mut got).unwrap();
            assert!(got[..n] == pattern(i, LEN), "datagram {i}");
        }
        assert_eq!(peer.recv(&mut got).unwrap(), 10);
        s.wait_all(LONG).unwrap();
        let c = s.counters().snapshot();
        // The peer is on this machine: the kernel copies for it what was lent.
        assert_eq!(
            (c.copied_bytes["trial"], c.copied_bytes["kernel"], c.copied_bytes["small"]),
            ((COPIES * LEN) as u64, ((lent + 1) * LEN) as u64, 10),
            "{c:?}"
        );
        assert_eq!(area.free(), area.buffers());
    });
}

#[test]
fn an_interface_that_is_removed_gives_everything_back() {
    for uring in [false, true] {
        in_lab(move |lab| {
            lab.veth();
            let area = area(64, LEN);
            let (_peer, address) = lab.udp();
            let (listener, tcp_address) = lab.tcp();
            let engine = Engine::new(&EngineOptions::default(), &[]).expect("io_uring is needed");
            let sender = |socket: std::os::fd::OwnedFd| match uring {
                false => Sender::new(socket, socket_options(SendMode::ZeroCopy)).unwrap(),
                true => Sender::on(&engine, socket, socket_options(SendMode::ZeroCopy)).unwrap(),
            };
            let mut udp = sender(udp_to(address).into());
            let mut tcp = sender(TcpStream::connect(tcp_address).unwrap().into());
            let _far = listener.accept().unwrap();
            lab.hold(lab::HERE);
            for i in 0..10 {
                udp.send(lease(&area, &pattern(i, LEN))).unwrap();
                tcp.send(lease(&area, &pattern(i, LEN))).unwrap();
            }
            udp.poll().unwrap();
            tcp.poll().unwrap();
            assert_eq!((udp.outstanding(), tcp.outstanding()), (10, 10));
            lab.delete(lab::HERE);
            udp.wait_all(LONG).unwrap();
            assert_eq!(area.free(), area.buffers() - 10, "uring: {uring}");
            let e = udp.send(lease(&area, &pattern(1, LEN))).unwrap_err();
            assert_eq!(e.errno(), Some(libc::ENETUNREACH), "{e}");
            // TCP keeps what it may have to send again, until the connection ends.
            assert!(matches!(tcp.wait_all(Duration::from_millis(50)), Err(SendError::TimedOut { .. })));
            tcp.close(Close::Abort).unwrap();
            all_free(&area);
        });
    }
}

#[test]
fn too_many_segments_are_named() {
    let (a, _b) = udp_pair();
    let segments = socket_options(SendMode::ZeroCopy).segment_bytes(Some(100));
    let mut s = Sender::new(a.into(), segments).unwrap();
    let e = s.send(vec![0; 30_001]).unwrap_err();
    assert!(
        matches!(e, SendError::TooManySegments { len: 30_001, segments: 301, segment_bytes: 100 }),
        "{e}"
    );
    assert_eq!(e.errno(), Some(libc::EINVAL));
    // 64 go, and one of another length at the end.
    s.send(vec![0; 63 * 100 + 1]).unwrap();
    s.wait_all(LONG).unwrap();
}

#[test]
fn a_drain_that_fails_says_why_and_what_is_left() {
    let (a, b) = tcp_pair();
    set_int(&a, libc::SO_SNDBUF, 64 << 10);
    let mut s = Sender::new(a.into(), socket_options(SendMode::Copy)).unwrap();
    s.try_send(vec![1; 16 << 20]).unwrap();
    assert_eq!(s.outstanding(), 1, "a part waits");
    // Unread bytes at the close: the connection is reset.
    drop(b);
    let e = s.close(Close::Drain(LONG)).unwrap_err();
    assert!(matches!(e.error, SendError::Disconnected(_)), "{e}");
    assert_eq!(e.closed, Closed::default());
}

/// A unix socket has no error queue: what the peer said must not be taken for notifications, nor
/// its end.
#[test]
fn a_socket_without_notifications_is_aborted_and_not_read_from() {
    let (a, mut b) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut kept = a.try_clone().unwrap();
    let mut s = Sender::new(a.into(), socket_options(SendMode::ZeroCopy)).unwrap();
    std::io::Write::write_all(&mut b, b"words").unwrap();
    s.try_send(vec![1; 16 << 20]).unwrap();
    assert!(s.is_partly_sent());
    assert!(matches!(s.wait_all(Duration::from_millis(20)), Err(SendError::TimedOut { .. })));
    let mut words = [0; 5];
    std::io::Read::read_exact(&mut kept, &mut words).unwrap();
    assert_eq!(&words, b"words");
    assert_eq!(s.close(Close::Abort).unwrap().aborted, 1);
}

/// As `send` waits, by hand.
#[test]
fn room_is_waited_for_between_two_tries() {
    let (a, b) = tcp_pair();
    set_int(&a, libc::SO_SNDBUF, 64 << 10);
    let mut s = Sender::new(a.into(), socket_options(SendMode::Copy)).unwrap();
    s.try_send(vec![1; 4 << 20]).unwrap();
    assert!(s.is_partly_sent());
    let refused = s.try_send(vec![2; 10]).unwrap_err();
    assert!(refused.error.is_would_block(), "{}", refused.error);
    // Nobody reads yet: it waits, and says nothing.
    s.wait_room(Duration::from_millis(20)).unwrap();
    s.wait_room(Duration::ZERO).unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        std::io::Read::read_to_end(&mut &b, &mut all).unwrap();
        all
    });
    let (mut payload, end) = (refused.payload, Instant::now() + LONG);
    while let Err(refused) = s.try_send(payload) {
        assert!(refused.error.is_would_block() && Instant::now() < end, "{}", refused.error);
        payload = refused.payload;
        s.wait_room(Duration::from_millis(100)).unwrap();
    }
    s.close(Close::Drain(LONG)).unwrap();
    let all = reader.join().unwrap();
    assert_eq!((all.len(), &all[4 << 20..]), ((4 << 20) + 10, &[2; 10][..]));
}

/// The callback panics while a sender with loans is dropped.
#[test]
fn a_panic_at_the_end_frees_nothing_too_early_and_loses_nothing() {
    own_process!();
    let (a, _b) = tcp_pair();
    set_int(&a, libc::SO_SNDBUF, 1 << 20);
    let area = area(64, LEN);
    let mut s = Sender::new(a.into(), socket_options(SendMode::ZeroCopy)).unwrap();
    let first = Arc::new(AtomicBool::new(true));
    s.on_done(move |_, _, _| {
        if first.swap(false, Ordering::SeqCst) {
            panic!("the first one");
        }
    });
    for i in 0..20 {
        s.send(lease(&area, &pattern(i, LEN))).unwrap();
    }
    assert!(s.outstanding() > 0);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(s))).is_err());
    all_free(&area);
}

#[test]
fn a_loop_waits_for_the_socket() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let (a, b) = udp_pair();
    let mut s = Sender::new(a.into(), socket_options(SendMode::ZeroCopy)).unwrap();
    let area = area(64, LEN);
    for i in 0..20 {
        s.send(lease(&area, &pattern(i, LEN))).unwrap();
        b.recv(&mut [0; 2000]).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(s.as_fd(), PollFlags::empty())];
        assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 20, tv_nsec: 0 })).unwrap(), 1);
        assert!(fds[0].revents().contains(PollFlags::ERR));
        assert_eq!(s.poll().unwrap(), 1);
        assert_eq!(area.free(), area.buffers());
    }
}
