//! VIRTIO_F_IN_ORDER (virtio 1.3 §2.7.9): what the used ring holds, and which devices offer the
//! bit. Frames and chains keep their order when some are dropped, held back, or were in flight in a
//! back end that has died. The driver of these tests breaks off when a chain comes out of order.

use std::time::{Duration, Instant};

use crate::support::cloud_hypervisor::{Device, Net, RX, TX};
use crate::support::lab::Lab;
use crate::support::vsock::{Vm as VsockVm, VsockBackend};
use crate::support::{Backend, Guest, Peer, Vm, frames, in_netns, options};
use zerowire_guest::misbehave::RawDesc;
use zerowire_guest::net::Layout;
use zerowire_guest::net::header::VirtioNetHdr;
use zerowire_guest::ring::RingMemory;
use zerowire_guest::{LOG_PAGE, Transport, features as f};
use zerowire_testkit::net::run;
use zerowire_testkit::net::veth::veth;
use zerowire_vhost::ring::{SplitRing, UsedOrder};

/// Makes `count` chains available, whose heads are the entries' numbers.
fn offer(memory: &RingMemory, count: u16) {
    let from = memory.avail_idx();
    for at in (0..count).map(|i| from.wrapping_add(i)) {
        memory.write_avail(at, at % memory.size());
    }
    memory.publish_avail_idx(from.wrapping_add(count));
}

/// The device takes `count` chains and uses them, each with `written` bytes written.
fn take_and_use(ring: &mut SplitRing, count: u16, written: u32) {
    for _ in 0..count {
        let head = ring.take().expect("a sound ring").expect("a chain");
        ring.push_used(head, written);
    }
}

#[test]
fn one_used_element_stands_for_the_chains_that_are_published_together() {
    const SIZE: u16 = 8;
    const MARK: (u32, u32) = (0xeeee_eeee, 0xeeee_eeee);
    let lab = Lab::new(&[(0, 1 << 20)]);
    let memory = lab.ring(SIZE);
    for order in [UsedOrder::Any, UsedOrder::Each, UsedOrder::Batch] {
        let mut ring = lab.device(&memory, 1, false);
        ring.set_order(order);
        let mut used = memory.used_idx();
        for batch in [5, 1, 8, 3, 7] {
            memory.used().part(4, 8 * usize::from(SIZE)).fill(0xee);
            offer(&memory, batch);
            take_and_use(&mut ring, batch, 0);
            assert_eq!(memory.used_idx(), used, "not before it is published");
            ring.publish();
            assert_eq!(memory.used_idx(), used.wrapping_add(batch));
            for i in 0..SIZE {
                let head = |at: u16| (u32::from(used.wrapping_add(at) % SIZE), 0);
                let want = match order {
                    UsedOrder::Batch if i == 0 => head(batch - 1),
                    UsedOrder::Any | UsedOrder::Each if i < batch => head(i),
                    _ => MARK,
                };
                assert_eq!(memory.used_entry(used.wrapping_add(i)), want, "{order:?}, {batch}, element {i}");
            }
            used = used.wrapping_add(batch);
        }
    }
}

#[test]
fn the_order_follows_the_feature_and_who_writes_the_buffers() {
    let took = f::IN_ORDER | f::VERSION_1;
    assert_eq!(UsedOrder::of(took, false), UsedOrder::Batch);
    assert_eq!(UsedOrder::of(took, true), UsedOrder::Each);
    assert_eq!(UsedOrder::of(f::VERSION_1, false), UsedOrder::Any);
}

#[test]
fn of_a_batch_only_the_page_of_its_element_is_logged() {
    const SIZE: u16 = 2048;
    for (order, all) in [(UsedOrder::Batch, false), (UsedOrder::Each, true)] {
        let lab = Lab::new(&[(0, 1 << 20)]).logging();
        let memory = lab.ring(SIZE);
        let page = |at: u64| (memory.setup(0).used.guest.0 + at) / LOG_PAGE;
        let mut ring = lab.device(&memory, 1, false);
        ring.set_order(order);
        for _ in 0..2 {
            let first = memory.used_idx();
            offer(&memory, 1000);
            take_and_use(&mut ring, 1000, 0);
            lab.log.as_ref().expect("a log").take();
            ring.publish();
            let element = |i: u16| page(4 + 8 * u64::from((first + i) % SIZE));
            let mut want = vec![page(2), element(0)];
            if all {
                want.extend((1..1000).map(element));
            }
            want.sort_unstable();
            want.dedup();
            let noted: Vec<u64> = lab.log.as_ref().expect("a log").take().into_iter().collect();
            assert_eq!(noted, want, "{order:?}");
        }
    }
}

/// A frame behind its virtio-net header.
type Headed = (VirtioNetHdr, Vec<u8>);

/// Frames, and those of them that are sent: each third one is too short, or asks for an offload
/// that was not negotiated.
fn with_bad_ones(count: u32) -> (Vec<Headed>, Vec<Vec<u8>>) {
    let (mut sent, mut wanted) = (Vec::new(), Vec::new());
    for n in 0..count {
        match n % 6 {
            2 => sent.push((VirtioNetHdr::default(), vec![1; 9])),
            5 => sent.push((VirtioNetHdr { gso_type: 77, ..VirtioNetHdr::default() }, frames::frame(n, 100))),
            _ => {
                let frame = frames::frame(n, [60, 1514, 300][n as usize % 3]);
                wanted.push(frame.clone());
                sent.push((VirtioNetHdr::default(), frame));
            }
        }
    }
    (sent, wanted)
}

fn both_ways(guest: &mut Guest, peer: &mut Peer) {
    assert_ne!(guest.driver.features() & f::IN_ORDER, 0);
    for count in [1, 7, 100] {
        let (sent, wanted) = with_bad_ones(count);
        guest.send(0, &sent);
        for frame in wanted {
            assert_eq!(peer.expect().bytes, frame);
        }
        let back: Vec<_> = (0..count).map(|n| frames::frame(n, [60, 4000, 300][n as usize % 3])).collect();
        back.iter().for_each(|frame| peer.send(frame));
        for frame in back {
            assert_eq!(guest.expect().1, frame);
        }
    }
}

#[test]
fn a_tap_keeps_the_order_and_what_is_dropped_is_used_in_its_turn() {
    in_netns(|| {
        for without in [0, f::NET_MRG_RXBUF, f::RING_EVENT_IDX] {
            let backend = Backend::start(&[Vm::new("zwio")]);
            crate::support::ip(&["link", "set", "zwio", "mtu", "4096"]);
            let mut peer = Peer::new("zwio");
            let mut guest = backend.guest("zwio", &options(without, Layout::Segments(3)));
            both_ways(&mut guest, &mut peer);
            assert!(backend.stats("zwio").negotiated.features.iter().any(|name| name == "IN_ORDER"));
        }
    });
}

#[test]
fn a_packet_port_keeps_the_order() {
    in_netns(|| {
        veth("v0", "v1", 1, 4096);
        for port in ["packet:v0,receive=socket", "packet:v0,rings=on,receive=ring"] {
            let backend = Backend::start(&[Vm::on("a", port)]);
            let mut peer = Peer::new("v1");
            let mut guest = backend.guest("a", &options(0, Layout::Split));
            guest.warm_up(0, &peer);
            both_ways(&mut guest, &mut peer);
        }
    });
}

/// A full socket's frames go back to the ring, and are sent from there.
#[test]
fn frames_that_a_full_port_does_not_take_keep_their_places() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        // The interface sends at this rate, and keeps the rest.
        let queue = ["root", "tbf", "rate", "80mbit", "burst", "20kb", "limit", "30mb"];
        run("tc", &[&["qdisc", "add", "dev", "v0"][..], &queue].concat());
        let backend = Backend::start(&[Vm::on("a", "packet:v0,receive=socket")]);
        let mut peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        let sent: Vec<_> = (0..2000).map(|n| frames::frame(n, 1500)).collect();
        guest.send_plain(&sent);
        for frame in sent {
            assert_eq!(peer.expect().bytes, frame);
        }
        assert_eq!(backend.stats("a").transmit.totals.dropped_total(), 0);
    });
}

#[test]
fn a_device_whose_chains_may_come_back_in_another_order_does_not_offer_it() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("x", "xdp:v0"), Vm::new("zwoff")]);
        let offers = |vm: &str| backend.connect(vm).device_features().expect("features") & f::IN_ORDER != 0;
        assert_eq!(["x", "zwoff"].map(offers), [false, true]);
    });
    let backend = VsockBackend::start(&[VsockVm::new("plain", 3), VsockVm::new("lends", 4).shared()]);
    let offers = |vm: &str| backend.connect(vm).device_features().expect("features") & f::IN_ORDER != 0;
    assert_eq!(["plain", "lends"].map(offers), [true, false]);
}

const SIZE: u16 = 64;

/// Posts the next frames, with or without a device behind the rings.
fn post(guest: &mut Net, count: u16) -> Vec<Vec<u8>> {
    (0..count).map(|_| guest.post()).collect()
}

#[test]
fn a_back_end_that_follows_a_dead_one_goes_on_in_order() {
    in_netns(|| {
        for with_region in [false, true] {
            let mut guest = Net::new(SIZE, SIZE, f::IN_ORDER);
            let first = Backend::start(&[Vm::new("zwnext")]);
            let mut peer = Peer::new("zwnext");
            // All lie there when the ring starts: one batch.
            let posted = post(&mut guest, 20);
            let vu = guest.device.start(&first.socket("zwnext"), with_region, None);
            posted.iter().for_each(|frame| assert_eq!(&peer.expect().bytes, frame));
            guest.device.queues[TX].wait_used(20);
            let used = |guest: &Net, at| guest.device.queues[TX].ring.used_entry(at);
            assert_eq!(
                [0, 1].map(|at| used(&guest, at)),
                [(19, 0), (0, 0)],
                "one element, nothing behind it"
            );
            drop((first, peer));
            drop(vu);
            let posted = post(&mut guest, 30);
            let second = Backend::start(&[Vm::new("zwnext")]);
            let mut peer = Peer::new("zwnext");
            let _vu = guest.device.start(&second.socket("zwnext"), with_region, None);
            posted.iter().for_each(|frame| assert_eq!(&peer.expect().bytes, frame));
            guest.device.queues[TX].wait_used(50);
            assert_eq!([20, 21].map(|at| used(&guest, at)), [(49, 0), (0, 0)]);
            // Each received frame has an element of its own, with its length.
            let start = Instant::now();
            for (n, len) in (0..).zip([60, 300, 61]) {
                peer.send(&frames::frame(n, len));
                while guest.device.queues[RX].ring.used_idx() != n as u16 + 1 {
                    assert!(start.elapsed() < crate::support::PATIENCE, "frame {n}");
                    std::thread::sleep(Duration::from_micros(500));
                }
                assert_eq!(guest.device.queues[RX].ring.used_entry(n as u16), (n, 12 + len as u32));
            }
        }
    });
}

#[test]
fn a_vsock_device_uses_packets_in_batches() {
    let backend = VsockBackend::start(&[VsockVm::new("vm", 3)]);
    let mut device = Device::new(SIZE, f::VERSION_1 | f::RING_EVENT_IDX | f::IN_ORDER);
    let packet = device.memory.allocate(44, 16).expect("guest memory");
    packet.write(0, &[0; 44]);
    for head in 0..20 {
        device.queues[TX].offer(head, RawDesc::readable(&packet));
    }
    let _vu = device.start(&backend.vhost_path("vm"), false, Some(&[0, 0]));
    device.queues[TX].wait_used(20);
    assert_eq!([0, 1].map(|at| device.queues[TX].ring.used_entry(at)), [(19, 0), (0, 0)]);
}
