//! In which order chains of the transmit ring come back while the driver is late with frames.
//! Without an in-flight region the used index alone tells the next process which are out: all from
//! that index on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::support::frames::{EXPERIMENT, frame, number};
use crate::support::pair::{HEADER, Pair, SIZE, after_a_crash, block, call, is_called, shape};
use crate::support::{Peer, in_netns, wait_until};
use zerowire_net::port::xdp::XdpOutlet;
use zerowire_net::transmit::{Detour, TransmitContext};
use zerowire_net::{PathMode, Transmit};
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::{slow_peer, veth};
use zerowire_vhost::ring::inflight::{InflightRegion, Tracker};

/// Frames of this length are lent.
const LONG: usize = 1000;
/// Frames of this length are inspected whole, so they are copied, and their chains done at once.
const SHORT: usize = 100;
/// Long frames of which some stay behind [`block`].
const BURST: u32 = 8;

/// The back end inspects frames, and takes none for the service.
struct Nothing;

impl Detour for Nothing {
    fn wants(&self, _start: &[u8]) -> bool {
        false
    }

    fn take(&mut self, frame: &[u8]) {
        panic!("a frame of {} bytes", frame.len());
    }
}

fn transmit(side: &mut Transmit<XdpOutlet>, pair: &mut Pair) {
    let (memory, counters) = (&*pair.memory, &pair.counters);
    let mut cx = TransmitContext { memory, counters, detour: Some(&mut Nothing), guard: None };
    side.run(&mut pair.link, &mut cx).expect("a sound ring");
}

/// An interface whose kernel lends pages to nobody: its frames are copied when they are taken from
/// the ring. They stay in `w0`.
fn slow_veth() -> Peer {
    veth("v0", "v1", 1, 1500);
    let peer = slow_peer("v1", "w0", "w1");
    block();
    peer
}

/// Another kind of interface, of which nothing is known. Its frames stay in `w0`, too.
fn slow_other() -> Peer {
    veth("w0", "w1", 1, 1500);
    ip(&["link", "add", "link", "w0", "name", "m0", "type", "macvlan", "mode", "bridge"]);
    ip(&["link", "set", "m0", "up"]);
    wait_until("frames pass", || {
        let mut far = Peer::new("w1");
        Peer::new("m0").send(&frame(0, 60));
        far.recv(Duration::from_millis(5)).is_some()
    });
    block();
    Peer::new("w1")
}

fn unblock() {
    shape(&["del", "dev", "w0", "root"]);
}

/// Heads up to this one, in order.
fn first(n: u32) -> Vec<u32> {
    (0..n).collect()
}

/// The frames of this test that reach the other end; the bridge has some of its own to say.
fn next(peer: &mut Peer) -> Vec<u8> {
    loop {
        let got = peer.expect().bytes;
        if got[12..14] == EXPERIMENT {
            return got;
        }
    }
}

#[test]
fn on_a_veth_chains_come_back_in_order_whatever_becomes_of_their_frames() {
    in_netns(|| {
        let mut peer = slow_veth();
        let mut pair = Pair::new(false);
        let mut side = pair.transmit(pair.device(), PathMode::Auto);
        // More than the kernel keeps for a socket, so that it stops to take frames in the end.
        let all: Vec<_> =
            (0..u32::from(SIZE)).map(|n| frame(n, if n % 3 == 2 { SHORT } else { LONG })).collect();
        for bytes in &all {
            pair.send(&[0; HEADER], bytes);
            transmit(&mut side, &mut pair);
            let heads = pair.heads();
            assert_eq!(heads, first(heads.len() as u32));
        }
        let back = pair.heads().len();
        assert!(back > BURST as usize && back < all.len(), "{back} chains are back");
        // They are the guest's again.
        for head in 0..back as u16 {
            pair.lab.write(pair.place(head), &[0xee; HEADER + LONG]);
        }
        shape(&["change", "dev", "w0", "root", "tbf", "rate", "1gbit", "burst", "3000", "limit", "10000000"]);
        // The kernel looks at the queue again with the next frame that comes to it: one that is
        // nobody's.
        let mut other = frame(0, 60);
        other[12] ^= 1;
        Peer::new("w0").send(&other);
        // Frames that the kernel passes on on two CPUs may pass each other in its backlogs.
        let mut missing: BTreeSet<usize> = (0..all.len()).collect();
        wait_until("all chains are back, and all frames arrive as they were", || {
            transmit(&mut side, &mut pair);
            while let Some(got) = peer.recv(Duration::ZERO).map(|f| f.bytes) {
                if got[12..14] == EXPERIMENT {
                    let n = number(&got) as usize;
                    assert!(missing.remove(&n), "frame {n} comes twice, or is none");
                    assert!(got == all[n], "frame {n} is not what was sent");
                }
            }
            pair.heads().len() == all.len() && missing.is_empty()
        });
        assert_eq!((pair.heads(), pair.out_of_order()), (first(all.len() as u32), 0));
        let totals = pair.totals();
        assert_eq!((totals.frames, totals.dropped_total()), (all.len() as u64, 0));
        assert!(totals.zero_copied_frames > 0 && totals.copied_bytes.contains_key("small"), "{totals:?}");
        side.release(&mut pair.link, &pair.counters);
    });
}

/// Where a driver reads the guest's memory until it has sent.
#[test]
fn chains_that_wait_too_long_pass_and_nothing_is_lent_until_those_before_them_are_back() {
    in_netns(|| {
        let mut peer = slow_other();
        let mut pair = Pair::on("m0", false);
        let mut side = pair.transmit(pair.device(), PathMode::Auto);
        for n in 0..BURST {
            pair.send(&[0; HEADER], &frame(n, LONG));
        }
        pair.send(&[0; HEADER], &frame(BURST, SHORT));
        wait_until("the short one passes the long ones", || {
            transmit(&mut side, &mut pair);
            pair.heads().contains(&BURST)
        });
        let heads = pair.heads();
        assert!(heads.len() <= BURST as usize, "{heads:?} are back, and none is held");
        assert_eq!(heads[..heads.len() - 1], first(heads.len() as u32 - 1), "all others are in order");
        assert_eq!(pair.out_of_order(), 1);
        pair.send(&[0; HEADER], &frame(BURST + 1, LONG));
        wait_until("the next one is not held up", || {
            transmit(&mut side, &mut pair);
            pair.heads().contains(&(BURST + 1))
        });
        let lent = u64::from(BURST);
        assert_eq!(pair.totals().copied_bytes["held"], (HEADER + LONG) as u64);
        unblock();
        wait_until("all are back", || {
            transmit(&mut side, &mut pair);
            pair.heads().len() == BURST as usize + 2
        });
        let mut heads = pair.heads();
        heads.sort_unstable();
        assert_eq!(heads, first(BURST + 2), "each once");
        assert_eq!((pair.totals().frames, pair.totals().zero_copied_frames), (lent + 2, lent));
        // As before.
        while peer.recv(Duration::from_millis(50)).is_some() {}
        pair.send(&[0; HEADER], &frame(BURST + 2, LONG));
        wait_until("one that is lent is back", || {
            transmit(&mut side, &mut pair);
            pair.heads().len() == BURST as usize + 3
        });
        assert_eq!(next(&mut peer), frame(BURST + 2, LONG));
        assert_eq!(pair.totals().zero_copied_frames, lent + 1);
        side.release(&mut pair.link, &pair.counters);
    });
}

/// The control: who keeps a region has chains back as soon as they are done.
#[test]
fn with_an_in_flight_region_chains_come_back_when_they_are_done() {
    for on_veth in [true, false] {
        in_netns(move || {
            let _peer = if on_veth { slow_veth() } else { slow_other() };
            let mut pair = Pair::on(if on_veth { "v0" } else { "m0" }, false);
            let (region, file) = InflightRegion::create(1, SIZE).expect("a region");
            let mut ring = pair.device();
            let tracker = Tracker::new(&Arc::new(region), 0).expect("a place");
            ring.track(Box::new(tracker)).expect("a new region");
            let mut side = pair.transmit(ring, PathMode::Auto);
            for n in 0..BURST {
                pair.send(&[0; HEADER], &frame(n, LONG));
            }
            pair.send(&[0; HEADER], &frame(BURST, SHORT));
            transmit(&mut side, &mut pair);
            let heads = pair.heads();
            assert!(heads.contains(&BURST), "it is done: {heads:?}");
            assert!(!heads.contains(&(BURST - 1)), "it is held, and lent: {heads:?}");
            assert_eq!(pair.out_of_order(), 0);
            let out = BURST as usize + 1 - heads.len();
            assert_eq!(after_a_crash(&pair, &file), (0, out), "those that are out are known");
            side.abandon(&mut pair.link, &pair.counters);
        });
    }
}

/// Frames that wait in the ring for the interface hold up those that are dropped for a while only.
#[test]
fn an_interface_that_is_down_holds_up_nobody() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut pair = Pair::new(false);
        let mut side = pair.transmit(pair.device(), PathMode::Auto);
        ip(&["link", "set", "v0", "down"]);
        pair.send(&[0; HEADER], &frame(0, LONG));
        transmit(&mut side, &mut pair);
        assert_eq!(pair.heads(), first(0));
        pair.send(&[0; HEADER], &frame(1, LONG));
        wait_until("the second one is given back", || {
            transmit(&mut side, &mut pair);
            !pair.heads().is_empty()
        });
        assert_eq!((pair.heads(), pair.out_of_order()), (vec![1], 1));
        assert!(pair.link.sleep_at_most().is_none_or(|nap| !nap.is_zero()), "nothing is due");
        ip(&["link", "set", "v0", "up"]);
        let mut peer = Peer::new("v1");
        wait_until("the first one is, too", || {
            transmit(&mut side, &mut pair);
            pair.heads().len() == 2
        });
        assert_eq!((next(&mut peer), pair.heads()), (frame(0, LONG), vec![1, 0]));
        side.release(&mut pair.link, &pair.counters);
    });
}

/// A guest that goes on making chains available without having any back.
#[test]
fn no_more_chains_wait_than_the_ring_has_entries() {
    in_netns(|| {
        let _peer = slow_veth();
        let mut pair = Pair::new(false);
        let mut side = pair.transmit(pair.device(), PathMode::Auto);
        for n in 0..u32::from(SIZE) {
            pair.send(&[0; HEADER], &frame(n, LONG));
            transmit(&mut side, &mut pair);
        }
        let back = pair.driver.used_idx();
        assert!(back < SIZE, "the kernel takes no more");
        // Too short for a frame.
        pair.driver.write_desc(0, pair.place(0), 10, 0, 0);
        for n in 0..20 * SIZE {
            let next = side.host_mut().ring.next_avail();
            pair.driver.write_avail(next, 0);
            pair.driver.publish_avail_idx(next.wrapping_add(1));
            transmit(&mut side, &mut pair);
            let out = side.host_mut().ring.next_avail().wrapping_sub(pair.driver.used_idx());
            assert!(out <= SIZE, "{out} are out after {n}");
        }
        side.abandon(&mut pair.link, &pair.counters);
    });
}

#[test]
fn all_chains_are_back_when_the_ring_stops() {
    for on_veth in [true, false] {
        in_netns(move || {
            let _peer = if on_veth { slow_veth() } else { slow_other() };
            let mut pair = Pair::on(if on_veth { "v0" } else { "m0" }, false);
            let mut side = pair.transmit(pair.device(), PathMode::Auto);
            for n in 0..2 * BURST {
                pair.send(&[0; HEADER], &frame(n, if n % 2 == 0 { LONG } else { SHORT }));
            }
            transmit(&mut side, &mut pair);
            let (driver, before) = (call(side.host_mut()), pair.used().len());
            side.release(&mut pair.link, &pair.counters);
            assert_eq!((is_called(&driver), pair.used().len() > before), (!on_veth, !on_veth));
            let mut heads = pair.heads();
            if pair.out_of_order() > 0 {
                heads.sort_unstable();
            }
            assert_eq!(heads, first(2 * BURST));
            assert_eq!(u32::from(side.host_mut().ring.next_avail()), 2 * BURST);
        });
    }
}
