//! Rings that fail in the middle, callbacks that use the engine, and event loops that wait for it.

use crate::support::sockets::{area, lease, pattern, set_int, tcp_pair, udp_pair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::Read;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use zerowire::area::Area;
use zerowire::send::uring::{Engine, EngineOptions, Threads};
use zerowire::send::{SendBackend, SendError, SendMode, SendOptions, Sender};
use zerowire_testkit::refuse::refuse;

const LONG: Duration = Duration::from_secs(20);
const NEEDED: &str = "io_uring is needed for this test";
const LEN: usize = 16 << 10;

fn zero_copy() -> SendOptions {
    SendOptions::default().mode(SendMode::ZeroCopy)
}

fn pair() -> (TcpStream, TcpStream) {
    let (a, b) = tcp_pair();
    set_int(&a, libc::SO_SNDBUF, 256 << 10);
    set_int(&b, libc::SO_RCVBUF, 64 << 10);
    (a, b)
}

/// Sends until the receiver, which reads nothing, takes no more. Returns how many payloads were
/// taken.
fn fill(s: &mut Sender, area: &Area) -> usize {
    let (mut n, mut refusals) = (0, 0);
    while refusals < 10 {
        match s.try_send(lease(area, &pattern(n, LEN))) {
            Ok(_) => (n, refusals) = (n + 1, 0),
            Err(r) if r.error.is_would_block() => {
                refusals += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(r) => panic!("{}", r.error),
        }
    }
    assert!(s.outstanding() > 0, "{n} payloads went to a receiver that reads nothing");
    n
}

/// The call returns the error, what was not taken comes back, and what the kernel holds is kept
/// until it lets go.
#[test]
fn a_ring_that_fails_frees_nothing_that_the_kernel_holds() {
    for shared in [false, true] {
        std::thread::spawn(move || {
            let area = area(256, LEN);
            let (a, mut b) = pair();
            let areas = std::slice::from_ref(&area);
            let engine = Engine::new(&EngineOptions::default(), areas).expect(NEEDED);
            let mut s = if shared {
                Sender::on(&engine, a.into(), zero_copy()).unwrap()
            } else {
                let own = zero_copy().backend(SendBackend::Uring);
                Sender::with_areas(a.into(), own, areas).unwrap()
            };
            fill(&mut s, &area);
            let (free, out) = (area.free(), s.outstanding());
            refuse(libc::SYS_io_uring_enter, libc::EPERM);
            for _ in 0..4 {
                let refused = s.try_send(lease(&area, &pattern(1, LEN))).unwrap_err();
                assert!(
                    matches!(&refused.error, SendError::Uring(why) if why.contains("io_uring_enter failed")),
                    "{}",
                    refused.error
                );
                assert_eq!(refused.payload.segments()[0].bytes().unwrap(), pattern(1, LEN));
            }
            assert!(s.path().contains("closed"), "{}", s.path());
            for _ in 0..20 {
                s.poll().unwrap();
                std::thread::sleep(Duration::from_millis(1));
            }
            // The one that waited in part may be given up; the others are in the connection's
            // queue.
            assert!(s.outstanding() + 1 >= out && s.outstanding() > 0, "{} of {out}", s.outstanding());
            assert_eq!(area.free() + s.outstanding(), area.buffers());
            assert!(area.free() <= free + 1);
            let mut bytes = vec![0; 1 << 20];
            let reader = std::thread::spawn(move || while b.read(&mut bytes).is_ok_and(|n| n > 0) {});
            s.wait_all(LONG).unwrap();
            assert_eq!((s.outstanding(), area.free()), (0, area.buffers()));
            drop(s);
            reader.join().unwrap();
        })
        .join()
        .unwrap();
    }
}

/// A callback sends on another sender of the same engine, as a relay does.
#[test]
fn a_callback_may_use_the_engines_other_senders() {
    let (told, done) = mpsc::channel();
    std::thread::spawn(move || {
        let engine = Engine::new(&EngineOptions::default(), &[]).expect(NEEDED);
        let (a, b) = udp_pair();
        let (c, d) = udp_pair();
        let mut first = Sender::on(&engine, a.into(), zero_copy()).unwrap();
        let second = Arc::new(Mutex::new(Sender::on(&engine, c.into(), zero_copy()).unwrap()));
        let relay = second.clone();
        first.on_done(move |_, payload, _| {
            relay.lock().unwrap().send(payload).unwrap();
        });
        for i in 0..10 {
            first.send(pattern(i, 2000)).unwrap();
            first.wait_all(LONG).unwrap();
        }
        second.lock().unwrap().wait_all(LONG).unwrap();
        let mut got = [0; 3000];
        for i in 0..10 {
            for socket in [&b, &d] {
                let n = socket.recv(&mut got).unwrap();
                assert!(got[..n] == pattern(i, 2000), "{i}");
            }
        }
        told.send(()).unwrap();
    });
    done.recv_timeout(LONG).expect("the callback waits for the engine for ever, or has failed");
}

#[test]
fn a_panic_in_a_callback_loses_no_other_payload() {
    let engine = Engine::new(&EngineOptions::default(), &[]).expect(NEEDED);
    let (a, b) = udp_pair();
    let mut s = Sender::on(&engine, a.into(), zero_copy()).unwrap();
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    s.on_done(move |_, _, _| {
        if count.fetch_add(1, Ordering::SeqCst) == 0 {
            panic!("the first one");
        }
    });
    for i in 0..5 {
        s.send(pattern(i, 2000)).unwrap();
    }
    let hurt = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| s.wait_all(LONG)));
    assert!(hurt.is_err());
    s.wait_all(LONG).unwrap();
    assert_eq!((called.load(Ordering::SeqCst), s.outstanding(), engine.outstanding()), (5, 0, 0));
    drop(b);
}

/// An event loop sleeps on the engine, and is woken by notifications that come later.
#[test]
fn an_event_loop_waits_for_the_engine() {
    for threads in [Threads::One, Threads::Any] {
        let area = area(256, LEN);
        let options = EngineOptions::default().threads(threads);
        let engine = Engine::new(&options, std::slice::from_ref(&area)).expect(NEEDED);
        let (a, mut b) = pair();
        let mut s = Sender::on(&engine, a.into(), zero_copy()).unwrap();
        let n = fill(&mut s, &area);
        let reader = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            let mut got = vec![0; n * LEN];
            b.read_exact(&mut got).unwrap();
            assert!(got.chunks(LEN).enumerate().all(|(i, c)| c == pattern(i, LEN)));
        });
        let end = Instant::now() + LONG;
        while s.outstanding() > 0 {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{threads:?}: nobody woke the loop: {s:?}");
            let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
            // While a part waits, for room as well.
            let notices = engine.watch().unwrap();
            let mut fds = [PollFd::from_borrowed_fd(notices, PollFlags::IN), PollFd::new(&s, PollFlags::OUT)];
            poll(&mut fds, Some(&wait)).unwrap();
            s.poll().unwrap();
        }
        reader.join().unwrap();
        assert_eq!(area.free(), area.buffers());
    }
}

/// Whether the engine's descriptor is readable.
fn is_readable(engine: &Engine) -> bool {
    let notices = engine.watch().unwrap();
    poll(&mut [PollFd::from_borrowed_fd(notices, PollFlags::IN)], Some(&Timespec::default())).unwrap() == 1
}

/// A loop that polls only the senders that have something out would otherwise never sleep.
#[test]
fn a_loop_sleeps_while_nothing_is_outstanding() {
    for (threads, mode) in [Threads::One, Threads::Any]
        .into_iter()
        .flat_map(|threads| [SendMode::Copy, SendMode::Auto, SendMode::ZeroCopy].map(|mode| (threads, mode)))
    {
        let case = format!("{threads:?}, {mode:?}");
        let engine = Engine::new(&EngineOptions::default().threads(threads), &[]).expect(NEEDED);
        assert!(!is_readable(&engine), "{case}: nothing was sent");
        let (a, mut b) = pair();
        let mut s = Sender::on(&engine, a.into(), SendOptions::default().mode(mode)).unwrap();
        let (c, _stalled) = pair();
        let mut other = Sender::on(&engine, c.into(), zero_copy()).unwrap();
        for len in [10, 1000, LEN] {
            // The kernel may signal late what was read already, which the next reading clears.
            let is_quiet = (0..5).any(|i| {
                s.send(pattern(i, len)).unwrap();
                b.read_exact(&mut vec![0; len]).unwrap();
                s.wait_all(LONG).unwrap();
                !is_readable(&engine)
            });
            assert!(is_quiet, "{case}: {len} bytes were sent and are back");
        }
        // What another sender has out still comes.
        other.send(pattern(1, 1000)).unwrap();
        s.send(vec![1; 10]).unwrap();
        assert!(s.outstanding() + other.outstanding() > 0, "{case}");
        zerowire_testkit::wait_until(&case, || is_readable(&engine));
        drop(s);
        other.wait_all(LONG).unwrap();
        other.poll().unwrap();
        assert!(!is_readable(&engine), "{case}: all is back");
    }
}

/// A copy that is refused has a result like others, which must not wake who tries again then.
#[test]
fn a_loop_sleeps_while_a_peer_takes_nothing() {
    let engine = Engine::new(&EngineOptions::default(), &[]).expect(NEEDED);
    engine.watch().unwrap();
    let (a, _stalled) = pair();
    let mut other = Sender::on(&engine, a.into(), zero_copy()).unwrap();
    other.send(pattern(1, 1 << 20)).unwrap();
    while other.try_send(pattern(1, 1 << 20)).is_ok() {}
    let (stream, _also_stalled) = pair();
    let (datagrams, _unread) = std::os::unix::net::UnixDatagram::pair().unwrap();
    for socket in [stream.into(), datagrams.into()] {
        let options = SendOptions::default().mode(SendMode::Copy);
        let mut s = Sender::on(&engine, socket, options).unwrap();
        while s.try_send(pattern(1, LEN)).is_ok() {}
        assert!(other.outstanding() > 0, "something is lent");
        // The kernel may signal late what was read already, which the next reading clears.
        let sleeps = (0..5).any(|_| {
            s.poll().unwrap();
            assert!(s.try_send(pattern(1, LEN)).is_err());
            !is_readable(&engine)
        });
        assert!(sleeps, "{s:?}");
    }
}

/// How often this thread has called read(2). Asking calls it once, too, which counts afterwards.
fn reads() -> u64 {
    let mut io = [0; 512];
    let len = std::fs::File::open("/proc/thread-self/io").unwrap().read(&mut io).unwrap();
    let io = std::str::from_utf8(&io[..len]).unwrap();
    io.lines().find_map(|line| line.strip_prefix("syscr: ")).unwrap().parse().unwrap()
}

/// To read the descriptor that the loop sleeps on is a system call.
#[test]
fn a_poll_reads_the_descriptor_of_the_engine_once() {
    let polled = |s: &mut Sender| {
        let before = reads();
        let came_back = s.poll().unwrap();
        (came_back, reads() - before - 1)
    };
    let engine = Engine::new(&EngineOptions::default(), &[]).expect(NEEDED);
    engine.watch().unwrap();
    let (a, _b) = udp_pair();
    let options = SendOptions::default().mode(SendMode::Copy);
    let mut copies = Sender::on(&engine, a.into(), options).unwrap();
    for i in 0..10 {
        copies.send(pattern(i, 100)).unwrap();
        assert_eq!(polled(&mut copies), (0, 0), "behind a payload that was copied");
    }
    assert_eq!(polled(&mut copies), (0, 1), "behind nothing");

    let (c, _d) = udp_pair();
    let mut lends = Sender::on(&engine, c.into(), zero_copy()).unwrap();
    let once = (0..100).any(|i| {
        lends.send(pattern(i, 1000)).unwrap();
        let first = polled(&mut lends);
        lends.wait_all(LONG).unwrap();
        lends.poll().unwrap();
        // What comes while it reads is read for, too.
        first == (1, 1)
    });
    assert!(once, "behind a payload that is back");
}

/// A sender that ended leaves its notifications to the others of its engine, also to those that
/// have nothing out.
#[test]
fn an_idle_sender_reads_what_others_left() {
    let engine = Engine::new(&EngineOptions::default(), &[]).expect(NEEDED);
    let [(a, _stalled), (c, _d)] = [pair(), pair()];
    let mut left = Sender::on(&engine, a.into(), zero_copy()).unwrap();
    let mut idle = Sender::on(&engine, c.into(), zero_copy()).unwrap();
    engine.watch().unwrap();
    for i in 0..8 {
        left.send(pattern(i, LEN)).unwrap();
    }
    drop(left);
    let end = Instant::now() + LONG;
    while engine.outstanding() > 0 || is_readable(&engine) {
        idle.poll().unwrap();
        assert!(Instant::now() < end, "{} are out, readable: {}", engine.outstanding(), is_readable(&engine));
    }
}

/// The engine's descriptor alone, without room being asked for: nothing but a notification can end
/// the sleep.
#[test]
fn notifications_alone_wake_a_loop() {
    for threads in [Threads::One, Threads::Any] {
        let options = EngineOptions::default().threads(threads);
        let engine = Engine::new(&options, &[]).expect(NEEDED);
        // Less than the sender's buffer, more than the receiver's window: the last of it stays
        // lent.
        let (a, mut b) = pair();
        set_int(&a, libc::SO_SNDBUF, 4 << 20);
        let mut s = Sender::on(&engine, a.into(), zero_copy()).unwrap();
        let n = 64;
        for i in 0..n {
            s.send(pattern(i, LEN)).unwrap();
        }
        assert!(s.outstanding() > 0);
        s.poll().unwrap();
        let reader = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            let mut got = vec![0; n * LEN];
            b.read_exact(&mut got).unwrap();
        });
        while s.outstanding() > 0 {
            let wait = Timespec { tv_sec: 20, tv_nsec: 0 };
            let notices = engine.watch().unwrap();
            let woken = poll(&mut [PollFd::from_borrowed_fd(notices, PollFlags::IN)], Some(&wait)).unwrap();
            assert_eq!(woken, 1, "{threads:?}: nobody woke the loop: {s:?}");
            s.poll().unwrap();
        }
        reader.join().unwrap();
    }
}
