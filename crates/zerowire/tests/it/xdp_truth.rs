//! Which bytes AF_XDP really sends. They lie in the queue of the peer's socket, their memory is
//! changed after the call, and then the peer looks. Needs root.
//!
//! Frames of AF_XDP in copy mode pass the sender's queueing discipline by (`__dev_direct_xmit`,
//! net/core/dev.c), so that none can hold them back. Instead, the receiving socket keeps the
//! kernel's packet unread, with the memory it refers to. Old bytes: the kernel had copied them when
//! the call returned. No interface that such a test can make has a zero-copy mode. A card in a
//! guest has one (zerowire-vmtest xdp-send).

use zerowire::send::frame::FrameSender;
use zerowire::xdp::{Mode, SenderOptions, XdpError, XdpSender};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{HERE, frame, in_lab};

/// Frames of one piece, and of several.
const LENS: [usize; 4] = [60, 1514, 4097, 9014];

#[test]
fn copy_mode_sends_what_was_there_at_the_call_and_says_so() {
    in_lab(|lab| {
        lab.veth();
        lab.mtu(HERE, 9000);
        let capture = lab.capture();
        let resident_bytes = SenderOptions::resident_bytes_for(9018, LENS).expect("a number");
        let options = SenderOptions::new(HERE).frames(8).ring(64).resident_bytes(resident_bytes);
        let mut sender = XdpSender::open(options).unwrap_or_else(|e| panic!("{e}"));
        assert!(!sender.zero_copy(), "a veth has no zero-copy mode");
        let frames: Vec<_> = LENS.iter().map(|n| frame(*n as u32, *n)).collect();
        let loaded: Vec<_> = frames.iter().map(|f| sender.load(f).expect("loaded")).collect();
        for resident in &loaded {
            assert!(sender.send_resident(*resident).expect("pushed"));
        }
        sender.drain(PATIENCE).expect("back");
        for (resident, frame) in loaded.iter().zip(&frames) {
            // Behind the addresses, by which the capture tells frames.
            assert!(sender.scribble(*resident, 20, &vec![0xee; frame.len() - 20]));
            assert!(!sender.scribble(*resident, 20, &vec![0xee; frame.len() - 19]), "beyond its end");
        }
        for frame in &frames {
            assert!(capture.expect() == *frame, "old bytes: {} were copied", frame.len());
        }
        let bytes = LENS.iter().sum::<usize>() as u64;
        let totals = sender.counters().snapshot();
        assert_eq!((totals.bytes, totals.zero_copied_bytes), (bytes, 0));
        assert_eq!(totals.copied_bytes.get("kernel"), Some(&bytes), "{totals:?}");

        // What the change hits is what is sent: the next time the new bytes arrive.
        assert!(sender.send_resident(loaded[1]).expect("pushed"));
        sender.drain(PATIENCE).expect("back");
        let mut new = frames[1].clone();
        new[20..].fill(0xee);
        assert!(capture.expect() == new);
    });
}

#[test]
fn zero_copy_mode_is_refused_where_there_is_none() {
    in_lab(|lab| {
        lab.veth();
        let options = SenderOptions::new(HERE).mode(Mode::ZeroCopy);
        let refused: Result<_, XdpError> = XdpSender::open(options);
        let error = refused.expect_err("a veth has no zero-copy mode").to_string();
        assert!(error.contains("zero-copy"), "{error}");
    });
}
