//! A VM on a veth by AF_XDP: every length and layout, both ways, and what the ledger says of it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::support::frames::{arp_request, frame, number};
use crate::support::pattern::{DATA, OnBackend as _, Patterned};
use crate::support::{Backend, PATIENCE, Peer, Vm, in_netns, options, with_metadata};
use zerowire_guest::features as f;
use zerowire_guest::net::{Layout, NetOptions, RxMode, RxOptions};
use zerowire_testkit::net::veth::veth;

/// Frames of each of these lengths, numbered from `first`.
fn of_lengths(first: u32, lengths: impl Iterator<Item = usize>) -> Vec<Vec<u8>> {
    lengths.zip(first..).map(|(len, n)| frame(n, len)).collect()
}

fn rx(mode: RxMode) -> NetOptions {
    NetOptions {
        rx: Some(RxOptions { mode, indirect: matches!(mode, RxMode::Big { .. }), buffers: 0 }),
        ..options(0, Layout::Single)
    }
}

#[test]
fn frames_pass_both_ways() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let mut peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        let probes = guest.warm_up(0, &peer);
        guest.ping(&mut peer, 1);
        let stats = backend.stats("a");
        assert!(stats.path.contains("copy mode"), "{}", stats.path);
        assert_eq!(stats.port, "xdp:v0,queue=0,queues=1,mode=copy");
        assert_eq!((stats.transmit.totals.frames, stats.receive.totals.frames), (1, 1 + probes));
    });
}

#[test]
fn every_length_goes_out_from_every_layout() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let mut peer = Peer::new("v1");
        let mut sent = 0;
        for layout in
            [Layout::Single, Layout::Split, Layout::Segments(3), Layout::Segments(16), Layout::Pages]
        {
            let mut guest = backend.guest("a", &options(0, layout));
            let all = of_lengths(sent, 18..=1518);
            for some in all.chunks(100) {
                guest.send_plain(some);
                for want in some {
                    let got = peer.expect().bytes;
                    assert!(got == *want, "{layout:?}: {} bytes, came {}", want.len(), got.len());
                }
            }
            sent += all.len() as u32;
            drop(guest);
        }
        let totals = backend.stats("a").transmit.totals;
        assert_eq!((totals.frames, totals.dropped_total()), (u64::from(sent), 0));
        // All but headers and what lies in too many or too small pieces goes out from the guest's
        // memory.
        let reasons: Vec<_> = totals.copied_bytes.keys().copied().collect();
        assert_eq!(reasons, ["header", "scattered"]);
        assert_eq!(totals.bytes, totals.zero_copied_bytes + totals.copied_total());
    });
}

#[test]
fn every_length_comes_in_to_every_kind_of_buffer() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let peer = Peer::new("v1");
        let modes = [
            (RxMode::Mergeable { buffer_len: 1536 }, 0, true),
            (RxMode::Mergeable { buffer_len: 1530 }, 0, true),
            (RxMode::Small, f::NET_MRG_RXBUF, true),
            (RxMode::Big { descriptors: 17, header_apart: true }, f::NET_MRG_RXBUF, true),
            (RxMode::Big { descriptors: 2, header_apart: false }, f::NET_MRG_RXBUF, true),
            (RxMode::Mergeable { buffer_len: 1529 }, 0, false),
            (RxMode::Mergeable { buffer_len: 300 }, 0, false),
        ];
        let mut sent = 0;
        for (mode, without, direct) in modes {
            let mut guest = backend
                .guest("a", &NetOptions { wanted: options(without, Layout::Single).wanted, ..rx(mode) });
            sent += guest.warm_up(0, &peer) as u32;
            let before = backend.stats("a").receive.totals;
            let all = of_lengths(sent, 18..=1514);
            // No more at once than the smallest of these rings takes.
            for some in all.chunks(12) {
                for want in some {
                    peer.send(want);
                }
                for want in some {
                    let got = guest
                        .recv(0, PATIENCE)
                        .unwrap_or_else(|| panic!("{mode:?}: frame {} came not", number(want)));
                    assert!(got.1 == *want, "{mode:?}: {} bytes, came {}", want.len(), got.1.len());
                }
            }
            sent += all.len() as u32;
            drop(guest);
            let after = backend.stats("a").receive.totals;
            let copied = after.copied_total() - before.copied_total();
            assert_eq!(copied == 0, direct, "{mode:?}: {copied} bytes copied");
            if !direct {
                assert!(after.copied_bytes.contains_key("bounce_small_buffer"), "{:?}", after.copied_bytes);
            }
        }
        let totals = backend.stats("a").receive.totals;
        assert_eq!((totals.frames, totals.dropped_total()), (u64::from(sent), 0));
    });
}

/// With some kept for answers, too, buffers are used in the order in which they were posted. So a
/// back end that takes up the ring of a killed one knows from the used index which of them it has.
#[test]
fn buffers_are_used_in_order() {
    in_netns(|| {
        const KEPT: usize = 32;
        veth("v0", "v1", 1, 1500);
        let dir = tempfile::tempdir().expect("a directory");
        let backend = Backend::start(&[with_metadata(Vm::on("a", "xdp:v0,mode=copy"), dir.path())]);
        let peer = Peer::new("v1");
        let mut guest = Patterned::start(&backend, "a", 0);
        let mut posted: VecDeque<u16> = VecDeque::new();
        let (start, mut n) = (Instant::now(), 0);
        while n < 500 {
            assert!(start.elapsed() < PATIENCE, "{n} buffers were used");
            while posted.len() < KEPT {
                let place = DATA + (n + posted.len() as u64) % 64 * 2048;
                posted.push_back(guest.post(&[(place, 2048)]));
            }
            (0..8).for_each(|i| peer.send(&frame(i, 100)));
            while let Some((head, _)) = guest.used(Duration::from_millis(20)) {
                assert_eq!(Some(head), posted.pop_front(), "buffer {n}");
                n += 1;
            }
        }
        assert_eq!(backend.stats("a").ring_errors, 0);
    });
}

/// Buffers that are kept for answers don't hold up frames, however many of those come between two
/// answers.
#[test]
fn metadata_is_answered_beside_many_frames() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let dir = tempfile::tempdir().expect("a directory");
        let backend = Backend::start(&[with_metadata(Vm::on("a", "xdp:v0,mode=copy"), dir.path())]);
        let mut peer = Peer::new("v1");
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        let probes = guest.warm_up(0, &peer);
        let mut sent = 0;
        for _ in 0..3 {
            guest.send_plain(&[arp_request()]);
            assert_eq!(guest.expect().1[28..32], [169, 254, 169, 254]);
            // More than the ring has entries.
            for some in of_lengths(sent, (0..600).map(|n| 60 + n)).chunks(12) {
                some.iter().for_each(|want| peer.send(want));
                for want in some {
                    let (_, got) = guest.expect();
                    assert!(got == *want, "frame {}, came {}", number(want), number(&got));
                }
            }
            sent += 600;
        }
        guest.ping(&mut peer, sent);
        assert!(peer.drain().is_empty(), "nothing of it reaches the port");
        let stats = backend.stats("a");
        let (out, to) = (&stats.transmit.totals, &stats.receive.totals);
        let arp = 12 + arp_request().len() as u64;
        assert_eq!((out.copied_bytes["metadata"], to.copied_bytes["metadata"] >= 3 * arp), (3 * arp, true));
        assert_eq!((to.frames, to.dropped_total()), (u64::from(sent) + 1 + probes + 3, 0));
        // Of each frame that goes out its begin was inspected, of a short one all of it.
        for (len, small, header) in [(142, 154, 0), (143, 0, 154)] {
            let before = backend.stats("a").transmit.totals;
            guest.send_plain(&[frame(9, len)]);
            assert_eq!(peer.expect().bytes, frame(9, len));
            let after = backend.stats("a").transmit.totals;
            let more = |reason| {
                after.copied_bytes.get(reason).unwrap_or(&0) - before.copied_bytes.get(reason).unwrap_or(&0)
            };
            assert_eq!((more("small"), more("header")), (small, header), "{len} bytes");
            assert_eq!(after.zero_copied_frames - before.zero_copied_frames, u64::from(header > 0));
        }
    });
}
