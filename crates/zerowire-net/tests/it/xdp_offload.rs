//! Checksums and segments that a guest leaves to an AF_XDP port: what comes out on the wire, and
//! what it costs the ledger.

use std::io::Read;
use std::net::{Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::process::Command;
use std::time::Duration;

use crate::support::frames::{GUEST_MAC, HOST_MAC, frame};
use crate::support::{Backend, Guest, PATIENCE, Peer, Vm, in_netns, options, wait_until};
use zerowire::ledger::Totals;
use zerowire_guest::features as f;
use zerowire_guest::net::{Layout, OFFLOADS, VirtioNetHdr};
use zerowire_net::offload::testing::{Example, naive};
use zerowire_net::{PathMode, Policy};
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::{slow_peer, veth};
use zerowire_testkit::random::Random;
use zerowire_wire::vnet::Gso;

const ON: &str = "xdp:v0,mode=copy,offloads=on";

const KINDS: [(Gso, bool); 4] =
    [(Gso::TcpV4, false), (Gso::TcpV6, true), (Gso::UdpL4, false), (Gso::UdpL4, true)];

fn example((kind, v6): (Gso, bool), payload: usize, seed: u32) -> Example {
    Example {
        kind,
        v6,
        tags: seed as usize % 2,
        options: seed as usize / 2 % 4,
        flags: [0x10, 0x18, 0x99][seed as usize % 3],
        payload,
        seed,
    }
}

fn header(example: &Example, size: u16) -> VirtioNetHdr {
    let mut bytes = [0; 12];
    bytes[..10].copy_from_slice(&example.header(size));
    VirtioNetHdr::decode(&bytes)
}

fn checksum_only(example: &Example) -> VirtioNetHdr {
    VirtioNetHdr { gso_type: 0, hdr_len: 0, gso_size: 0, ..header(example, 0) }
}

/// The same frame as a receiving kernel shows it: it takes the outer tag out of the frame.
fn untagged(frame: &[u8]) -> Vec<u8> {
    let tag = if frame[12..14] == [0x81, 0] { 12..16 } else { 0..0 };
    [&frame[..tag.start], &frame[tag.end..]].concat()
}

/// The guest's next frame, which must come. A bridge says something of its own now and then.
fn arrived(peer: &mut Peer) -> Option<Vec<u8>> {
    std::iter::from_fn(|| peer.recv(PATIENCE)).map(|f| f.bytes).find(|bytes| bytes[6..12] == GUEST_MAC)
}

/// What arrives of wire frames.
fn expect(peer: &mut Peer, wanted: &[Vec<u8>], what: &dyn std::fmt::Debug) {
    for (i, want) in wanted.iter().enumerate() {
        let want = untagged(want);
        let got = arrived(peer).unwrap_or_else(|| panic!("{what:?}: frame {i} of {}", wanted.len()));
        let differs = got.iter().zip(&want).position(|(a, b)| a != b);
        assert!(got == want, "{what:?}: frame {i}: {} and {} bytes, {differs:?}", got.len(), want.len());
    }
}

/// The same in any order, each of them `times` times: over a bridge and a shaper frames of several
/// CPUs may overtake each other.
fn expect_all(peer: &mut Peer, wanted: &[Vec<u8>], times: usize, what: &dyn std::fmt::Debug) {
    let mut all: Vec<_> =
        wanted.iter().map(|want| untagged(want)).cycle().take(times * wanted.len()).collect();
    let mut came: Vec<_> = all.iter().map_while(|_| arrived(peer)).collect();
    assert_eq!(came.len(), all.len(), "{what:?}: frames that came");
    all.sort_unstable();
    came.sort_unstable();
    let differs = came.iter().zip(&all).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what:?}: not the frames that were sent");
}

/// The totals, as soon as that many frames are counted: behind the system call that sends them.
fn counted(backend: &Backend, frames: u64) -> Totals {
    let totals = || backend.stats("a").transmit.totals;
    wait_until("all are counted", || totals().frames >= frames);
    totals()
}

/// The same with the defaults, and where the policy copies every frame.
fn both_paths(test: impl Fn(&Backend, &mut Peer, bool) + Send + Clone + 'static) {
    for mode in [PathMode::Auto, PathMode::Copy] {
        let test = test.clone();
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let policy = Policy::default().mode(mode);
            let backend = Backend::start(&[Vm { policy, ..Vm::on("a", ON) }]);
            test(&backend, &mut Peer::new("v1"), mode == PathMode::Copy);
            let totals = backend.stats("a").transmit.totals;
            assert_eq!(totals.dropped_total(), 0);
            assert_eq!(totals.bytes, totals.zero_copied_bytes + totals.copied_total());
        });
    }
}

#[test]
fn long_frames_of_every_kind_and_layout_become_segments() {
    both_paths(|backend, peer, asked| {
        let (mut frames, mut payload, mut seed) = (0, 0, 0);
        for layout in [
            Layout::Single,
            Layout::Split,
            Layout::Segments(3),
            Layout::Segments(16),
            Layout::Segments(70),
            Layout::Pages,
        ] {
            let mut guest = backend.guest("a", &options(0, layout));
            for kind in KINDS {
                for (size, len) in [
                    (1400, 1401),
                    (1419, 64_000),
                    (1301, 5_000),
                    (777, 30_001),
                    (1, 7),
                    (536, 536 * 20),
                    (99, 5_000),
                    (1203, 1),
                ] {
                    seed += 1;
                    let e = example(kind, len, seed);
                    let bytes = e.frame();
                    // A frame that fits into one segment keeps all but its checksum, which is the
                    // same then.
                    let wanted = naive(&bytes, &e, usize::from(size));
                    guest.send(0, &[(header(&e, size), bytes)]);
                    expect(peer, &wanted, &(layout, size, &e));
                    frames += wanted.len() as u64;
                    payload += len as u64;
                }
            }
        }
        let totals = counted(backend, frames);
        assert_eq!(totals.frames, frames, "each wire frame is counted");
        let reasons: Vec<_> = totals.copied_bytes.keys().copied().collect();
        assert!(totals.bytes > payload + 54 * frames, "{totals:?}");
        if asked {
            assert_eq!(reasons, ["asked", "header"], "{totals:?}");
        } else {
            assert_eq!(reasons, ["cheaper", "header", "small"], "{totals:?}");
        }
    });
}

#[test]
fn checksums_are_completed_in_frames_of_every_length() {
    both_paths(|backend, peer, _| {
        let mut frames = 0;
        for layout in [Layout::Single, Layout::Split, Layout::Segments(5)] {
            let mut guest = backend.guest("a", &options(0, layout));
            for kind in KINDS {
                let all: Vec<_> = (0..1400)
                    .step_by(7)
                    .map(|n| (n + n / 7 % 2, n as u32))
                    .map(|(len, seed)| example(kind, len, seed))
                    .collect();
                for some in all.chunks(50) {
                    let sent: Vec<_> = some.iter().map(|e| (checksum_only(e), e.frame())).collect();
                    guest.send(0, &sent);
                    for (e, (_, bytes)) in some.iter().zip(&sent) {
                        let mut want = bytes.clone();
                        let field = e.transport_at() + usize::from(e.kind.checksum_at());
                        want[field..field + 2].copy_from_slice(&e.checksum(bytes).to_be_bytes());
                        expect(peer, &[want], e);
                    }
                    frames += sent.len() as u64;
                }
            }
        }
        assert_eq!(counted(backend, frames).frames, frames);
    });
}

/// A frame that is not longer than the inspected part was copied whole. Its chain is given back,
/// and the ledger says so.
#[test]
fn short_frames_that_are_looked_at_are_copied_as_a_whole() {
    both_paths(|backend, peer, asked| {
        let mut guest = backend.guest("a", &options(0, Layout::Split));
        let (mut bytes, mut sent) = (0, Vec::new());
        for payload in [0, 1, 100, 202] {
            let e = Example { options: 0, tags: 0, ..example(KINDS[0], payload, 5) };
            sent.push((checksum_only(&e), e.frame()));
            bytes += 12 + e.frame().len() as u64;
        }
        // The link is down: what is lent would not come back.
        ip(&["link", "set", "v0", "down"]);
        guest.send(0, &sent);
        ip(&["link", "set", "v0", "up"]);
        for (_, frame) in &sent {
            assert_eq!(peer.expect().bytes.len(), frame.len());
        }
        let totals = counted(backend, sent.len() as u64);
        let reason = if asked { "asked" } else { "small" };
        let copied: Vec<_> = totals.copied_bytes.into_iter().collect();
        assert_eq!((totals.zero_copied_frames, copied), (0, vec![(reason, bytes)]));
    });
}

/// Many more frames than the TX ring has entries, out of one chain, with others before and behind
/// it.
#[test]
fn a_chain_that_becomes_more_frames_than_the_ring_takes_goes_out_in_parts() {
    both_paths(|backend, peer, _| {
        let mut guest = backend.guest("a", &options(0, Layout::Segments(7)));
        for (size, len, seed) in [(1, 5_000, 1), (210, 64_000, 2), (200, 60_000, 3), (48, 65_000, 4)] {
            let e = Example { options: 0, tags: 0, ..example(KINDS[seed % 2], len, seed as u32) };
            let plain = frame(seed as u32, 300);
            let bytes = e.frame();
            let mut wanted = naive(&bytes, &e, size);
            wanted.insert(0, plain.clone());
            wanted.push(plain.clone());
            let none = VirtioNetHdr::default();
            let sent = [(none, plain.clone()), (header(&e, size as u16), bytes), (none, plain)];
            guest.send(0, &sent);
            expect(peer, &wanted, &(size, &e));
        }
    });
}

/// Frames whose payload is to stay where it is, also with a slow link behind the peer; what lies in
/// too many pieces is copied.
#[test]
fn payload_can_be_lent() {
    for slow in [false, true] {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let policy = Policy::default().gather_max_bytes(0);
            let backend = Backend::start(&[Vm { policy, ..Vm::on("a", ON) }]);
            let mut peer = if slow { slow_peer("v1", "w0", "w1") } else { Peer::new("v1") };
            let mut lent = 0;
            for (layout, can_lend) in
                [(Layout::Single, true), (Layout::Pages, true), (Layout::Segments(900), false)]
            {
                let mut guest = backend.guest("a", &options(0, layout));
                for kind in KINDS {
                    let e = Example { options: 0, tags: 0, ..example(kind, 64_001, 77) };
                    // The second lot is written to the memory of the first one, when that is back.
                    for e in [e, Example { seed: 78, ..e }] {
                        let wanted = naive(&e.frame(), &e, 1399);
                        guest.send(0, &vec![(header(&e, 1399), e.frame()); 12]);
                        expect_all(&mut peer, &wanted, 12, &(layout, &e));
                    }
                }
                let totals = backend.stats("a").transmit.totals;
                // Of frames in too many pieces only the short ones at the end can.
                let (payload, now) = (KINDS.len() as u64 * 24 * 64_001, totals.zero_copied_bytes - lent);
                assert_eq!(now == payload, can_lend, "{layout:?}: {totals:?}");
                assert_eq!(totals.copied_bytes.contains_key("scattered"), !can_lend, "{totals:?}");
                lent = totals.zero_copied_bytes;
            }
        });
    }
}

/// The kernel's own UDP takes each datagram: it has verified the checksum of each.
#[test]
fn a_real_receiver_takes_the_datagrams() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mac = HOST_MAC.map(|b| format!("{b:02x}")).join(":");
        ip(&["link", "set", "v1", "address", &mac]);
        ip(&["addr", "add", "10.0.0.1/24", "dev", "v1"]);
        std::fs::write("/proc/sys/net/ipv6/conf/v1/disable_ipv6", "0").expect("IPv6 on the interface");
        ip(&["addr", "add", "fd00::1/64", "dev", "v1", "nodad"]);
        // The kernel adds the address's local route later, from a work queue.
        wait_until("the route of fd00::1", || {
            let list =
                Command::new("ip").args(["-6", "route", "show", "table", "local"]).output().expect("ip");
            String::from_utf8_lossy(&list.stdout).contains("local fd00::1")
        });
        let backend = Backend::start(&[Vm::on("a", ON)]);
        let mut guest = backend.guest("a", &options(0, Layout::Split));
        let v6: Ipv6Addr = "fd00::1".parse().expect("an address");
        let any: [(bool, SocketAddr); 2] =
            [(false, ([10, 0, 0, 1], 0x1451).into()), (true, (v6, 0x1451).into())];
        for (v6, at) in any {
            let socket = UdpSocket::bind(at).expect("a socket");
            socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            for (size, len) in [(1371, 40_001), (0, 1234), (100, 5_555)] {
                let e = Example { tags: 0, options: 0, ..example((Gso::UdpL4, v6), len, len as u32) };
                let bytes = e.frame();
                let asked = if size == 0 { checksum_only(&e) } else { header(&e, size as u16) };
                guest.send(0, &[(asked, bytes.clone())]);
                let payload = &bytes[e.payload_at()..];
                for want in payload.chunks(if size == 0 { len } else { size }) {
                    let mut got = [0; 2000];
                    let n = socket.recv(&mut got).expect("a datagram");
                    assert!(got[..n] == *want, "{n} of {} bytes", want.len());
                }
            }
            let wrong = example((Gso::UdpL4, v6), 100, 0);
            let wrong = Example { tags: 0, options: 0, ..wrong };
            // The control: without the field completed, nothing arrives.
            guest.send(0, &[(VirtioNetHdr::default(), wrong.frame())]);
            socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
            assert!(socket.recv(&mut [0; 2000]).is_err(), "a wrong checksum was taken");
        }
    });
}

/// The kernel's own TCP takes a stream of long segments, which a guest sends by hand. Its
/// handshake, too, has its checksums from the back end.
#[test]
fn a_real_tcp_takes_the_stream() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mac = |mac: [u8; 6]| mac.map(|b| format!("{b:02x}")).join(":");
        ip(&["link", "set", "v1", "address", &mac(HOST_MAC)]);
        ip(&["addr", "add", "10.0.0.1/24", "dev", "v1"]);
        ip(&["neigh", "add", "10.0.0.2", "lladdr", &mac(GUEST_MAC), "dev", "v1"]);
        let backend = Backend::start(&[Vm::on("a", ON)]);
        let peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Pages));
        guest.warm_up(0, &peer);
        let listener = TcpListener::bind(("10.0.0.1", 0x1451)).expect("a listening socket");
        let of = |payload, flags| Example { flags, options: 0, tags: 0, ..example(KINDS[0], payload, 9) };
        let numbered = |e: &Example, sequence: u32, acknowledged: u32| {
            let mut bytes = e.frame();
            bytes[38..42].copy_from_slice(&sequence.to_be_bytes());
            bytes[42..46].copy_from_slice(&acknowledged.to_be_bytes());
            bytes
        };
        let first = 0xffff_f000u32;
        let syn = of(0, 0x02);
        guest.send(0, &[(checksum_only(&syn), numbered(&syn, first, 0))]);
        let theirs = loop {
            let (_, got) = guest.expect();
            let answer = got.len() >= 54 && got[12..14] == [8, 0] && got[23] == 6 && got[47] == 0x12;
            if answer {
                assert_eq!(got[42..46], first.wrapping_add(1).to_be_bytes());
                break u32::from_be_bytes([got[38], got[39], got[40], got[41]]).wrapping_add(1);
            }
        };
        let data = of(29_001, 0x18);
        let (mut sequence, mut sent) = (first.wrapping_add(1), Vec::new());
        let ack = of(0, 0x10);
        guest.send(0, &[(checksum_only(&ack), numbered(&ack, sequence, theirs))]);
        for size in [1460, 1001] {
            let bytes = numbered(&data, sequence, theirs);
            sent.extend_from_slice(&bytes[data.payload_at()..]);
            guest.send(0, &[(header(&data, size), bytes)]);
            sequence = sequence.wrapping_add(data.payload as u32);
        }
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut got = vec![0; sent.len()];
        stream.read_exact(&mut got).expect("the stream");
        assert!(got == sent, "another stream");
    });
}

#[test]
fn offers_follow_the_option() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        veth("w0", "w1", 1, 1500);
        let vms = [Vm::on("on", ON), Vm::on("off", "xdp:w0,mode=copy,offloads=off")];
        let backend = Backend::start(&vms);
        let on = backend.guest("on", &options(0, Layout::Single)).driver.features();
        let want = f::NET_CSUM | f::NET_HOST_TSO4 | f::NET_HOST_TSO6 | f::NET_HOST_ECN | f::NET_HOST_USO;
        // None toward the guest: frames come from the wire as they are.
        assert_eq!(on & OFFLOADS, want);
        let mut guest = backend.guest("off", &options(0, Layout::Single));
        assert_eq!(guest.driver.features() & OFFLOADS, 0);
        // What was not negotiated is not done.
        let e = example(KINDS[0], 5_000, 4);
        guest.send(0, &[(header(&e, 1000), e.frame()), (checksum_only(&e), e.frame())]);
        let mut peer = Peer::new("w1");
        guest.warm_up(0, &peer);
        guest.ping(&mut peer, 1);
        assert!(peer.drain().is_empty());
        assert_eq!(backend.stats("off").transmit.totals.dropped_total(), 2);
    });
}

#[test]
fn hostile_fields_cost_their_frame_only() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", ON)]);
        let mut peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Segments(3)));
        guest.warm_up(0, &peer);
        let e = Example { tags: 0, options: 0, ..example(KINDS[0], 9_000, 5) };
        let good = header(&e, 1400);
        let bad = [
            VirtioNetHdr { gso_size: 0, ..good },
            VirtioNetHdr { gso_size: 1465, ..good },
            VirtioNetHdr { gso_size: u16::MAX, ..good },
            VirtioNetHdr { hdr_len: 9_055, ..good },
            VirtioNetHdr { csum_start: 13, ..good },
            VirtioNetHdr { csum_start: 35, ..good },
            VirtioNetHdr { csum_start: u16::MAX, csum_offset: u16::MAX, ..good },
            VirtioNetHdr { csum_offset: 6, ..good },
            VirtioNetHdr { flags: 0, ..good },
            VirtioNetHdr { gso_type: 4, ..good },
            VirtioNetHdr { gso_type: 5, ..good },
            VirtioNetHdr { gso_type: 3, ..good },
            VirtioNetHdr { gso_type: 0x7f, ..good },
            // Not cut, and too long for the wire.
            VirtioNetHdr { gso_type: 0, ..good },
        ];
        for (n, header) in (0..).zip(bad) {
            guest.send(0, &[(header, e.frame())]);
            guest.ping(&mut peer, n);
        }
        let mut dropped = bad.len() as u64;
        assert_eq!(backend.stats("a").transmit.totals.dropped_total(), dropped);
        // Headers that contradict the fields: a fragment, another protocol, a TCP header of 16
        // bytes, extension headers.
        for (at, value) in [(20, 0x20), (23, 17), (46, 0x40), (14, 0x44), (14, 0x65), (12, 0x86)] {
            let mut bytes = e.frame();
            bytes[at] = value;
            guest.send(0, &[(good, bytes)]);
            dropped += 1;
        }
        let six = Example { kind: Gso::TcpV6, v6: true, ..e };
        for next in [44, 50, 51, 0] {
            let mut bytes = six.frame();
            // Where it is one that can be passed, the next ones lead nowhere.
            bytes[20] = next;
            guest.send(0, &[(header(&six, 1400), bytes)]);
            dropped += 1;
        }
        guest.ping(&mut peer, 1000);
        assert!(peer.drain().is_empty(), "nothing of it went out");
        let totals = backend.stats("a").transmit.totals;
        assert_eq!(totals.dropped_total(), dropped, "{totals:?}");
        random_fields(&mut guest, &mut peer, &e);
        assert_eq!((backend.stats("a").ring_errors, backend.stats("a").connection_errors), (0, 0));
    });
}

/// Any fields at all: each frame is given back, and the next good one goes out.
fn random_fields(guest: &mut Guest, peer: &mut Peer, e: &Example) {
    let mut random = Random::new(0x9e37_79b9);
    for n in 0..300 {
        let mut bytes = e.frame();
        bytes.truncate(14 + random.below(3000));
        let mut header = [0; 12];
        let good = e.header(random.bits() as u16 | 0x100);
        for (at, byte) in header.iter_mut().enumerate() {
            *byte =
                if random.below(3) == 0 { random.bits() as u8 } else { good.get(at).copied().unwrap_or(0) };
        }
        guest.send(0, &[(VirtioNetHdr::decode(&header), bytes)]);
        peer.drain();
        if n % 10 == 0 {
            guest.ping(peer, n);
        }
    }
}

#[test]
fn an_interface_that_goes_down_in_the_middle_costs_frames_only() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", ON)]);
        let mut peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Pages));
        guest.warm_up(0, &peer);
        let e = Example { options: 0, tags: 0, ..example(KINDS[0], 64_000, 1) };
        for n in 0..10 {
            ip(&["link", "set", "v0", "down"]);
            let many: Vec<_> = (0..8).map(|_| (header(&e, 48), e.frame())).collect();
            guest.send(0, &many);
            ip(&["link", "set", "v0", "up"]);
            guest.send(0, &many);
            guest.driver.stop().unwrap_or_else(|e| panic!("{e}"));
            guest.driver.resume(&mut guest.pairs).unwrap_or_else(|e| panic!("{e}"));
            guest.warm_up(0, &peer);
            peer.drain();
            guest.ping(&mut peer, n);
        }
        assert_eq!(guest.pairs[0].tx.in_flight(), 0);
    });
}
