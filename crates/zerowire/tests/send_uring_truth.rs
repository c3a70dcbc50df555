//! Which bytes really go out over io_uring: datagrams are held in a queue behind the sender, their memory is changed after
//! the call, and the peer looks. New bytes: nothing was copied. The ledger must say the same. Needs root.

mod common;

use common::lab::{self, PATIENCE, in_lab};
use std::net::UdpSocket;
use zerowire::area::{Area, AreaOptions, Pages};
use zerowire::send::uring::{Engine, EngineOptions};
use zerowire::send::{Backend, Close, Mode, Options, Payload, Segment, Sender, orphans};

const LEN: usize = 1200;
const AT: usize = 100;

#[derive(Clone, Copy, Debug)]
enum Memory {
    Registered,
    RegisteredVector,
    Owned,
}

fn payload(area: &Area, memory: Memory, bytes: &[u8]) -> Payload {
    let lease = |bytes: &[u8]| {
        let mut lease = area.lease().expect("a free buffer");
        assert!(lease.set_len(bytes.len()));
        lease.copy_from_slice(bytes);
        Segment::Lease(lease)
    };
    match memory {
        Memory::Registered => lease(bytes).into(),
        Memory::RegisteredVector => [lease(&bytes[..AT]), lease(&bytes[AT..])].into_iter().collect(),
        Memory::Owned => bytes.to_vec().into(),
    }
}

/// Sends five datagrams into a held queue, changes them, lets them go; returns the sender and what arrived.
fn change_behind_the_call(lab: &lab::Lab, mode: Mode, memory: Memory) -> (Sender, Vec<Vec<u8>>) {
    let area = Area::new(AreaOptions { buffer_bytes: 2048, buffers: 16, pages: Pages::Normal }).unwrap();
    let engine =
        Engine::new(&EngineOptions::default(), std::slice::from_ref(&area)).expect("io_uring is needed");
    let (peer, address) = lab.udp();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(address).unwrap();
    let mut s = Sender::on(&engine, socket.into(), Options { mode, ..Options::default() }).unwrap();
    lab.hold(lab::HERE);
    let mut tickets = Vec::new();
    for n in 0..5 {
        tickets.push(s.send(payload(&area, memory, &lab::pattern(n, LEN))).expect("sent"));
    }
    s.poll().expect("polled");
    let lent = if mode == Mode::ZeroCopy { 5 } else { 0 };
    assert_eq!(s.outstanding(), lent, "{mode:?}, {memory:?}: the queue holds all");
    for ticket in tickets {
        // SAFETY: the bytes are arbitrary ones of a test payload, and nobody else looks at them.
        let is_lent = unsafe { s.scribble(ticket, AT, &[0xee; LEN - AT]) };
        assert_eq!(is_lent, lent > 0);
    }
    lab.release(lab::HERE);
    s.wait_all(PATIENCE).expect("all back");
    assert_eq!(area.free(), area.buffers());
    let mut got = vec![0; 2048];
    let arrived = (0..5).map(|_| {
        let n = peer.recv(&mut got).expect("a datagram");
        got[..n].to_vec()
    });
    let arrived = arrived.collect();
    (s, arrived)
}

fn changed(n: u32) -> Vec<u8> {
    let mut bytes = lab::pattern(n, LEN);
    bytes[AT..].fill(0xee);
    bytes
}

#[test]
fn copied_datagrams_hold_the_old_bytes() {
    in_lab(|lab| {
        lab.veth();
        let (s, arrived) = change_behind_the_call(lab, Mode::Copy, Memory::Registered);
        for (n, got) in arrived.iter().enumerate() {
            assert!(*got == lab::pattern(n as u32, LEN), "datagram {n}: not the bytes of the call");
        }
        let t = s.counters().snapshot();
        assert_eq!((t.zero_copied_bytes, t.copied_bytes["asked"]), (0, 5 * LEN as u64));
    });
}

/// The peer's socket is on this machine, so the kernel copies at last, when the frame reaches the peer: the bytes are those
/// of that moment, and the notification says "copied".
#[test]
fn lent_datagrams_hold_the_bytes_of_the_moment_they_leave() {
    for memory in [Memory::Registered, Memory::RegisteredVector, Memory::Owned] {
        in_lab(move |lab| {
            lab.veth();
            let (s, arrived) = change_behind_the_call(lab, Mode::ZeroCopy, memory);
            for (n, got) in arrived.iter().enumerate() {
                assert!(*got == changed(n as u32), "{memory:?}: datagram {n} was copied by the call");
            }
            let t = s.counters().snapshot();
            assert_eq!(t.copied_bytes.get("kernel"), Some(&(5 * LEN as u64)), "{memory:?}: {t:?}");
        });
    }
}

/// An interface that drops what it sends: nobody copies, and the ledger says so.
#[test]
fn an_interface_takes_lent_memory_without_a_copy() {
    for memory in [Memory::Registered, Memory::RegisteredVector, Memory::Owned] {
        in_lab(move |lab| {
            lab.ifb("ifb77", true);
            let area =
                Area::new(AreaOptions { buffer_bytes: 2048, buffers: 64, pages: Pages::Normal }).unwrap();
            let engine =
                Engine::new(&EngineOptions::default(), std::slice::from_ref(&area)).expect("io_uring");
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("10.78.0.2:9").unwrap();
            let options = Options { mode: Mode::ZeroCopy, ..Options::default() };
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
            let area =
                Area::new(AreaOptions { buffer_bytes: 2048, buffers: 16, pages: Pages::Normal }).unwrap();
            let (peer, address) = lab.udp();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            lab.hold(lab::HERE);
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(address).unwrap();
            let to = area.clone();
            let work = move || {
                let engine =
                    Engine::new(&EngineOptions::default(), std::slice::from_ref(&to)).expect("io_uring");
                let options = Options { mode: Mode::ZeroCopy, ..Options::default() };
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
                let len = peer.recv(&mut got).expect("a datagram");
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

/// A sender with a ring of its own may go to another thread while memory is lent, and the first thread may end.
#[test]
fn lent_memory_comes_back_to_a_sender_that_moved() {
    in_lab(|lab| {
        lab.veth();
        let area = Area::new(AreaOptions { buffer_bytes: 2048, buffers: 16, pages: Pages::Normal }).unwrap();
        let (peer, address) = lab.udp();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        lab.hold(lab::HERE);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(address).unwrap();
        let options = Options { mode: Mode::ZeroCopy, backend: Backend::Uring, ..Options::default() };
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
            let len = peer.recv(&mut got).expect("a datagram");
            assert!(got[..len] == lab::pattern(n, LEN));
        }
    });
}
