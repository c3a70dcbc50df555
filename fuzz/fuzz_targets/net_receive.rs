//! A guest's receive buffers: chains of any layout and length, also ones that break a rule, while
//! frames of any length come. Each frame arrives whole and in order, and no chain comes back twice
//! or with more bytes than it has.
#![no_main]

use std::collections::VecDeque;

use libfuzzer_sys::fuzz_target;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use zerowire::ledger::Counters;
use zerowire_net::features::Offloads;
use zerowire_net::io::PortIo;
use zerowire_net::port::tap::TapInlet;
use zerowire_net::receive::{ReceiveContext, ReceiveSetup};
use zerowire_net::{PathMode, Policy, Receive};
use zerowire_vhost::ring::SplitRing;
use zerowire_vsock::testing::{Guest, Layout, RING_SIZE};

const HEADER: usize = 12;
const RX: u16 = 0;

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    let mut guest = Guest::new().expect("memory");
    let memory = guest.memory();
    let (addresses, base, _) = guest.ring(RX);
    let ring = SplitRing::new(RX, RING_SIZE, addresses, base, choice & 1 != 0, &memory).expect("a ring");
    let setup = ReceiveSetup { mergeable: choice & 2 != 0, header_len: HEADER, clears_flags: false };
    let policy = Policy::default()
        .mode(if choice & 4 == 0 { PathMode::Auto } else { PathMode::Copy })
        .rx_copybreak_bytes(if choice & 8 == 0 { 0 } else { 4096 });
    let inlet = TapInlet::new(policy, 1500, setup).expect("memory");
    let mut receive = Receive::new(ring, inlet, setup);
    // Frames may then be cut, or be dropped.
    let rebuilds = choice & 16 != 0;
    if rebuilds {
        receive.accept_only(Offloads::default());
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (port, wire) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).expect("sockets");
    let mut io = PortIo::new(port);
    let counters = Counters::default();
    let cx = ReceiveContext { memory: &memory, counters: &counters };
    let mut sent = VecDeque::new();
    let mut n = 0u8;
    while let Some((&[what, low, high, more], behind)) = rest.split_first_chunk() {
        rest = behind;
        let len = usize::from(u16::from_le_bytes([low, high]));
        match what & 3 {
            0 | 1 => {
                guest.post(len, Layout(more));
            }
            2 => {
                let len = len % 65_536;
                // A frame of its own bytes, behind the header that the port gives.
                n = n.wrapping_add(1);
                let vnet = if rebuilds {
                    [more & 1, more >> 1 & 7, 54, 0, 0, 2, 34, 0, 16, 0, 0, 0]
                } else {
                    [0; HEADER]
                };
                let mut frame = vnet.to_vec();
                frame.extend((0..len.max(14)).map(|i| (i as u8).wrapping_mul(n)));
                if rustix::net::send(&wire, &frame, SendFlags::DONTWAIT).is_ok() {
                    sent.push_back(frame);
                }
            }
            _ if what & 0x40 == 0 => receive.release(&mut io, &cx),
            _ => {
                let Some((&[head, flags, next, place], behind)) = rest.split_first_chunk() else { return };
                rest = behind;
                let addr = match place & 3 {
                    // In the memory of chains: in that of rings the device would write what is
                    // checked here.
                    0 => 0x1001_0000 + (u64::from(place) << 8),
                    1 => u64::MAX - u64::from(place),
                    _ => u64::from(place) << 8,
                };
                // A chain of its own, or none: what is lent twice comes back twice.
                let head = if head & 1 == 0 { 0 } else { RING_SIZE + u16::from(head) };
                guest.lend_anything(RX, head, addr, len as u32, u16::from(flags & 7), u16::from(next));
            }
        }
        if what & 0x10 != 0 {
            continue;
        }
        // A rule was broken: the ring stops.
        let Ok(_) = receive.run(&mut io, &cx) else { return };
        reap(&mut guest, setup.mergeable, rebuilds, &mut sent);
    }
});

/// What came: with mergeable buffers the header says of how many chains a frame is.
fn reap(guest: &mut Guest, mergeable: bool, rebuilds: bool, sent: &mut VecDeque<Vec<u8>>) {
    let mut chains = Vec::new();
    guest.reap_any(RX, |bytes| chains.push(bytes));
    let mut chains = chains.into_iter();
    while let Some(mut frame) = chains.next() {
        assert!(frame.len() >= HEADER, "a chain of {} bytes", frame.len());
        let count = usize::from(u16::from_le_bytes([frame[10], frame[11]]));
        assert!(count >= 1 && (mergeable || count == 1), "num_buffers is {count}");
        for _ in 1..count {
            frame.extend(chains.next().expect("all chains of a frame come at once"));
        }
        if rebuilds {
            continue;
        }
        frame[10..12].fill(0);
        // Those that no buffer can hold are dropped.
        let Some(i) = sent.iter().position(|s| *s == frame) else {
            panic!("a frame of {} bytes that nobody sent", frame.len())
        };
        sent.drain(..=i);
    }
}
