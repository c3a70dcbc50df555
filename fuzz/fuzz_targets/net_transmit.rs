//! A guest's network frames: chains of any layout, virtio-net headers of any bytes. What goes out
//! is what was sent, behind a header that is sound; every chain comes back once.
#![no_main]

use std::collections::VecDeque;

use libfuzzer_sys::fuzz_target;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use zerowire::ledger::Counters;
use zerowire_net::io::PortIo;
use zerowire_net::port::tap::TapOutlet;
use zerowire_net::transmit::{Transmit, TransmitContext};
use zerowire_net::{ETH_HEADER_BYTES, PathMode, Policy};
use zerowire_vhost::ring::SplitRing;
use zerowire_vsock::testing::{Guest, Layout, RING_SIZE};

const HEADER: usize = 12;
const TX: u16 = 1;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    let mut guest = Guest::new().expect("memory");
    let memory = guest.memory();
    let (addresses, base, _) = guest.ring(TX);
    let ring = SplitRing::new(TX, RING_SIZE, addresses, base, choice & 1 != 0, &memory).expect("a ring");
    let policy = Policy::default()
        .mode(if choice & 2 == 0 { PathMode::Auto } else { PathMode::Copy })
        .gather_max_bytes(if choice & 4 == 0 { 256 } else { 4096 });
    let acked = if choice & 8 == 0 { u64::MAX } else { 0 };
    let outlet = TapOutlet::new(policy).expect("memory");
    let mut transmit = Transmit::new(ring, outlet, acked, HEADER);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (port, wire) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).expect("sockets");
    let mut io = PortIo::new(port);
    let counters = Counters::default();
    let mut sent = VecDeque::new();
    // Each record: a layout, a length, the header and the start of the frame.
    while rest.len() > 3 {
        let (layout, len) = (Layout(rest[0]), usize::from(rest[1]) | usize::from(rest[2] & 0x3f) << 8);
        rest = &rest[3..];
        let n = rest.len().min(len).min(HEADER + 64);
        let (start, behind) = rest.split_at(n);
        rest = behind;
        let mut frame = start.to_vec();
        frame.extend((n..len).map(|i| i as u8));
        if guest.send(&frame, 0, layout) {
            sent.push_back(frame);
        }
        if layout.0 & 0x10 != 0 {
            continue;
        }
        loop {
            let mut cx = TransmitContext { memory: &memory, counters: &counters, detour: None, guard: None };
            // A frame of no bytes stops the ring.
            let Ok(turn) = transmit.run(&mut io, &mut cx) else { return };
            drain(&wire, &mut sent);
            if turn.chains == 0 {
                break;
            }
        }
        guest.reap(TX, |_| {});
        assert_eq!(guest.lent(TX), 0, "chains that did not come back");
        sent.clear();
    }
});

/// Each frame on the wire is one that was sent, in order; others were dropped.
fn drain(wire: &impl std::os::fd::AsFd, sent: &mut VecDeque<Vec<u8>>) {
    let mut got = vec![0; 1 << 17];
    while let Ok((n, _)) = rustix::net::recv(wire, &mut got[..], RecvFlags::DONTWAIT) {
        let frame = &got[..n];
        assert!(n >= HEADER + ETH_HEADER_BYTES, "a frame of {n} bytes went out");
        assert!(frame[0] & !1 == 0 && frame[10..12] == [0, 0], "unknown flags went out");
        let same = sent.iter().position(|s| s.len() == n && s[HEADER..] == frame[HEADER..]);
        let Some(i) = same else { panic!("a frame went out that nobody sent") };
        sent.drain(..=i);
    }
}
