//! What the ledger of a packet port says of frames that were copied, and of the system calls that
//! it took.

use std::collections::BTreeMap;

use crate::support::frames::{self, frame};
use crate::support::{Backend, Guest, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::net::header::GSO_TCPV4;
use zerowire_guest::net::{Layout, OFFLOADS};
use zerowire_guest::{Transport, features as f};
use zerowire_net::Policy;
use zerowire_testkit::net::veth::veth;

const TSO: [u8; 10] = [1, GSO_TCPV4, 54, 0, 0xa8, 5, 34, 0, 16, 0];

fn tagged(bytes: &[u8]) -> Vec<u8> {
    [&bytes[..12], &[0x81, 0, 0, 5], &bytes[12..]].concat()
}

fn copied(backend: &Backend) -> BTreeMap<&'static str, u64> {
    backend.stats("a").receive.totals.copied_bytes
}

/// Receives `frames` frames, which must come.
fn receive(guest: &mut Guest, frames: usize) {
    (0..frames).for_each(|_| drop(guest.expect()));
}

/// A VM whose frames come from the socket, and are copied up to this many bytes.
fn short_ones_copied(rx_copybreak_bytes: usize) -> Vm {
    let policy = Policy::default().rx_copybreak_bytes(rx_copybreak_bytes);
    Vm { policy, ..Vm::on("a", "packet:v0,receive=socket") }
}

#[test]
fn frames_that_waited_are_counted_by_why_they_were_copied() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let peer = Peer::new("v1");
        for (without, only) in [(OFFLOADS & !(f::NET_CSUM | f::NET_GUEST_CSUM), "rebuilt"), (0, "rebuilt")] {
            let backend = Backend::start(&[Vm::on("a", "packet:v0,receive=socket")]);
            let mut guest = backend.guest("a", &options(without, Layout::Single));
            // More than the guest has buffers for; they wait until it takes some.
            if without == 0 {
                (0..300).for_each(|n| peer.send(&tagged(&frame(n, 1500))));
                receive(&mut guest, 300);
            } else {
                (0..12).for_each(|n| peer.send_with(&TSO, &frames::tcp_frame(n, 60_000)).expect("sent"));
                receive(&mut guest, 12 * 60_000usize.div_ceil(1448));
            }
            let copied = copied(&backend);
            assert_eq!(copied.keys().collect::<Vec<_>>(), [&only], "{copied:?}");
            assert_eq!(backend.stats("a").receive.totals.dropped_total(), 0);
        }
    });
}

/// Frames that come in one batch: the guest's ring is enabled when all are there.
#[test]
fn sound_frames_behind_one_that_is_rebuilt_are_named() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        let backend = Backend::start(&[short_ones_copied(1024)]);
        let without = OFFLOADS & !(f::NET_CSUM | f::NET_GUEST_CSUM);
        let mut guest = backend.guest("a", &options(without, Layout::Single));
        // Reads come in batches after a run of frames.
        for n in 0..200 {
            peer.send(&frame(n, 1400));
        }
        receive(&mut guest, 200);
        guest.ping(&mut peer, 1);
        let before = copied(&backend);
        guest.driver.transport().enable_queue(0, false).expect("disabled");
        for _ in 0..8 {
            peer.send_with(&TSO, &frames::tcp_frame(1, 3000)).expect("sent");
            (0..4).for_each(|n| peer.send(&frame(n, 1400)));
        }
        guest.driver.transport().enable_queue(0, true).expect("enabled");
        receive(&mut guest, 8 * (3 + 4));
        let after = copied(&backend);
        let more = |reason| after.get(reason).unwrap_or(&0) - before.get(reason).unwrap_or(&0);
        assert_eq!(more("rebuilt"), 8 * (3 * (12 + 54) + 3000));
        assert_eq!(more("behind") % (12 + 1400), 0);
        assert!(more("behind") > 0, "{after:?}");
    });
}

/// A guest without GUEST_CSUM gets nothing straight from the kernel, and each frame says why.
#[test]
fn a_guest_that_takes_no_checksums_is_named_as_the_reason() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let peer = Peer::new("v1");
        let backend = Backend::start(&[short_ones_copied(1024)]);
        let mut guest = backend.guest("a", &options(OFFLOADS, Layout::Single));
        for n in 0..20 {
            peer.send(&frame(n, 1500));
            peer.send(&frame(n, 500));
        }
        peer.send_with(&TSO, &frames::tcp_frame(1, 3000)).expect("sent");
        receive(&mut guest, 43);
        let copied = copied(&backend);
        let want = [("no_checksums", 20 * 1512), ("rebuilt", 3 * 66 + 3000), ("small", 20 * 512)];
        assert_eq!(copied, BTreeMap::from(want));
        assert_eq!(backend.stats("a").receive.totals.zero_copied_frames, 0);
    });
}

#[test]
fn system_calls_are_counted_with_a_ring_and_without() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        for port in ["packet:v0,rings=on,receive=socket", "packet:v0,rings=off,receive=ring"] {
            let backend = Backend::start(&[Vm::on("a", port)]);
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            for n in 0..50 {
                guest.send_plain(&[frame(n, 1000)]);
                assert_eq!(peer.expect().bytes, frame(n, 1000));
            }
            wait_until("all are counted", || backend.stats("a").transmit.totals.frames == 50);
            let calls = backend.stats("a").transmit.totals.system_calls;
            assert!((50..200).contains(&calls), "{port}: {calls}");
        }
    });
}
