//! `zerowire replay` through a veth. What arrives at its other end is what the capture holds, as
//! often and in the order that the options say. The counts agree.

use std::io::Write;

use crate::support::processes::wait_idle;
use crate::support::replay::captures::{enhanced, interface, plain, section, simple, tcp4, tcp6};
use crate::support::replay::lab::Offload;
use crate::support::replay::*;
use flate2::Compression;
use flate2::write::GzEncoder;

const PORTS: [&str; 4] = ["auto", "packet", "send", "xdp"];

#[test]
fn every_port_sends_each_frame_unchanged_in_order_and_counts_it() {
    in_lab(|lab| {
        lab.veth();
        let peer = lab.capture();
        let frames = frames(700);
        let bytes: usize = frames.iter().map(Vec::len).sum();
        for port in PORTS {
            let s = sent(&capture(&frames, 0), &["-t", "--loop", "3", "--port", port]);
            arrive(&peer, frames.iter().cycle().take(2100));
            assert_eq!(
                (&s["frames"], &s["passes"], &s["packets"]),
                (&2100.into(), &3.into(), &700.into()),
                "{s}"
            );
            assert_eq!(s["bytes"], 3 * bytes, "{port}: {s}");
            assert_eq!((&s["frames_not_back"], &s["frames_refused"]), (&0.into(), &0.into()), "{s}");
            assert_eq!(s["ended"], "done");
            let source = if port == "send" { "memory" } else { "resident" };
            assert_eq!(s["source"], source, "{port}: {s}");
            if matches!(port, "auto" | "packet") {
                // The first pass carries what was copied into the ring, the others nothing.
                assert_eq!(s["ledger"]["copied_bytes"]["outside"], bytes, "{s}");
                // A veth copies anyway: the kernel copies at once what it takes.
                assert_eq!(s["ledger"]["copied_bytes"]["cheaper"], 2 * bytes, "{s}");
                assert_eq!(s["ledger"]["zero_copied_bytes"], 0, "{s}");
            }
        }
    });
}

#[test]
fn a_capture_that_does_not_fit_is_streamed_from_file_or_pipe() {
    in_lab(|lab| {
        lab.veth();
        let peer = lab.capture();
        let frames = frames(700);
        let file = capture(&frames, 0);
        for port in PORTS {
            let s = sent(&file, &["-t", "-l", "2", "--max-memory", "64K", "--port", port]);
            arrive(&peer, frames.iter().cycle().take(1400));
            assert_eq!((&s["source"], &s["frames"]), (&"file".into(), &1400.into()), "{s}");
            assert_eq!(s["ledger"]["zero_copied_bytes"], 0, "every byte was copied: {s}");
            assert_eq!(s["ledger"]["bytes"], s["bytes"], "{s}");

            let args = ["-i", HERE, "-t", "--max-memory", "64K", "--port", port, "--json", "-", "-"];
            let mut replay = Replay::start(&args, Without::Nothing);
            replay.input.as_mut().expect("its input").write_all(&file).expect("written");
            let s = replay.end().summary();
            arrive(&peer, &frames);
            assert_eq!(
                (&s["source"], &s["frames"], &s["packets"]),
                (&"pipe".into(), &700.into(), &700.into()),
                "{s}"
            );
        }
        // A pipe that fits is like a file, several passes included.
        let args = ["-i", HERE, "-t", "-l", "2", "--json", "-", "-"];
        let mut replay = Replay::start(&args, Without::Nothing);
        replay.input.as_mut().expect("its input").write_all(&file).expect("written");
        assert_eq!(replay.end().summary()["source"], "resident");
        arrive(&peer, frames.iter().cycle().take(1400));
    });
}

#[test]
fn a_pipe_is_sent_while_it_is_written() {
    in_lab(|lab| {
        lab.veth();
        let peer = lab.capture();
        let frames = frames(40);
        let file = capture(&frames, 0);
        let args = ["-i", HERE, "-t", "--max-memory", "1K", "--json", "-", "-"];
        let mut replay = Replay::start(&args, Without::Nothing);
        let mut at = 24;
        let input = replay.input.as_mut().expect("its input");
        input.write_all(&file[..24]).expect("written");
        for (n, frame) in frames.iter().enumerate() {
            input.write_all(&file[at..at + 16 + frame.len()]).expect("written");
            at += 16 + frame.len();
            // The first ones wait until the memory of 1 KiB is full.
            if n >= 20 {
                while peer.expect() != *frame {}
            }
        }
        let s = replay.end().summary();
        assert_eq!((&s["frames"], &s["ended"]), (&40.into(), &"done".into()), "{s}");
    });
}

#[test]
fn formats_and_gzip_give_the_same_frames() {
    in_lab(|lab| {
        lab.veth();
        let peer = lab.capture();
        let frames = frames(50);
        let mut files = Vec::new();
        for order in Order::BOTH {
            let packets: Vec<_> = frames.iter().map(|f| P::at(7, f)).collect();
            files.push(captures::pcap(order, false, &packets));
            let mut ng = [section(order), interface(order, 1, 0, &[])].concat();
            for (n, f) in frames.iter().enumerate() {
                if n == 25 {
                    ng.extend([section(order), interface(order, 1, 0, &[])].concat());
                }
                ng.extend(if n % 2 == 0 {
                    enhanced(order, 0, 5, f, f.len() as u32)
                } else {
                    plain(order, f, f.len() as u32)
                });
            }
            files.push(ng);
        }
        for file in files {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(&file).expect("packed");
            for bytes in [packed.finish().expect("packed"), file] {
                let s = sent(&bytes, &["--topspeed"]);
                arrive(&peer, &frames);
                assert_eq!(s["frames"], 50, "{s}");
            }
        }
    });
}

#[test]
fn a_single_frame_goes_round_and_a_limit_ends_within_a_pass() {
    in_lab(|lab| {
        lab.veth();
        let peer = lab.capture();
        for port in PORTS {
            let one = frames(1);
            let s = sent(&capture(&one, 0), &["-t", "-l", "3000", "--port", port]);
            arrive(&peer, one.iter().cycle().take(3000));
            assert_eq!((&s["frames"], &s["passes"]), (&3000.into(), &3000.into()), "{s}");

            let five = frames(5);
            let s = sent(&capture(&five, 0), &["-t", "-l", "0", "-L", "13", "--port", port]);
            arrive(&peer, five.iter().cycle().take(13));
            let want = (&13.into(), &2.into(), &"limit".into());
            assert_eq!((&s["frames"], &s["passes"], &s["ended"]), want, "{s}");
        }
    });
}

#[test]
fn no_frame_goes_before_its_time() {
    in_lab(|lab| {
        lab.veth();
        let peer = lab.capture();
        let frames = frames(21);
        let file = capture(&frames, 20_000_000);
        for (args, least) in [
            (&["--port", "packet"][..], 0.4),
            (&["--port", "send", "-x", "4"], 0.1),
            // The second pass begins right after the last frame of the first.
            (&["--port", "xdp", "-x", "10", "-l", "3"], 0.12),
            (&["--max-gap", "0.005"], 0.1),
            (&["-p", "100"], 0.2),
            // 20 frames before the last one, of 14 975 bytes in all.
            (&["-M", "1"], frames[..20].iter().map(Vec::len).sum::<usize>() as f64 * 8e-6),
        ] {
            let s = sent(&file, args);
            let passes = if args.contains(&"-l") { 3 } else { 1 };
            arrive(&peer, frames.iter().cycle().take(21 * passes));
            let took = s["seconds"].as_f64().expect("seconds");
            assert!(took >= least, "{args:?}: {s}");
        }
    });
}

#[test]
fn a_rate_is_kept_over_a_while_and_a_duration_ends_it() {
    in_lab(|lab| {
        lab.veth();
        let s = sent(&capture(&frames(3), 0), &["-l", "0", "-p", "2000", "--duration", "1"]);
        let n = s["frames"].as_u64().expect("a number");
        // Never more than are due; far fewer only where the machine stood still.
        assert!((200..=2000).contains(&n), "{s}");
        assert_eq!(s["ended"], "duration");
    });
}

#[test]
fn a_signal_ends_it_with_the_summary() {
    in_lab(|lab| {
        lab.veth();
        let file = write(&capture(&frames(20), 3_600_000_000_000));
        let path = file.path().to_str().expect("a path");
        for (number, name, more) in [
            // Within an hour's pause, and at full speed.
            (libc::SIGINT, "SIGINT", &[][..]),
            (libc::SIGTERM, "SIGTERM", &["-t", "--loop", "0"]),
            (libc::SIGTERM, "SIGTERM", &["-t", "--loop", "0", "--port", "xdp"]),
        ] {
            let peer = lab.capture();
            let replay =
                Replay::start(&[&["-i", HERE, "--json", "-", path], more].concat(), Without::Nothing);
            peer.expect();
            replay.signal(number);
            let ran = replay.end();
            let s = ran.summary();
            assert_eq!((ran.code, &s["ended"]), (128 + number, &name.into()), "{ran:?}");
            assert_eq!(s["frames"], s["frames_handed_over"], "{s}");
        }
    });
}

#[test]
fn long_tcp_frames_go_out_whole_or_in_segments() {
    in_lab(|lab| {
        lab.veth();
        let frames = [tcp4(30_000), lab::frame(1, 1514), tcp6(50_000), tcp4(60_000)];
        let file = capture(&frames, 0);
        for port in ["packet", "send"] {
            for more in [&[][..], &["--max-memory", "1K"], &["--mss", "1000"]] {
                // The veth takes them whole; what it delivers is what was captured, but for the
                // checksum left to do.
                lab.offload(HERE, Offload::TransmitChecksum, true);
                lab.offload(HERE, Offload::Tso, true);
                let args = [&["-t", "--oversized", "gso", "--port", port], more].concat();
                let peer = lab.capture();
                let s = sent(&file, &args);
                assert_eq!((&s["frames"], &s["segmented_a_pass"]), (&4.into(), &3.into()), "{s}");
                for frame in &frames {
                    assert_eq!(peer.expect().len(), frame.len());
                }
                // Without its help the kernel cuts, and does the checksums.
                lab.offload(HERE, Offload::TransmitChecksum, false);
                let peer = lab.capture();
                sent(&file, &args);
                let mss = if more.contains(&"--mss") { 1000 } else { 1460 };
                segments(&peer, &frames[0], 34, mss);
                assert_eq!(peer.expect(), frames[1]);
                segments(&peer, &frames[2], 54, if mss == 1000 { 1000 } else { 1440 });
                segments(&peer, &frames[3], 34, mss);
            }
        }
    });
}

/// The longest packet of IPv4 and an Ethernet header: more than an interface takes whole, so that
/// the kernel cuts it.
#[test]
fn the_longest_frames_go_out_in_segments() {
    in_lab(|lab| {
        lab.veth();
        let longest = tcp4(65_535 - 40);
        assert_eq!(longest.len(), 65_549);
        let frames = [longest.clone(), lab::frame(1, 1514), longest];
        let file = capture(&frames, 0);
        lab.offload(HERE, Offload::TransmitChecksum, false);
        for port in ["packet", "send"] {
            for more in [&[][..], &["--max-memory", "1K"]] {
                let peer = lab.capture();
                let args = [&["-t", "--oversized", "gso", "--port", port], more].concat();
                let s = sent(&file, &args);
                assert_eq!((&s["frames"], &s["segmented_a_pass"]), (&3.into(), &2.into()), "{s}");
                segments(&peer, &frames[0], 34, 1460);
                assert_eq!(peer.expect(), frames[1]);
                segments(&peer, &frames[2], 34, 1460);
            }
        }
    });
}

/// The next frames must be the segments of `frame`, whose TCP header is at `tcp`, with good
/// checksums.
fn segments(peer: &lab::Capture, frame: &[u8], tcp: usize, mss: usize) {
    let payload = &frame[tcp + 20..];
    for (n, part) in payload.chunks(mss).enumerate() {
        let got = peer.expect();
        assert_eq!(got.len(), tcp + 20 + part.len(), "segment {n}");
        assert!(got[tcp + 20..] == *part, "segment {n}");
        let seq = u32::from_be_bytes(got[tcp + 4..tcp + 8].try_into().expect("four bytes"));
        assert_eq!(seq, 100 + (n * mss) as u32);
        let addresses = if tcp == 34 { &got[26..34] } else { &got[22..54] };
        let pseudo = [addresses, &[0, 6], &((got.len() - tcp) as u16).to_be_bytes(), &got[tcp..]].concat();
        assert_eq!(captures::checksum(&pseudo), 0, "segment {n}");
    }
}

#[test]
fn packets_that_can_t_be_sent_are_left_out_changed_or_sent_as_asked() {
    in_lab(|lab| {
        lab.veth();
        let f = frames(3);
        let cut = P { wire: 300, ..P::at(2, &f[1][..96]) };
        let packets =
            [P::at(0, &f[0]), P::at(1, &[1; 13]), cut, P::at(3, &lab::frame(9, 2000)), P::at(4, &f[2])];
        let file = simple(&packets);
        let skip = ["--short", "skip", "--oversized", "skip"];
        let padded = [&f[1][..96], &[0; 204]].concat();
        for (more, middle) in [
            (&["--truncated", "skip"][..], None),
            (&["--truncated", "send"], Some(f[1][..96].to_vec())),
            (&["--pad"], Some(padded)),
        ] {
            for memory in ["1G", "1"] {
                let peer = lab.capture();
                let s = sent(&file, &[&skip[..], &["--max-memory", memory, "-l", "2"], more].concat());
                let pass = [Some(f[0].clone()), middle.clone(), Some(f[2].clone())];
                let pass: Vec<_> = pass.into_iter().flatten().collect();
                arrive(&peer, pass.iter().cycle().take(2 * pass.len()));
                assert_eq!(s["frames"], 2 * pass.len(), "{s}");
                assert_eq!(
                    (&s["skipped"]["short"], &s["skipped"]["oversized"]),
                    (&1.into(), &1.into()),
                    "{s}"
                );
                let truncated = if middle.is_none() { 1.into() } else { serde_json::Value::Null };
                assert_eq!(s["skipped"]["truncated"], truncated, "{s}");
            }
        }
    });
}

#[test]
fn a_truncated_file_is_sent_as_far_as_it_goes_if_asked() {
    in_lab(|lab| {
        lab.veth();
        let f = frames(4);
        let mut file = capture(&f, 0);
        file.truncate(file.len() - 1);
        for memory in ["1G", "1"] {
            let peer = lab.capture();
            let s = sent(&file, &["--ignore-truncated", "-l", "2", "--max-memory", memory]);
            arrive(&peer, f[..3].iter().cycle().take(6));
            assert!(s["truncated"].as_str().is_some_and(|t| t.contains("inside packet 4")), "{s}");
        }
    });
}

#[test]
fn where_rings_are_refused_a_socket_sends_and_says_why() {
    in_lab(|lab| {
        lab.veth();
        let peer = lab.capture();
        let f = frames(5);
        let file = write(&capture(&f, 0));
        let path = file.path().to_str().expect("a path");
        let ran = Replay::start(&["-i", HERE, "-t", path], Without::Rings).end();
        assert_eq!(ran.code, 0, "{ran:?}");
        arrive(&peer, &f);
        assert!(ran.log.contains("no packet ring (transmit rings are refused"), "{}", ran.log);
        assert!(ran.out.contains("packet socket") && ran.out.contains("asked"), "{}", ran.out);
        Replay::start(&["-i", HERE, "--port", "packet", path], Without::Rings)
            .end()
            .refused(&["packet ring", "refused"]);
    });
}

#[test]
fn output_is_text_json_or_nothing() {
    in_lab(|lab| {
        lab.veth();
        let file = write(&capture(&frames(5), 0));
        let path = file.path().to_str().expect("a path");
        let ran = run(&["-i", HERE, path]);
        for word in
            ["5 frames, ", "1 passes of 5 frames", "resident", "recorded speed", "zw0 counted", "ledger:"]
        {
            assert!(ran.out.contains(word), "no '{word}' in {}", ran.out);
        }
        assert!(ran.log.contains("TPACKET_V3"), "{}", ran.log);
        let json = tempfile::NamedTempFile::new().expect("a file");
        let ran = run(&["-i", HERE, "-q", "--json", json.path().to_str().expect("a path"), path]);
        assert_eq!((ran.out.as_str(), ran.log.as_str()), ("", ""));
        let text = std::fs::read_to_string(json.path()).expect("written");
        let s: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((&s["frames"], &s["interface"]), (&5.into(), &HERE.into()));
    });
}

#[test]
fn an_interface_that_goes_away_ends_it_with_an_error_and_the_summary() {
    in_lab(|lab| {
        let file = write(&capture(&frames(5), 0));
        let path = file.path().to_str().expect("a path");
        for port in PORTS {
            for delete in [false, true] {
                lab.veth();
                let peer = lab.capture();
                let args = ["-i", HERE, "-p", "500", "--loop", "0", "--port", port, "--json", "-", path];
                let replay = Replay::start(&args, Without::Nothing);
                peer.expect();
                if delete {
                    lab.delete(HERE)
                } else {
                    lab.down(HERE)
                }
                let ran = replay.end();
                let s = ran.summary();
                assert_eq!((ran.code, &s["ended"]), (1, &"error".into()), "{port} {ran:?}");
                assert!(s["frames"].as_u64().is_some_and(|n| n > 0), "{port} {ran:?}");
                // An interface goes down before it goes away, and either may be seen first.
                let said = ran.log.contains("zw0 is down") || (delete && ran.log.contains("zw0 is gone"));
                let of_the_library = ran.log.contains("flush") || ran.log.contains("sender");
                assert!(said && !of_the_library, "{port}: {}", ran.log);
                if !delete {
                    lab.delete(HERE);
                }
            }
        }
    });
}

#[test]
fn frames_that_are_held_back_are_counted_when_a_signal_ends_the_wait() {
    in_lab(|lab| {
        lab.veth();
        lab.hold(HERE);
        let file = write(&capture(&frames(5), 0));
        let path = file.path().to_str().expect("a path");
        let args = ["-i", HERE, "-t", "--port", "packet", "--json", "-", path];
        let replay = Replay::start(&args, Without::Nothing);
        wait_idle(replay.pid());
        replay.signal(libc::SIGINT);
        let ran = replay.end();
        // A signal before the first frame ends the program at once, without a summary.
        if !ran.log.contains("before the first frame") {
            let s = ran.summary();
            let count = |name: &str| s[name].as_u64().expect("a number");
            assert_eq!((ran.code, &s["ended"]), (130, &"SIGINT".into()), "{ran:?}");
            // Short ones slip through.
            assert_eq!(count("frames") + count("frames_not_back"), 5, "{s}");
            assert!(count("frames_not_back") > 0, "{s}");
        }
        lab.release(HERE);
    });
}

#[test]
fn frames_that_all_are_short_are_copied_on_any_interface() {
    in_lab(|lab| {
        lab.ifb("zwifb0", false);
        let frames: Vec<_> = (0..600).map(|n| lab::frame(n, 60 + n as usize % 69)).collect();
        let bytes: usize = frames.iter().map(Vec::len).sum();
        let file = write(&capture(&frames, 0));
        let path = file.path().to_str().expect("a path");
        let ran = run(&["-i", "zwifb0", "-t", "--loop", "3", "--limit", "1500", "--json", "-", path]);
        let s = ran.summary();
        let sent = 2 * bytes + frames[..300].iter().map(Vec::len).sum::<usize>();
        assert_eq!((&s["frames"], &s["bytes"]), (&1500.into(), &sent.into()), "{s}");
        assert_eq!(s["ledger"]["copied_bytes"]["outside"], bytes, "{s}");
        assert_eq!(s["ledger"]["copied_bytes"]["cheaper"], sent - bytes, "{s}");
        assert!(ran.log.contains("longer than 128 bytes"), "{}", ran.log);
    });
}

#[test]
fn resident_frames_are_lent_where_the_interface_does_not_copy() {
    in_lab(|lab| {
        lab.ifb("zwifb0", false);
        let frames = frames(700);
        let bytes: usize = frames.iter().map(Vec::len).sum();
        let file = write(&capture(&frames, 0));
        let path = file.path().to_str().expect("a path");
        let ran = run(&["-i", "zwifb0", "-t", "--loop", "3", "--json", "-", path]);
        let s = ran.summary();
        assert_eq!(s["ledger"]["copied_bytes"]["outside"], bytes, "{s}");
        assert_eq!(s["ledger"]["zero_copied_bytes"], 2 * bytes, "{s}");
        // A ring of 701 places, which 701 being prime take a page each, is more than was allowed.
        let prime = write(&capture(&self::frames(701), 0));
        let path = prime.path().to_str().expect("a path");
        let ran = run(&["-i", "zwifb0", "-t", "--max-memory", "2M", "--json", "-", path]);
        assert_eq!((ran.code, &ran.summary()["source"]), (0, &"memory".into()), "{}", ran.log);
        assert!(ran.log.contains("2871296 bytes of ring (701 places)"), "{}", ran.log);
    });
}

#[test]
fn a_summary_that_cannot_be_written_is_told_before_anything_is_sent() {
    in_lab(|lab| {
        lab.veth();
        let peer = lab.capture();
        let file = write(&capture(&frames(3), 0));
        let path = file.path().to_str().expect("a path");
        run(&["-i", HERE, "-t", "--json", "/nowhere/at/all", path]).refused(&["can't write /nowhere/at/all"]);
        assert!(peer.rest().is_empty());
    });
}
