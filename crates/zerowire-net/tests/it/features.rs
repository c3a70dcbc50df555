//! The device with each of its features on and off, over a real tap. What one side sends, the other
//! side gets, and the ledger says of each byte how it went.

use crate::support::{
    Backend, Guest, PATIENCE, Peer, Vm, frames, in_netns, options, peer_header, tso, wait_until,
};
use zerowire_guest::features as f;
use zerowire_guest::net::{
    Layout, NetOptions, OFFLOADS, RxMode, RxOptions, VirtioNetHdr,
    header::{FLAG_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6, GSO_UDP, GSO_UDP_L4},
};
use zerowire_net::{GATHER_MAX_BYTES, PathMode, Policy};
use zerowire_testkit::net::ip;

/// Frames of ordinary lengths each way, one by one and in bursts; all must arrive as they were
/// sent, in order.
fn traffic_each_way(guest: &mut Guest, peer: &mut Peer) {
    let lens = [18, 60, 64, 100, 153, 154, 155, 500, 1000, 1499, 1514];
    for burst in [1, 3, 40] {
        let out: Vec<_> = (0..burst).map(|n| frames::frame(n, lens[n as usize % lens.len()])).collect();
        guest.send_plain(&out);
        for want in &out {
            assert_eq!(&peer.expect().bytes, want, "guest to host, burst of {burst}");
        }
        let back: Vec<_> =
            (0..burst).map(|n| frames::frame(n + 1000, lens[n as usize % lens.len()])).collect();
        back.iter().for_each(|frame| peer.send(frame));
        for want in &back {
            let (header, got) = guest.expect();
            assert_eq!(&got, want, "host to guest, burst of {burst}");
            assert_eq!((header.gso_type, header.flags & FLAG_NEEDS_CSUM), (0, 0));
        }
    }
}

fn run(
    name: &'static str,
    vm: Vm,
    options: NetOptions,
    test: impl FnOnce(&Backend, &mut Guest, &mut Peer) + Send + 'static,
) {
    in_netns(move || {
        let vm = Vm { name, ..vm };
        let backend = Backend::start(std::slice::from_ref(&vm));
        let mut peer = Peer::new(name);
        let mut guest = backend.guest(name, &options);
        test(&backend, &mut guest, &mut peer);
        let stats = backend.stats(name);
        assert_eq!(stats.last_error, None);
        assert_eq!(stats.ring_errors + stats.connection_errors, 0);
    });
}

#[test]
fn every_feature_can_be_left_out() {
    let sets = [
        0,
        f::NET_MRG_RXBUF,
        f::RING_EVENT_IDX,
        f::RING_INDIRECT_DESC,
        f::IN_ORDER,
        OFFLOADS,
        f::ACCESS_PLATFORM | f::NET_MTU | f::NET_MQ,
        f::NET_MRG_RXBUF | OFFLOADS,
        f::NET_MRG_RXBUF | f::RING_EVENT_IDX | f::RING_INDIRECT_DESC | f::IN_ORDER | OFFLOADS,
    ];
    for (i, without) in sets.into_iter().enumerate() {
        let layout = [Layout::Single, Layout::Split, Layout::Segments(3), Layout::Pages][i % 4];
        run("zwfeat", Vm::new("zwfeat"), options(without, layout), move |backend, guest, peer| {
            assert_eq!(guest.driver.features() & without, 0);
            traffic_each_way(guest, peer);
            let stats = backend.stats("zwfeat");
            assert_eq!((stats.transmit.totals.frames, stats.receive.totals.frames), (44, 44));
            assert_eq!(stats.transmit.totals.dropped_total() + stats.receive.totals.dropped_total(), 0);
        });
    }
}

#[test]
fn the_path_is_described() {
    run("zwpath", Vm::new("zwpath"), options(0, Layout::Split), move |backend, guest, peer| {
        guest.ping(peer, 1);
        assert_eq!(backend.stats("zwpath").path, "a system call a frame");
    });
}

#[test]
fn short_frames_are_copied_as_small_and_long_ones_scattered() {
    for layout in [Layout::Single, Layout::Split, Layout::Pages] {
        run("zwledger", Vm::new("zwledger"), options(0, layout), move |backend, guest, peer| {
            let small = frames::frame(1, GATHER_MAX_BYTES - 12);
            let large = frames::tcp_frame(2, 60_000);
            guest.send(
                0,
                &[
                    (VirtioNetHdr::default(), small.clone()),
                    (tso(), large.clone()),
                    (VirtioNetHdr::default(), small.clone()),
                ],
            );
            assert_eq!(peer.expect().bytes, small);
            assert_eq!(peer.expect().bytes, large);
            assert_eq!(peer.expect().bytes, small);
            let t = backend.stats("zwledger").transmit.totals;
            let copied = &t.copied_bytes;
            assert_eq!(copied["small"], 2 * GATHER_MAX_BYTES as u64);
            assert_eq!(copied.len(), 2, "{copied:?}");
            let header = copied["header"];
            assert!((154..=512).contains(&header), "{header} bytes of headers");
            assert_eq!(t.zero_copied_bytes, 12 + large.len() as u64 - header);
            assert_eq!((t.frames, t.zero_copied_frames), (3, 1));
        });
    }
}

#[test]
fn short_segments_are_gathered() {
    let vm = Vm::new("zwscatter");
    run("zwscatter", vm, options(0, Layout::Segments(60)), |backend, guest, peer| {
        let large = frames::tcp_frame(1, 60_000);
        guest.send(0, &[(tso(), large.clone())]);
        assert_eq!(peer.expect().bytes, large);
        let t = backend.stats("zwscatter").transmit.totals;
        assert_eq!(t.copied_bytes.get("scattered"), Some(&(12 + large.len() as u64)));
        assert_eq!(t.zero_copied_bytes, 0);
    });
}

#[test]
fn the_copying_path_copies_everything_and_says_so() {
    let policy = Policy::default().mode(PathMode::Copy);
    let vm = Vm { policy, ..Vm::new("zwcopy") };
    run("zwcopy", vm, options(0, Layout::Pages), |backend, guest, peer| {
        traffic_each_way(guest, peer);
        let large = frames::tcp_frame(1, 50_000);
        guest.send(0, &[(tso(), large.clone())]);
        assert_eq!(peer.expect().bytes, large);
        let stats = backend.stats("zwcopy");
        for t in [stats.transmit.totals, stats.receive.totals] {
            assert_eq!(t.copied_bytes.keys().collect::<Vec<_>>(), [&"asked"]);
            assert_eq!((t.zero_copied_bytes, t.zero_copied_frames), (0, 0));
            assert!(t.bytes > 0);
        }
    });
}

#[test]
fn received_frames_lie_where_the_guest_posted_buffers_without_a_copy() {
    for (name, mode) in [
        ("zwrxmrg", RxMode::Mergeable { buffer_len: 1536 }),
        ("zwrxbig", RxMode::Big { descriptors: 17, header_apart: true }),
        ("zwrxsml", RxMode::Small),
    ] {
        let without = if mode == (RxMode::Mergeable { buffer_len: 1536 }) { 0 } else { f::NET_MRG_RXBUF };
        let without = if mode == RxMode::Small { without | OFFLOADS } else { without };
        let rx = Some(RxOptions { mode, indirect: false, buffers: 0 });
        let policy = Policy::default().rx_copybreak_bytes(0);
        run(
            name,
            Vm { policy, ..Vm::new(name) },
            NetOptions { rx, ..options(without, Layout::Split) },
            move |backend, guest, peer| {
                traffic_each_way(guest, peer);
                let r = backend.stats(name).receive.totals;
                // Frames that come while a batch of reads is under way may land behind a read that
                // found none.
                assert!(r.copied_bytes.keys().all(|k| *k == "overflow"), "{:?}", r.copied_bytes);
                assert!(r.zero_copied_frames > 0);
                assert_eq!(r.frames, 44);
            },
        );
    }
}

#[test]
fn runs_of_received_frames_are_copied_up_to_the_copybreak_and_no_longer_ones() {
    // One chain takes frames of up to 1524 bytes; longer ones take two of them.
    let mode = RxMode::Mergeable { buffer_len: 1536 };
    let rx = Some(RxOptions { mode, indirect: false, buffers: 0 });
    for (copybreak, len) in [(0, 60), (500, 488), (500, 489), (4096, 1514), (4096, 4084), (4096, 4085)] {
        let policy = Policy::default().rx_copybreak_bytes(copybreak);
        let vm = Vm { policy, ..Vm::new("zwbreak") };
        run("zwbreak", vm, NetOptions { rx, ..options(0, Layout::Single) }, move |backend, guest, peer| {
            ip(&["link", "set", "zwbreak", "mtu", "9000"]);
            for n in 0..100 {
                let frame = frames::frame(n, len);
                peer.send(&frame);
                assert_eq!(guest.expect().1, frame);
            }
            let r = backend.stats("zwbreak").receive.totals;
            let small = r.copied_bytes.get("small").copied().unwrap_or(0);
            assert!(r.copied_bytes.keys().all(|k| ["small", "overflow"].contains(k)), "{r:?}");
            // A run is noticed after 32 frames.
            let (copied, whole) = if 12 + len <= copybreak { (68, 0..=32) } else { (0, 60..=100) };
            assert_eq!(small, copied * (12 + len as u64), "{len} bytes, at most {copybreak}: {r:?}");
            assert!(whole.contains(&r.zero_copied_frames), "{len} bytes, at most {copybreak}: {r:?}");
        });
    }
}

#[test]
fn a_segmentation_frame_passes_whole_both_ways() {
    run("zwgso", Vm::new("zwgso"), options(0, Layout::Pages), |backend, guest, peer| {
        for n in 0..20 {
            let large = frames::tcp_frame(n, 40_000 + n as usize * 1000);
            guest.send(0, &[(tso(), large.clone())]);
            let got = peer.expect();
            assert_eq!(got.bytes, large);
            assert_eq!((got.gso_type(), got.needs_csum()), (GSO_TCPV4, true));
            assert_eq!(got.header[4..6], 1448u16.to_le_bytes());

            peer.send_with(&peer_header(tso()), &large).expect("a segmentation frame to the tap");
            let (header, got) = guest.expect();
            assert_eq!(got, large);
            assert_eq!((header.gso_type, header.gso_size), (GSO_TCPV4, 1448));
            assert_eq!((header.csum_start, header.csum_offset), (34, 16));
            assert_eq!(usize::from(header.num_buffers), (12 + large.len()).div_ceil(4096));
        }
        // The first long frame meets buffers offered for ordinary ones: its tail comes over scratch
        // memory. So does a frame that comes while a batch of reads is under way, and lands behind
        // a read that found none.
        let r = backend.stats("zwgso").receive.totals;
        assert_eq!(r.copied_bytes.keys().collect::<Vec<_>>(), [&"overflow"]);
        assert!(r.zero_copied_frames > 0, "{r:?}");
    });
}

/// The kinds beside TCP over IPv4: each passes whole in both directions, as long as the host's side
/// can show it.
#[test]
fn other_segmentation_kinds_pass_whole_both_ways() {
    run("zwkinds", Vm::new("zwkinds"), options(0, Layout::Pages), |_, guest, peer| {
        for (n, (gso_type, frame)) in [
            (GSO_TCPV6, frames::tcp6_frame(1, 30_000)),
            (GSO_UDP_L4, frames::udp_frame([10, 0, 0, 1], &vec![0x5a; 30_000])),
        ]
        .into_iter()
        .enumerate()
        {
            let header = segmentation(gso_type);
            guest.send(0, &[(header, frame.clone())]);
            let got = peer.expect();
            assert_eq!((got.gso_type(), got.needs_csum()), (gso_type, true), "kind {n}");
            assert_eq!(got.bytes, frame);
            peer.send_with(&peer_header(header), &frame).expect("a segmentation frame to the tap");
            let (header, got) = guest.expect();
            assert_eq!((header.gso_type, header.gso_size), (gso_type, 1448));
            assert_eq!(got, frame);
        }
    });
}

/// UDP fragmentation is a type that only other guests make today. Packet sockets can't show it
/// (include/linux/virtio_net.h, `virtio_net_hdr_from_skb`), so the tap's own counters prove that
/// the kernel took the frames.
#[test]
fn fragmentation_frames_are_taken_by_the_tap() {
    run("zwufo", Vm::new("zwufo"), options(0, Layout::Pages), |backend, guest, _| {
        let frame = frames::udp_frame([10, 0, 0, 1], &vec![0x5a; 30_000]);
        let before = taken("zwufo");
        guest.send(0, &vec![(segmentation(GSO_UDP), frame.clone()); 5]);
        wait_until("the tap has taken the frames", || taken("zwufo") == before + 5 * frame.len() as u64);
        let t = backend.stats("zwufo").transmit.totals;
        assert_eq!((t.frames, t.dropped_total()), (5, 0));
    });
}

/// Bytes that the host's stack received from the tap.
fn taken(name: &str) -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").expect("this namespace's interfaces");
    let line = table.lines().find_map(|l| l.trim_start().strip_prefix(&format!("{name}:"))).expect("the tap");
    line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("received bytes")
}

fn segmentation(gso_type: u8) -> VirtioNetHdr {
    let (hdr_len, csum_start, csum_offset) = match gso_type {
        GSO_TCPV6 => (74, 54, 16),
        GSO_UDP | GSO_UDP_L4 => (42, 34, 6),
        _ => (54, 34, 16),
    };
    VirtioNetHdr { gso_type, hdr_len, csum_start, csum_offset, ..tso() }
}

#[test]
fn offloads_follow_what_the_guest_took() {
    in_netns(|| {
        let backend = Backend::start(&[Vm::new("zwoffl")]);
        let peer = Peer::new("zwoffl");
        let large = frames::tcp_frame(7, 4344);
        for round in 0..2 {
            let mut with = backend.guest("zwoffl", &options(0, Layout::Split));
            peer.send_with(&peer_header(tso()), &large).expect("sent");
            let (header, got) = with.expect();
            assert_eq!((header.gso_type, &got), (GSO_TCPV4, &large), "round {round}");
            drop(with);
            wait_until("the connection has ended", || !backend.stats("zwoffl").connected);
            // A guest without offloads gets the same frame in segments with whole checksums.
            let mut without = backend.guest("zwoffl", &options(OFFLOADS, Layout::Split));
            peer.send_with(&peer_header(tso()), &large).expect("sent");
            let mut payload = Vec::new();
            for _ in 0..3 {
                let (header, got) = without.expect();
                assert_eq!((header.gso_type, header.flags & FLAG_NEEDS_CSUM), (0, 0));
                let pseudo = [&got[26..34], &[0, 6], &((got.len() - 34) as u16).to_be_bytes()].concat();
                let sum = frames::sum(&got[34..], u32::from(frames::sum(&pseudo, 0)));
                assert_eq!(sum, 0xffff, "the segment's checksum");
                payload.extend_from_slice(&got[frames::TCP_HEADERS..]);
            }
            assert_eq!(payload, large[frames::TCP_HEADERS..]);
            drop(without);
            wait_until("the connection has ended", || !backend.stats("zwoffl").connected);
        }
    });
}

#[test]
fn two_queue_pairs_carry_frames_both_ways() {
    let vm = Vm { queues: 2, ..Vm::new("zwmq") };
    let options =
        NetOptions { queue_pairs: 2, required: f::VERSION_1 | f::NET_MQ, ..options(0, Layout::Split) };
    run("zwmq", vm, options, |backend, guest, peer| {
        let mut seen = 0;
        for n in 0..64 {
            for pair in 0..2 {
                let out = frames::udp_frame([10, 0, 0, 1], &[n as u8 ^ pair as u8; 40]);
                guest.send(pair, &[(VirtioNetHdr::default(), out.clone())]);
                assert_eq!(peer.expect().bytes, out);
            }
            // The tap chooses the queue by flow: each frame arrives on one of the two.
            let mut back = frames::udp_frame([10, 0, 0, 1], &[n as u8; 40]);
            back[34] = n as u8;
            peer.send(&back);
            let mut got = None;
            wait_until("a frame on one of the queues", || {
                got = (0..2).find_map(|p| guest.recv(p, std::time::Duration::ZERO));
                got.is_some()
            });
            assert_eq!(got.map(|g| g.1), Some(back));
            seen += 1;
        }
        wait_until("all are counted", || backend.stats("zwmq").receive.totals.frames == seen);
        let stats = backend.stats("zwmq");
        assert_eq!(stats.transmit.frames_by_queue, [64, 64]);
        assert!(stats.receive.frames_by_queue.iter().all(|n| *n > 0), "{:?}", stats.receive.frames_by_queue);
    });
}

/// The kernel spreads flows over all queues of a tap that are attached: those that no guest reads
/// must not be.
#[test]
fn a_guest_that_uses_one_of_two_queue_pairs_gets_all_flows() {
    let vm = Vm { queues: 2, ..Vm::new("zwmqone") };
    run("zwmqone", vm, options(0, Layout::Split), |backend, guest, peer| {
        for flow in 0..64u8 {
            let mut frame = frames::udp_frame([10, 0, 0, 1], &[flow; 40]);
            frame[34] = flow;
            peer.send(&frame);
            assert_eq!(guest.expect().1, frame, "flow {flow}");
        }
        wait_until("all are counted", || backend.stats("zwmqone").receive.totals.frames == 64);
    });
}

#[test]
fn a_device_mtu_of_9000_lets_frames_of_9000_bytes_pass() {
    for (name, mode) in [
        ("zwmtua", RxMode::Mergeable { buffer_len: 1536 }),
        ("zwmtub", RxMode::Big { descriptors: 3, header_apart: false }),
    ] {
        let without = if name == "zwmtua" { OFFLOADS } else { OFFLOADS | f::NET_MRG_RXBUF };
        let rx = Some(RxOptions { mode, indirect: false, buffers: 0 });
        in_netns(move || {
            let backend = Backend::start(&[Vm::new(name)]);
            let mut transport = backend.connect(name);
            transport.set_mtu(9000).expect("MTU 9000");
            let mut peer = Peer::new(name);
            let memory = crate::support::guest_memory();
            let options = NetOptions { rx, ..options(without, Layout::Split) };
            let (driver, pairs) =
                zerowire_guest::net::NetDriver::start(transport, &memory, &options).expect("a driver");
            let mut guest = Guest { driver, pairs, memory };
            for n in 0..50 {
                let len = if n % 3 == 0 { 60 } else { 9014 - n as usize };
                let frame = frames::frame(n, len);
                guest.send_plain(std::slice::from_ref(&frame));
                assert_eq!(peer.expect().bytes, frame);
                peer.send(&frame);
                let (header, got) = guest.expect();
                assert_eq!(got, frame);
                let buffers = if name == "zwmtua" { (12 + len).div_ceil(1536) } else { 1 };
                assert_eq!(usize::from(header.num_buffers), buffers);
            }
        });
    }
}

#[test]
fn a_frame_without_room_is_dropped_and_counted_and_the_next_one_passes() {
    let rx = Some(RxOptions { mode: RxMode::Small, indirect: false, buffers: 0 });
    in_netns(move || {
        let backend = Backend::start(&[Vm::new("zwroom")]);
        let mut transport = backend.connect("zwroom");
        transport.set_mtu(4000).expect("MTU 4000");
        let peer = Peer::new("zwroom");
        let memory = crate::support::guest_memory();
        let options = NetOptions { rx, ..options(OFFLOADS | f::NET_MRG_RXBUF, Layout::Split) };
        let (driver, pairs) =
            zerowire_guest::net::NetDriver::start(transport, &memory, &options).expect("a driver");
        let mut guest = Guest { driver, pairs, memory };
        for n in 0..10 {
            peer.send(&frames::frame(n, 1519));
            let good = frames::frame(n + 100, 1518);
            peer.send(&good);
            let (header, got) = guest.expect();
            assert_eq!((got, header.num_buffers), (good, 1));
        }
        wait_until("all are counted", || backend.stats("zwroom").receive.totals.frames == 10);
        assert_eq!(backend.stats("zwroom").receive.totals.dropped_frames["no_room"], 10);
        assert!(guest.recv(0, std::time::Duration::ZERO).is_none());
    });
}

#[test]
fn more_frames_than_buffers_wait_until_the_guest_posts_again() {
    let options = NetOptions { queue_size: 16, ..options(0, Layout::Split) };
    run("zwstarve", Vm::new("zwstarve"), options, |_, guest, peer| {
        for round in 0..5 {
            let sent: Vec<_> = (0..100).map(|n| frames::frame(round * 100 + n, 800)).collect();
            sent.iter().for_each(|frame| peer.send(frame));
            for want in &sent {
                assert_eq!(&guest.recv(0, PATIENCE).expect("a frame").1, want);
            }
        }
    });
}
