//! The receive ring of a packet port: what passes by it, what passes beside it, and that neither
//! order nor bytes suffer.

use std::time::Duration;

use crate::support::attack::{PLAIN, front_end};
use crate::support::frames::{self, frame, number};
use crate::support::{Backend, PATIENCE, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::net::header::{FLAG_NEEDS_CSUM, GSO_TCPV4};
use zerowire_guest::net::{Layout, NetOptions, OFFLOADS, RxMode, RxOptions};
use zerowire_guest::{GuestSlice, Transport, VhostUser, features as f};
use zerowire_net::{PathMode, Policy};
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::own_process;

const RING: &str = "packet:v0,receive=ring";

/// The longest frame that fits into a slot: 2048 bytes less what the kernel puts before it.
const FITS: usize = 2048 - 78;

const TSO: [u8; 10] = [FLAG_NEEDS_CSUM, GSO_TCPV4, 54, 0, 0xa8, 5, 34, 0, 16, 0];

fn with(port: &str, mtu: usize) -> (Backend, Peer) {
    veth("v0", "v1", 1, mtu);
    (Backend::start(&[Vm::on("a", port)]), Peer::new("v1"))
}

fn path_is(backend: &Backend, word: &str) {
    wait_until(word, || backend.stats("a").path.contains(word));
}

fn dropped(backend: &Backend, why: &str) -> u64 {
    backend.stats("a").receive.totals.dropped_frames.get(why).copied().unwrap_or(0)
}

/// Buffers of the guest: the usual ones, short ones, and such of guests without mergeable buffers.
fn buffers() -> [(RxMode, u64); 3] {
    [
        (RxMode::Mergeable { buffer_len: 1536 }, 0),
        (RxMode::Mergeable { buffer_len: 300 }, 0),
        (RxMode::Big { descriptors: 17, header_apart: true }, f::NET_MRG_RXBUF),
    ]
}

#[test]
fn frames_about_as_long_as_a_slot_are_whole_and_counted_by_the_way_they_took() {
    in_netns(|| {
        let (backend, peer) = with(RING, 9000);
        for (mode, without) in buffers() {
            let rx = Some(RxOptions { mode, indirect: matches!(mode, RxMode::Big { .. }), buffers: 0 });
            let mut guest = backend.guest("a", &NetOptions { rx, ..options(without, Layout::Single) });
            let before = backend.stats("a").receive.totals;
            let lengths: Vec<_> = (FITS - 20..FITS + 20).chain([18, 60, 4000, 8999, 9014]).collect();
            let (mut short, mut long) = (0, 0);
            for (n, &len) in lengths.iter().enumerate() {
                let want = frame(n as u32, len);
                peer.send(&want);
                let (header, got) = guest.expect();
                assert!(got == want, "{mode:?}: {len} bytes, came {}", got.len());
                assert_eq!((header.flags, header.gso_type), (0, 0));
                *(if len <= FITS { &mut short } else { &mut long }) += 12 + len as u64;
            }
            let after = backend.stats("a").receive.totals;
            assert_eq!(
                after.copied_bytes["outside"] - before.copied_bytes.get("outside").unwrap_or(&0),
                short
            );
            assert_eq!(after.zero_copied_bytes - before.zero_copied_bytes, long, "{mode:?}");
            assert_eq!(
                (after.copied_total() + after.zero_copied_bytes, after.dropped_total()),
                (after.bytes, 0)
            );
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
        }
    });
}

#[test]
fn offload_fields_of_short_frames_and_of_long_ones_are_the_kernels() {
    in_netns(|| {
        let (backend, peer) = with(RING, 1500);
        for without in [0, f::NET_MRG_RXBUF] {
            let mut guest = backend.guest("a", &options(without, Layout::Single));
            for payload in [10, 1000, 1500, FITS - 54, FITS - 53, 5000, 65_461] {
                let whole = frames::tcp_frame(payload as u32, payload);
                let gso = if payload > 1460 { TSO } else { [FLAG_NEEDS_CSUM, 0, 0, 0, 0, 0, 34, 0, 16, 0] };
                peer.send_with(&gso, &whole).expect("sent");
                let (header, got) = guest.expect();
                assert!(got == whole, "{payload} bytes of payload: {} came", got.len());
                assert_eq!(
                    (header.gso_type, header.gso_size),
                    (gso[1], u16::from_le_bytes([gso[4], gso[5]]))
                );
                assert_eq!((header.csum_start, header.csum_offset), (34, 16));
            }
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
        }
        assert_eq!(backend.stats("a").receive.totals.dropped_total(), 0);
    });
}

/// Short and long frames in turn, many at once, to guests of which some post few buffers.
#[test]
fn order_stays_between_frames_in_the_ring_and_beside_it() {
    in_netns(|| {
        veth("v0", "v1", 1, 9000);
        let peer = Peer::new("v1");
        for (few, without) in [(0, 0), (8, 0), (0, OFFLOADS), (0, f::NET_MRG_RXBUF)] {
            let backend = Backend::start(&[Vm::on("a", RING)]);
            let mode = match without & f::NET_MRG_RXBUF {
                0 => RxMode::Mergeable { buffer_len: 1536 },
                _ => RxMode::Big { descriptors: 17, header_apart: true },
            };
            let rx = Some(RxOptions { mode, indirect: false, buffers: few });
            let mut guest = backend.guest("a", &NetOptions { rx, ..options(without, Layout::Single) });
            for round in 0..4u32 {
                // Behind each other as chance has it, and all before the guest takes any.
                let length =
                    |n: u32| [60, 5000, 1514, 9014, 300, 8000, FITS, FITS + 1][(n * n + n / 7) as usize % 8];
                let all: Vec<_> = (0..400).map(|n| frame(round * 1000 + n, length(n))).collect();
                guest.driver.transport().enable_queue(0, false).expect("disabled");
                all.iter().for_each(|f| peer.send(f));
                guest.driver.transport().enable_queue(0, true).expect("enabled");
                for want in &all {
                    let got = guest.expect().1;
                    assert!(got == *want, "{few} buffers: {} for {}", number(&got), number(want));
                }
            }
            let totals = backend.stats("a").receive.totals;
            assert_eq!((totals.frames, totals.dropped_total()), (1600, 0), "{few} buffers, {totals:?}");
        }
    });
}

/// What does not fit into the ring is dropped by the kernel and counted; what was in it comes, in
/// order.
#[test]
fn a_full_ring_drops_what_comes_and_counts_it() {
    in_netns(|| {
        let (backend, mut peer) = with(RING, 1500);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.ping(&mut peer, 1);
        for round in 0..3 {
            guest.driver.transport().enable_queue(0, false).expect("disabled");
            (0..1500).for_each(|n| peer.send(&frame(n, 200)));
            guest.driver.transport().enable_queue(0, true).expect("enabled");
            (0..1024).for_each(|n| assert_eq!(number(&guest.expect().1), n));
            assert!(guest.recv(0, Duration::from_millis(50)).is_none());
            // The back end counts them when it polls the port next. It doesn't take the ring for
            // one that stands still.
            wait_until("all are counted", || {
                guest.ping(&mut peer, 2);
                dropped(&backend, "no_room") == (round + 1) * 476
            });
            path_is(&backend, "frames in by a TPACKET_V2 ring");
        }
    });
}

/// A frame whose slot has its start only, since the socket's queue was full, is never given.
#[test]
fn a_full_queue_beside_the_ring_cuts_nothing() {
    in_netns(|| {
        let (backend, mut peer) = with(RING, 1500);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.ping(&mut peer, 1);
        guest.driver.transport().enable_queue(0, false).expect("disabled");
        // 8 MiB and more of them, and a short one behind each.
        let all = 400;
        for n in 0..all {
            peer.send_with(&TSO, &frames::tcp_frame(n, 60_000)).expect("sent");
            peer.send(&frame(n, 100));
        }
        guest.driver.transport().enable_queue(0, true).expect("enabled");
        let (mut whole, mut short) = (0, 0);
        while short < all {
            let (header, got) = guest.expect();
            match header.gso_type {
                GSO_TCPV4 => {
                    let n = u32::from_be_bytes(got[38..42].try_into().expect("four bytes"));
                    assert!(got == frames::tcp_frame(n, 60_000) && n >= short, "{} bytes", got.len());
                    whole += 1;
                }
                _ => {
                    assert!(got == frame(short, 100), "{} bytes", got.len());
                    short += 1;
                }
            }
        }
        assert!(whole > 20 && whole < all, "{whole} of {all}");
        wait_until("the others are counted", || dropped(&backend, "no_room") == u64::from(all - whole));
        guest.ping(&mut peer, 2);
    });
}

/// A guest that posts too few buffers for a frame loses that one, and not those behind it.
#[test]
fn a_frame_for_which_there_are_never_enough_buffers_stops_nothing() {
    in_netns(|| {
        for port in [RING, "packet:v0,receive=socket"] {
            veth("v0", "v1", 1, 9000);
            let backend = Backend::start(&[Vm::on("a", port)]);
            let mut peer = Peer::new("v1");
            let rx =
                Some(RxOptions { mode: RxMode::Mergeable { buffer_len: 300 }, indirect: false, buffers: 4 });
            let mut guest = backend.guest("a", &NetOptions { rx, ..options(0, Layout::Single) });
            guest.ping(&mut peer, 1);
            for len in [1514, 5000] {
                peer.send(&frame(7, len));
                peer.send(&frame(8, 60));
                assert_eq!(number(&guest.expect().1), 8, "{port}: behind {len} bytes");
            }
            assert_eq!(dropped(&backend, "no_room"), 2, "{port}");
            drop((guest, backend, peer));
            ip(&["link", "del", "v0"]);
        }
    });
}

/// Copies that were asked for are made without it.
#[test]
fn the_copying_path_has_no_ring() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let policy = Policy::default().mode(PathMode::Copy);
        let backend = Backend::start(&[Vm { policy, ..Vm::on("a", RING) }]);
        let mut peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.ping(&mut peer, 1);
        path_is(&backend, "no receive ring, since copies were asked for");
        assert!(backend.stats("a").receive.totals.copied_bytes.keys().eq(["asked"].iter()));
    });
}

/// Mappings of packet sockets' rings in this process.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("procfs");
    maps.lines().filter(|line| line.contains("socket:[")).count()
}

#[test]
fn guests_come_and_go_and_leave_no_ring() {
    own_process!();
    in_netns(|| {
        let (backend, mut peer) = with(RING, 1500);
        for n in 0..50 {
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            guest.ping(&mut peer, n);
            assert_eq!(mappings(), 1);
            // Some go with frames in their ring.
            guest.driver.transport().enable_queue(0, false).expect("disabled");
            peer.send(&frame(1, 100));
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
            wait_until("the ring is gone", || mappings() == 0);
        }
    });
}

/// The worker has slept, and each frame wakes it, whichever way it takes.
#[test]
fn every_frame_wakes_a_worker_that_sleeps() {
    in_netns(|| {
        let (backend, peer) = with(RING, 9000);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        for n in 0..300 {
            let len = [60, 5000, FITS, FITS + 1][n as usize % 4];
            // Just when it falls asleep, and long after.
            std::thread::sleep(Duration::from_micros(u64::from(n % 50) * 20));
            peer.send(&frame(n, len));
            let got = guest.recv(0, PATIENCE).expect("a frame").1;
            assert!(got == frame(n, len), "frame {n}");
        }
    });
}

/// A receive queue that is filled by hand, with buffers of 2048 bytes.
struct Raw {
    transport: VhostUser,
    queue: RawQueue,
    buffer: GuestSlice,
}

impl Raw {
    fn new(backend: &Backend, features: u64) -> Self {
        let (mut transport, memory) = front_end(backend, "a", features);
        let mut queue = RawQueue::start(&memory, &mut transport, 0, 16).expect("a queue");
        let buffer = queue.place(&[0x77; 2048]).expect("guest memory");
        Self { transport, queue, buffer }
    }

    fn offer(&mut self, desc: RawDesc) {
        self.queue.write_chain(0, &[desc]);
        self.queue.offer(0);
        self.queue.kick().expect("a kick");
    }

    /// Offers the buffer, and gives what is in it when it comes back as number `n`.
    fn next(&mut self, n: u16, len: usize) -> Vec<u8> {
        self.offer(RawDesc::writable(&self.buffer.clone()));
        assert!(self.queue.wait_used(n, PATIENCE), "a frame");
        let mut bytes = vec![0; len];
        self.buffer.read(0, &mut bytes);
        bytes
    }
}

/// A driver of old has a header without `num_buffers`: the ring is opened anew for it.
#[test]
fn a_guest_with_short_headers_gets_them_by_the_ring() {
    in_netns(|| {
        let (backend, peer) = with(RING, 1500);
        for round in 0..3u32 {
            let mut guest = Raw::new(&backend, f::NET_GUEST_CSUM);
            path_is(&backend, "frames in by a TPACKET_V2 ring");
            let partial = [FLAG_NEEDS_CSUM, 0, 0, 0, 0, 0, 34, 0, 16, 0];
            for (n, len) in [100, 1400, FITS - 54, FITS - 53].into_iter().enumerate() {
                let whole = frames::tcp_frame(round, len.min(1460));
                peer.send_with(&partial, &whole).expect("sent");
                let got = guest.next(n as u16 + 1, 10 + whole.len());
                assert_eq!(got[..10], partial, "round {round}");
                assert!(got[10..] == whole, "round {round}");
            }
            assert!(backend.stats("a").receive.totals.copied_bytes.keys().eq(["outside"].iter()));
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
            // A guest of today between them.
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            peer.send(&frame(round, 200));
            assert_eq!(guest.expect().1, frame(round, 200));
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
        }
    });
}

/// A guest that breaks the rules of its ring loses that one, and what waits in the port's is there
/// when it has another.
#[test]
fn a_broken_ring_of_the_guest_leaves_the_ports_alone() {
    in_netns(|| {
        let (backend, peer) = with(RING, 9000);
        for len in [100, 1900] {
            let mut guest = Raw::new(&backend, PLAIN);
            peer.send(&frame(1, len));
            assert!(guest.next(1, 12 + len)[12..] == frame(1, len));
            let errors = backend.stats("a").ring_errors;
            (2..6).for_each(|n| peer.send(&frame(n, len)));
            let readable = RawDesc::readable(&guest.buffer);
            guest.offer(readable);
            wait_until("the error is counted", || backend.stats("a").ring_errors == errors + 1);
            guest.transport.stop_queue(0).expect("stopped");
            guest.queue =
                RawQueue::start(guest.queue.memory(), &mut guest.transport, 0, 16).expect("a queue");
            for n in 2..6 {
                let got = guest.next(n as u16 - 1, 12 + len);
                assert!(got[12..] == frame(n, len), "frame {n}");
            }
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
        }
        assert_eq!(backend.stats("a").receive.totals.dropped_total(), 0);
    });
}

/// Long frames that come while the worker takes them: the socket is readable before their slots say
/// that they are there.
#[test]
fn long_frames_as_they_come_are_all_there() {
    in_netns(|| {
        let (backend, peer) = with(RING, 9000);
        let rx =
            Some(RxOptions { mode: RxMode::Mergeable { buffer_len: 1536 }, indirect: false, buffers: 0 });
        let mut guest =
            backend.guest("a", &NetOptions { rx, queue_size: 1024, ..options(0, Layout::Single) });
        for round in 0..300 {
            (0..30).for_each(|n| peer.send(&frame(round * 30 + n, 9000)));
            for n in 0..30 {
                let got = guest.expect().1;
                assert!(
                    got.len() == 9000 && number(&got) == round * 30 + n,
                    "{} in round {round}",
                    number(&got)
                );
            }
        }
        path_is(&backend, "frames in by a TPACKET_V2 ring");
        assert_eq!(backend.stats("a").receive.totals.dropped_total(), 0);
    });
}
