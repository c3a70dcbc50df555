//! Datagrams longer than the path's MTU, and queues of interfaces that are full: what is lent, what
//! an ENOBUFS means, and when memory is back. IP_RECVERR is set, so that the kernel tells of full
//! queues.

use crate::support::sockets::{area, lease, socket_options};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};
use zerowire::send::testing::BLOCK;
use zerowire::send::{Because, Payload, SendBackend, SendError, SendMode, Sender};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, Lab, in_lab};
use zerowire_testkit::net::{run, set_option};

const SHORT: Duration = Duration::from_millis(200);
const LEN: usize = 1000;

/// A socket that asks for errors. The buffer is large: it is the interface's queue that is full.
fn socket(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(to).unwrap();
    set_option(&socket, libc::SOL_IP, libc::IP_RECVERR, 1);
    set_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 4 << 20);
    socket
}

fn arrives(peer: &UdpSocket, seed: u32, len: usize) {
    let mut got = vec![0; 65_536];
    let n = peer.recv(&mut got).expect("a datagram");
    assert!(n == len && got[..n] == lab::pattern(seed, len), "datagram {seed}: {n} bytes");
}

fn copied(s: &Sender, reason: &str) -> u64 {
    s.counters().snapshot().copied_bytes.get(reason).copied().unwrap_or(0)
}

#[test]
fn what_the_kernel_would_cut_into_fragments_is_copied() {
    for (mode, backend) in [
        (SendMode::ZeroCopy, SendBackend::Socket),
        (SendMode::ZeroCopy, SendBackend::Uring),
        (SendMode::Auto, SendBackend::Socket),
    ] {
        in_lab(move |lab| {
            lab.veth();
            let area = area(64, 50_000);
            let (peer, address) = lab.udp();
            let mut s = Sender::new(socket(address).into(), socket_options(mode).backend(backend)).unwrap();
            // The MTU of 1500 without the headers of IP and UDP.
            for (seed, len) in [(1, 1472), (2, 1473), (3, 20_000)] {
                s.send(lease(&area, &lab::pattern(seed, len))).unwrap();
                arrives(&peer, seed, len);
            }
            let mut batch: Vec<Payload> =
                (4..8).map(|seed| lease(&area, &lab::pattern(seed, 5000)).into()).collect();
            assert_eq!(s.send_many(&mut batch).unwrap(), 4);
            (4..8).for_each(|seed| arrives(&peer, seed, 5000));
            s.wait_all(PATIENCE).unwrap();
            let c = s.counters().snapshot();
            let lent = if mode == SendMode::ZeroCopy { "kernel" } else { "trial" };
            assert_eq!(c.copied_bytes, [(lent, 1472), ("fragmented", 1473 + 20_000 + 4 * 5000)].into());
            if mode == SendMode::Auto {
                let classes = s.choices();
                assert!(classes.iter().all(|c| c.to_bytes < 4096), "longer ones are not tried: {classes:?}");
                return;
            }
            // A path that takes more is found.
            lab.mtu(lab::HERE, 9000);
            for seed in 0..300 {
                s.send(lease(&area, &lab::pattern(seed, 5000))).unwrap();
                arrives(&peer, seed, 5000);
                s.wait_all(PATIENCE).unwrap();
            }
            assert!(copied(&s, "kernel") >= 1472 + 5000);
        });
    }
}

/// A datagram is refused by a queue that has taken its first fragments, and the one behind it is
/// lent.
#[test]
fn a_refused_long_datagram_does_not_shift_the_numbers() {
    in_lab(|lab| {
        lab.veth();
        let area = area(64, 50_000);
        let (peer, address) = lab.udp();
        let mut s = Sender::new(socket(address).into(), socket_options(SendMode::ZeroCopy)).unwrap();
        lab.hold_some(lab::HERE, 1514, 6200);
        let refused = s.try_send(lease(&area, &lab::pattern(1, 50_000))).unwrap_err();
        assert!(matches!(refused.error, SendError::QueueFull { len: 50_000 }), "{}", refused.error);
        drop(refused);
        lab.tbf(lab::HERE, "1mbit", 1514, 1 << 20);
        lab.hold(lab::HERE);
        let ticket = s.send(lease(&area, &lab::pattern(2, LEN))).unwrap();
        assert!(matches!(s.wait(ticket, SHORT), Err(SendError::TimedOut { .. })), "it waits in the queue");
        assert_eq!(area.free(), area.buffers() - 1);
        lab.release(lab::HERE);
        s.wait(ticket, PATIENCE).unwrap();
        arrives(&peer, 2, LEN);
    });
}

/// The MTU falls behind a sender's back: what it lends then is cut into fragments, some of which
/// are queued when the call fails. They keep its number for as long as they wait.
#[test]
fn a_long_datagram_that_was_lent_and_refused_shifts_no_number() {
    in_lab(|lab| {
        lab.veth();
        lab.mtu(lab::HERE, 9000);
        lab.at_peer(|| std::fs::write("/proc/sys/net/ipv4/ipfrag_time", "1").unwrap());
        let area = area(64, 50_000);
        let (peer, address) = lab.udp();
        let mut s = Sender::new(socket(address).into(), socket_options(SendMode::ZeroCopy)).unwrap();
        s.send(lease(&area, &lab::pattern(0, 8000))).unwrap();
        arrives(&peer, 0, 8000);
        s.wait_all(PATIENCE).unwrap();
        assert_eq!(copied(&s, "kernel"), 8000, "lent");
        lab.mtu(lab::HERE, 1500);
        lab.hold_some(lab::HERE, 1514, 4000);
        let refused = s.try_send(lease(&area, &lab::pattern(1, 8000))).unwrap_err();
        assert!(matches!(refused.error, SendError::QueueFull { len: 8000 }), "{}", refused.error);
        // Room for more, and still nothing leaves.
        run(
            "tc",
            &[
                &["qdisc", "change", "dev", lab::HERE, "root", "tbf"][..],
                &["rate", "1000bit", "burst", "1514b", "limit", "1000000b"],
            ]
            .concat(),
        );
        for seed in 2..5 {
            s.send(lease(&area, &lab::pattern(seed, LEN))).unwrap();
        }
        assert_eq!(s.outstanding(), 0, "nothing is lent while the fragments have the number");
        assert_eq!(copied(&s, "numbering"), 3 * LEN as u64);
        lab.release(lab::HERE);
        (2..5).for_each(|seed| arrives(&peer, seed, LEN));
        // When the peer has given up waiting for the other fragments it lends again, and what waits
        // in a queue is not back.
        let (mut seed, start) = (5, Instant::now());
        while copied(&s, "kernel") == 8000 {
            assert!(start.elapsed() < PATIENCE, "nothing is lent: {:?}", s.counters().snapshot());
            s.send(lease(&area, &lab::pattern(seed, LEN))).unwrap();
            arrives(&peer, seed, LEN);
            s.wait_all(PATIENCE).unwrap();
            seed += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        lab.hold(lab::HERE);
        let first = s.send(lease(&area, &lab::pattern(100_000, LEN))).unwrap();
        s.send(lease(&area, &lab::pattern(100_001, LEN))).unwrap();
        assert!(matches!(s.wait(first, SHORT), Err(SendError::TimedOut { .. })));
        assert_eq!(s.outstanding(), 2);
        lab.release(lab::HERE);
        s.wait_all(PATIENCE).unwrap();
        (100_000..100_002).for_each(|seed| arrives(&peer, seed, LEN));
    });
}

#[test]
fn a_full_queue_is_no_limit_of_locked_memory() {
    for (mode, backend) in [SendMode::ZeroCopy, SendMode::Auto]
        .into_iter()
        .flat_map(|mode| [SendBackend::Socket, SendBackend::Uring].map(|backend| (mode, backend)))
    {
        in_lab(move |lab: &Lab| {
            lab.veth();
            let area = area(64, 50_000);
            let (peer, address) = lab.udp();
            let mut s = Sender::new(socket(address).into(), socket_options(mode).backend(backend)).unwrap();
            // In a trial the block that lends is next.
            let before = if mode == SendMode::Auto { BLOCK } else { 1 };
            for seed in 0..before {
                s.send(lease(&area, &lab::pattern(seed, LEN))).unwrap();
                arrives(&peer, seed, LEN);
            }
            s.wait_all(PATIENCE).unwrap();
            lab.hold_some(lab::HERE, 1514, 5000);
            let mut taken = 0;
            let error = loop {
                match s.try_send(lease(&area, &lab::pattern(before + taken, LEN))) {
                    Ok(_) => taken += 1,
                    Err(refused) => break refused.error,
                }
                assert!(taken < 20, "{mode:?}, {backend:?}: the queue takes everything");
            };
            assert!(matches!(error, SendError::QueueFull { len: LEN }), "{mode:?}, {backend:?}: {error}");
            assert!(error.to_string().contains("queue is full"), "{error}");
            assert_eq!(s.outstanding(), taken as usize, "{mode:?}, {backend:?}: lent");
            lab.release(lab::HERE);
            (before..before + taken).for_each(|seed| arrives(&peer, seed, LEN));
            s.wait_all(PATIENCE).unwrap();
            assert_eq!(area.free(), area.buffers());
            assert_eq!(copied(&s, "memlock"), 0, "{mode:?}, {backend:?}");
            assert!(s.choices().iter().all(|c| c.because != Because::Refused), "{:?}", s.choices());
        });
    }
}
