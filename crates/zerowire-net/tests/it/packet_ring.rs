//! The transmit ring of a packet port: which frames it takes, and what happens to those that it
//! holds when something ends.

use std::time::Duration;

use crate::support::frames::{self, TCP_HEADERS, frame, number};
use crate::support::{Backend, Guest, PATIENCE, Peer, Vm, in_netns, options, tso, wait_until};
use zerowire_guest::Transport;
use zerowire_guest::net::header::{GSO_TCPV4, GSO_UDP_L4};
use zerowire_guest::net::{Layout, VirtioNetHdr};
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::net::{ip, run};

const RING: &str = "packet:v0,rings=on";

/// The length of the headers is a hint of the driver's (virtio 1.3 §5.1.6.2): Linux gives what lies
/// in the first piece of a frame.
#[test]
fn the_drivers_hint_of_the_headers_length_decides_nothing() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        for port in [RING, "packet:v0,rings=off"] {
            let backend = Backend::start(&[Vm::on("a", port)]);
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            let before = backend.stats("a").transmit.totals;
            let tcp = |hdr_len, gso_size| VirtioNetHdr { hdr_len, gso_size, ..tso() };
            let mut sent = 0;
            for hdr_len in [0, 1, 34, 53, 54, 55, 66, 128, 1000, 4054] {
                // The longest segments that the MTU lets pass, without and with 12 bytes of TCP
                // options.
                let mut with_options = frames::tcp_frame(sent, 4000);
                with_options[34 + 12] = 0x80;
                let plain = frames::tcp_frame(sent, 4000);
                for (size, bytes) in [(1460, plain), (1448, with_options)] {
                    guest.send(0, &[(tcp(hdr_len, size), bytes.clone())]);
                    let got = peer.expect();
                    assert!(got.bytes == bytes, "{port}: hdr_len {hdr_len}");
                    assert_eq!(got.gso_type(), GSO_TCPV4);
                    // A byte more and they are longer than the MTU.
                    guest.send(0, &[(tcp(hdr_len, size + 1), bytes)]);
                    sent += 1;
                }
                let mut udp = frames::udp_frame([10, 0, 0, 1], &[7; 5000]);
                let pseudo = [&udp[26..34], &[0, 17], &5008u16.to_be_bytes()].concat();
                let sum = frames::sum(&pseudo, 0).to_be_bytes();
                udp[40..42].copy_from_slice(&sum);
                let header = VirtioNetHdr { gso_type: GSO_UDP_L4, csum_offset: 6, ..tcp(hdr_len, 1472) };
                guest.send(0, &[(header, udp.clone())]);
                assert!(peer.expect().bytes == udp, "{port}: hdr_len {hdr_len}");
                sent += 1;
            }
            let after = backend.stats("a").transmit.totals;
            assert_eq!(after.frames - before.frames, u64::from(sent), "{port}");
            assert_eq!(
                after.dropped_frames.iter().map(|(k, n)| (*k, *n)).collect::<Vec<_>>(),
                [("too_long", 20)]
            );
            if port == RING {
                // None of them went beside the ring.
                assert_eq!(after.copied_bytes.keys().collect::<Vec<_>>(), [&"outside"]);
            }
            assert!(TCP_HEADERS == 54 && peer.drain().is_empty());
        }
    });
}

/// A queue of the interface that takes few frames and lets them go slowly.
fn slow(interface: &str) {
    let queue = ["root", "tbf", "rate", "1mbit", "burst", "3000", "limit", "4000"];
    run("tc", &[&["qdisc", "add", "dev", interface][..], &queue].concat());
}

fn dropped(backend: &Backend) -> u64 {
    backend.stats("a").transmit.totals.dropped_total()
}

/// Has the guest send frames that the interface's queue has no room for yet, so that they wait in
/// the ring.
fn fill(backend: &Backend, guest: &mut Guest) -> Vec<Vec<u8>> {
    let all: Vec<_> = (0..30).map(|n| frame(n, 1500)).collect();
    guest.send_plain(&all);
    assert_eq!(backend.stats("a").transmit.totals.frames, 30);
    all
}

fn arrived(peer: &mut Peer) -> u64 {
    let mut count = 0;
    let mut last = None;
    while let Some(f) = peer.recv(Duration::from_millis(500)) {
        let n = number(&f.bytes);
        assert!(last.is_none_or(|l| n > l), "{n} after {last:?}");
        last = Some(n);
        count += 1;
    }
    count
}

#[test]
fn frames_in_the_ring_of_a_guest_that_goes_are_sent_or_counted() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        slow("v0");
        let mut peer = Peer::new("v1");
        let backend = Backend::start(&[Vm::on("a", RING)]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        let all = fill(&backend, &mut guest);
        drop(guest);
        wait_until("the connection has ended", || !backend.stats("a").connected);
        wait_until("frames that the queue had no room for are counted", || dropped(&backend) > 0);
        let lost = dropped(&backend);
        assert_eq!(arrived(&mut peer) + lost, all.len() as u64);
        assert_eq!(backend.stats("a").transmit.totals.dropped_frames["port_refused"], lost);
    });
}

#[test]
fn frames_in_the_ring_go_out_when_the_guests_own_ring_is_stopped_or_disabled() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        slow("v0");
        let mut peer = Peer::new("v1");
        for stopped in [true, false] {
            let backend = Backend::start(&[Vm::on("a", RING)]);
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            let all = fill(&backend, &mut guest);
            match stopped {
                true => guest.driver.stop().expect("stopped"),
                false => guest.driver.transport().enable_queue(1, false).expect("disabled"),
            }
            for want in &all {
                assert!(peer.expect().bytes == *want);
            }
            assert_eq!(dropped(&backend), 0);
        }
    });
}

/// The worker's connection goes by the interface that it was bound to, whatever that is called now.
#[test]
fn frames_and_announcements_follow_an_interface_that_is_renamed() {
    in_netns(|| {
        for port in [RING, "packet:v0,rings=off"] {
            veth("v0", "v1", 1, 1500);
            let backend = Backend::start(&[Vm::on("a", port)]);
            let mut peer = Peer::new("v1");
            // The ring is opened when the interface is up, and that is under another name.
            ip(&["link", "set", "v0", "down"]);
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            wait_until("the interface is down", || backend.stats("a").path.contains("which is down"));
            ip(&["link", "set", "v0", "name", "other"]);
            veth("v0", "v2", 1, 1500);
            let mut stranger = Peer::new("v2");
            ip(&["link", "set", "other", "up"]);
            wait_until("the interface is up", || backend.stats("a").path.contains("sendmmsg"));
            guest.ping(&mut peer, 1);
            guest.driver.transport().send_rarp(frames::GUEST_MAC).expect("sent");
            let announced = peer.recv(PATIENCE).expect("an announcement").bytes;
            assert_eq!(announced[12..14], [0x80, 0x35]);
            assert!(stranger.drain().is_empty(), "nothing goes to the interface that has the name now");
            // Neither does anything come from there.
            stranger.send(&frame(9, 100));
            stranger.send(&frame(9, 100));
            guest.ping(&mut peer, 2);
            if port == RING {
                assert_eq!(
                    backend.stats("a").transmit.totals.copied_bytes.keys().collect::<Vec<_>>(),
                    [&"outside"]
                );
            }
            // Another connection goes by the name again, announcements as well as frames.
            drop(guest);
            wait_until("the connection has ended", || !backend.stats("a").connected);
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            guest.ping(&mut stranger, 3);
            guest.driver.transport().send_rarp(frames::GUEST_MAC).expect("sent");
            assert_eq!(stranger.recv(PATIENCE).expect("an announcement").bytes[12..14], [0x80, 0x35]);
            assert!(peer.drain().is_empty());
            drop((guest, backend, stranger, peer));
            ip(&["link", "del", "other"]);
            ip(&["link", "del", "v0"]);
        }
    });
}
