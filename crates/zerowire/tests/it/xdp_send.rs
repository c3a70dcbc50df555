//! Frames through AF_XDP: what arrives, what comes back, and what happens when the interface
//! changes under them.

use std::time::Duration;

use zerowire::send::frame::{FrameError, FrameSender};
use zerowire::xdp::{Mode, SenderOptions, XdpSender};
use zerowire_testkit::net::lab::{self, HERE, Lab, frame, in_lab};
use zerowire_testkit::net::run;
use zerowire_testkit::{PATIENCE, SetAtEnd};

fn open(options: SenderOptions) -> XdpSender {
    XdpSender::open(options).unwrap_or_else(|e| panic!("{e}"))
}

/// Pushes a frame; flushes and reaps until there is room.
fn push(sender: &mut XdpSender, frame: &[u8]) {
    let begin = std::time::Instant::now();
    while begin.elapsed() < PATIENCE {
        let pushed = sender.push(frame.len(), &mut |place| place.copy_from_slice(frame));
        if pushed.unwrap_or_else(|e| panic!("{e}")) {
            return;
        }
        sender.flush().expect("flushed");
        sender.reap();
    }
    panic!("no place comes free");
}

fn drain(sender: &mut XdpSender) {
    sender.drain(PATIENCE).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(sender.outstanding(), 0);
}

fn veth(lab: &Lab, mtu: usize) {
    lab.veth();
    if mtu != 1500 {
        lab.mtu(HERE, mtu);
    }
}

#[test]
fn every_length_arrives_as_it_was_built() {
    in_lab(|lab| {
        veth(lab, 1500);
        let capture = lab.capture();
        let mut sender = open(SenderOptions::new(HERE).frames(64).ring(64));
        assert_eq!(sender.max_frame_bytes(), 1514);
        assert!(!sender.zero_copy(), "a veth has no zero-copy mode");
        let mut bytes = 0;
        for len in 60..=1514 {
            push(&mut sender, &frame(len as u32, len));
            bytes += len as u64;
        }
        drain(&mut sender);
        for len in 60..=1514 {
            assert_eq!(capture.expect(), frame(len as u32, len), "{len} bytes");
        }
        assert_eq!(capture.rest().len(), 0);
        let totals = sender.counters().snapshot();
        assert_eq!((totals.frames, totals.bytes, totals.dropped_total()), (1455, bytes, 0));
        assert_eq!(totals.copied_bytes["kernel"], bytes);
        assert_eq!(sender.statistics().expect("statistics").transmit_invalid, 0);
    });
}

#[test]
fn jumbo_frames_go_in_pieces() {
    in_lab(|lab| {
        veth(lab, 9000);
        let capture = lab.capture();
        let mut sender = open(SenderOptions::new(HERE).frames(16).ring(64));
        assert_eq!(sender.max_frame_bytes(), 9014);
        let mut lens: Vec<usize> = (1514..=9014).step_by(97).collect();
        // The ends of the pieces, and one byte around.
        lens.extend([4095, 4096, 4097, 8191, 8192, 8193, 9013, 9014, 60]);
        for len in &lens {
            push(&mut sender, &frame(*len as u32, *len));
        }
        drain(&mut sender);
        for len in &lens {
            assert_eq!(capture.expect(), frame(*len as u32, *len), "{len} bytes");
        }
        assert_eq!(sender.counters().snapshot().frames, lens.len() as u64);
    });
}

#[test]
fn seventeen_pieces_are_one_frame() {
    in_lab(|lab| {
        // The longest MTU of a veth makes frames of 65535 + 14 bytes: 17 pieces of 4096.
        veth(lab, 65535);
        let capture = lab.capture();
        let mut sender = open(SenderOptions::new(HERE).frames(4).ring(128));
        let lens = [65535 + 14, 16 * 4096, 16 * 4096 + 1, 15 * 4096 + 17];
        for len in lens {
            push(&mut sender, &frame(len as u32, len));
        }
        drain(&mut sender);
        for len in lens {
            assert_eq!(capture.expect(), frame(len as u32, len), "{len} bytes");
        }
    });
}

#[test]
fn an_interface_that_drops_all_gives_every_place_back() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        let mut sender = open(SenderOptions::new("ifb0").frames(128).ring(128));
        let one = frame(1, 1000);
        let mut back = 0;
        for _ in 0..100 {
            // One more than there are places.
            for n in 0..129 {
                let pushed = sender.push(1000, &mut |place| place.copy_from_slice(&one)).expect("pushed");
                assert_eq!(pushed, n < 128, "frame {n}");
            }
            assert_eq!(sender.outstanding(), 128);
            sender.flush().expect("flushed");
            drain(&mut sender);
            back += sender.reap();
        }
        assert_eq!(back, 12_800);
        let totals = sender.counters().snapshot();
        assert_eq!((totals.frames, totals.bytes), (12_800, 12_800_000));
        assert!(
            totals.system_calls <= 100 * 5,
            "a batch of 128 takes {} calls in all for 100 batches",
            totals.system_calls
        );
    });
}

#[test]
fn resident_frames_go_out_many_times_at_once() {
    in_lab(|lab| {
        veth(lab, 9000);
        let capture = lab.capture();
        let lens = [60, 64, 1500, 4096, 4097, 9014, 333];
        let need = SenderOptions::resident_bytes_for(9018, lens).expect("a number");
        let options = SenderOptions::new(HERE).frames(8).ring(256).resident_bytes(need);
        let mut sender = open(options);
        let frames: Vec<_> = lens.iter().map(|n| frame(*n as u32, *n)).collect();
        let residents: Vec<_> = frames.iter().map(|f| sender.load(f).expect("loaded")).collect();
        assert!(
            matches!(sender.load(&frame(1, 9014)), Err(FrameError::Slot { .. })),
            "no room beyond what was asked for"
        );
        const ROUNDS: usize = 20;
        for round in 0..ROUNDS {
            for resident in &residents {
                assert!(sender.send_resident(*resident).expect("sent"));
            }
            // Frames that are built go between them.
            push(&mut sender, &frame(round as u32, 200));
            if round % 4 == 0 {
                assert!(sender.outstanding() >= lens.len());
                sender.flush().expect("flushed");
            }
            sender.reap();
        }
        drain(&mut sender);
        for round in 0..ROUNDS {
            for f in &frames {
                assert_eq!(&capture.expect(), f);
            }
            assert_eq!(capture.expect(), frame(round as u32, 200));
        }
        let sum: usize = lens.iter().sum();
        let totals = sender.counters().snapshot();
        assert_eq!(totals.frames, (ROUNDS * (lens.len() + 1)) as u64);
        assert_eq!(totals.bytes, (ROUNDS * (sum + 200)) as u64);
        assert!(sender.unload_all());
        let error = sender.send_resident(residents[0]).expect_err("forgotten");
        assert!(matches!(error, FrameError::Slot { .. }), "{error}");
        sender.load(&frames[5]).expect("room again");
    });
}

#[test]
fn resident_frames_fill_the_ring_and_not_more() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        let options = SenderOptions::new("ifb0").frames(1).ring(16).resident_bytes(4096);
        let mut sender = open(options);
        let resident = sender.load(&frame(1, 100)).expect("loaded");
        for n in 0..17 {
            assert_eq!(sender.send_resident(resident).expect("checked"), n < 16);
        }
        assert!(!sender.unload_all(), "frames are on their way");
        drain(&mut sender);
        assert_eq!(sender.reap(), 16);
    });
}

#[test]
fn lengths_that_cant_go_are_named() {
    in_lab(|lab| {
        veth(lab, 1500);
        let capture = lab.capture();
        let mut sender = open(SenderOptions::new(HERE).resident_bytes(8192));
        let mut never = |_: &mut [u8]| panic!("built");
        assert!(matches!(sender.push(13, &mut never), Err(FrameError::TooShort { frame_bytes: 13 })));
        assert!(matches!(
            sender.push(1519, &mut never),
            Err(FrameError::LongerThanMtu { frame_bytes: 1519, mtu_bytes: 1500, .. })
        ));
        assert!(matches!(sender.push(2049, &mut never), Err(FrameError::TooLong { frame_bytes: 2049, .. })));
        // Four bytes more are for a VLAN tag only.
        let long = frame(7, 1518);
        let error = sender.push(1518, &mut |place| place.copy_from_slice(&long)).expect_err("no tag");
        assert!(error.to_string().contains("1518") && error.to_string().contains("1500"), "{error}");
        assert!(sender.load(&long).is_err());
        let mut tagged = long;
        tagged[12..14].copy_from_slice(&[0x81, 0x00]);
        push(&mut sender, &tagged);
        let resident = sender.load(&tagged).expect("loaded");
        assert!(sender.send_resident(resident).expect("sent"));
        drain(&mut sender);
        // The peer's stack takes the tag off: the test finds a frame by its length and end.
        for _ in 0..2 {
            let arrived = capture.expect();
            assert!(arrived.ends_with(&tagged[20..]), "{} bytes", arrived.len());
        }
        assert_eq!(sender.counters().snapshot().frames, 2);
    });
}

#[test]
fn an_mtu_that_shrinks_is_noticed() {
    in_lab(|lab| {
        veth(lab, 1500);
        let capture = lab.capture();
        let mut sender = open(SenderOptions::new(HERE));
        lab.mtu(HERE, 600);
        // The first one is handed over, dropped by the interface, and counted.
        push(&mut sender, &frame(1, 1514));
        drain(&mut sender);
        let totals = sender.counters().snapshot();
        assert_eq!((totals.frames, totals.dropped_frames.get("port_refused")), (0, Some(&1)));
        let error = sender.push(1514, &mut |_| panic!("built")).expect_err("refused");
        assert!(matches!(error, FrameError::LongerThanMtu { mtu_bytes: 600, .. }), "{error}");
        push(&mut sender, &frame(2, 614));
        drain(&mut sender);
        assert_eq!(capture.expect(), frame(2, 614));
        // And one that grows, by a few bytes or by many: the first longer frame goes.
        for (mtu, len) in [(601, 615), (605, 619), (1500, 1514)] {
            lab.mtu(HERE, mtu);
            push(&mut sender, &frame(3, len));
            drain(&mut sender);
            assert_eq!(capture.expect(), frame(3, len));
        }
    });
}

#[test]
fn an_interface_that_is_down_keeps_the_frames_until_it_is_up() {
    in_lab(|lab| {
        veth(lab, 1500);
        let capture = lab.capture();
        let mut sender = open(SenderOptions::new(HERE));
        for n in 0..10 {
            push(&mut sender, &frame(n, 100));
        }
        lab.down(HERE);
        let error = sender.flush().expect_err("down");
        assert!(matches!(error, FrameError::Down { frames: 10, .. }), "{error}");
        let error = sender.drain(PATIENCE).expect_err("down");
        assert!(error.to_string().contains("ip link set zw0 up"), "{error}");
        assert_eq!(sender.outstanding(), 10);
        lab.up(HERE);
        drain_when_there_is_carrier(&mut sender);
        let arrived = (0..10).map(|_| capture.expect()).collect::<Vec<_>>();
        assert_eq!(arrived, (0..10).map(|n| frame(n, 100)).collect::<Vec<_>>());
    });
}

/// Carrier comes back by itself, some time after the interface is up.
fn drain_when_there_is_carrier(sender: &mut XdpSender) {
    let end = std::time::Instant::now() + PATIENCE;
    while std::fs::read_to_string("/proc/thread-self/net/dev").is_ok() && !running(HERE) {
        assert!(std::time::Instant::now() < end, "no carrier");
        std::thread::sleep(Duration::from_millis(1));
    }
    drain(sender);
}

fn running(name: &str) -> bool {
    let out = std::process::Command::new("ip").args(["-o", "link", "show", name]).output().expect("ip");
    String::from_utf8_lossy(&out.stdout).contains("LOWER_UP")
}

#[test]
fn an_interface_without_carrier_is_named_and_the_frames_are_counted() {
    in_lab(|lab| {
        veth(lab, 1500);
        let mut sender = open(SenderOptions::new(HERE));
        lab.at_peer(|| run("ip", &["link", "set", lab::THERE, "down"]));
        while running(HERE) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for n in 0..100 {
            push(&mut sender, &frame(n, 100));
        }
        let error = sender.flush().expect_err("no carrier");
        assert!(error.to_string().contains("carrier"), "{error}");
        assert_eq!((sender.reap(), sender.outstanding()), (100, 0));
        let totals = sender.counters().snapshot();
        assert_eq!((totals.frames, totals.dropped_frames["port_refused"]), (0, 100));
    });
}

#[test]
fn an_interface_that_is_deleted_gives_every_frame_back() {
    in_lab(|lab| {
        veth(lab, 9000);
        let options = SenderOptions::new(HERE).frames(32).resident_bytes(65536).ring(128);
        let mut sender = open(options);
        let resident = sender.load(&frame(1, 9000)).expect("loaded");
        for n in 0..10 {
            push(&mut sender, &frame(n, 5000));
        }
        drain(&mut sender);
        assert_eq!(sender.reap(), 10);
        for n in 0..10 {
            push(&mut sender, &frame(n, 5000));
            assert!(sender.send_resident(resident).expect("pushed"));
        }
        lab.delete(HERE);
        let error = sender.flush().expect_err("gone");
        assert!(matches!(error, FrameError::Gone { frames: 20, .. }), "{error}");
        assert!(error.to_string().contains("zw0"), "{error}");
        assert_eq!((sender.reap(), sender.outstanding()), (20, 0));
        let totals = sender.counters().snapshot();
        assert_eq!((totals.frames, totals.dropped_frames["port_refused"]), (10, 20));
        // It says so again, and keeps nothing.
        assert!(sender.push(60, &mut |place| place.fill(0)).expect("pushed"));
        assert!(matches!(sender.drain(PATIENCE), Err(FrameError::Gone { frames: 1, .. })));
        assert_eq!(sender.outstanding(), 0);
    });
}

#[test]
fn an_interface_that_changes_under_load_never_hangs_a_sender() {
    in_lab(|lab| {
        veth(lab, 1500);
        let mut sender = open(SenderOptions::new(HERE).frames(256).ring(256));
        let stop = std::sync::atomic::AtomicBool::new(false);
        let one = frame(1, 700);
        let (mut pushed, mut back) = (0, 0);
        std::thread::scope(|s| {
            s.spawn(|| {
                let _ends = SetAtEnd(&stop);
                for _ in 0..5 {
                    std::thread::sleep(Duration::from_millis(20));
                    lab.down(HERE);
                    std::thread::sleep(Duration::from_millis(5));
                    lab.up(HERE);
                }
                lab.delete(HERE);
            });
            loop {
                let last = stop.load(std::sync::atomic::Ordering::Relaxed);
                while sender.push(one.len(), &mut |p| p.copy_from_slice(&one)).expect("a good length") {
                    pushed += 1;
                }
                match sender.flush() {
                    Ok(()) => {}
                    Err(FrameError::Gone { .. }) => {}
                    Err(FrameError::Down { .. }) => std::thread::sleep(Duration::from_millis(1)),
                    Err(e) => assert!(e.to_string().contains("carrier"), "{e}"),
                }
                back += sender.reap();
                if last {
                    break;
                }
            }
        });
        // Frames in the interface's queues come back when these are thrown away.
        zerowire_testkit::wait_until("all are back", || {
            back += sender.reap();
            sender.outstanding() == 0
        });
        assert_eq!(back, pushed);
        let totals = sender.counters().snapshot();
        assert_eq!(totals.frames + totals.dropped_total(), pushed as u64);
    });
}

#[test]
fn huge_pages_or_a_clear_error() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        let options = SenderOptions::new("ifb0").huge_pages(true).frames(16);
        match XdpSender::open(options) {
            Ok(mut sender) => {
                push(&mut sender, &frame(1, 1000));
                drain(&mut sender);
                assert_eq!(sender.counters().snapshot().frames, 1);
            }
            Err(e) => assert!(e.to_string().contains("vm.nr_hugepages"), "{e}"),
        }
    });
}

#[test]
fn copy_mode_can_be_asked_for() {
    in_lab(|lab| {
        lab.ifb("ifb0", false);
        let mut sender = open(SenderOptions::new("ifb0").mode(Mode::Copy));
        assert!(sender.path().contains("copy mode"), "{}", sender.path());
        push(&mut sender, &frame(1, 60));
        drain(&mut sender);
    });
}
