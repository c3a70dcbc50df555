//! Which bytes really go out over io_uring. They are held in a queue behind the sender, their
//! memory is changed after the call, and the peer looks. New bytes: nothing was copied. The ledger
//! must say the same. Needs root.

use crate::support::sockets::{area, datagram, lease};
use std::io::Read;
use std::net::{TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use zerowire::area::Area;
use zerowire::send::testing::scribble;
use zerowire::send::uring::{Engine, EngineOptions};
use zerowire::send::{Close, Payload, Segment, SendBackend, SendMode, SendOptions, Sender, orphans};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, in_lab};

const LEN: usize = 1200;
const AT: usize = 100;

#[derive(Clone, Copy, Debug)]
enum Memory {
    Registered,
    RegisteredVector,
    Owned,
    /// Pieces that are no registered buffer's.
    OwnedVector,
    /// One piece of a registered buffer, and one of none.
    MixedVector,
}

const EACH_MEMORY: [Memory; 5] =
    [Memory::Registered, Memory::RegisteredVector, Memory::Owned, Memory::OwnedVector, Memory::MixedVector];

fn payload(area: &Area, memory: Memory, bytes: &[u8]) -> Payload {
    match memory {
        Memory::Registered => lease(area, bytes).into(),
        Memory::RegisteredVector => {
            [lease(area, &bytes[..AT]), lease(area, &bytes[AT..])].into_iter().collect()
        }
        Memory::Owned => bytes.to_vec().into(),
        Memory::OwnedVector => {
            [&bytes[..AT], &bytes[AT..]].map(|piece| Segment::Vec(piece.to_vec())).into_iter().collect()
        }
        Memory::MixedVector => {
            [lease(area, &bytes[..AT]), Segment::Vec(bytes[AT..].to_vec())].into_iter().collect()
        }
    }
}

/// How payloads are given to the sender: one by one, or this many by a call.
#[derive(Clone, Copy, Debug)]
enum Calls {
    Each,
    Many(usize),
}

/// What the payloads go over.
#[derive(Clone, Copy, Debug)]
enum Over {
    Udp,
    Tcp,
}

/// The peer's end.
enum Peer {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

impl Over {
    fn connect(self, lab: &lab::Lab) -> (OwnedFd, Peer) {
        match self {
            Self::Udp => {
                let (peer, address) = lab.udp();
                let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
                socket.connect(address).unwrap();
                (socket.into(), Peer::Udp(peer))
            }
            Self::Tcp => {
                let (listener, address) = lab.tcp();
                let socket = TcpStream::connect(address).unwrap();
                socket.set_nodelay(true).unwrap();
                let (peer, _) = listener.accept().unwrap();
                peer.set_read_timeout(Some(PATIENCE)).unwrap();
                (socket.into(), Peer::Tcp(peer))
            }
        }
    }
}

impl Peer {
    /// The next payload of `LEN` bytes.
    fn next(&mut self) -> Vec<u8> {
        let mut got = vec![0; 2048];
        let len = match self {
            Self::Udp(socket) => datagram(socket, &mut got),
            Self::Tcp(stream) => {
                stream.read_exact(&mut got[..LEN]).expect("bytes");
                LEN
            }
        };
        got.truncate(len);
        got
    }
}

/// Sends five payloads into a held queue, changes them, lets them go; returns the sender and what
/// arrived.
fn change_behind_the_call(
    lab: &lab::Lab,
    mode: SendMode,
    memory: Memory,
    over: Over,
    calls: Calls,
) -> (Sender, Vec<Vec<u8>>) {
    let what = format!("{mode:?}, {memory:?}, {over:?}, {calls:?}");
    let area = area(16, 2048);
    let engine =
        Engine::new(&EngineOptions::default(), std::slice::from_ref(&area)).expect("io_uring is needed");
    let (socket, mut peer) = over.connect(lab);
    let mut s = Sender::on(&engine, socket, SendOptions::default().mode(mode)).unwrap();
    lab.hold(lab::HERE);
    let first = s.next_ticket();
    let mut all: Vec<_> = (0..5).map(|n| payload(&area, memory, &lab::pattern(n, LEN))).collect();
    match calls {
        Calls::Each => all.into_iter().for_each(|p| assert!(s.send(p).is_ok(), "{what}")),
        Calls::Many(count) => {
            while !all.is_empty() {
                let mut some: Vec<_> = all.drain(..count.min(all.len())).collect();
                s.send_many(&mut some).expect("sent");
                assert!(some.is_empty(), "{what}");
            }
        }
    }
    s.poll().expect("polled");
    let lent = if mode == SendMode::ZeroCopy { 5 } else { 0 };
    assert_eq!(s.outstanding(), lent, "{what}: the queue holds all");
    for ticket in (0..5).map(|n| first.plus(n)) {
        let is_lent = scribble(&mut s, ticket, AT, &[0xee; LEN - AT]);
        assert_eq!(is_lent, lent > 0, "{what}");
    }
    lab.release(lab::HERE);
    s.wait_all(PATIENCE).expect("all back");
    assert_eq!(area.free(), area.buffers());
    let arrived = (0..5).map(|_| peer.next()).collect();
    (s, arrived)
}

fn changed(n: u32) -> Vec<u8> {
    let mut bytes = lab::pattern(n, LEN);
    bytes[AT..].fill(0xee);
    bytes
}

/// The ledger has all bytes under this reason, and no others.
fn assert_copied(s: &Sender, reason: &'static str, what: &str) {
    let t = s.counters().snapshot();
    let all = 5 * LEN as u64;
    assert_eq!(t.copied_bytes, [(reason, all)].into(), "{what}: {t:?}");
    assert_eq!((t.frames, t.zero_copied_frames, t.zero_copied_bytes, t.bytes), (5, 0, 0, all), "{what}");
}

/// In `mode`, over this, from each kind of memory, called in each way: the bytes that arrive, and
/// the ledger.
fn each_memory_and_call(mode: SendMode, over: Over) {
    // Two and fewer go linked, more go without.
    for calls in [Calls::Each, Calls::Many(2), Calls::Many(5)] {
        for memory in EACH_MEMORY {
            in_lab(move |lab| {
                let what = format!("{mode:?}, {memory:?}, {over:?}, {calls:?}");
                lab.veth();
                let (s, arrived) = change_behind_the_call(lab, mode, memory, over, calls);
                for (n, got) in (0..).zip(arrived) {
                    let want = if mode == SendMode::Copy { lab::pattern(n, LEN) } else { changed(n) };
                    assert!(got == want, "{what}: payload {n}");
                }
                assert_copied(&s, if mode == SendMode::Copy { "asked" } else { "kernel" }, &what);
            });
        }
    }
}

#[test]
fn copied_datagrams_hold_the_old_bytes() {
    each_memory_and_call(SendMode::Copy, Over::Udp);
}

#[test]
fn copied_bytes_of_a_stream_are_the_old_ones() {
    each_memory_and_call(SendMode::Copy, Over::Tcp);
}

/// The peer's socket is on this machine, so the kernel copies at last, when the frame reaches the
/// peer. The bytes are those of that moment, and the notification says "copied".
#[test]
fn lent_datagrams_hold_the_bytes_of_the_moment_they_leave() {
    each_memory_and_call(SendMode::ZeroCopy, Over::Udp);
}

#[test]
fn lent_bytes_of_a_stream_are_those_of_the_moment_they_leave() {
    each_memory_and_call(SendMode::ZeroCopy, Over::Tcp);
}

/// An interface that drops what it sends: nobody copies, and the ledger says so.
#[test]
fn an_interface_takes_lent_memory_without_a_copy() {
    for memory in EACH_MEMORY {
        in_lab(move |lab| {
            lab.ifb("ifb77", true);
            let area = area(64, 2048);
            let engine =
                Engine::new(&EngineOptions::default(), std::slice::from_ref(&area)).expect("io_uring");
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("10.78.0.2:9").unwrap();
            let options = SendOptions::default().mode(SendMode::ZeroCopy);
            let mut s = Sender::on(&engine, socket.into(), options).unwrap();
            for n in 0..20 {
                s.send(payload(&area, memory, &lab::pattern(n, LEN))).unwrap();
            }
            s.wait_all(PATIENCE).unwrap();
            let t = s.counters().snapshot();
            assert_eq!((t.zero_copied_bytes, t.copied_total()), (20 * LEN as u64, 0), "{memory:?}: {t:?}");
        });
    }
}

/// Memory in an interface's queue outlives its sender, its engine and the thread of both.
#[test]
fn what_is_queued_when_everything_is_dropped_comes_back_later() {
    for own_thread in [false, true] {
        in_lab(move |lab| {
            lab.veth();
            let area = area(16, 2048);
            let (peer, address) = lab.udp();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            lab.hold(lab::HERE);
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(address).unwrap();
            let to = area.clone();
            let work = move || {
                let engine =
                    Engine::new(&EngineOptions::default(), std::slice::from_ref(&to)).expect("io_uring");
                let options = SendOptions::default().mode(SendMode::ZeroCopy);
                let mut s = Sender::on(&engine, socket.into(), options).unwrap();
                for n in 0..5 {
                    s.send(payload(&to, Memory::Registered, &lab::pattern(n, LEN))).unwrap();
                }
                let closed = s.close(Close::Abort).unwrap();
                assert_eq!((closed.aborted, closed.kept), (5, 5));
            };
            if own_thread {
                std::thread::spawn(work).join().unwrap();
            } else {
                work();
            }
            orphans();
            assert_eq!(area.free(), area.buffers() - 5, "the kernel still reads five buffers");
            lab.release(lab::HERE);
            let mut got = vec![0; 2048];
            for n in 0..5 {
                let len = datagram(&peer, &mut got);
                assert!(got[..len] == lab::pattern(n, LEN));
            }
            let end = std::time::Instant::now() + PATIENCE;
            while area.free() < area.buffers() {
                orphans();
                assert!(std::time::Instant::now() < end, "{} buffers are back", area.free());
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
    }
}

/// A sender with a ring of its own may go to another thread while memory is lent, and the first
/// thread may end.
#[test]
fn lent_memory_comes_back_to_a_sender_that_moved() {
    in_lab(|lab| {
        lab.veth();
        let area = area(16, 2048);
        let (peer, address) = lab.udp();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        lab.hold(lab::HERE);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(address).unwrap();
        let options = SendOptions::default().mode(SendMode::ZeroCopy).backend(SendBackend::Uring);
        let to = area.clone();
        let first = std::thread::spawn(move || {
            let mut s =
                Sender::with_areas(socket.into(), options, std::slice::from_ref(&to)).expect("io_uring");
            for n in 0..3 {
                s.send(payload(&to, Memory::Registered, &lab::pattern(n, LEN))).unwrap();
            }
            s
        });
        let mut s = first.join().unwrap();
        for n in 3..6 {
            s.send(payload(&area, Memory::Registered, &lab::pattern(n, LEN))).unwrap();
        }
        s.poll().unwrap();
        assert_eq!((s.outstanding(), area.free()), (6, area.buffers() - 6), "the queue holds all");
        lab.release(lab::HERE);
        s.wait_all(PATIENCE).unwrap();
        assert_eq!((s.outstanding(), area.free()), (0, area.buffers()));
        let mut got = vec![0; 2048];
        for n in 0..6 {
            let len = datagram(&peer, &mut got);
            assert!(got[..len] == lab::pattern(n, LEN));
        }
    });
}
