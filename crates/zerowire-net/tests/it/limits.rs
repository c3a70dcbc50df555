//! Limits of the rate: what is beyond them waits, on every port and both ways. Nothing is lost, and
//! nothing changes its place.

use std::time::{Duration, Instant};

use crate::support::frames::{frame, number};
use crate::support::lab::Lab;
use crate::support::wire::{read_frame, receive, rx_policy, wire};
use crate::support::{Backend, Guest, PATIENCE, Peer, Vm, in_netns, options, wait_until};
use zerowire::ledger::Counters;
use zerowire_guest::Transport;
use zerowire_guest::net::{Layout, VirtioNetHdr};
use zerowire_guest::ring::DESC_WRITE;
use zerowire_net::io::PortIo;
use zerowire_net::port::tap::TapOutlet;
use zerowire_net::receive::{ReceiveContext, ReceiveSetup, RxPort};
use zerowire_net::transmit::TransmitContext;
use zerowire_net::{Limits, Policy, Transmit};
use zerowire_testkit::net::veth::veth;
use zerowire_vhost::limit::{Allowance, Limit, Meter};

const HEADER: usize = 12;
const BUFFERS: u64 = 1 << 32;

fn limit(text: &str) -> Option<Limit> {
    Some(text.parse().unwrap_or_else(|e| panic!("{e}")))
}

fn transmit_at(vm: Vm, text: &str) -> Vm {
    Vm { limits: Limits { transmit: limit(text), receive: None }, ..vm }
}

fn receive_at(vm: Vm, text: &str) -> Vm {
    Vm { limits: Limits { transmit: None, receive: limit(text) }, ..vm }
}

/// Ports with the interface at which a peer sees the frames.
fn ports() -> [(Vm, &'static str); 4] {
    [
        (Vm::new("zwlimit"), "zwlimit"),
        (Vm::on("zwlimit", "packet:v0,receive=socket"), "v1"),
        (Vm::on("zwlimit", "packet:v0,rings=on,receive=ring"), "v1"),
        (Vm::on("zwlimit", "xdp:v0,mode=copy"), "v1"),
    ]
}

/// The guest sends frames, and the peer gets all of them in their order. Returns how long it took.
fn all_go_out(guest: &mut Guest, peer: &mut Peer, frames: &[Vec<u8>]) -> Duration {
    let start = Instant::now();
    for some in frames.chunks(20) {
        guest.send_plain(some);
        for want in some {
            assert_eq!(number(&peer.expect().bytes), number(want));
        }
    }
    start.elapsed()
}

#[test]
fn frames_of_a_limited_guest_wait_in_its_ring() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        for (vm, interface) in ports() {
            let port = vm.port.clone();
            let backend = Backend::start(&[transmit_at(vm, "1M/s,burst=20k")]);
            let mut peer = Peer::new(interface);
            let mut guest = backend.guest("zwlimit", &options(0, Layout::Single));
            let frames: Vec<_> = (0..100).map(|n| frame(n, 1000)).collect();
            let took = all_go_out(&mut guest, &mut peer, &frames);
            // The burst passes at once, and the last frame while there is a token.
            assert!(took >= Duration::from_millis(78), "{port}: 100 kB in {took:?}");
            let sent = backend.stats("zwlimit").transmit;
            assert_eq!((sent.totals.frames, sent.totals.dropped_total()), (100, 0), "{port}");
            assert!(sent.limit_waits > 0 && sent.limit_wait_seconds > 0.0, "{port}: {sent:?}");
        }
    });
}

#[test]
fn frames_to_a_limited_guest_wait_in_the_port() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        for (vm, interface) in ports() {
            let port = vm.port.clone();
            let backend = Backend::start(&[receive_at(vm, "ops=500/s,ops-burst=5")]);
            let peer = Peer::new(interface);
            let mut guest = backend.guest("zwlimit", &options(0, Layout::Single));
            let probes = guest.warm_up(0, &peer);
            let before = backend.stats("zwlimit").receive.totals.dropped_total();
            let start = Instant::now();
            for n in 0..40 {
                peer.send(&frame(n, 700));
            }
            for n in 0..40 {
                assert_eq!(number(&guest.expect().1), n, "{port}");
            }
            let took = start.elapsed();
            assert!(took >= Duration::from_millis(68), "{port}: 40 frames in {took:?}");
            let came = backend.stats("zwlimit").receive;
            let lost = came.totals.dropped_total() - before;
            assert_eq!((came.totals.frames, lost), (40 + probes, 0), "{port}");
            assert!(came.limit_waits > 0 && came.limit_wait_seconds > 0.0, "{port}: {came:?}");
        }
    });
}

#[test]
fn without_a_limit_nothing_waits_for_one() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwfree")]);
        let mut peer = Peer::new("zwfree");
        let mut guest = backend.guest("zwfree", &options(0, Layout::Single));
        for n in 0..20 {
            guest.ping(&mut peer, n);
        }
        let stats = backend.stats("zwfree");
        for direction in [stats.transmit, stats.receive] {
            assert_eq!((direction.limit_waits, direction.limit_wait_seconds), (0, 0.0));
        }
    });
}

/// Frames that wait for a limit of hours pass when another one, or none, is set.
#[test]
fn a_limit_changes_while_frames_wait() {
    in_netns(|| {
        let slow = Limits { transmit: limit("10/s,burst=10"), receive: limit("ops=1/s,ops-burst=1") };
        let backend = Backend::start(&[Vm { limits: slow, ..Vm::new("zwslow") }]);
        let mut peer = Peer::new("zwslow");
        let mut guest = backend.guest("zwslow", &options(0, Layout::Single));
        for round in 0..3 {
            for n in 0..10 {
                let bytes = frame(100 * round + n, 1400);
                assert!(guest.pairs[0].tx.send(&VirtioNetHdr::default(), &bytes).expect("room"));
            }
            guest.pairs[0].tx.publish().expect("published");
            for n in 0..10 {
                peer.send(&frame(100 * round + 50 + n, 1400));
            }
            let waits = 2 * u64::from(round);
            wait_until("both directions wait", || {
                let stats = backend.stats("zwslow");
                stats.transmit.limit_waits > waits / 2 && stats.receive.limit_waits > waits / 2
            });
            // A queue that stops meanwhile goes on where it was.
            for queue in 0..2 {
                guest.driver.transport().stop_queue(queue).expect("stopped");
            }
            guest.driver.resume(&mut guest.pairs).expect("resumed");
            backend.server.set_limits("zwslow", Limits::default()).expect("no limit");
            for n in 0..10 {
                assert_eq!(number(&peer.expect().bytes), 100 * round + n);
                assert_eq!(number(&guest.expect().1), 100 * round + 50 + n);
            }
            assert!(guest.pairs[0].tx.drain(PATIENCE).expect("sound"));
            backend.server.set_limits("zwslow", slow).expect("the limit");
            let config = backend.server.vms().remove(0).config;
            assert_eq!(config.limits, slow);
        }
        assert!(backend.server.set_limits("nobody", slow).is_err());
    });
}

/// A frame that is longer than the bucket passes, and is paid for afterwards.
#[test]
fn a_frame_longer_than_the_burst_passes() {
    in_netns(|| {
        let backend = Backend::start(&[transmit_at(Vm::new("zwlong"), "100k/s,burst=1000")]);
        let mut peer = Peer::new("zwlong");
        let mut guest = backend.guest("zwlong", &options(0, Layout::Single));
        let start = Instant::now();
        for n in 0..6 {
            guest.send_plain(&[frame(n, 1500)]);
            assert_eq!(number(&peer.expect().bytes), n);
        }
        // All but the last are paid for.
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(64), "{took:?}");
    });
}

#[test]
fn a_turn_takes_no_more_chains_than_may_pass() {
    let lab = Lab::new(&[(0, 1 << 20), (BUFFERS, 1 << 20)]);
    let ring = lab.ring(64);
    let (port, far) = wire();
    let mut io = PortIo::new(port);
    let outlet = TapOutlet::new(Policy::default()).expect("memory");
    let mut side = Transmit::new(lab.device(&ring, 1, false), outlet, 0, HEADER);
    // One in three is dropped, and counts.
    let len = |n: u16| if n % 3 == 2 { 10 } else { 100 };
    for n in 0..30 {
        let at = BUFFERS + u64::from(n) * 0x1000;
        lab.write(at, &[vec![0; HEADER], vec![n as u8; len(n)]].concat());
        ring.write_desc(n, at, (HEADER + len(n)) as u32, 0, 0);
        ring.write_avail(n, n);
    }
    ring.publish_avail_idx(30);
    let counters = Counters::default();
    let mut run = |side: &mut Transmit<TapOutlet>, operations, bytes| {
        side.meter = Meter::new(Allowance { operations, bytes, most_bytes: bytes });
        let mut cx = TransmitContext { memory: &lab.memory, counters: &counters, detour: None, guard: None };
        let turn = side.run(&mut io, &mut cx).expect("a sound ring");
        (turn.chains, side.meter.passed(), side.meter.is_cut())
    };
    assert_eq!(run(&mut side, 0, 1000), (0, (0, 0), true));
    assert_eq!(run(&mut side, 1000, 0), (0, (0, 0), true));
    assert_eq!(run(&mut side, 4, u64::MAX), (4, (4, 310), true));
    // The third goes beyond.
    assert_eq!(run(&mut side, u64::MAX, 111), (3, (3, 210), true));
    assert_eq!(run(&mut side, 23, 1 << 20), (23, (23, 1580), false), "all that is left");
    assert_eq!(run(&mut side, 0, 0), (0, (0, 0), false), "nothing is left to wait");
    let wanted: Vec<_> = (0..30).filter(|n| len(*n) == 100).collect();
    for n in wanted {
        assert_eq!(read_frame(&far).map(|f| f[HEADER]), Some(n as u8));
    }
    assert_eq!(read_frame(&far), None);
}

#[test]
fn a_turn_reads_no_more_frames_than_may_pass() {
    for lens in [[60, 60], [1500, 60], [9000, 9000]] {
        let lab = Lab::new(&[(0, 1 << 20), (BUFFERS, 2 << 20)]);
        let ring = lab.ring(256);
        let (port, far) = wire();
        let mut io = PortIo::new(port);
        for n in 0..256 {
            ring.write_desc(n, BUFFERS + u64::from(n) * 0x1000, 0x1000, DESC_WRITE, 0);
            ring.write_avail(n, n);
        }
        ring.publish_avail_idx(256);
        let setup = ReceiveSetup { mergeable: true, header_len: HEADER, clears_flags: false };
        let mut side = receive(lab.device(&ring, 0, false), setup, rx_policy());
        let counters = Counters::default();
        for n in 0..40usize {
            let bytes = [vec![0; HEADER], frame(n as u32, lens[n % 2])].concat();
            rustix::io::write(&far, &bytes).expect("a frame on the wire");
        }
        let mut turns = 0;
        while counters.delivered().0 < 40 {
            let before = counters.delivered().0;
            side.limit(3);
            let cx = ReceiveContext { memory: &lab.memory, counters: &counters };
            let turn = side.run(&mut io, &cx).expect("a sound ring");
            let after = counters.delivered().0;
            assert!(after - before <= 3, "{lens:?}");
            assert!(after == 40 || turn.port == RxPort::More, "{lens:?}: frames wait there");
            turns += 1;
            assert!(turns < 100, "{lens:?}: {:?}", counters.snapshot());
        }
        assert!(turns >= 14, "{lens:?}");
        let bytes = 20 * (lens[0] + lens[1] + 2 * HEADER) as u64;
        assert_eq!(counters.delivered(), (40, bytes), "{lens:?}");
    }
}
