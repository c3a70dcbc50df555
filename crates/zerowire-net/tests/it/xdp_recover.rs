//! What goes wrong below an AF_XDP port, and that it goes on afterwards: interfaces that come back,
//! frames that wait, frames that are refused.

use std::time::Duration;

use crate::support::frames::frame;
use crate::support::pattern::{DATA, OnBackend as _, Patterned};
use crate::support::{Backend, PATIENCE, Peer, Vm, in_netns, options, wait_until};
use zerowire_guest::features as f;
use zerowire_guest::net::{Layout, NetOptions, RxMode, RxOptions, VirtioNetHdr};
use zerowire_net::offload::testing::Example;
use zerowire_net::{PathMode, Policy};
use zerowire_sys::xdp::{Socket, SocketOptions, Umem, UmemOptions};
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::{veth, veth_for_who_waits};
use zerowire_wire::vnet::Gso;

fn short_buffers(buffer_len: u32) -> NetOptions {
    let mode = RxMode::Mergeable { buffer_len };
    NetOptions { rx: Some(RxOptions { mode, indirect: false, buffers: 0 }), ..options(0, Layout::Single) }
}

/// The interface is deleted and made anew, with this MTU.
fn replace(backend: &Backend, mtu: usize) -> Peer {
    ip(&["link", "del", "v0"]);
    wait_until("the loss is noticed", || backend.stats("a").path.contains("not bound"));
    veth_for_who_waits("v0", "v1", 1, mtu);
    Peer::new("v1")
}

/// Nothing is sent, so that nothing but the kernel's word tells that the interface is gone.
#[test]
fn an_interface_that_is_deleted_and_comes_back_receives_again() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.warm_up(0, &Peer::new("v1"));
        for round in 0..3 {
            let mut peer = replace(&backend, 1500);
            guest.warm_up(0, &peer);
            for n in 0..600 {
                let bytes = frame(n, 60 + n as usize);
                peer.send(&bytes);
                assert!(guest.expect().1 == bytes, "round {round}, frame {n}");
            }
            guest.ping(&mut peer, round);
        }
        let stats = backend.stats("a");
        assert_eq!((stats.ring_errors, stats.receive.totals.dropped_total()), (0, 0));
        assert!(stats.path.contains("copy mode"), "{}", stats.path);
    });
}

#[test]
fn a_ring_that_starts_without_its_interface_waits_for_it() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        ip(&["link", "del", "v0"]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.send_plain(&[frame(1, 100)]);
        assert_eq!(backend.stats("a").transmit.totals.dropped_frames["port_refused"], 1);
        veth_for_who_waits("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        guest.warm_up(0, &peer);
        guest.ping(&mut peer, 2);
    });
}

/// The kernel lets go of a queue some time after its socket was closed.
#[test]
fn frames_wait_for_a_queue_that_another_socket_still_has() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let umem = Umem::new(1 << 20, UmemOptions::default(), false).expect("memory");
        let other = Socket::bind(&umem, &SocketOptions::new("v0")).expect("a free queue");
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        let all: Vec<_> = (0..50).map(|n| frame(n, 700)).collect();
        let mut peer = Peer::new("v1");
        std::thread::scope(|s| {
            s.spawn(|| {
                wait_until("the queue is found busy", || backend.stats("a").path.contains("not bound"));
                drop(other);
            });
            guest.send_plain(&all);
        });
        for want in &all {
            assert_eq!(peer.expect().bytes, *want);
        }
        let totals = backend.stats("a").transmit.totals;
        assert_eq!((totals.frames, totals.dropped_total()), (50, 0));
    });
}

/// Buffers that lay with the kernel for frames of 1518 bytes are too short for those that may come
/// now.
#[test]
fn an_interface_that_comes_back_with_longer_frames_loses_no_buffer() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let mut guest = backend.guest("a", &short_buffers(1536));
        guest.warm_up(0, &Peer::new("v1"));
        assert_eq!(backend.stats("a").receive.totals.copied_total(), 0);
        let peer = replace(&backend, 3000);
        guest.warm_up(0, &peer);
        // More frames than the ring has buffers, of both kinds.
        for n in 0..700 {
            let bytes = frame(n, if n % 2 == 0 { 3014 } else { 700 });
            peer.send(&bytes);
            assert!(guest.expect().1 == bytes, "frame {n}");
        }
        let totals = backend.stats("a").receive.totals;
        assert!(totals.copied_bytes.contains_key("bounce_small_buffer"), "{:?}", totals.copied_bytes);
        assert_eq!((totals.dropped_total(), backend.stats("a").ring_errors), (0, 0));
    });
}

/// Frames in private memory come to the guest with the buffers that they wait for, not with the
/// next frame.
#[test]
fn frames_that_wait_for_buffers_come_with_them() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let backend = Backend::start(&[Vm::on("a", "xdp:v0,mode=copy")]);
        let peer = Peer::new("v1");
        let mut guest = Patterned::start(&backend, "a", f::NET_MRG_RXBUF);
        // Three buffers make a frame.
        let place = |i: u64| (DATA + i * 0x400, 600);
        for i in 0..50 {
            guest.post(&[place(i)]);
        }
        // Until frames reach the guest.
        let mut warm = 0;
        while guest.used(Duration::from_millis(20)).is_none() {
            warm += 1;
            assert!(warm < 500, "no frame arrives");
            peer.send(&frame(0, 60));
        }
        while guest.used(Duration::from_millis(50)).is_some() {}
        let mut left = 50 - usize::from(guest.seen);
        let came = guest.seen;
        (0..30).for_each(|n| peer.send(&frame(n, 1500)));
        let whole = left / 3;
        for i in 0..3 * whole {
            assert!(guest.used(PATIENCE).is_some(), "piece {i} of {whole} frames: {:?}", backend.stats("a"));
        }
        left -= 3 * whole;
        assert!(guest.used(Duration::from_millis(50)).is_none(), "no room for the others");
        // Enough for all of them, a few at a time.
        let mut used = whole;
        let mut next = 50;
        while used < 30 {
            for _ in 0..40 - left {
                guest.post(&[place(next % 60)]);
                next += 1;
            }
            let more = (40 / 3).min(30 - used);
            for i in 0..3 * more {
                assert!(guest.used(PATIENCE).is_some(), "piece {i} of frames {used} to {}", used + more);
            }
            left = 40 - 3 * more;
            used += more;
        }
        assert_eq!(guest.seen - came, 90);
        assert_eq!(backend.stats("a").receive.totals.dropped_total(), 0);
    });
}

/// Whether they lie in the guest's memory, or were copied; and segments of long ones.
#[test]
fn frames_that_the_interface_refuses_are_counted_as_that_and_nothing_else() {
    for mode in [PathMode::Auto, PathMode::Copy] {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let policy = Policy::default().mode(mode);
            let backend = Backend::start(&[Vm { policy, ..Vm::on("a", "xdp:v0,mode=copy,offloads=on") }]);
            let mut peer = Peer::new("v1");
            let mut guest = backend.guest("a", &options(0, Layout::Single));
            guest.warm_up(0, &peer);
            guest.ping(&mut peer, 1);
            let before = backend.stats("a").transmit.totals;
            // Without a carrier each frame is dropped (net/core/dev.c, __dev_direct_xmit).
            ip(&["link", "set", "v1", "down"]);
            let all: Vec<_> = (0..100).map(|n| frame(n, 500)).collect();
            guest.send_plain(&all);
            // Ten segments.
            let e = Example {
                kind: Gso::TcpV4,
                v6: false,
                tags: 0,
                options: 0,
                flags: 0x10,
                payload: 10_000,
                seed: 1,
            };
            let mut header = [0; 12];
            header[..10].copy_from_slice(&e.header(1000));
            guest.send(0, &[(VirtioNetHdr::decode(&header), e.frame())]);
            let after = backend.stats("a").transmit.totals;
            assert_eq!((after.frames, after.dropped_frames.get("port_refused")), (before.frames, Some(&110)));
            assert_eq!((after.bytes, after.copied_bytes), (before.bytes, before.copied_bytes));
            ip(&["link", "set", "v1", "up"]);
            let mut peer = Peer::new("v1");
            wait_until("frames pass again", || {
                guest.send_plain(&all[..1]);
                peer.recv(Duration::from_millis(20)).is_some()
            });
            let sent = backend.stats("a").transmit.totals;
            guest.send_plain(&all[1..11]);
            let now = backend.stats("a").transmit.totals;
            assert_eq!((now.frames, now.bytes), (sent.frames + 10, sent.bytes + 10 * 512));
        });
    }
}

/// The kernel drops what lay in the ring as soon as the interface is up. It has no carrier yet: no
/// call for a frame succeeds.
#[test]
fn frames_are_sent_again_when_the_carrier_comes_after_the_interface() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let policy = Policy::default().mode(PathMode::Copy);
        let backend = Backend::start(&[Vm { policy, ..Vm::on("a", "xdp:v0,mode=copy") }]);
        let mut guest = backend.guest("a", &options(0, Layout::Single));
        guest.warm_up(0, &Peer::new("v1"));
        for round in 0..3 {
            ip(&["link", "set", "v0", "down"]);
            guest.send_plain(&[frame(1, 300)]);
            ip(&["link", "set", "v1", "down"]);
            let refused = || {
                backend.stats("a").transmit.totals.dropped_frames.get("port_refused").copied().unwrap_or(0)
            };
            let before = refused();
            ip(&["link", "set", "v0", "up"]);
            wait_until("the frame is refused", || refused() > before);
            ip(&["link", "set", "v1", "up"]);
            let mut peer = Peer::new("v1");
            guest.warm_up(0, &peer);
            let mut tries = 0;
            // The first ones may come before the carrier is there; none after that is lost.
            while peer.drain().is_empty() {
                tries += 1;
                assert!(tries < 200, "round {round}: nothing is sent: {:?}", backend.stats("a"));
                guest.send_plain(&[frame(tries, 100)]);
                std::thread::sleep(Duration::from_millis(5));
            }
            peer.drain();
            guest.ping(&mut peer, round);
        }
    });
}
