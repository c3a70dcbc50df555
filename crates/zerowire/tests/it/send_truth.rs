//! Which bytes really go out over socket calls. They are held in a queue behind the sender, their
//! memory is changed after the call, and the peer looks. New bytes: nothing was copied by the call.
//! The ledger must say the same. Needs root.

use crate::support::sockets::{area, lease, socket_options};
use std::io::Read;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};
use zerowire::area::Area;
use zerowire::send::testing::scribble;
use zerowire::send::{Close, Payload, SendMode, Sender, Ticket, orphans};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, in_lab};
use zerowire_testkit::net::run;

const LEN: usize = 1200;
const AT: usize = 100;

/// One datagram's bytes: in one leased buffer, or in two.
fn payload(area: &Area, segments: usize, bytes: &[u8]) -> Payload {
    bytes.chunks(bytes.len().div_ceil(segments)).map(|c| lease(area, c)).collect()
}

fn changed(n: u32) -> Vec<u8> {
    let mut bytes = lab::pattern(n, LEN);
    bytes[AT..AT + 300].fill(0xee);
    bytes
}

fn scribble_all(s: &mut Sender, tickets: &[Ticket]) -> usize {
    tickets.iter().filter(|t| scribble(s, **t, AT, &[0xee; 300])).count()
}

/// How five datagrams are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Call {
    Send,
    Sendmsg,
    Sendmmsg,
}

fn datagrams_behind_a_queue(mode: SendMode, call: Call) {
    in_lab(move |lab| {
        lab.veth();
        let area = area(64, 2048);
        let (peer, address) = lab.udp();
        peer.set_read_timeout(Some(PATIENCE)).unwrap();
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(address).unwrap();
        let mut s = Sender::new(socket.into(), socket_options(mode)).unwrap();
        lab.hold(lab::HERE);
        let first = s.next_ticket();
        let segments = if call == Call::Sendmsg { 2 } else { 1 };
        let mut all: Vec<Payload> = (0..5).map(|n| payload(&area, segments, &lab::pattern(n, LEN))).collect();
        match call {
            Call::Sendmmsg => assert_eq!(s.send_many(&mut all).expect("sent"), 5),
            _ => all.into_iter().for_each(|p| assert!(s.send(p).is_ok())),
        }
        s.poll().expect("polled");
        let lent = if mode == SendMode::Copy { 0 } else { 5 };
        assert_eq!(s.outstanding(), lent, "{mode:?}, {call:?}: the queue holds all");
        let tickets: Vec<_> = (0..5).map(|n| first.plus(n)).collect();
        assert_eq!(scribble_all(&mut s, &tickets), lent);
        lab.release(lab::HERE);
        s.wait_all(PATIENCE).expect("all back");
        assert_eq!(area.free(), area.buffers());
        let mut got = vec![0; 2048];
        for n in 0..5 {
            let len = peer.recv(&mut got).expect("a datagram");
            let want = if lent > 0 { changed(n) } else { lab::pattern(n, LEN) };
            assert!(got[..len] == want, "{mode:?}, {call:?}: datagram {n}");
        }
        // The peer's socket is on this machine: the kernel copies when the frame reaches it, and
        // says so.
        let t = s.counters().snapshot();
        let reason = if lent > 0 { "kernel" } else { "asked" };
        assert_eq!(t.copied_bytes.get(reason), Some(&(5 * LEN as u64)), "{mode:?}, {call:?}: {t:?}");
        assert_eq!(t.zero_copied_bytes, 0);
    });
}

#[test]
fn copied_datagrams_hold_the_old_bytes() {
    for call in [Call::Send, Call::Sendmsg, Call::Sendmmsg] {
        datagrams_behind_a_queue(SendMode::Copy, call);
    }
}

#[test]
fn lent_datagrams_hold_the_bytes_of_the_moment_they_leave() {
    for call in [Call::Send, Call::Sendmsg, Call::Sendmmsg] {
        datagrams_behind_a_queue(SendMode::ZeroCopy, call);
    }
}

#[test]
fn streams_hold_the_old_bytes_when_copied_and_the_new_ones_when_lent() {
    for mode in [SendMode::Copy, SendMode::ZeroCopy] {
        in_lab(move |lab| {
            lab.veth();
            let listener = lab.at_peer(|| TcpListener::bind("10.77.0.2:0").unwrap());
            let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut peer, _) = listener.accept().unwrap();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.set_nodelay(true).unwrap();
            let area = area(64, 2048);
            let mut s = Sender::new(socket.into(), socket_options(mode)).unwrap();
            lab.hold(lab::HERE);
            let tickets: Vec<_> =
                (0..5).map(|n| s.send(payload(&area, 2, &lab::pattern(n, LEN))).expect("sent")).collect();
            s.poll().expect("polled");
            let lent = if mode == SendMode::Copy { 0 } else { 5 };
            assert_eq!(scribble_all(&mut s, &tickets), lent);
            lab.release(lab::HERE);
            s.wait_all(PATIENCE).expect("all back");
            let mut got = vec![0; LEN];
            for n in 0..5 {
                peer.read_exact(&mut got).expect("bytes");
                let want = if lent > 0 { changed(n) } else { lab::pattern(n, LEN) };
                assert!(got == want, "{mode:?}: payload {n}");
            }
            // As for datagrams: the kernel copies when the bytes reach the peer's socket.
            let t = s.counters().snapshot();
            let reason = if lent > 0 { "kernel" } else { "asked" };
            let all = 5 * LEN as u64;
            assert_eq!(t.copied_bytes, [(reason, all)].into(), "{mode:?}: {t:?}");
            assert_eq!((t.frames, t.zero_copied_bytes, t.bytes), (5, 0, all), "{mode:?}");
            assert_eq!(area.free(), area.buffers());
        });
    }
}

/// An interface that drops what it sends: nobody copies, and the ledger says so.
#[test]
fn an_interface_takes_lent_memory_without_a_copy() {
    for (segment_bytes, len) in [(None, LEN), (None, 30_000), (Some(1400), 20_000)] {
        in_lab(move |lab| {
            lab.ifb("ifb77", true);
            // A datagram that must be fragmented is copied (net/ipv4/ip_output.c,
            // __ip_append_data).
            run("ip", &["link", "set", "ifb77", "mtu", "40000"]);
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect("10.78.0.2:9").unwrap();
            let mut s =
                Sender::new(socket.into(), socket_options(SendMode::ZeroCopy).segment_bytes(segment_bytes))
                    .unwrap();
            for n in 0..200 {
                s.send(lab::pattern(n, len)).unwrap();
            }
            s.wait_all(PATIENCE).unwrap();
            let t = s.counters().snapshot();
            assert_eq!((t.zero_copied_bytes, t.copied_total()), (200 * len as u64, 0), "{len}: {t:?}");
            assert_eq!(t.zero_copied_frames, 200);
        });
    }
}

/// Memory in an interface's queue outlives its sender: it is kept until the queue lets go.
#[test]
fn what_is_queued_when_the_sender_ends_comes_back_later() {
    for how in [None, Some(Close::Abort), Some(Close::Drain(Duration::from_millis(20)))] {
        in_lab(move |lab| {
            lab.veth();
            let (peer, address) = lab.udp();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            let area = area(64, 2048);
            lab.hold(lab::HERE);
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(address).unwrap();
            let mut s = Sender::new(socket.into(), socket_options(SendMode::ZeroCopy)).unwrap();
            for n in 0..5 {
                s.send(payload(&area, 1, &lab::pattern(n, LEN))).unwrap();
            }
            match how {
                None => drop(s),
                Some(how) => {
                    let closed = s.close(how).unwrap();
                    assert_eq!((closed.aborted, closed.aborted_bytes, closed.kept), (5, 5 * LEN, 5));
                }
            }
            orphans();
            assert_eq!(area.free(), area.buffers() - 5, "{how:?}: reused while the kernel reads it");
            lab.release(lab::HERE);
            let mut got = vec![0; 2048];
            for n in 0..5 {
                let len = peer.recv(&mut got).expect("a datagram");
                assert!(got[..len] == lab::pattern(n, LEN), "{how:?}: datagram {n}");
            }
            let until = Instant::now() + PATIENCE;
            while area.free() < area.buffers() {
                assert!(Instant::now() < until, "{how:?}: {:?}", orphans());
                std::thread::sleep(Duration::from_millis(1));
                orphans();
            }
        });
    }
}

/// The interface goes down with frames in its queue: they are dropped, and their memory comes back.
#[test]
fn an_interface_that_goes_down_gives_memory_back() {
    in_lab(|lab| {
        lab.veth();
        let (_peer, address) = lab.udp();
        let area = area(64, 2048);
        lab.hold(lab::HERE);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.connect(address).unwrap();
        let mut s = Sender::new(socket.into(), socket_options(SendMode::ZeroCopy)).unwrap();
        for n in 0..5 {
            s.send(payload(&area, 1, &lab::pattern(n, LEN))).unwrap();
        }
        lab.down(lab::HERE);
        s.wait_all(PATIENCE).unwrap();
        assert_eq!(area.free(), area.buffers());
        let e = s.send(vec![1; 100]).unwrap_err();
        assert!(matches!(e.errno(), Some(libc::ENETUNREACH | libc::ENETDOWN | libc::EHOSTUNREACH)), "{e}");
        assert_eq!(s.outstanding(), 0);
    });
}
