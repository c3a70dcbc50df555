//! An ordinary user whose RLIMIT_MEMLOCK is used up: a clear error, or copying, as the mode says;
//! never a hang.

use crate::support::sockets::{datagram, pattern, sender, set_int, tcp_pair, udp_pair};
use std::io::Read;
use std::net::UdpSocket;
use std::time::Duration;
use zerowire::area::{Area, AreaOptions};
use zerowire::send::uring::{Engine, EngineOptions};
use zerowire::send::{SendBackend, SendError, SendMode, SendOptions, Sender};
use zerowire_testkit::own_process;
use zerowire_testkit::process::become_ordinary;

const LONG: Duration = Duration::from_secs(20);
const LIMIT: u64 = 48 << 10;

fn options(mode: SendMode) -> SendOptions {
    SendOptions::default().mode(mode).backend(SendBackend::Socket).timeout(Some(LONG))
}

#[test]
fn lending_beyond_the_limit_is_an_error_that_names_it() {
    own_process!();
    become_ordinary(54_321, LIMIT);
    let (a, b) = udp_pair();
    let mut s = sender(a, options(SendMode::ZeroCopy));
    let e = s.try_send(pattern(1, 60_000)).unwrap_err();
    assert!(matches!(e.error, SendError::Locked { len: 60_000, .. }), "{}", e.error);
    let text = e.error.to_string();
    assert!(
        text.contains("RLIMIT_MEMLOCK is 49152 bytes") && text.contains("net.core.optmem_max is"),
        "{text}"
    );
    assert_eq!(e.payload.len(), 60_000);
    // The sender goes on, and lends what the limit allows.
    let t = s.send(pattern(2, 8000)).unwrap();
    let mut got = vec![0; 70_000];
    assert_eq!(b.recv(&mut got).unwrap(), 8000);
    s.wait(t, LONG).unwrap();
    assert_eq!(s.counters().snapshot().copied_bytes["kernel"], 8000);
    // On a stream as well.
    let (a, _b) = tcp_pair();
    let mut s = sender(a, options(SendMode::ZeroCopy));
    assert!(matches!(s.send(pattern(1, 60_000)), Err(SendError::Locked { .. })));
}

#[test]
fn auto_copies_beyond_the_limit() {
    own_process!();
    become_ordinary(54_322, LIMIT);
    let (a, b) = udp_pair();
    let mut s = sender(a, options(SendMode::Auto));
    let mut got = vec![0; 70_000];
    for i in 0..200 {
        s.send(pattern(i, 60_000)).unwrap();
        let n = b.recv(&mut got).unwrap();
        assert!(got[..n] == pattern(i, 60_000), "{i}");
    }
    s.wait_all(LONG).unwrap();
    let c = s.counters().snapshot();
    assert!(c.copied_bytes["memlock"] >= 60_000, "{c:?}");
    assert_eq!((c.frames, c.bytes), (200, 200 * 60_000));
    assert!(s.choices().iter().any(|c| c.to_string().contains("refused")), "{:?}", s.choices());
}

/// What most users have (`ulimit -l`).
const USUAL_LIMIT: u64 = 8 << 20;

#[test]
fn areas_are_registered_within_the_usual_limit() {
    own_process!();
    become_ordinary(54_324, USUAL_LIMIT);
    // The ring itself counts, too. The first number of buffers fits beside it, the second does not.
    for (buffers, is_registered) in [(28, true), (33, false)] {
        let area = Area::new(AreaOptions::default().buffers(buffers).buffer_bytes(256 << 10)).unwrap();
        let (a, mut b) = tcp_pair();
        let options = options(SendMode::ZeroCopy).backend(SendBackend::Auto);
        let mut s = Sender::with_areas(a.into(), options, std::slice::from_ref(&area)).unwrap();
        let path = s.path();
        assert!(path.contains("io_uring"), "{path}");
        assert_eq!(path.contains("(areas are registered)"), is_registered, "{path}");
        assert_eq!(path.contains(&format!("{} bytes registered", area.len())), is_registered, "{path}");
        assert_eq!(path.contains("an area is not registered"), !is_registered, "{path}");
        assert_eq!(path.contains("RLIMIT_MEMLOCK, which is 8388608 bytes"), !is_registered, "{path}");
        let mut lease = area.lease().unwrap();
        assert!(lease.set_len(100_000));
        lease.copy_from_slice(&pattern(1, 100_000));
        s.send(lease).unwrap();
        let mut got = vec![0; 100_000];
        b.read_exact(&mut got).unwrap();
        assert!(got == pattern(1, 100_000));
        s.wait_all(LONG).unwrap();
        assert_eq!(area.free(), area.buffers());
    }
}

/// The limit is used up by another socket of the same user, whose receiver reads nothing. A sender
/// with nothing lent must not wait for notifications of its own.
#[test]
fn the_known_deadlock_does_not_happen() {
    own_process!();
    // Room for the payloads below and for a short ring.
    become_ordinary(54_323, LIMIT + (128 << 10));
    let rings = EngineOptions::default().submissions(4).completions(8);
    let engine = Engine::new(&rings, &[]).unwrap();
    let (a, mut far) = tcp_pair();
    set_int(&far, libc::SO_RCVBUF, 4096);
    // More than may be locked.
    set_int(&a, libc::SO_SNDBUF, 1 << 20);
    let mut hog = sender(a, options(SendMode::ZeroCopy));
    let mut taken = 0;
    // TCP sends anew after 200 ms, and gives memory back by that: it is used up again.
    let mut use_up = |hog: &mut Sender| {
        loop {
            match hog.try_send(vec![1u8; 16_000]) {
                Ok(_) => taken += 1,
                Err(r) if r.error.is_would_block() => break,
                Err(r) => panic!("{}", r.error),
            }
            assert!(taken < 10_000, "a stalled receiver took everything");
        }
        assert!(hog.outstanding() > 0);
    };
    // By either back end; what the ring itself has locked is part of the limit.
    let mut late = Vec::new();
    for engine in [None, Some(&engine)] {
        let on = |socket: UdpSocket, mode| match engine {
            None => sender(socket, options(mode)),
            Some(engine) => Sender::on(engine, socket.into(), options(mode)).unwrap(),
        };
        let (a, b) = udp_pair();
        let mut s = on(a, SendMode::ZeroCopy);
        use_up(&mut hog);
        let e = s.send(vec![2u8; 40_000]).unwrap_err();
        assert!(matches!(e, SendError::Locked { .. }), "{e}");
        let (c, _d) = udp_pair();
        let mut auto = on(c, SendMode::Auto);
        // A block of copies, then one payload that Auto lends.
        use_up(&mut hog);
        for _ in 0..40 {
            auto.send(vec![3u8; 40_000]).unwrap();
        }
        auto.wait_all(LONG).unwrap();
        let c = auto.counters().snapshot();
        assert!(c.copied_bytes.get("memlock").is_some_and(|bytes| *bytes >= 40_000), "{c:?}");
        late.push((s, b));
    }
    // With the receiver reading, all of it goes on.
    let reader = std::thread::spawn(move || {
        let mut got = vec![0; taken * 16_000];
        far.read_exact(&mut got).unwrap();
    });
    hog.wait_all(LONG).unwrap();
    reader.join().unwrap();
    for (mut s, b) in late {
        s.send(vec![2u8; 40_000]).unwrap();
        let mut got = vec![0; 70_000];
        assert_eq!(datagram(&b, &mut got), 40_000);
        s.wait_all(LONG).unwrap();
    }
}
