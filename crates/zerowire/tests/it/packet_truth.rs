//! Which bytes really go out: frames are held in a queue behind the sender, their memory is changed
//! after the call, and the peer looks. New bytes: the frame was not copied. The ledger must say the
//! same. Needs root.

use zerowire::packet::{PacketOptions, PacketRing, PacketSocket, Version, VnetHeader};
use zerowire::send::frame::FrameSender;
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, in_lab};

/// Where the change begins: behind the head of the frame, which the kernel copies.
const AT: usize = 200;

fn changed(frame: &[u8]) -> Vec<u8> {
    let mut changed = frame.to_vec();
    changed[AT..].fill(0xee);
    changed
}

#[test]
fn the_ring_sends_what_is_in_its_slots_when_the_frame_leaves() {
    for version in [Version::V3, Version::V2] {
        in_lab(move |lab| {
            lab.veth();
            let capture = lab.capture();
            let options = PacketOptions::default().slots(16).version(Some(version));
            let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
            lab.hold(lab::HERE);
            for n in 0..5 {
                let frame = lab::frame(n, 1400);
                assert!(ring.push(1400, &mut |to| to.copy_from_slice(&frame)).expect("pushed"));
            }
            ring.flush().expect("handed over");
            assert_eq!((ring.reap(), ring.outstanding()), (0, 5), "all five are held");
            for slot in 0..5 {
                ring.scribble(slot, AT, &[0xee; 1400 - AT]);
            }
            lab.release(lab::HERE);
            ring.drain(PATIENCE).expect("back");
            for n in 0..5 {
                assert!(capture.expect() == changed(&lab::frame(n, 1400)), "new bytes: it was not copied");
            }
            let totals = ring.counters().snapshot();
            assert_eq!((totals.zero_copied_bytes, totals.copied_total()), (7000, 0));
        });
    }
}

#[test]
fn large_offloaded_frames_are_not_copied_either() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let options = PacketOptions::default().slots(4).offload(true);
        let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
        let payload = lab::pattern(1, 50_000);
        // UDP to nobody over IPv4, cut into datagrams of 1400 bytes.
        let mut frame = [&lab::NOBODY_MAC[..], &lab::HERE_MAC, &[8, 0, 0x45, 0]].concat();
        frame.extend((50_028u16).to_be_bytes());
        frame.extend([0, 1, 0, 0, 64, 17, 0, 0, 10, 77, 0, 1, 10, 77, 0, 9, 0x30, 0x39, 0, 9]);
        frame.extend((50_008u16).to_be_bytes());
        frame.extend([0, 0]);
        frame.extend_from_slice(&payload);
        let header = VnetHeader::prepare(&mut frame, Some(1400)).expect("a good frame");
        // A queue that would cut the frame would have to copy it: let it take the frame whole.
        lab.mtu(lab::HERE, 65_535);
        lab.hold_long(lab::HERE, 65_549);
        assert!(
            ring.push_offload(&header, frame.len(), &mut |to| to.copy_from_slice(&frame)).expect("pushed")
        );
        ring.flush().expect("handed over");
        assert_eq!(ring.reap(), 0, "held");
        ring.scribble(0, AT, &vec![0xee; frame.len() - AT]);
        lab.release(lab::HERE);
        ring.drain(PATIENCE).expect("back");
        assert!(capture.expect() == changed(&frame), "new bytes: it was not copied");
        let totals = ring.counters().snapshot();
        assert_eq!((totals.zero_copied_bytes, totals.copied_total()), (frame.len() as u64, 0));
    });
}

#[test]
fn the_copying_socket_sends_what_was_there_at_the_call() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut socket =
            PacketSocket::open(lab::HERE, &PacketOptions::default().slots(16)).expect("a socket");
        lab.hold(lab::HERE);
        for n in 0..5 {
            let frame = lab::frame(n, 1400);
            assert!(socket.push(1400, &mut |to| to.copy_from_slice(&frame)).expect("pushed"));
        }
        socket.flush().expect("taken");
        assert_eq!((socket.reap(), socket.outstanding()), (5, 0), "all five are back at once");
        for slot in 0..5 {
            socket.scribble(slot, AT, &[0xee; 1400 - AT]);
        }
        lab.release(lab::HERE);
        for n in 0..5 {
            assert!(capture.expect() == lab::frame(n, 1400), "old bytes: it was copied");
        }
        let totals = socket.counters().snapshot();
        assert_eq!((totals.zero_copied_bytes, totals.copied_total()), (0, 7000));
    });
}

#[test]
fn loaded_frames_are_read_anew_each_time() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &PacketOptions::default().slots(1)).expect("a ring");
        let frame = lab::frame(1, 1000);
        ring.load(0, &VnetHeader::NONE, &frame).expect("loaded");
        lab.hold(lab::HERE);
        assert_eq!(ring.send_loaded(2).expect("loaded"), 1);
        ring.flush().expect("handed over");
        ring.scribble(0, AT, &[0xee; 1000 - AT]);
        lab.release(lab::HERE);
        ring.drain(PATIENCE).expect("back");
        assert!(capture.expect() == changed(&frame));
        assert_eq!(ring.send_loaded(1).expect("loaded"), 1);
        ring.drain(PATIENCE).expect("back");
        assert!(capture.expect() == changed(&frame));
        let totals = ring.counters().snapshot();
        assert_eq!((totals.copied_bytes["outside"], totals.zero_copied_bytes), (1000, 1000));
    });
}

/// The ring's limit for copying. A frame of that length is copied when the kernel takes it, one of
/// a byte more is not.
#[test]
fn frames_up_to_the_limit_are_copied_and_those_above_are_not() {
    const LIMIT: usize = 1000;
    const LENS: [usize; 6] = [1400, 600, LIMIT + 1, LIMIT, 1514, 250];
    for (version, offload) in [(Version::V3, false), (Version::V3, true), (Version::V2, false)] {
        in_lab(move |lab| {
            lab.veth();
            let capture = lab.capture();
            let options =
                PacketOptions::default().slots(16).version(Some(version)).copy_up_to(LIMIT).offload(offload);
            let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
            lab.hold(lab::HERE);
            let frames: Vec<_> = LENS.iter().map(|len| lab::frame(*len as u32, *len)).collect();
            for frame in &frames {
                assert!(ring.push(frame.len(), &mut |to| to.copy_from_slice(frame)).expect("pushed"));
            }
            ring.flush().expect("handed over");
            assert_eq!((ring.reap(), ring.outstanding()), (0, LENS.len()), "all are held");
            for (slot, len) in LENS.iter().enumerate() {
                ring.scribble(slot, AT, &vec![0xee; len - AT]);
            }
            lab.release(lab::HERE);
            ring.drain(PATIENCE).expect("back");
            for frame in frames {
                let (len, got) = (frame.len(), capture.expect());
                let want = if len <= LIMIT { frame } else { changed(&frame) };
                assert!(got == want, "{version:?}, offload {offload}: the frame of {len} bytes");
            }
            let bytes = |is_copied: bool| -> u64 {
                LENS.iter().filter(|len| (**len <= LIMIT) == is_copied).map(|len| *len as u64).sum()
            };
            let totals = ring.counters().snapshot();
            assert_eq!(totals.copied_bytes, [("cheaper", bytes(true))].into(), "{totals:?}");
            assert_eq!((totals.frames, totals.zero_copied_frames), (6, 3), "{version:?}, offload {offload}");
            assert_eq!(totals.zero_copied_bytes, bytes(false));
        });
    }
}
