//! Guests on an AF_XDP port that break the rules: each harms itself and nobody else, and no byte
//! goes astray.

use std::time::Duration;

use crate::support::attack::{PLAIN, attack};
use crate::support::frames::frame;
use crate::support::neighbour::{Neighbour, UNHARMED};
use crate::support::pattern::{DATA, OnBackend as _, Patterned};
use crate::support::toggle::{Shape, changing_frame};
use crate::support::{Backend, PATIENCE, Peer, Vm, in_netns, options, wait_until, with_metadata};
use zerowire_guest::misbehave::{RawDesc, RingAttack};
use zerowire_guest::net::Layout;
use zerowire_guest::ring::DESC_WRITE;
use zerowire_guest::{Transport, features as f};
use zerowire_testkit::net::veth::veth;

/// Two VMs on two interfaces, the peer of the one that is called "bad", and the guest of the other
/// one, which works.
fn two_vms() -> (Backend, Peer, Neighbour) {
    veth("v0", "v1", 1, 1500);
    veth("w0", "w1", 1, 1500);
    let backend = Backend::start(&[Vm::on("bad", "xdp:v0,mode=copy"), Vm::on("good", "xdp:w0,mode=copy")]);
    let (mut guest, peer) = (backend.guest("good", &options(0, Layout::Single)), Peer::new("w1"));
    guest.warm_up(0, &peer);
    let mut neighbour = Neighbour::new("good", guest, peer);
    neighbour.ping();
    (backend, Peer::new("v1"), neighbour)
}

#[test]
fn every_ring_attack_ends_as_it_should() {
    in_netns(|| {
        let (backend, mut peer, mut neighbour) = two_vms();
        for a in RingAttack::ALL {
            attack(&backend, "bad", &mut peer, PLAIN, *a);
            neighbour.ping();
        }
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

#[test]
fn bad_receive_buffers_stop_the_ring_and_nothing_is_written() {
    let write = DESC_WRITE;
    let cases: [(&str, RawDesc, &str); 6] = [
        ("outside", RawDesc { addr: 9 << 32, len: 2000, flags: write, next: 0 }, "not in the guest's memory"),
        (
            "beyond the end",
            RawDesc { addr: (2 << 20) - 1529, len: 1530, flags: write, next: 0 },
            "not in the guest's memory",
        ),
        ("huge", RawDesc { addr: DATA, len: u32::MAX, flags: write, next: 0 }, "not in the guest's memory"),
        (
            "wrapping",
            RawDesc { addr: u64::MAX - 100, len: 2000, flags: write, next: 0 },
            "not in the guest's memory",
        ),
        ("empty", RawDesc { addr: DATA, len: 0, flags: write, next: 0 }, "has length 0"),
        ("readable", RawDesc { addr: DATA, len: 2000, flags: 0, next: 0 }, "device-readable"),
    ];
    in_netns(move || {
        let (backend, peer, mut neighbour) = two_vms();
        for (name, desc, word) in cases {
            let errors = backend.stats("bad").ring_errors;
            let mut guest = Patterned::start(&backend, "bad", 0);
            // Good ones before it are in the kernel's hands when the bad one is found.
            for i in 0..4 {
                guest.post(&[(DATA + 0x1_0000 + i * 0x1000, 2000)]);
            }
            guest.rx.write_desc(40, desc);
            guest.rx.offer(40);
            guest.rx.kick().expect("a kick");
            assert!(guest.rx.wait_error(PATIENCE).expect("a poll"), "{name}: the error descriptor");
            wait_until("the error is counted", || backend.stats("bad").ring_errors == errors + 1);
            let error = backend.stats("bad").last_error.expect("an error");
            assert!(error.contains(word), "{name}: {error}");
            // The kernel has given the good ones back: a ring that is broken is not written to, nor
            // are its buffers.
            for n in 0..20 {
                peer.send(&frame(n, 1400));
            }
            assert_eq!(guest.rx.ring().used_idx(), 0, "{name}");
            guest.check(name);
            guest.transport.stop_queue(0).expect("stopped");
            for n in 0..20 {
                peer.send(&frame(n, 1400));
            }
            guest.check(name);
            neighbour.ping();
        }
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

#[test]
fn buffers_posted_twice_or_overlapping_take_frames_where_they_are() {
    in_netns(|| {
        let (backend, peer, mut neighbour) = two_vms();
        let mut guest = Patterned::start(&backend, "bad", f::NET_MRG_RXBUF);
        let place = (DATA + 0x123, 1600);
        for _ in 0..10 {
            guest.post(&[place]);
            guest.post(&[place]);
            guest.post(&[(place.0 + 1, 1600)]);
            guest.post(&[(place.0 + 2, 1600)]);
        }
        let mut frames = 0;
        for n in 0.. {
            peer.send(&frame(n, 1518 - 4));
            if let Some((_, len)) = guest.used(Duration::from_millis(50)) {
                assert_eq!(len, 1526);
                frames += 1;
                if frames == 40 {
                    break;
                }
            }
            assert!(n < 1000, "{frames} of 40 frames");
        }
        // Whatever is in there now is the guest's own doing; around it nothing has changed.
        let mut inside = vec![0; 1602];
        let slice = guest.memory.at(zerowire_guest::GuestAddr(place.0), 1602).expect("memory");
        slice.read(0, &mut inside);
        guest.expect_in(&[(place.0, 1602)], &inside);
        guest.check("around overlapping buffers");
        neighbour.ping();
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

#[test]
fn one_head_offered_again_and_again_harms_only_its_guest() {
    in_netns(|| {
        let (backend, peer, mut neighbour) = two_vms();
        let mut guest = Patterned::start(&backend, "bad", 0);
        let place = (DATA + 0x2000, 1530);
        let head = guest.post(&[place]);
        // More often than the ring has entries, without waiting for any to come back; never more at
        // once than it allows.
        for n in 0..400u32 {
            guest.rx.offer(head);
            guest.rx.kick().expect("a kick");
            peer.send(&frame(n, 64));
            if n % 60 == 59 {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        neighbour.ping();
        guest.transport.stop_queue(0).expect("stopped");
        let mut inside = vec![0; 1530];
        guest.memory.at(zerowire_guest::GuestAddr(place.0), 1530).expect("memory").read(0, &mut inside);
        guest.expect_in(&[place], &inside);
        guest.check("around the one buffer");
        neighbour.ping();
        assert_eq!(neighbour.record(&backend), UNHARMED);
    });
}

/// What the back end inspects goes out from private memory: with the metadata service the begin of
/// each frame, and with an offload its headers.
#[test]
fn what_goes_out_is_what_was_inspected_however_the_guest_changes_it() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let dir = tempfile::tempdir().expect("a directory");
        let backend = Backend::start(&[with_metadata(Vm::on("a", "xdp:v0,mode=copy"), dir.path())]);
        let mut peer = Peer::new("v1");
        for (payload, piece, partial) in
            [(1400, 1500, false), (400, 1, false), (1400, 1500, true), (1400, 1, true)]
        {
            changing_frame(&backend, "a", &mut peer, Shape { payload, piece, partial });
        }
    });
}
