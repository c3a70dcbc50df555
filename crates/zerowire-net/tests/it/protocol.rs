//! What guest, front end and back end agree on: each protocol feature and each offload with and
//! without, and what may change while queues run.

use crate::support::attack::{PLAIN, front_end, good_frame};
use crate::support::{
    Backend, Guest, PATIENCE, Peer, Vm, frames, guest_memory, in_netns, options, wait_until,
};
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::net::header::{FLAG_NEEDS_CSUM, GSO_ECN, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4};
use zerowire_guest::net::{Layout, NetOptions, OFFLOADS, VirtioNetHdr};
use zerowire_guest::ring::{DESC_WRITE, RingMemory};
use zerowire_guest::{GuestAddr, Transport, VhostUser, features as f, protocol as p};
use zerowire_vhost_user::{Request, VringAddr, VringState};

/// What this device says that it has.
const OFFERED: [(u64, &str); 8] = [
    (p::MQ, "MQ"),
    (p::LOG_SHMFD, "LOG_SHMFD"),
    (p::RARP, "RARP"),
    (p::REPLY_ACK, "REPLY_ACK"),
    (p::MTU, "MTU"),
    (p::RESET_DEVICE, "RESET_DEVICE"),
    (p::CONFIGURE_MEM_SLOTS, "CONFIGURE_MEM_SLOTS"),
    (p::STATUS, "STATUS"),
];

/// A frame each way that lies in memory which was plugged after the device had started.
fn through_plugged_memory(guest: &mut Guest, peer: &mut Peer) {
    const PLUGGED: GuestAddr = GuestAddr(8 << 30);
    let region = guest.memory.add_region(PLUGGED, 1 << 20).expect("a region");
    guest.driver.transport().add_memory(&region).expect("plugged");
    let front = guest.driver.transport();
    front.stop_queue(0).expect("stopped");
    front.stop_queue(1).expect("stopped");
    let mut tx = RawQueue::start(&guest.memory, guest.driver.transport(), 1, 16).expect("a queue");
    let mut rx = RawQueue::start(&guest.memory, guest.driver.transport(), 0, 16).expect("a queue");
    let at = |offset: u64| RawDesc { addr: PLUGGED.0 + offset, len: 2048, ..RawDesc::default() };
    rx.write_chain(0, &[RawDesc { flags: DESC_WRITE, ..at(0) }]);
    rx.offer(0);
    rx.kick().expect("a kick");
    let frame = frames::frame(5, 2048 - 12);
    let whole = [&[0; 12], frame.as_slice()].concat();
    guest.memory.at(GuestAddr(PLUGGED.0 + 4096), whole.len()).expect("plugged memory").write(0, &whole);
    tx.write_chain(0, &[at(4096)]);
    tx.offer(0);
    tx.kick().expect("a kick");
    assert_eq!(peer.expect().bytes, frame);
    peer.send(&frame[..1000]);
    assert!(rx.wait_used(1, PATIENCE));
    let mut got = Vec::new();
    guest.memory.at(PLUGGED, 2048).expect("plugged memory").append_to(12, 1000, &mut got);
    assert_eq!(got, frame[..1000]);
    guest.driver.transport().remove_memory(&region).expect("unplugged");
}

#[test]
fn every_protocol_feature_can_be_left_out() {
    in_netns(|| {
        let backend = Backend::start(&[Vm { queues: 2, ..Vm::new("zwproto") }]);
        let mut peer = Peer::new("zwproto");
        let all = OFFERED.iter().fold(0, |all, (bit, _)| all | bit);
        let without = OFFERED.iter().map(|(bit, name)| (*bit, *name));
        for (without, name) in without.chain([(0, "none"), (all, "all"), (all & !p::MQ, "all but MQ")]) {
            let mut front = backend.connect_without("zwproto", without);
            assert_eq!(front.protocol(), all & !without, "{name}");
            if without & p::MTU == 0 {
                front.set_mtu(4000).expect(name);
            }
            // Without MQ nobody asks how many queues there are.
            let pairs = if without & p::MQ == 0 { 2 } else { 1 };
            assert_eq!(front.max_queues().expect(name), 2 * pairs, "{name}");
            let options = NetOptions { queue_pairs: pairs, ..options(0, Layout::Split) };
            let mut guest = Guest::start(front, &options);
            let out = frames::frame(1, 300);
            guest.send_plain(std::slice::from_ref(&out));
            assert_eq!(peer.expect().bytes, out, "{name}");
            if pairs == 1 {
                guest.ping(&mut peer, 2);
                through_plugged_memory(&mut guest, &mut peer);
            }
            guest.driver.transport().barrier().expect("all handled");
            let stats = backend.stats("zwproto");
            let status = if without & p::STATUS == 0 { 0xf } else { 0 };
            assert_eq!(
                (stats.negotiated.device_status, stats.ring_errors),
                (status, 0),
                "{name}: {:?}",
                stats.last_error
            );
            guest.driver.transport().reset().expect(name);
            if without & p::STATUS == 0 {
                assert_eq!(guest.driver.transport().status().expect(name), 0, "{name}");
            }
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("zwproto").connected);
        }
        let stats = backend.stats("zwproto");
        assert_eq!((stats.ring_errors, stats.connection_errors), (0, 0), "{:?}", stats.last_error);
    });
}

/// A front end without VHOST_USER_F_PROTOCOL_FEATURES sends no SET_VRING_ENABLE: rings are enabled
/// from the start (vhost-user, "Ring states").
#[test]
fn a_front_end_without_protocol_features_has_its_rings_enabled_from_the_start() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwold")]);
        let mut peer = Peer::new("zwold");
        for round in 0..2 {
            let memory = guest_memory();
            let mut front = backend.connect("zwold");
            front.tell(Request::SetFeatures, &PLAIN.to_ne_bytes(), &[]).expect("features");
            front.share_memory(&memory).expect("shared memory");
            let mut tx = RawQueue::start(&memory, &mut front, 1, 16).expect("a queue");
            let mut rx = RawQueue::start(&memory, &mut front, 0, 16).expect("a queue");
            good_frame(&mut tx, &mut peer, round);
            let buffer = rx.place(&[0; 2048]).expect("guest memory");
            rx.write_chain(0, &[RawDesc::writable(&buffer)]);
            rx.offer(0);
            rx.kick().expect("a kick");
            peer.send(&frames::frame(round, 100));
            assert!(rx.wait_used(1, PATIENCE), "a frame for the guest");
            drop((tx, rx, front));
            wait_until("the connection has ended", || !backend.stats("zwold").connected);
        }
        assert_eq!(backend.stats("zwold").last_error, None);
    });
}

/// A front end that does not hear of a refusal would go on as if all were well.
#[test]
fn what_is_refused_ends_the_connection_of_a_front_end_that_hears_no_answers() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwdeaf")]);
        let mut peer = Peer::new("zwdeaf");
        for (without, ends) in [(0, false), (p::REPLY_ACK, true)] {
            let mut front = backend.connect_without("zwdeaf", without);
            let before = backend.stats("zwdeaf").connection_errors;
            let told = front.set_mtu(67);
            assert_eq!(told.is_err(), !ends, "{told:?}");
            wait_until("the error is told", || {
                backend
                    .stats("zwdeaf")
                    .last_error
                    .is_some_and(|e| e.contains("MTU 67 is not within 68 to 65535"))
            });
            assert_eq!(front.barrier().is_err(), ends);
            if ends {
                wait_until("the connection has ended", || {
                    backend.stats("zwdeaf").connection_errors == before + 1
                });
            } else {
                front.set_mtu(68).expect("the least that there is");
                assert_eq!(backend.stats("zwdeaf").connection_errors, before);
            }
            drop(front);
            let mut guest = backend.guest("zwdeaf", &options(0, Layout::Split));
            guest.ping(&mut peer, 1);
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("zwdeaf").connected);
        }
    });
}

/// What a front end sends, and what it must be told.
type Change = (Request, Vec<u8>, &'static str);

/// Size, addresses and base of a running queue stay. Whatever a guest has the VMM say of them
/// afterwards, the device goes on with what was checked when the queue started (CVE-2026-5747).
#[test]
fn sizes_addresses_and_bases_stay_while_queues_run() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwring")]);
        let mut peer = Peer::new("zwring");
        for queue in 0..2u16 {
            for n in 0..6 {
                let (mut front, memory) = front_end(&backend, "zwring", PLAIN);
                let mut tx = RawQueue::start(&memory, &mut front, 1, 16).expect("a queue");
                let rx = RawQueue::start(&memory, &mut front, 0, 16).expect("a queue");
                let ring = if queue == 0 { rx.ring() } else { tx.ring() };
                let setup = ring.setup(0);
                let same = VringAddr {
                    index: queue.into(),
                    flags: 0,
                    desc: setup.desc.user,
                    used: setup.used.user,
                    avail: setup.avail.user,
                    log: 0,
                };
                // What is said again does no harm.
                let state = |num| VringState { index: queue.into(), num }.encode();
                front.tell(Request::SetVringNum, &state(16), &[]).expect("the same size");
                front.tell(Request::SetVringAddr, &same.encode(), &[]).expect("the same addresses");
                good_frame(&mut tx, &mut peer, 1);

                let other = RingMemory::new(&memory, 16).expect("a ring").setup(0);
                let addr = |a: VringAddr| {
                    (Request::SetVringAddr, a.encode().to_vec(), "addresses changed while it runs")
                };
                let changes: [Change; 6] = [
                    (Request::SetVringNum, state(8).to_vec(), "size changed from 16 to 8 while it runs"),
                    (
                        Request::SetVringNum,
                        state(32768).to_vec(),
                        "size changed from 16 to 32768 while it runs",
                    ),
                    addr(VringAddr { desc: other.desc.user, ..same }),
                    addr(VringAddr { avail: other.avail.user, ..same }),
                    addr(VringAddr { used: 0x1000, ..same }),
                    (Request::SetVringBase, state(7).to_vec(), "base set while it runs"),
                ];
                refused(&backend, &mut front, queue, &changes[n]);
                let used = tx.ring().used_idx();
                tx.offer(0);
                tx.kick().expect("a kick");
                drop(front);
                wait_until("the connection has ended", || !backend.stats("zwring").connected);
                assert_eq!(tx.ring().used_idx(), used, "the ring has stopped with its connection");
                assert!(peer.drain().is_empty());
            }
        }
        let mut guest = backend.guest("zwring", &options(0, Layout::Split));
        guest.ping(&mut peer, 1);
        assert_eq!(backend.stats("zwring").ring_errors, 0);
    });
}

fn refused(backend: &Backend, front: &mut VhostUser, queue: u16, (request, body, why): &Change) {
    let before = backend.stats("zwring").connection_errors;
    front.tell(*request, body, &[]).expect_err(why);
    wait_until("the connection has ended", || backend.stats("zwring").connection_errors == before + 1);
    let said = backend.stats("zwring").last_error.unwrap_or_default();
    assert!(said.ends_with(&format!("queue {queue}: {why}")), "{said}");
}

/// A queue that was stopped is the front end's to describe anew.
#[test]
fn a_stopped_queue_goes_on_with_another_size_at_another_place() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwmoved")]);
        let mut peer = Peer::new("zwmoved");
        let (mut front, memory) = front_end(&backend, "zwmoved", PLAIN);
        for (n, size) in [16, 256, 2, 1024].into_iter().enumerate() {
            let mut tx = RawQueue::start(&memory, &mut front, 1, size).expect("a queue");
            for k in 0..3 {
                good_frame(&mut tx, &mut peer, n as u32 * 10 + k);
            }
            assert_eq!(front.stop_queue(1).expect("stopped"), 3);
        }
    });
}

#[test]
fn a_queue_that_the_device_does_not_have_is_named_with_what_to_give() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwtoomany")]);
        let (mut front, _memory) = front_end(&backend, "zwtoomany", PLAIN);
        assert_eq!(front.ask(Request::GetQueueNum).expect("a number"), 2, "rings, two a queue pair");
        let body = VringState { index: 3, num: 256 }.encode();
        front.tell(Request::SetVringNum, &body, &[]).expect_err("there is no queue 3");
        wait_until("the connection has ended", || backend.stats("zwtoomany").connection_errors == 1);
        let said = backend.stats("zwtoomany").last_error.unwrap_or_default();
        assert!(said.contains("queue 3 of 2") && said.contains("--port tap:NAME,queues=N"), "{said}");
    });
}

/// A kind of frame to segment: its name, the features that it takes toward the guest and from it,
/// its type. Then a frame with 4344 bytes of payload, and how many bytes its headers have.
type Kind = (&'static str, u64, u64, u8, Vec<u8>, u16);

fn kinds() -> [Kind; 4] {
    let (tcp, tcp6) = (frames::tcp_frame(7, 4344), frames::tcp6_frame(7, 4344));
    let udp = frames::udp_frame([10, 0, 0, 1], &[0x5a; 4344]);
    let ecn = (f::NET_GUEST_TSO4 | f::NET_GUEST_ECN, f::NET_HOST_TSO4 | f::NET_HOST_ECN);
    let uso = f::NET_GUEST_USO4 | f::NET_GUEST_USO6;
    [
        ("TCP over IPv4", f::NET_GUEST_TSO4, f::NET_HOST_TSO4, GSO_TCPV4, tcp.clone(), 54),
        ("TCP over IPv4 with ECN", ecn.0, ecn.1, GSO_TCPV4 | GSO_ECN, tcp, 54),
        ("TCP over IPv6", f::NET_GUEST_TSO6, f::NET_HOST_TSO6, GSO_TCPV6, tcp6, 74),
        ("UDP", uso, f::NET_HOST_USO, GSO_UDP_L4, udp, 42),
    ]
}

fn header(gso_type: u8, hdr_len: u16) -> VirtioNetHdr {
    let (csum_start, csum_offset) = match gso_type {
        GSO_TCPV6 => (54, 16),
        GSO_UDP_L4 => (34, 6),
        _ => (34, 16),
    };
    let fields =
        VirtioNetHdr { flags: FLAG_NEEDS_CSUM, gso_type, hdr_len, gso_size: 1448, ..Default::default() };
    VirtioNetHdr { csum_start, csum_offset, ..fields }
}

/// What the guest took comes whole; of the rest it gets segments. The back end sets the tap's
/// offloads again for each guest.
#[test]
fn each_kind_of_segments_toward_the_guest_follows_its_own_feature() {
    let csum = f::NET_GUEST_CSUM;
    let each = kinds().map(|k| k.1 | csum);
    // The last three are no valid sets (virtio 1.3 §5.1.3.1), or one that a tap does not know: they
    // count as less.
    let less = [csum | f::NET_GUEST_USO4, csum | f::NET_GUEST_ECN, f::NET_GUEST_TSO4];
    in_netns(move || {
        let backend = Backend::start(&[Vm::new("zwkinds")]);
        let peer = Peer::new("zwkinds");
        for taken in each.into_iter().chain([csum, 0]).chain(less) {
            let toward = OFFLOADS
                & !(f::NET_CSUM | f::NET_HOST_TSO4 | f::NET_HOST_TSO6 | f::NET_HOST_ECN)
                & !(f::NET_HOST_UFO | f::NET_HOST_USO);
            let mut guest = backend.guest("zwkinds", &options(toward & !taken, Layout::Split));
            assert_eq!(guest.driver.features() & toward, taken);
            for (name, needs, _, gso_type, frame, headers) in kinds() {
                let fields = header(gso_type, headers).encode();
                peer.send_with(fields.first_chunk().expect("ten bytes"), &frame).expect("sent");
                let needs = needs | csum;
                let (got, bytes) = guest.expect();
                if taken & needs == needs {
                    assert_eq!((got.gso_type, got.gso_size), (gso_type, 1448), "{name} with {taken:#x}");
                    assert_eq!(bytes, frame, "{name} with {taken:#x}");
                    continue;
                }
                let headers = usize::from(headers);
                let mut payload = Vec::new();
                let mut segment = (got, bytes);
                loop {
                    let (got, bytes) = segment;
                    assert_eq!(got.gso_type, 0, "{name} with {taken:#x}");
                    let partial = got.flags & FLAG_NEEDS_CSUM != 0;
                    assert!(!partial || taken & csum != 0, "{name} with {taken:#x}");
                    payload.extend_from_slice(&bytes[headers..]);
                    if payload.len() >= 4344 {
                        break;
                    }
                    segment = guest.expect();
                }
                assert!(payload == frame[headers..], "{name} with {taken:#x}");
            }
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("zwkinds").connected);
        }
    });
}

/// A driver with offloads leaves frames behind in the tap. The driver that follows it on the same
/// connection, as when a guest boots again, doesn't get them.
#[test]
fn what_waited_for_a_driver_with_offloads_is_not_given_to_one_without() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwreboot")]);
        let mut peer = Peer::new("zwreboot");
        let mut guest = backend.guest("zwreboot", &options(0, Layout::Split));
        guest.ping(&mut peer, 1);
        guest.driver.transport().reset().expect("reset");
        let (_, _, _, gso_type, frame, headers) = kinds()[0].clone();
        let fields = header(gso_type, headers).encode();
        for _ in 0..5 {
            peer.send_with(fields.first_chunk().expect("ten bytes"), &frame).expect("it waits in the tap");
        }
        let mut guest = Guest::start(guest.driver.into_transport(), &options(OFFLOADS, Layout::Split));
        guest.ping(&mut peer, 2);
        assert_eq!(backend.stats("zwreboot").connections, 1);
    });
}

/// What the guest did not take it may not ask for: that costs it the frame.
#[test]
fn each_kind_of_segments_from_the_guest_needs_its_own_feature() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwasks")]);
        let mut peer = Peer::new("zwasks");
        let from = f::NET_CSUM
            | f::NET_HOST_TSO4
            | f::NET_HOST_TSO6
            | f::NET_HOST_ECN
            | f::NET_HOST_UFO
            | f::NET_HOST_USO;
        for taken in kinds().map(|k| k.2 | f::NET_CSUM).into_iter().chain([f::NET_CSUM, 0]) {
            let mut guest = backend.guest("zwasks", &options(from & !taken, Layout::Pages));
            let before = backend.stats("zwasks").transmit.totals;
            let (mut sent, mut refused) = (0, 0);
            for (name, _, needs, gso_type, frame, headers) in kinds() {
                guest.send(0, &[(header(gso_type, headers), frame.clone())]);
                if taken & (needs | f::NET_CSUM) == needs | f::NET_CSUM {
                    let got = peer.expect();
                    assert_eq!((got.header[1], got.needs_csum()), (gso_type, true), "{name} with {taken:#x}");
                    assert_eq!(got.bytes, frame, "{name} with {taken:#x}");
                    sent += 1;
                } else {
                    refused += 1;
                }
            }
            assert!(peer.drain().is_empty(), "{taken:#x}");
            let after = backend.stats("zwasks").transmit.totals;
            let dropped =
                |t: &zerowire::ledger::Totals| t.dropped_frames.get("bad_offload").copied().unwrap_or(0);
            assert_eq!(after.frames - before.frames, sent, "{taken:#x}");
            assert_eq!(dropped(&after) - dropped(&before), refused, "{taken:#x}");
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("zwasks").connected);
        }
    });
}
