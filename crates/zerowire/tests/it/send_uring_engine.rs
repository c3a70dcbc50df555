//! Engines: many sockets, short queues, threads, senders that go away, and machines that refuse
//! io_uring.

use crate::support::sockets::{area, datagram, lease, pattern, tcp_pair, udp_pair};
use std::io::Read;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use zerowire::send::uring::{Engine, EngineError, EngineOptions, Registration, Threads};
use zerowire::send::{Close, SendBackend, SendError, SendMode, SendOptions, Sender, orphans};
use zerowire_testkit::own_process;
use zerowire_testkit::refuse::refuse;

const LONG: Duration = Duration::from_secs(20);
const NEEDED: &str = "io_uring is needed for this test";

fn zero_copy() -> SendOptions {
    SendOptions::default().mode(SendMode::ZeroCopy)
}

#[test]
fn ten_thousand_sockets_share_one_ring() {
    own_process!();
    const SOCKETS: usize = 10_000;
    // One descriptor a socket, and a handful for the ring and the test.
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let wanted = SOCKETS as u64 + 200;
    if limit.current.is_some_and(|n| n < wanted) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: limit.maximum })
            .expect("the hard limit of open files allows 10200: raise it (ulimit -Hn) for this test");
    }
    let area = area(SOCKETS, 4096);
    let engine = Engine::new(&EngineOptions::default(), std::slice::from_ref(&area)).expect(NEEDED);
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(LONG)).unwrap();
    let to = receiver.local_addr().unwrap();
    let mut senders: Vec<Sender> = (0..SOCKETS)
        .map(|_| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(to).unwrap();
            Sender::on(&engine, socket.into(), zero_copy()).unwrap()
        })
        .collect();
    let mut got = [0; 4096];
    for round in 0..3 {
        for (i, s) in senders.iter_mut().enumerate() {
            s.send(lease(&area, &pattern(i + round, 500))).unwrap();
            let n = datagram(&receiver, &mut got);
            assert!(got[..n] == pattern(i + round, 500), "socket {i}");
        }
        for s in &mut senders {
            s.wait_all(LONG).unwrap();
            assert_eq!(s.outstanding(), 0);
        }
        assert_eq!((area.free(), engine.outstanding()), (SOCKETS, 0));
    }
    for s in senders {
        assert_eq!(s.close(Close::Abort).unwrap().kept, 0);
    }
}

#[test]
fn a_queue_of_completions_that_is_too_short_loses_nothing() {
    let options = EngineOptions::default().submissions(2).completions(2);
    let engine = Engine::new(&options, &[]).expect(NEEDED);
    let (a, mut b) = tcp_pair();
    let options = zero_copy().max_lent(500);
    let mut s = Sender::on(&engine, a.into(), options).unwrap();
    // Nobody reads: notifications are held back, then all come at once.
    let mut want = Vec::new();
    for i in 0..100 {
        want.extend(pattern(i, 1000));
        s.send(pattern(i, 1000)).unwrap();
    }
    let mut got = vec![0; want.len()];
    b.read_exact(&mut got).unwrap();
    assert!(got == want);
    s.wait_all(LONG).unwrap();
    assert_eq!((s.outstanding(), engine.outstanding()), (0, 0));
    let mut told = 0;
    while let Some(c) = s.next_completion() {
        told += c.tickets();
    }
    assert_eq!(told, 100);
    assert!(engine.overflows() > 0, "the queue of two was never too short");
}

#[test]
fn senders_that_go_leave_the_engine_to_the_others() {
    let area = area(64, 4096);
    let engine = Engine::new(&EngineOptions::default(), std::slice::from_ref(&area)).expect(NEEDED);
    let (a, _stalled) = tcp_pair();
    let (c, d) = udp_pair();
    let mut going = Sender::on(&engine, a.into(), zero_copy()).unwrap();
    let mut staying = Sender::on(&engine, c.into(), zero_copy()).unwrap();
    for i in 0..20 {
        going.send(lease(&area, &pattern(i, 4000))).unwrap();
    }
    drop(going);
    let mut got = [0; 4096];
    for i in 0..50 {
        staying.send(lease(&area, &pattern(i, 3000))).unwrap();
        let n = datagram(&d, &mut got);
        assert!(got[..n] == pattern(i, 3000));
        staying.wait_all(LONG).unwrap();
    }
    let end = Instant::now() + LONG;
    while area.free() < area.buffers() {
        staying.poll().unwrap();
        orphans();
        assert!(Instant::now() < end, "{} of {} buffers are back", area.free(), area.buffers());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_sender_with_its_own_ring_moves_between_threads() {
    let area = area(8, 4096);
    let (a, b) = udp_pair();
    let options = zero_copy().backend(SendBackend::Uring);
    let mut s = Sender::with_areas(a.into(), options, std::slice::from_ref(&area)).expect(NEEDED);
    for i in 0..6 {
        s = std::thread::scope(|scope| {
            let area = &area;
            let work = scope.spawn(move || {
                s.send(lease(area, &pattern(i, 2000))).unwrap();
                s
            });
            work.join().unwrap()
        });
        let mut got = [0; 4096];
        let n = datagram(&b, &mut got);
        assert!(got[..n] == pattern(i, 2000));
    }
    // The threads that sent are gone; their notifications are not.
    s.wait_all(LONG).unwrap();
    assert_eq!(area.free(), area.buffers());
}

#[test]
fn an_engine_of_one_thread_refuses_others() {
    let engine = Engine::new(&EngineOptions::default(), &[]).expect(NEEDED);
    let free = Engine::new(&EngineOptions::default().threads(Threads::Any), &[]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (a, _b) = udp_pair();
            let e = Sender::on(&engine, a.into(), zero_copy()).unwrap_err();
            assert!(matches!(&e.error, SendError::Uring(why) if why.contains("thread")), "{e}");
            let e = engine.register(&area(1, 4096)).unwrap_err();
            assert!(matches!(e, EngineError::WrongThread), "{e}");
            let (a, b) = udp_pair();
            let mut s = Sender::on(&free, a.into(), zero_copy()).unwrap();
            s.send(vec![5; 100]).unwrap();
            assert_eq!(b.recv(&mut [0; 200]).unwrap(), 100);
            s.wait_all(LONG).unwrap();
        });
    });
    // A sender that was made on the right thread and taken elsewhere.
    let (a, _b) = udp_pair();
    let mut s = Sender::on(&engine, a.into(), zero_copy()).unwrap();
    let e = std::thread::spawn(move || s.send(vec![1; 1000]).unwrap_err()).join().unwrap();
    assert!(matches!(&e, SendError::Uring(why) if why.contains("thread")), "{e}");
}

#[test]
fn where_io_uring_is_refused_the_socket_back_end_runs() {
    std::thread::spawn(|| {
        refuse(libc::SYS_io_uring_setup, libc::EPERM);
        let e = Engine::new(&EngineOptions::default(), &[]).unwrap_err();
        assert!(matches!(e, EngineError::Refused(_)), "{e}");
        assert!(e.to_string().contains("seccomp"), "{e}");
        let area = area(4, 4096);
        let (a, _b) = udp_pair();
        let asked = zero_copy().backend(SendBackend::Uring);
        let e = Sender::with_areas(a.into(), asked, std::slice::from_ref(&area)).unwrap_err();
        assert!(matches!(&e.error, SendError::Uring(why) if why.contains("EPERM")), "{e}");
        let (a, b) = udp_pair();
        let mut s = Sender::with_areas(a.into(), zero_copy(), std::slice::from_ref(&area)).unwrap();
        assert!(s.path().contains("socket calls") && s.path().contains("EPERM"), "{}", s.path());
        s.send(lease(&area, &pattern(1, 1000))).unwrap();
        assert_eq!(b.recv(&mut [0; 2000]).unwrap(), 1000);
        s.wait_all(LONG).unwrap();
        assert_eq!(area.free(), 4);
    })
    .join()
    .unwrap();
}

/// Makes this process one with `bytes` of locked memory, and this thread one of a user without
/// CAP_IPC_LOCK.
fn become_ordinary(bytes: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let before = getrlimit(Resource::Memlock);
    setrlimit(Resource::Memlock, Rlimit { current: Some(bytes), maximum: before.maximum }).unwrap();
    // SAFETY: plain numbers. The raw call changes this thread only; leaving root drops its
    // capabilities.
    let r = unsafe { libc::syscall(libc::SYS_setresuid, 65_533, 65_533, 65_533) };
    assert_eq!(r, 0, "this test needs root: {}", std::io::Error::last_os_error());
}

#[test]
fn locked_memory_is_a_clear_error_or_goes_unregistered() {
    own_process!();
    std::thread::spawn(|| {
        become_ordinary(256 << 10);
        let area = area(128, 4096);
        let areas = std::slice::from_ref(&area);
        let options = EngineOptions::default().registration(Registration::Required);
        let e = Engine::new(&options, areas).unwrap_err();
        assert!(matches!(e, EngineError::Memlock { len: 524_288, .. }), "{e}");
        for word in ["524288", "262144", "RLIMIT_MEMLOCK", "ulimit -l"] {
            assert!(e.to_string().contains(word), "{word} in: {e}");
        }
        let (a, _b) = udp_pair();
        let asked = zero_copy().backend(SendBackend::Uring);
        let e = Sender::with_areas(a.into(), asked, areas).unwrap_err();
        assert!(e.to_string().contains("RLIMIT_MEMLOCK"), "{e}");
        // By itself it goes on without registering, and says so.
        let (a, b) = udp_pair();
        let options = SendOptions::default().mode(SendMode::Auto).backend(SendBackend::Uring);
        let mut s = Sender::with_areas(a.into(), options, areas).unwrap();
        assert!(s.path().contains("RLIMIT_MEMLOCK"), "{}", s.path());
        s.send(lease(&area, &pattern(1, 4000))).unwrap();
        assert_eq!(b.recv(&mut [0; 5000]).unwrap(), 4000);
        s.wait_all(LONG).unwrap();
        // The ring's own queues count, too.
        let options = EngineOptions::default().submissions(8192).completions(32_768);
        let e = Engine::new(&options, &[]).unwrap_err();
        assert!(matches!(e, EngineError::RingMemlock { .. }), "{e}");
        // A payload that alone goes beyond the limit is refused with the limit's name.
        let (a, _b) = tcp_pair();
        let asked = zero_copy().backend(SendBackend::Uring);
        let mut s = Sender::new(a.into(), asked).unwrap();
        let e = s.send(vec![1; 1 << 20]).unwrap_err();
        assert!(matches!(e, SendError::Locked { .. }), "{e}");
        assert_eq!(s.outstanding(), 0);
    })
    .join()
    .unwrap();
}
