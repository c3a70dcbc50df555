//! Whole frames from C: the example, each call, refusals, and the check of frames that are on their
//! way, over a veth pair.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Output};

use crate::support::compile;
use zerowire_testkit::PATIENCE;
use zerowire_testkit::frames::EXPERIMENT;
use zerowire_testkit::net::veth::veth;
use zerowire_testkit::net::{Peer, in_netns};
use zerowire_testkit::process::{NET_RAW, drop_capability};

const WAYS: [&str; 2] = ["ring", "xdp"];

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// What the programs build: addresses, type, the number, and bytes that follow from it.
fn frame(number: u32, len: usize) -> Vec<u8> {
    let mut f = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    f.extend(EXPERIMENT);
    f.extend(number.to_be_bytes());
    f.extend((18..len as u32).map(|i| number.wrapping_mul(7).wrapping_add(i) as u8));
    f
}

/// The next frames are those with these lengths, numbered from 0 on, and no others come.
fn expect(peer: &mut Peer, lengths: impl IntoIterator<Item = usize>) {
    for (n, len) in (0u32..).zip(lengths) {
        let got = peer.recv(PATIENCE).unwrap_or_else(|| panic!("frame {n} never comes"));
        assert!(got.bytes == frame(n, len), "frame {n} of {len} bytes: {got:?}");
    }
    assert_eq!(peer.drain(), []);
}

fn run(program: &Path, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().expect("started")
}

#[test]
fn each_call_does_what_the_header_says() {
    for way in WAYS {
        in_netns(move || {
            let program = compile("tests/c/frames_calls.c", way == "xdp");
            veth("v0", "v1", 1, 1500);
            let mut peer = Peer::new("v1");
            let out = run(&program, &[way, "v0"]);
            assert!(out.status.success(), "{way}: {}", text(&out));
            let lengths: Vec<usize> = (60..=1514).chain([100; 8]).chain([60, 1514]).collect();
            assert!(text(&out).contains(&format!("{} frames", lengths.len())), "{}", text(&out));
            expect(&mut peer, lengths);
            drop(peer);
            let out = run(&program, &[way, "v0", "v1"]);
            assert!(out.status.success(), "{way}: {}", text(&out));
        });
    }
}

/// The example's frames arrive as they were built, and its ledger has each byte once.
#[test]
fn the_example_sends_frames() {
    in_netns(|| {
        let program = compile("examples/c/send_frames.c", true);
        veth("v0", "v1", 2, 1500);
        let mut peer = Peer::new("v1");
        for (options, says) in [
            (&["-n", "3000"][..], ["path: TPACKET_V3 ring of 256 slots", "zero-copied: 3000000\n"]),
            (&["-n", "3000", "-c"], ["ring of 256 slots", "zero-copied: 3000000\n"]),
            (&["-n", "3000", "-x"], ["path: AF_XDP, interface v0, queue 0", "copied, kernel: 3000000\n"]),
            (&["-n", "3000", "-x", "-q", "1", "-c"], ["interface v0, queue 1", "copied, kernel: 3000000\n"]),
        ] {
            let out = run(&program, &[options, &["v0"]].concat());
            assert!(out.status.success(), "{options:?}: {}", text(&out));
            let out = text(&out);
            assert!(out.starts_with("3000000 bytes in 3000 frames, "), "{out}");
            assert!(says.iter().all(|word| out.contains(word)) && out.contains(" 0 dropped\n"), "{out}");
            expect(&mut peer, [1000; 3000]);
        }
    });
}

/// Datagrams in frames of nearly 60 000 bytes. The interface passes them on uncut, with the header
/// that says how to cut them.
#[test]
fn the_example_leaves_cutting_to_the_interface() {
    in_netns(|| {
        let program = compile("examples/c/send_frames.c", false);
        veth("v0", "v1", 1, 1500);
        let mut peer = Peer::new("v1");
        let out = run(&program, &["-u", "-l", "1400", "-n", "40", "-c", "v0"]);
        assert!(out.status.success(), "{}", text(&out));
        const LEN: usize = 42 + 1400 * 42;
        assert!(text(&out).contains(&format!("zero-copied: {}\n", 40 * LEN)), "{}", text(&out));
        for n in 0..40 {
            let got = peer.expect();
            // UDP segments (5), and a checksum to be completed at 34 + 6.
            assert_eq!((got.gso_type(), got.needs_csum()), (5, true), "{got:?}");
            let word = |at: usize| u16::from_ne_bytes([got.header[at], got.header[at + 1]]);
            assert_eq!([word(4), word(6), word(8)], [1400, 34, 6], "{got:?}");
            assert!(got.bytes.len() == LEN && got.bytes[42..] == frame(n, LEN)[42..], "frame {n}: {got:?}");
        }
        assert_eq!(peer.drain(), []);
    });
}

#[test]
fn the_example_says_what_failed() {
    in_netns(|| {
        let program = compile("examples/c/send_frames.c", false);
        veth("v0", "v1", 1, 1500);
        for (arguments, word) in [
            (&["nosuch0"][..], "nosuch0: No such device"),
            (&["-x", "nosuch0"], "no interface nosuch0"),
            (&["-l", "1519", "v0"], "MTU 1500"),
            (&["-x", "-l", "1515", "v0"], "MTU 1500"),
            (&["-x", "-q", "9", "v0"], "has no queue 9"),
            (&["-x", "-u", "v0"], "flags 0x2"),
        ] {
            let out = run(&program, arguments);
            assert_eq!(out.status.code(), Some(1), "{arguments:?}: {}", text(&out));
            assert!(text(&out).contains(word), "{arguments:?}: {}", text(&out));
        }
    });
}

#[test]
fn the_example_refuses_datagrams_without_payload() {
    let program = compile("examples/c/send_frames.c", false);
    for length in ["0", "60001", "nonsense"] {
        let out = run(&program, &["-u", "-l", length, "lo"]);
        assert_eq!(out.status.code(), Some(2), "{length}: {}", text(&out));
        assert!(text(&out).contains("1 to 60000 bytes"), "{length}: {}", text(&out));
    }
}

#[test]
fn without_the_privilege_it_is_named() {
    in_netns(|| {
        let program = compile("examples/c/send_frames.c", false);
        veth("v0", "v1", 1, 1500);
        for options in [&[][..], &["-x"]] {
            let mut command = Command::new(&program);
            command.args(options).arg("v0");
            // SAFETY: the closure makes a system call only.
            unsafe { command.pre_exec(|| drop_capability(NET_RAW)) };
            let out = command.output().expect("started");
            assert_eq!(out.status.code(), Some(1), "{options:?}: {}", text(&out));
            let text = text(&out);
            assert!(text.contains("CAP_NET_RAW") && text.contains("(error 1)"), "{options:?}: {text}");
        }
    });
}

fn changes(way: &'static str, how: &'static str, check: &'static str) -> Output {
    in_netns(move || {
        let program = compile("tests/c/frames_changed.c", true);
        veth("v0", "v1", 1, 1500);
        run(&program, &[way, "v0", how, check])
    })
}

#[test]
fn a_frame_that_is_changed_on_its_way_aborts_the_program() {
    for way in WAYS {
        let out = changes(way, "changed", "checked");
        assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{way}: {}", text(&out));
        let text = text(&out);
        let says =
            "frame 1 was changed while it was lent, between offset 1024 and 1499: it must not be changed";
        assert!(text.contains(says) && text.contains("zw_frames_reap"), "{way}: {text}");
        assert!(!text.contains("ended"), "{way}: {text}");
    }
}

#[test]
fn frames_that_are_left_alone_do_not() {
    for way in WAYS {
        let out = changes(way, "kept", "checked");
        assert!(out.status.success() && text(&out) == "ended\n", "{way}: {}", text(&out));
    }
}

#[test]
fn debug_builds_check_by_themselves() {
    let out = changes("ring", "changed", "default");
    let aborted = out.status.signal() == Some(libc::SIGABRT);
    assert_eq!(aborted, cfg!(debug_assertions), "{}", text(&out));
    assert_eq!(out.status.success(), !cfg!(debug_assertions), "{}", text(&out));
}
