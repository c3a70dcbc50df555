//! What a packet ring and a packet socket push arrives at the other end of a veth pair, byte for
//! byte. The ledger says how. Needs root.

use std::time::Duration;

use zerowire::packet::{PacketOptions, PacketRing, PacketSocket, Version, VnetHeader};
use zerowire::send::frame::{FrameError, FrameSender};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, Capture, in_lab};

/// Pushes frames of every length from 14 to 1514, in batches, and compares what arrives.
fn every_length(sender: &mut dyn FrameSender, capture: &Capture) {
    assert_eq!(sender.max_frame_bytes(), 1514);
    let (mut pushed, mut back) = (0, 0);
    for len in 14..=1514usize {
        let frame = lab::frame(len as u32, len);
        let mut build = |to: &mut [u8]| {
            assert_eq!(to.len(), len);
            to.copy_from_slice(&frame);
        };
        while !sender.push(len, &mut build).expect("a good frame") {
            sender.flush().expect("handed over");
            back += sender.reap();
        }
        pushed += 1;
        // Batches of different lengths.
        if len % 37 == 0 {
            sender.flush().expect("handed over");
        }
    }
    sender.drain(PATIENCE).expect("all back");
    back += sender.reap();
    assert_eq!((back, sender.outstanding()), (pushed, 0));
    for len in 14..=1514usize {
        let got = capture.expect();
        assert!(got == lab::frame(len as u32, len), "frame of {len} bytes, got {}", got.len());
    }
    assert!(capture.rest().is_empty());
}

/// Bytes of all those frames.
const BYTES: u64 = (14 + 1514) * 1501 / 2;

#[test]
fn every_length_arrives_from_the_ring() {
    for version in [None, Some(Version::V3), Some(Version::V2)] {
        in_lab(move |lab| {
            lab.veth();
            let capture = lab.capture();
            let options = PacketOptions::default().slots(64).version(version);
            let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
            assert_eq!(ring.version(), version.unwrap_or(Version::V3));
            every_length(&mut ring, &capture);
            let totals = ring.counters().snapshot();
            assert_eq!((totals.frames, totals.zero_copied_frames), (1501, 1501));
            assert_eq!((totals.zero_copied_bytes, totals.copied_total()), (BYTES, 0));
            assert!(totals.system_calls < 300, "one call a batch: {}", totals.system_calls);
        });
    }
}

#[test]
fn every_length_arrives_past_the_queue() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let options = PacketOptions::default().bypass_queue(true);
        let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
        every_length(&mut ring, &capture);
    });
}

#[test]
fn every_length_arrives_from_the_socket() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let options = PacketOptions::default().slots(64);
        let mut socket = PacketSocket::open(lab::HERE, &options).expect("a socket");
        every_length(&mut socket, &capture);
        let totals = socket.counters().snapshot();
        assert_eq!((totals.frames, totals.zero_copied_bytes), (1501, 0));
        assert_eq!(totals.copied_bytes, [("asked", BYTES)].into());
        // And one at a time.
        let frame = lab::frame(7, 777);
        assert!(socket.send(&frame).expect("sent"));
        assert!(capture.expect() == frame);
    });
}

#[test]
fn every_length_arrives_with_offload_headers() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let options = PacketOptions::default().slots(64).offload(true);
        let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
        let mut socket = PacketSocket::open(lab::HERE, &options).expect("a socket");
        let mut n = 0;
        for len in (14..=1514usize).step_by(50) {
            for sender in [&mut ring as &mut dyn FrameSender, &mut socket] {
                n += 1;
                let frame = lab::frame(n, len);
                assert!(sender.push(len, &mut |to| to.copy_from_slice(&frame)).expect("pushed"));
                sender.drain(PATIENCE).expect("back");
                assert!(capture.expect() == frame, "{len}");
            }
        }
        let frame = lab::frame(7, 777);
        assert!(socket.send(&frame).expect("sent"));
        assert!(capture.expect() == frame);
    });
}

#[test]
fn copied_frames_are_counted_as_such() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &PacketOptions::default()).expect("a ring");
        let (a, b) = (lab::frame(1, 1000), lab::frame(2, 500));
        assert!(ring.push_copy(&a).expect("pushed"));
        assert!(ring.push(500, &mut |to| to.copy_from_slice(&b)).expect("pushed"));
        ring.drain(PATIENCE).expect("back");
        assert!(capture.expect() == a && capture.expect() == b);
        let totals = ring.counters().snapshot();
        assert_eq!((totals.frames, totals.zero_copied_frames, totals.zero_copied_bytes), (2, 1, 500));
        assert_eq!(totals.copied_bytes, [("outside", 1000)].into());
    });
}

#[test]
fn loaded_frames_go_round_in_the_order_of_their_places() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        // A prime number: the ring has exactly this many slots.
        let options = PacketOptions::default().slots(13);
        let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
        assert_eq!(ring.slots(), 13);
        let frames: Vec<_> = (0..13).map(|n| lab::frame(n, 60 + 100 * n as usize)).collect();
        for (slot, frame) in frames.iter().enumerate() {
            ring.load(slot, &VnetHeader::NONE, frame).expect("loaded");
        }
        let mut sent = 0;
        while sent < 100 {
            sent += ring.send_loaded(7.min(100 - sent)).expect("loaded frames");
            ring.flush().expect("handed over");
        }
        ring.drain(PATIENCE).expect("back");
        assert_eq!((ring.reap(), ring.next_slot()), (100, 100 % 13));
        for n in 0..100 {
            assert!(capture.expect() == frames[n % 13], "frame {n}");
        }
        let totals = ring.counters().snapshot();
        let once: usize = frames.iter().map(Vec::len).sum();
        assert_eq!(totals.copied_bytes, [("outside", once as u64)].into());
        assert_eq!((totals.frames, totals.zero_copied_frames), (100, 87));
        // A place without a frame stops there.
        let next = ring.next_slot();
        assert!(ring.push(60, &mut |to| to.copy_from_slice(&frames[0])).expect("pushed"));
        ring.drain(PATIENCE).expect("back");
        assert_eq!(ring.send_loaded(12).expect("the other twelve"), 12);
        match ring.send_loaded(1) {
            Err(FrameError::Slot { slot, slots: 13, .. }) => assert_eq!(slot, next),
            other => panic!("{other:?}"),
        }
        assert!(matches!(
            ring.load(13, &VnetHeader::NONE, &frames[0]),
            Err(FrameError::Slot { slot: 13, .. })
        ));
    });
}

#[test]
fn tagged_frames_may_be_longer_by_the_tag() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &PacketOptions::default()).expect("a ring");
        let mut tagged = lab::frame(1, 1514);
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        assert_eq!(tagged.len(), 1518);
        assert!(ring.push(1518, &mut |to| to.copy_from_slice(&tagged)).expect("pushed"));
        let plain = lab::frame(2, 1518);
        match ring.push(1518, &mut |to| to.copy_from_slice(&plain)) {
            Err(FrameError::LongerThanMtu { frame_bytes: 1518, mtu_bytes: 1500, number: 1, .. }) => {}
            other => panic!("{other:?}"),
        }
        ring.drain(PATIENCE).expect("back");
        // The peer's kernel takes the tag off and keeps it beside the frame.
        let got = capture.expect();
        assert!(got == tagged || got == lab::frame(1, 1514), "{} bytes", got.len());
        assert!(capture.next(Duration::ZERO).is_none());
    });
}

#[test]
fn frames_copied_at_once_arrive_and_are_counted() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        for offload in [false, true] {
            let options = PacketOptions::default().copy_up_to(1000).offload(offload);
            let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
            assert!(ring.path().contains("copied up to 1000 bytes"), "{}", ring.path());
            every_length(&mut ring, &capture);
            let totals = ring.counters().snapshot();
            let copied = (14 + 1000) * 987 / 2;
            assert_eq!(totals.copied_bytes.get("cheaper"), Some(&copied));
            assert_eq!((totals.zero_copied_bytes, totals.bytes), (BYTES - copied, BYTES));
            // A header is refused unless it was asked for.
            let pushed = ring.push_offload(&VnetHeader::checksum(34, 6), 100, &mut |to| to.fill(0));
            assert_eq!(pushed.is_ok(), offload, "{pushed:?}");
            ring.take_back();
        }
    });
}
