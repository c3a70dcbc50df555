//! Which frames of a queue a guest has, and which the host keeps.

use std::time::{Duration, Instant};

use crate::support::frames::{GUEST_MAC, frame, number};
use crate::support::{Backend, PATIENCE, Peer, Vm, in_netns, options};
use zerowire_guest::net::Layout;
use zerowire_testkit::net::veth::veth;

const GROUPS: [[u8; 6]; 2] = [[0xff; 6], [0x33, 0x33, 0, 0, 0, 1]];

/// Frame `n` to an address.
fn to(address: [u8; 6], n: u32, len: usize) -> Vec<u8> {
    let mut bytes = frame(n, len);
    bytes[..6].copy_from_slice(&address);
    bytes
}

#[test]
fn with_an_address_the_rest_is_the_hosts() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mac = GUEST_MAC.map(|b| format!("{b:02x}")).join(":");
        let backend = Backend::start(&[Vm::on("a", format!("xdp:v0,mode=copy,match=mac:{mac}"))]);
        let (peer, mut host) = (Peer::new("v1"), Peer::new("v0"));
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        // Until the guest's buffers are there all is the host's.
        let mut n = 0;
        while guest.recv(0, Duration::from_millis(20)).is_none() {
            peer.send(&to(GUEST_MAC, n, 64));
            n += 1;
            assert!(n < 500, "no frame arrives");
        }
        // Some of these may come late.
        let is_early = |frame: &[u8]| number(frame) < n && frame == to(GUEST_MAC, number(frame), 64);
        let other = [2, 0, 0, 0, 0, 9];
        for round in 0..50u32 {
            let first = 1000 + 10 * round;
            let frames = [to(other, first, 700), to(GUEST_MAC, first + 1, 700)];
            let groups = GROUPS.map(|g| to(g, first + 2, 60));
            frames.iter().chain(&groups).for_each(|f| peer.send(f));
            peer.send(&to(GUEST_MAC, first + 3, 1514));
            peer.send(&to(other, first + 4, 1514));
            for want in [&frames[1], &groups[0], &groups[1], &to(GUEST_MAC, first + 3, 1514)] {
                let mut came = std::iter::from_fn(|| guest.recv(0, PATIENCE)).map(|(_, frame)| frame);
                let got = came.find(|frame| !is_early(frame));
                let got = got.unwrap_or_else(|| panic!("frame {} never comes", number(want)));
                assert!(got == *want, "round {round}: came {}", number(&got));
            }
            for want in [&frames[0], &to(other, first + 4, 1514)] {
                let mut came = std::iter::from_fn(|| host.recv(PATIENCE)).map(|frame| frame.bytes);
                let got = came.find(|frame| !is_early(frame));
                assert!(got.as_ref() == Some(want), "round {round}: not the host's");
            }
        }
        assert!(guest.recv(0, Duration::from_millis(50)).is_none());
        assert!(host.recv(Duration::from_millis(50)).is_none());
        // A ring that stops leaves all to the host.
        drop(guest);
        crate::support::wait_until("the connection has ended", || !backend.stats("a").connected);
        peer.send(&to(GUEST_MAC, 9, 200));
        assert_eq!(host.expect().bytes, to(GUEST_MAC, 9, 200));
    });
}

#[test]
fn two_guests_on_two_queues_have_rules_of_their_own() {
    in_netns(|| {
        veth("v0", "v1", 2, 1500);
        let there = Backend::start(&[
            Vm::on("a", "xdp:v0,queue=0,mode=copy"),
            Vm::on("b", "xdp:v0,queue=1,mode=copy,match=mac:02:00:00:00:00:77"),
        ]);
        let peer = Peer::new("v1");
        let mut host = Peer::new("v0");
        let mut guests = ["a", "b"].map(|vm| there.guest(vm, &options(0, Layout::Single)));
        // Frames of many flows to one address, which the kernel spreads over the queues.
        let flows = |address: [u8; 6]| {
            (0..64u8).map(move |i| {
                let mut f = crate::support::frames::udp_frame([10, 0, 0, i], &[i; 64]);
                f[..6].copy_from_slice(&address);
                f[34] = i;
                f
            })
        };
        let [a, b] = &mut guests;
        let b_mac = [2, 0, 0, 0, 0, 0x77];
        let (mut ready, mut tries) = ([false; 2], 0);
        while ready != [true; 2] {
            tries += 1;
            assert!(tries < 200, "frames reach {ready:?}");
            flows(b_mac).for_each(|f| peer.send(&f));
            ready[0] |= a.recv(0, Duration::from_millis(20)).is_some();
            ready[1] |= b.recv(0, Duration::from_millis(20)).is_some();
        }
        let other = [2, 0, 0, 0, 0, 9];
        flows(other).for_each(|f| peer.send(&f));
        let (begin, mut of_a, mut of_host) = (Instant::now(), 0, 0);
        // Those for b may come late, and are for whoever has their queue.
        while of_a + of_host < 64 {
            if let Some((_, frame)) = a.recv(0, Duration::from_millis(20)) {
                of_a += usize::from(frame[..6] == other);
            } else if let Some(frame) = host.recv(Duration::from_millis(20)) {
                assert!([other, b_mac].iter().any(|address| frame.bytes[..6] == *address));
                of_host += usize::from(frame.bytes[..6] == other);
            }
            assert!(begin.elapsed() < PATIENCE, "{of_a} for the guest, {of_host} for the host");
        }
        assert!(of_a > 0 && of_host > 0, "{of_a} for the guest, {of_host} for the host");
        while let Some((_, frame)) = b.recv(0, Duration::from_millis(20)) {
            assert!(frame[..6] == b_mac, "not its address");
        }
    });
}
