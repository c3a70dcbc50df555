//! Many frames to an interface that takes and drops them (ifb): every place comes back. Needs root.

use zerowire::packet::{PacketOptions, PacketRing, PacketSocket, VnetHeader};
use zerowire::send::frame::FrameSender;
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, in_lab};

const FRAMES: u64 = 100_000;

fn send_all(sender: &mut dyn FrameSender) {
    let (mut pushed, mut back) = (0, 0);
    while pushed < FRAMES {
        let len = 60 + (pushed as usize * 7) % 1400;
        if sender.push(len, &mut |to| to.fill(pushed as u8)).expect("a good frame") {
            pushed += 1;
        } else {
            sender.flush().expect("handed over");
            back += sender.reap();
        }
    }
    sender.drain(PATIENCE).expect("all back");
    back += sender.reap();
    assert_eq!((back as u64, sender.outstanding()), (FRAMES, 0));
    assert_eq!(sender.counters().snapshot().frames, FRAMES);
}

/// Frames that the interface says it sent or dropped.
fn taken(interface: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").expect("counters");
    let line = text.lines().find(|l| l.trim_start().starts_with(interface)).expect("the interface");
    let (_, fields) = line.split_once(':').expect("fields");
    let fields: Vec<u64> = fields.split_whitespace().map(|f| f.parse().expect("a number")).collect();
    // What an ifb gets by transmit counts as received: packets, and drops.
    fields[1] + fields[3]
}

#[test]
fn all_places_come_back_from_a_sink() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        send_all(&mut PacketRing::open("ifb0", &PacketOptions::default()).expect("a ring"));
        let options = PacketOptions::default().slots(1000).bypass_queue(true);
        send_all(&mut PacketRing::open("ifb0", &options).expect("a ring"));
        assert!(taken("ifb0") >= 2 * FRAMES, "{}", taken("ifb0"));
    });
}

#[test]
fn the_copying_socket_sends_as_many() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        send_all(&mut PacketSocket::open("ifb0", &PacketOptions::default()).expect("a socket"));
    });
}

#[test]
fn loaded_frames_come_back_from_a_sink() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        let mut ring = PacketRing::open("ifb0", &PacketOptions::default().slots(101)).expect("a ring");
        for slot in 0..101 {
            ring.load(slot, &VnetHeader::NONE, &lab::frame(slot as u32, 60 + slot)).expect("loaded");
        }
        let mut sent = 0;
        while sent < FRAMES as usize {
            match ring.send_loaded(64.min(FRAMES as usize - sent)).expect("loaded") {
                0 => assert!(ring.wait(PATIENCE).expect("no error"), "a place comes back"),
                n => sent += n,
            }
            ring.flush().expect("handed over");
        }
        ring.drain(PATIENCE).expect("all back");
        assert_eq!(ring.reap(), FRAMES as usize);
        let totals = ring.counters().snapshot();
        assert_eq!((totals.frames, totals.zero_copied_frames), (FRAMES, FRAMES - 101));
    });
}

#[test]
fn large_frames_come_back_from_a_sink() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        lab.mtu("ifb0", 65_535);
        let mut ring = PacketRing::open("ifb0", &PacketOptions::default().slots(32)).expect("a ring");
        assert_eq!(ring.max_frame_bytes(), 65_549);
        for n in 0..2000u32 {
            while !ring.push(65_549, &mut |to| to[..1000].fill(n as u8)).expect("a good frame") {
                ring.flush().expect("handed over");
                assert!(ring.wait(PATIENCE).expect("no error"), "a place comes back");
            }
        }
        ring.drain(PATIENCE).expect("all back");
        assert_eq!(ring.reap(), 2000);
        assert_eq!(ring.counters().snapshot().zero_copied_bytes, 2000 * 65_549);
    });
}
