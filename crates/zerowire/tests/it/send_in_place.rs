//! Places that are given out before their frames are pushed: they stay what they are until then,
//! and what was built there is what arrives.

use zerowire::packet::{PacketOptions, PacketRing, VnetHeader};
use zerowire::send::frame::FrameError;
use zerowire::send::in_place::InPlace;
use zerowire::xdp::{SenderOptions, XdpSender};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, HERE, frame, in_lab};

/// Each way to open a sender with four places.
fn each(test: fn(&mut dyn InPlace, &lab::Capture)) {
    for way in ["ring", "ring with offload", "AF_XDP"] {
        in_lab(move |lab| {
            lab.veth();
            let capture = lab.capture();
            let options = PacketOptions::default().slots(4).offload(way.contains("offload"));
            let mut sender: Box<dyn InPlace> = match way {
                "AF_XDP" => {
                    let options = SenderOptions::new(HERE).frames(4);
                    Box::new(XdpSender::open(options).unwrap_or_else(|e| panic!("{e}")))
                }
                _ => Box::new(PacketRing::open(HERE, &options).unwrap_or_else(|e| panic!("{e}"))),
            };
            test(sender.as_mut(), &capture);
        });
    }
}

/// Reserves a place, waiting for one; its number and where it is.
fn reserve(sender: &mut dyn InPlace, len: usize) -> (usize, *mut u8) {
    loop {
        if let Some(place) = sender.reserve(len).expect("a good length") {
            assert_eq!(place.bytes.len(), len);
            return (place.number, place.bytes.as_mut_ptr());
        }
        assert!(sender.wait(PATIENCE).expect("handed over"), "no place comes free");
    }
}

#[test]
fn a_place_stays_the_next_one_until_its_frame_is_pushed() {
    each(|sender, capture| {
        for n in 0..200u32 {
            let frame = frame(n, 60 + n as usize);
            let first = reserve(sender, 1000);
            let place = sender.reserve(frame.len()).expect("a good length").expect("the same");
            place.bytes.copy_from_slice(&frame);
            let number = place.number;
            // What comes back meanwhile makes no difference.
            sender.flush().expect("handed over");
            sender.reap();
            assert_eq!(reserve(sender, 1000), first);
            assert!(!sender.is_out(number));
            assert_eq!(sender.bytes(number, frame.len()), Some(&frame[..]));
            assert!(sender.bytes(number, 1 << 20).is_none(), "longer than a place");
            assert!(sender.commit(frame.len(), &VnetHeader::NONE).expect("a good frame"));
            assert!(sender.is_out(number) && sender.bytes(number, frame.len()).is_none());
        }
        assert!(sender.bytes(usize::MAX, 60).is_none(), "no place");
        sender.drain(PATIENCE).expect("all back");
        assert_eq!((sender.reap() > 0, sender.outstanding()), (true, 0));
        assert!((0..5).all(|place| !sender.is_out(place)));
        (0..200u32).for_each(|n| assert!(capture.expect() == frame(n, 60 + n as usize), "frame {n}"));
        assert!(capture.rest().is_empty());
    });
}

#[test]
fn places_run_out_and_lengths_are_checked() {
    each(|sender, _| {
        assert!(matches!(sender.reserve(13), Err(FrameError::TooShort { frame_bytes: 13 })));
        assert!(sender.reserve(1 << 20).is_err());
        for n in 0..4u32 {
            let (_, at) = reserve(sender, 60);
            assert!(!at.is_null());
            sender.reserve(60).expect("a good length").expect("a place").bytes.copy_from_slice(&frame(n, 60));
            assert!(sender.commit(60, &VnetHeader::NONE).expect("a good frame"));
        }
        assert!(sender.reserve(60).expect("a good length").is_none());
        assert!(!sender.commit(60, &VnetHeader::NONE).expect("no frame, no error"));
        assert!((0..4).all(|place| sender.is_out(place)));
        sender.drain(PATIENCE).expect("all back");
        // Longer than the MTU, and no VLAN tag: refused, and the place is still there.
        let len = 1516;
        sender.reserve(len).expect("as long as one with a tag").expect("a place").bytes.fill(0x55);
        let refused = sender.commit(len, &VnetHeader::NONE);
        assert!(matches!(refused, Err(FrameError::LongerThanMtu { .. })), "{refused:?}");
        assert_eq!(sender.outstanding(), 0);
    });
}
