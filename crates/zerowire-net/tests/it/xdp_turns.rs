//! Both sides of a queue pair on an AF_XDP socket turn by turn, without a server: what is between
//! two turns can be said exactly.

use std::sync::Arc;

use crate::support::frames::frame;
use crate::support::pair::{
    HEADER, LONG, Pair, SIZE, after_a_crash, block, call, is_called, receive, release, shape, transmit,
};
use crate::support::{Peer, in_netns, wait_until};
use zerowire::ledger::Totals;
use zerowire_net::PathMode;
use zerowire_net::offload::testing::Example;
use zerowire_testkit::net::ip;
use zerowire_testkit::net::veth::{slow_peer, veth};
use zerowire_vhost::ring::inflight::{InflightRegion, Tracker};
use zerowire_wire::vnet::Gso;

/// A buffer is kept for a frame of the slab that turns out to be longer.
#[test]
fn a_frame_that_waits_gets_the_next_buffers_whatever_their_length() {
    in_netns(|| {
        veth("v0", "v1", 1, 3000);
        let peer = Peer::new("v1");
        let mut pair = Pair::new(true);
        let mut side = pair.receive();
        pair.post(&[1536]);
        receive(&mut side, &mut pair);
        peer.send(&frame(1, 2500));
        pair.wait_for_frame();
        receive(&mut side, &mut pair);
        assert_eq!(pair.used(), []);
        pair.post(&[4096, 4096, 4096]);
        receive(&mut side, &mut pair);
        let rest = HEADER as u32 + 2500 - 1536;
        assert_eq!(pair.used(), [(0, 1536), (1, rest)]);
        let got =
            [pair.lab.bytes(pair.place(0), 1536), pair.lab.bytes(pair.place(1), rest as usize)].concat();
        assert_eq!((got[10], got[HEADER..] == frame(1, 2500)), (2, true));
        // The others are with the kernel.
        for n in [2, 3] {
            peer.send(&frame(n, 2500));
            pair.wait_for_frame();
            receive(&mut side, &mut pair);
            assert_eq!(pair.used()[n as usize..], [(n, 2512)]);
        }
        let totals = pair.totals();
        assert_eq!((totals.frames, totals.zero_copied_frames, totals.dropped_total()), (3, 2, 0));
        release(&mut side, &mut pair);
    });
}

#[test]
fn frames_that_came_before_a_stop_reach_the_buffers_that_are_kept() {
    // One buffer is too few.
    for (buffers, used) in [(3, vec![(0, 700), (1, 312)]), (1, vec![])] {
        in_netns(move || {
            veth("v0", "v1", 1, 1500);
            let peer = Peer::new("v1");
            let mut pair = Pair::new(true);
            let mut side = pair.receive();
            pair.post(&vec![700; buffers]);
            receive(&mut side, &mut pair);
            peer.send(&frame(1, 1000));
            pair.wait_for_frame();
            let driver = call(side.host_mut());
            release(&mut side, &mut pair);
            assert_eq!(pair.used(), used);
            // A driver that is not told would wait for ever: the ring may go on elsewhere, where
            // nobody knows of it.
            assert_eq!(is_called(&driver), !used.is_empty());
            assert_eq!(usize::from(side.host_mut().ring.next_avail()), used.len(), "the others are put back");
            let totals = pair.totals();
            let came = u64::from(!used.is_empty());
            assert_eq!((totals.frames, totals.dropped_total()), (came, 1 - came), "{totals:?}");
        });
    }
}

/// Of a long frame that finds all places taken nothing is sent in its first turn.
#[test]
fn a_long_frame_is_marked_and_counted_in_the_turn_in_which_it_begins_to_go_out() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let _peer = slow_peer("v1", "w0", "w1");
        block();
        let mut pair = Pair::new(false);
        let (region, file) = InflightRegion::create(1, SIZE).expect("a region");
        let mut ring = pair.device();
        let tracker = Tracker::new(&Arc::new(region), 0).expect("a place");
        ring.track(Box::new(tracker)).expect("a new region");
        let mut side = pair.transmit(ring, PathMode::Copy);
        let mut plain = 0;
        while usize::from(pair.offered) == pair.used().len() {
            assert!(pair.offered < SIZE, "places are never all taken");
            // Short ones, of which the kernel takes more at once than there are places.
            pair.send(&[0; HEADER], &frame(plain, 60));
            transmit(&mut side, &mut pair);
            plain += 1;
        }
        // The frame that waits is a long one now, of more pieces than there are places.
        let example = Example {
            kind: Gso::TcpV4,
            v6: false,
            tags: 0,
            options: 0,
            flags: 0x10,
            payload: 64_000,
            seed: 1,
        };
        let mut header = [0; HEADER];
        header[..10].copy_from_slice(&example.header(210));
        let (before, head) = (pair.totals(), pair.offered - 1);
        pair.write(head, LONG, &header, &example.frame());
        transmit(&mut side, &mut pair);
        assert_eq!(pair.totals(), Totals { system_calls: pair.totals().system_calls, ..before });
        shape(&["del", "dev", "w0", "root"]);
        wait_until("it begins to go out", || transmit(&mut side, &mut pair) > 0);
        assert_eq!(pair.used().len(), usize::from(head), "it is under way");
        assert_eq!(pair.totals().copied_bytes["header"], HEADER as u64);
        assert_eq!(after_a_crash(&pair, &file), (0, 1), "part of it went out");
        side.abandon(&mut pair.link, &pair.counters);
    });
}

#[test]
fn a_ring_that_discards_still_sends_what_it_had_queued() {
    in_netns(|| {
        veth("v0", "v1", 1, 1500);
        let mut pair = Pair::new(false);
        let mut side = pair.transmit(pair.device(), PathMode::Auto);
        ip(&["link", "set", "v0", "down"]);
        let sent = frame(1, 700);
        pair.send(&[0; HEADER], &sent);
        transmit(&mut side, &mut pair);
        assert_eq!(pair.used(), [], "the frame waits for its interface");
        ip(&["link", "set", "v0", "up"]);
        let mut peer = Peer::new("v1");
        pair.send(&[0; HEADER], &frame(2, 700));
        wait_until("both are back", || {
            side.discard(&mut pair.link, &pair.counters).expect("a sound ring");
            pair.used().len() == 2
        });
        assert_eq!(peer.expect().bytes, sent);
        assert!(peer.recv(std::time::Duration::from_millis(50)).is_none(), "the other one was discarded");
        let totals = pair.totals();
        assert_eq!((totals.frames, totals.dropped_frames["port_refused"]), (1, 1));
    });
}
