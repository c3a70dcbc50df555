//! What goes wrong under way. The interface goes down or away with frames in flight, frames are too
//! long or refused, the queue is full, the receiver is slow. Nothing hangs, errors name their
//! cause, and the sender goes on where it can. Needs root.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use zerowire::packet::{MAX_SLOTS, OpenError, PacketOptions, PacketRing, PacketSocket, VnetHeader};
use zerowire::send::frame::{FrameError, FrameSender};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::{self, Lab, in_lab};
use zerowire_testkit::net::run;
use zerowire_testkit::own_process;

/// Long enough to see that nothing comes.
const SHORT: Duration = Duration::from_millis(50);

fn options(slots: usize) -> PacketOptions {
    PacketOptions::default().slots(slots)
}

fn push(sender: &mut dyn FrameSender, n: u32, len: usize) -> bool {
    let frame = lab::frame(n, len);
    sender.push(len, &mut |to| to.copy_from_slice(&frame)).expect("a good frame")
}

/// Runs `test` with the ring, and with the socket.
fn with_both(test: impl Fn(&Lab, &mut dyn FrameSender, bool) + Send + Copy + 'static) {
    with_buffer(None, test);
}

/// The same with another send buffer, bytes.
fn with_buffer(
    bytes: Option<usize>,
    test: impl Fn(&Lab, &mut dyn FrameSender, bool) + Send + Copy + 'static,
) {
    let set = move |fd: BorrowedFd<'_>| {
        if let Some(bytes) = bytes {
            rustix::net::sockopt::set_socket_send_buffer_size(fd, bytes).expect("a send buffer");
        }
    };
    in_lab(move |lab| {
        lab.veth();
        let mut ring = PacketRing::open(lab::HERE, &options(16)).expect("a ring");
        set(ring.as_fd());
        test(lab, &mut ring, true);
    });
    in_lab(move |lab| {
        lab.veth();
        let mut socket = PacketSocket::open(lab::HERE, &options(16)).expect("a socket");
        set(socket.as_fd());
        test(lab, &mut socket, false);
    });
}

#[test]
fn an_interface_that_goes_down_is_named_and_can_come_back() {
    with_both(|lab, sender, is_ring| {
        let capture = lab.capture();
        lab.hold(lab::HERE);
        (0..4).for_each(|n| assert!(push(sender, n, 1400)));
        sender.flush().expect("handed over");
        assert_eq!(sender.outstanding(), if is_ring { 4 } else { 0 });
        lab.down(lab::HERE);
        // The queue of an interface that goes down is emptied: its frames come back, though nobody
        // got them.
        sender.drain(PATIENCE).expect("back");
        (4..6).for_each(|n| assert!(push(sender, n, 1000)));
        match sender.flush() {
            Err(FrameError::Down { interface, frames: 2 }) => assert_eq!(interface, lab::HERE),
            other => panic!("{other:?}"),
        }
        let error = sender.drain(PATIENCE).expect_err("still down").to_string();
        assert!(error.contains("'ip link set zw0 up'"), "{error}");
        assert!(capture.rest().is_empty());
        lab.up(lab::HERE);
        lab.release(lab::HERE);
        sender.drain(PATIENCE).expect("it is up again");
        for n in 4..6 {
            assert!(capture.expect() == lab::frame(n, 1000), "what was pushed while it was down");
        }
    });
}

#[test]
fn an_interface_that_is_deleted_is_named() {
    with_both(|lab, sender, _| {
        lab.hold(lab::HERE);
        (0..4).for_each(|n| assert!(push(sender, n, 1400)));
        sender.flush().expect("handed over");
        lab.delete(lab::HERE);
        sender.drain(PATIENCE).expect("nothing is left behind");
        assert!(push(sender, 4, 1000));
        match sender.flush() {
            Err(FrameError::Gone { interface, frames: 1 }) => assert_eq!(interface, lab::HERE),
            other => panic!("{other:?}"),
        }
        let error = sender.drain(PATIENCE).expect_err("gone").to_string();
        assert!(error.contains("zw0 is gone"), "{error}");
        // An interface of the same name is another one.
        lab.veth();
        assert!(matches!(sender.flush(), Err(FrameError::Gone { .. })));
    });
}

#[test]
fn frames_taken_back_are_not_sent() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &options(4)).expect("a ring");
        lab.down(lab::HERE);
        (0..4).for_each(|n| assert!(push(&mut ring, n, 100)));
        assert!(!push(&mut ring, 4, 100), "full");
        assert!(matches!(ring.flush(), Err(FrameError::Down { frames: 4, .. })));
        assert_eq!((ring.take_back(), ring.outstanding()), (4, 0));
        ring.drain(SHORT).expect("nothing to do");
        lab.up(lab::HERE);
        assert!(push(&mut ring, 5, 100));
        ring.drain(PATIENCE).expect("back");
        assert!(capture.expect() == lab::frame(5, 100));
        assert!(capture.rest().is_empty());
        assert_eq!(ring.counters().snapshot().frames, 1);
    });
}

#[test]
fn dropping_a_sender_with_frames_in_flight_lets_them_go_out() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &options(16)).expect("a ring");
        lab.hold(lab::HERE);
        (0..8).for_each(|n| assert!(push(&mut ring, n, 1400)));
        ring.flush().expect("handed over");
        drop(ring);
        // Pages that were freed too early would be taken by these.
        let _others: Vec<_> =
            (0..4).map(|_| PacketRing::open(lab::HERE, &options(64)).expect("a ring")).collect();
        lab.release(lab::HERE);
        (0..8).for_each(|n| assert!(capture.expect() == lab::frame(n, 1400), "frame {n}"));
    });
}

#[test]
fn a_frame_longer_than_the_mtu_is_named_with_both_numbers() {
    with_both(|lab, sender, _| {
        let capture = lab.capture();
        assert!(push(sender, 0, 1514));
        let error = sender.push(1515, &mut |to| to.fill(0)).expect_err("too long").to_string();
        assert!(error.contains("frame 1 of 1515 bytes") && error.contains("MTU 1500 bytes"), "{error}");
        let error = sender.push(9000, &mut |_| panic!("not built")).expect_err("too long").to_string();
        assert!(error.contains("9000") && error.contains("1500"), "{error}");
        let error = sender.push(13, &mut |_| panic!("not built")).expect_err("too short").to_string();
        assert!(error.contains("13 bytes") && error.contains("at least 14"), "{error}");
        assert!(push(sender, 1, 200));
        sender.drain(PATIENCE).expect("back");
        assert!(capture.expect() == lab::frame(0, 1514) && capture.expect() == lab::frame(1, 200));
        assert!(capture.rest().is_empty());
    });
}

#[test]
fn a_lowered_mtu_takes_out_only_the_frames_that_are_too_long() {
    with_both(|lab, sender, _| {
        let capture = lab.capture();
        for n in 0..12 {
            assert!(push(sender, n, if n % 4 == 1 { 1500 } else { 600 }));
        }
        lab.mtu(lab::HERE, 1000);
        for wrong in [1, 5, 9] {
            match sender.drain(PATIENCE) {
                Err(FrameError::LongerThanMtu { number, frame_bytes: 1500, mtu_bytes: 1000, .. }) => {
                    assert_eq!(number, wrong);
                }
                other => panic!("{other:?}"),
            }
        }
        sender.drain(PATIENCE).expect("the others go");
        for n in (0..12).filter(|n| n % 4 != 1) {
            assert!(capture.expect() == lab::frame(n, 600), "frame {n}");
        }
        assert!(capture.rest().is_empty());
        let totals = sender.counters().snapshot();
        assert_eq!((totals.frames, totals.dropped_frames["port_refused"]), (9, 3));
        // And a raised one is noticed.
        lab.mtu(lab::HERE, 1500);
        assert!(push(sender, 20, 1500));
        sender.drain(PATIENCE).expect("back");
        assert!(capture.expect() == lab::frame(20, 1500));
    });
}

#[test]
fn a_refused_frame_never_wedges_the_ring() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &options(8)).expect("a ring");
        let mut wanted = Vec::new();
        // Five rounds through the ring, each with a wrong frame at another place: first, last and
        // in between.
        for round in 0..5u32 {
            let number = u64::from(round) * 8;
            let wrong = [0, 7, 3, 6, 1][round as usize];
            for n in 0..8 {
                let name = round * 8 + n;
                assert!(push(&mut ring, name, 100 + n as usize));
                if n == wrong {
                    ring.spoil_last();
                } else {
                    wanted.push(lab::frame(name, 100 + n as usize));
                }
            }
            match ring.flush() {
                Err(FrameError::Refused { number: named, frame_bytes, .. }) => {
                    assert_eq!(named, number + u64::from(wrong), "round {round}");
                    assert_eq!(frame_bytes, 100 + wrong as usize);
                }
                other => panic!("{other:?}"),
            }
            ring.drain(PATIENCE).expect("the others");
        }
        for frame in &wanted {
            assert!(capture.expect() == *frame);
        }
        assert!(capture.rest().is_empty());
        let totals = ring.counters().snapshot();
        assert_eq!((totals.frames, totals.dropped_frames["port_refused"]), (35, 5));
        // Frames behind a wrong one were moved up, which is a copy.
        assert_eq!(totals.copied_bytes["outside"] + totals.zero_copied_bytes, totals.bytes);
    });
}

#[test]
fn a_refused_loaded_frame_is_named_and_can_be_replaced() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &options(4)).expect("a ring");
        for n in 0..4u32 {
            let len = if n == 2 { 1400 } else { 300 };
            ring.load(n as usize, &VnetHeader::NONE, &lab::frame(n, len)).expect("loaded");
        }
        lab.mtu(lab::HERE, 1000);
        assert_eq!(ring.send_loaded(4).expect("loaded"), 4);
        match ring.flush() {
            Err(FrameError::LongerThanMtu { number: 2, frame_bytes: 1400, mtu_bytes: 1000, .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(ring.next_slot(), 2);
        assert!(matches!(ring.send_loaded(1), Err(FrameError::Slot { slot: 2, .. })));
        ring.load(2, &VnetHeader::NONE, &lab::frame(9, 250)).expect("loaded");
        assert_eq!(ring.send_loaded(2).expect("loaded"), 2);
        ring.drain(PATIENCE).expect("back");
        for (n, len) in [(0, 300), (1, 300), (9, 250), (3, 300)] {
            assert!(capture.expect() == lab::frame(n, len), "{n}");
        }
        assert!(capture.rest().is_empty());
    });
}

#[test]
fn refused_frames_can_be_skipped_by_the_kernel() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let options = options(8).skip_refused(true);
        let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
        for n in 0..8 {
            assert!(push(&mut ring, n, 100));
            if n % 3 == 0 {
                ring.spoil_last();
            }
        }
        ring.drain(PATIENCE).expect("back");
        for n in (0..8).filter(|n| n % 3 != 0) {
            assert!(capture.expect() == lab::frame(n, 100));
        }
        assert!(capture.rest().is_empty());
        assert_eq!(ring.lost_bytes(), 300);
    });
}

#[test]
fn a_slow_queue_presses_back_and_names_what_is_stuck() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let mut ring = PacketRing::open(lab::HERE, &options(8)).expect("a ring");
        lab.hold(lab::HERE);
        (0..8).for_each(|n| assert!(push(&mut ring, n, 1000 + n as usize)));
        assert!(!push(&mut ring, 8, 1000), "full before the flush");
        ring.flush().expect("handed over");
        assert!(!push(&mut ring, 8, 1000), "and after it");
        assert!(!ring.wait(SHORT).expect("no error"), "no place comes back");
        match ring.drain(SHORT) {
            Err(FrameError::Stuck {
                frames: 8, unsent: 0, oldest: 0, oldest_bytes: 1000, waited, ..
            }) => {
                assert!(waited >= SHORT);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!((ring.reap(), ring.outstanding()), (0, 8));
        lab.release(lab::HERE);
        assert!(ring.wait(PATIENCE).expect("no error"), "a place is back");
        assert!(push(&mut ring, 8, 1008));
        ring.drain(PATIENCE).expect("back");
        assert_eq!(ring.reap(), 9);
        (0..9).for_each(|n| assert!(capture.expect() == lab::frame(n, 1000 + n as usize)));
    });
}

#[test]
fn a_full_queue_loses_nothing() {
    with_both(|lab, sender, _| {
        let capture = lab.capture();
        // Room for three frames in the queue: the kernel drops the fourth (ENOBUFS), and it is
        // handed over again.
        lab.hold_some(lab::HERE, 1514, 3100);
        (0..12).for_each(|n| assert!(push(sender, n, 1000)));
        sender.flush().expect("what doesn't fit stays");
        match sender.drain(SHORT) {
            Err(FrameError::Stuck { unsent: 9, interface, .. }) => assert_eq!(interface, lab::HERE),
            other => panic!("{other:?}"),
        }
        lab.tbf(lab::HERE, "100mbit", 3000, 3100);
        sender.drain(PATIENCE).expect("all go");
        for n in 0..12 {
            assert!(capture.expect() == lab::frame(n, 1000), "frame {n}");
        }
    });
}

#[test]
fn a_small_send_buffer_only_makes_smaller_steps() {
    // The least: a few frames at a time.
    with_buffer(Some(1), |lab, sender, is_ring| {
        let capture = lab.capture();
        lab.hold(lab::HERE);
        (0..16).for_each(|n| assert!(push(sender, n, 1000)));
        sender.flush().expect("what doesn't fit stays");
        assert!(!push(sender, 16, 1000) || !is_ring);
        match sender.drain(SHORT) {
            Err(FrameError::Stuck { frames, unsent, .. }) => {
                assert!(unsent > 0 && unsent <= frames, "{unsent} of {frames}");
            }
            other => panic!("{other:?}"),
        }
        lab.release(lab::HERE);
        sender.drain(PATIENCE).expect("all go");
        let frames = if is_ring { 16 } else { 17 };
        (0..frames).for_each(|n| assert!(capture.expect() == lab::frame(n, 1000), "frame {n}"));
    });
}

#[test]
fn a_user_without_the_capability_is_told_so() {
    own_process!();
    in_lab(|lab| {
        lab.veth();
        // The raw call changes this thread only; it ends with the test.
        // SAFETY: takes no pointers.
        let dropped = unsafe { libc::syscall(libc::SYS_setresuid, 65_534, 65_534, 65_534) };
        assert_eq!(dropped, 0, "{}", std::io::Error::last_os_error());
        let ring = PacketRing::open(lab::HERE, &options(8)).err().expect("refused");
        let socket = PacketSocket::open(lab::HERE, &options(8)).err().expect("refused");
        for error in [ring, socket] {
            assert!(matches!(error, OpenError::NotPermitted { .. }), "{error}");
            assert!(error.to_string().contains("CAP_NET_RAW"), "{error}");
        }
    });
}

#[test]
fn what_cannot_be_opened_says_why() {
    in_lab(|lab| {
        lab.veth();
        let open = |name: &str, options: &PacketOptions| match PacketRing::open(name, options) {
            Ok(_) => panic!("opened"),
            Err(e) => e,
        };
        let error = open("nowhere0", &options(8));
        assert!(
            matches!(&error, OpenError::NoInterface { interface, .. } if interface == "nowhere0"),
            "{error}"
        );
        assert!(error.to_string().contains("'ip link'"), "{error}");
        assert!(open("a-name-of-17-byte", &options(8)).to_string().contains("give 1 to 15"));
        assert!(matches!(open(lab::HERE, &options(0)), OpenError::Slots { slots: 0 }));
        assert!(matches!(open(lab::HERE, &options(MAX_SLOTS + 1)), OpenError::Slots { .. }));
        let long = options(8).frame_bytes(Some(65_551));
        assert!(open(lab::HERE, &long).to_string().contains("65551"));
        let short = options(8).frame_bytes(Some(13));
        assert!(open(lab::HERE, &short).to_string().contains("give 14 to 65550"));
        let huge = options(100_000).frame_bytes(Some(65_550));
        assert!(open(lab::HERE, &huge).to_string().contains("fewer slots"));
        assert!(matches!(PacketSocket::open("nowhere0", &options(8)), Err(OpenError::NoInterface { .. })));
        assert!(matches!(PacketSocket::open(lab::HERE, &options(0)), Err(OpenError::Slots { .. })));
        // Odd sizes that the kernel must accept.
        for slots in [1, 2, 3, 7, 63, 257, 1000] {
            for frame_bytes in [14, 60, 100, 2000, 4038, 4090, 9014, 65_550] {
                let options = options(slots).frame_bytes(Some(frame_bytes));
                let ring = PacketRing::open(lab::HERE, &options).expect("a ring");
                assert!(ring.slots() == slots && ring.slot_frame_bytes() >= frame_bytes);
            }
        }
    });
}

#[test]
fn a_lowered_mtu_is_noticed_where_the_kernel_does_not_look() {
    in_lab(|lab| {
        lab.veth();
        let options = options(2).copy_up_to(1514);
        let mut ring = PacketRing::open(lab::HERE, &options).expect("a ring");
        for slot in 0..2 {
            ring.load(slot, &VnetHeader::NONE, &lab::frame(slot as u32, 1400)).expect("loaded");
        }
        assert_eq!(ring.send_loaded(2).expect("two"), 2);
        ring.drain(PATIENCE).expect("back");
        lab.mtu(lab::HERE, 1000);
        let start = Instant::now();
        let error = loop {
            assert!(start.elapsed() < PATIENCE, "frames of 1400 bytes still go");
            match ring.send_loaded(1).and_then(|_| ring.drain(PATIENCE)) {
                Ok(()) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => break e,
            }
        };
        assert!(
            matches!(error, FrameError::LongerThanMtu { frame_bytes: 1400, mtu_bytes: 1000, .. }),
            "{error:?}"
        );
        assert_eq!(ring.outstanding(), 0);
        lab.mtu(lab::HERE, 1500);
        assert!(push(&mut ring, 7, 1500));
        ring.drain(PATIENCE).expect("back");
    });
}

#[test]
fn a_renamed_interface_keeps_its_mtu() {
    with_both(|lab, sender, _| {
        lab.down(lab::HERE);
        run("ip", &["link", "set", lab::HERE, "name", "other0", "mtu", "1000"]);
        lab.up("other0");
        // Another one has the name now.
        lab.ifb(lab::HERE, false);
        lab.mtu(lab::HERE, 9000);
        assert!(push(sender, 0, 1500), "as at the opening");
        match sender.drain(PATIENCE) {
            Err(FrameError::LongerThanMtu { frame_bytes: 1500, mtu_bytes: 1000, .. }) => {}
            other => panic!("{other:?}"),
        }
    });
}
