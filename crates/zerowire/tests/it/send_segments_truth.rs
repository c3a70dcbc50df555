//! Which bytes really go out when the kernel cuts payloads into datagrams (UDP_SEGMENT), over
//! socket calls and over io_uring. They are held in a queue behind the sender, their memory is
//! changed after the call, and the peer looks. New bytes: nothing was copied. The ledger must say
//! the same. Needs root.

use crate::support::sockets::{area, datagram, lease};
use std::net::UdpSocket;
use zerowire::area::Area;
use zerowire::send::testing::scribble;
use zerowire::send::{Payload, SendBackend, SendMode, SendOptions, Sender};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, in_lab};

/// Fourteen datagrams and a short one.
const LEN: usize = 20_000;
const CUT: usize = 1400;
const PAYLOADS: u32 = 3;
/// What is changed: a part of some datagrams in the middle, behind the first piece of a vector.
const AT: usize = 5000;
const NEW: [u8; 4000] = [0xee; 4000];

const BACK_ENDS: [SendBackend; 2] = [SendBackend::Socket, SendBackend::Uring];

#[derive(Clone, Copy, Debug)]
enum Memory {
    Leased,
    LeasedVector,
    Owned,
}

const EACH_MEMORY: [Memory; 3] = [Memory::Leased, Memory::LeasedVector, Memory::Owned];

fn payload(area: &Area, memory: Memory, bytes: &[u8]) -> Payload {
    match memory {
        Memory::Leased => lease(area, bytes).into(),
        Memory::LeasedVector => {
            [lease(area, &bytes[..1000]), lease(area, &bytes[1000..])].into_iter().collect()
        }
        Memory::Owned => bytes.to_vec().into(),
    }
}

fn cutting_sender(address: &str, backend: SendBackend, mode: SendMode, area: &Area) -> Sender {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect(address).unwrap();
    let options = SendOptions::default().mode(mode).backend(backend).segment_bytes(Some(CUT as u16));
    Sender::with_areas(socket.into(), options, std::slice::from_ref(area)).expect("a sender")
}

/// `whole`: the queue takes an uncut payload in one piece, and the peer's side cuts it; otherwise
/// the queue cuts it.
fn cut_behind_the_call(backend: SendBackend, mode: SendMode, memory: Memory, whole: bool) {
    in_lab(move |lab| {
        let what = format!("{backend:?}, {mode:?}, {memory:?}, whole: {whole}");
        lab.veth();
        let area = area(16, 32_768);
        let (peer, address) = lab.udp();
        let mut s = cutting_sender(&address.to_string(), backend, mode, &area);
        if whole {
            lab.mtu(lab::HERE, 65_535);
            lab.hold_long(lab::HERE, 65_549);
        } else {
            lab.hold(lab::HERE);
        }
        let tickets: Vec<_> = (0..PAYLOADS)
            .map(|n| s.send(payload(&area, memory, &lab::pattern(n, LEN))).expect("sent"))
            .collect();
        s.poll().expect("polled");
        let lent = mode == SendMode::ZeroCopy;
        assert_eq!(s.outstanding(), if lent { 3 } else { 0 }, "{what}: the queue holds all");
        for ticket in tickets {
            assert_eq!(scribble(&mut s, ticket, AT, &NEW), lent, "{what}");
        }
        lab.release(lab::HERE);
        s.wait_all(PATIENCE).expect("all back");
        assert_eq!(area.free(), area.buffers(), "{what}");
        let mut got = vec![0; 65_536];
        for n in 0..PAYLOADS {
            let mut want = lab::pattern(n, LEN);
            if lent {
                want[AT..AT + NEW.len()].copy_from_slice(&NEW);
            }
            for (i, want) in want.chunks(CUT).enumerate() {
                let len = datagram(&peer, &mut got);
                assert!(got[..len] == *want, "{what}: payload {n}, datagram {i} of {len} bytes");
            }
        }
        // The peer's socket is on this machine: the kernel copies when the frame reaches it, and
        // says so.
        let t = s.counters().snapshot();
        let (reason, all) = (if lent { "kernel" } else { "asked" }, u64::from(PAYLOADS) * LEN as u64);
        assert_eq!(t.copied_bytes, [(reason, all)].into(), "{what}: {t:?}");
        assert_eq!((t.frames, t.zero_copied_bytes, t.bytes), (PAYLOADS.into(), 0, all), "{what}");
    });
}

fn each(mode: SendMode) {
    for (backend, memory) in BACK_ENDS.into_iter().flat_map(|b| EACH_MEMORY.map(|m| (b, m))) {
        for whole in [false, true] {
            cut_behind_the_call(backend, mode, memory, whole);
        }
    }
}

#[test]
fn copied_payloads_are_cut_from_the_old_bytes() {
    each(SendMode::Copy);
}

#[test]
fn lent_payloads_are_cut_from_the_bytes_of_the_moment_they_leave() {
    each(SendMode::ZeroCopy);
}

/// An interface that drops what it sends: nobody copies, and the ledger says so. Cut or not, a
/// payload counts once.
#[test]
fn an_interface_takes_what_is_cut_without_a_copy() {
    for (backend, memory) in BACK_ENDS.into_iter().flat_map(|b| EACH_MEMORY.map(|m| (b, m))) {
        in_lab(move |lab| {
            lab.ifb("ifb77", true);
            let area = area(16, 32_768);
            let mut s = cutting_sender("10.78.0.2:9", backend, SendMode::ZeroCopy, &area);
            for n in 0..100 {
                while area.free() < 2 {
                    s.wait_any(PATIENCE).expect("memory comes back");
                }
                s.send(payload(&area, memory, &lab::pattern(n, LEN))).expect("sent");
            }
            s.wait_all(PATIENCE).unwrap();
            let t = s.counters().snapshot();
            assert_eq!((t.zero_copied_bytes, t.copied_total()), (100 * LEN as u64, 0), "{backend:?}: {t:?}");
            assert_eq!((t.frames, t.zero_copied_frames), (100, 100), "{backend:?}, {memory:?}");
            assert_eq!(area.free(), area.buffers());
        });
    }
}
