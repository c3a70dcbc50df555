//! The log of a program whose guests and front ends do what makes lines, and of one whose log
//! nobody reads.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::pipe::{PIPE_BYTES, fill, small_pipe};
use crate::support::processes::kill;
use crate::support::refused::{repeat_an_error, send_what_is_lost};
use crate::support::{Guest, PATIENCE, Peer, Program, Restrict, connect, frames, in_netns, wait_until};
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::{GuestAddr, GuestMemory, Transport, features};

/// Requests that are refused, a line each: more than wait in any queue.
const REFUSED: usize = 5000;

/// Two VMs on taps of their names.
fn start(dir: &Path, names: [&str; 2], sandbox: &str, restrict: Restrict) -> Program {
    let vm = |name| format!("name={name},socket={},port=tap:{name}", dir.join(name).display());
    let vms = ["--vm", &vm(names[0]), "--vm", &vm(names[1])];
    Program::restricted(&[&["--json", "--sandbox", sandbox], &vms[..]].concat(), restrict)
}

#[test]
fn a_log_that_nobody_reads_holds_up_neither_guests_nor_the_end() {
    for sandbox in ["off", "on"] {
        in_netns(move || {
            let dir = tempfile::tempdir().expect("a directory");
            // Kept to the end: a pipe without a reader is an error, and not full.
            let (_reader, mut writer) = small_pipe();
            assert!(fill(&mut writer) >= PIPE_BYTES, "the pipe was empty");
            let restrict = Restrict { stderr: Some(writer.as_raw_fd()), ..Restrict::default() };
            let mut program = start(dir.path(), ["zwloga", "zwlogb"], sandbox, restrict);
            let mut good = Guest::start(connect(&dir.path().join("zwlogb")));
            let mut good_peer = Peer::new("zwlogb");
            good.ping(&mut good_peer);

            // The front end makes lines in the control thread, the guest in the one of its queues,
            // which goes on.
            let mut front = connect(&dir.path().join("zwloga"));
            let memory = GuestMemory::new(&[(GuestAddr(0), 4 << 20)]).expect("guest memory");
            front.negotiate(features::VERSION_1).expect("features");
            front.share_memory(&memory).expect("shared memory");
            repeat_an_error(&mut front, REFUSED);
            let mut transmit = RawQueue::start(&memory, &mut front, 1, 16).expect("a queue");
            let mut receive = RawQueue::start(&memory, &mut front, 0, 16).expect("a queue");
            let buffer = receive.place(&[0; 2048]).expect("guest memory");
            receive.write_chain(3, &[RawDesc { addr: buffer.guest_addr().0, len: 1530, flags: 0, next: 0 }]);
            receive.offer(3);
            receive.kick().expect("a kick");
            let mut peer = Peer::new("zwloga");
            peer.send(&frames::frame(1, 60));
            assert!(
                receive.wait_error(PATIENCE).expect("a poll"),
                "a buffer that can't be written breaks the ring"
            );
            let frame = frames::frame(2, 100);
            let whole = transmit.place(&[&[0; 12], frame.as_slice()].concat()).expect("guest memory");
            transmit.write_chain(0, &[RawDesc::readable(&whole)]);
            transmit.offer(0);
            transmit.kick().expect("a kick");
            assert_eq!(peer.expect().bytes, frame);

            good.ping(&mut good_peer);
            drop((front, good));
            program.signal(libc::SIGTERM);
            assert!(program.wait().success(), "the statistics are out: what nobody reads is the log");
            assert!(!dir.path().join("zwloga").exists(), "it is a clean end");
        });
    }
}

/// The thread that meets lost memory logs it.
#[test]
fn a_log_that_nobody_reads_holds_up_no_thread_that_meets_lost_memory() {
    for sandbox in ["off", "on"] {
        in_netns(move || {
            let dir = tempfile::tempdir().expect("a directory");
            let (_reader, mut writer) = small_pipe();
            assert!(fill(&mut writer) >= PIPE_BYTES, "the pipe was empty");
            let restrict = Restrict { stderr: Some(writer.as_raw_fd()), ..Restrict::default() };
            let mut program = start(dir.path(), ["zwloge", "zwlogf"], sandbox, restrict);
            let mut front = connect(&dir.path().join("zwloge"));
            send_what_is_lost(&mut front);
            drop(front);
            let mut next = Guest::start(connect(&dir.path().join("zwloge")));
            next.ping(&mut Peer::new("zwloge"));
            drop(next);
            program.signal(libc::SIGTERM);
            assert!(program.wait().success(), "it is a clean end");
        });
    }
}

/// As often as a front end likes.
#[test]
fn lost_memory_fills_no_log() {
    const TIMES: usize = 300;
    for sandbox in ["off", "on"] {
        in_netns(move || {
            let dir = tempfile::tempdir().expect("a directory");
            let program = start(dir.path(), ["zwlogg", "zwlogh"], sandbox, Restrict::default());
            let mut front = connect(&dir.path().join("zwlogg"));
            let begin = Instant::now();
            for _ in 0..TIMES {
                send_what_is_lost(&mut front);
                front.stop_queue(1).expect("stopped");
            }
            let most = 2 + begin.elapsed().as_secs() as usize;
            drop(front);
            let (_, log) = program.stop();
            let told = log.lines().filter(|l| l.contains("a front end truncated the file")).count();
            assert!((1..=most).contains(&told), "{told} lines, at most {most}");
        });
    }
}

/// One that stays is told of nevertheless, with what it was refused at once.
#[test]
fn front_ends_that_come_and_leave_alike_fill_no_log() {
    const TIMES: usize = 30;
    for sandbox in ["off", "on"] {
        in_netns(move || {
            let dir = tempfile::tempdir().expect("a directory");
            let program = start(dir.path(), ["zwlogi", "zwlogj"], sandbox, Restrict::default());
            let path = dir.path().join("zwlogi");
            let begin = Instant::now();
            for n in 0..TIMES {
                let mut front = connect(&path);
                // In the middle there is another one.
                if n <= TIMES / 2 {
                    front.set_mtu(if n < TIMES / 2 { 66 } else { 65 }).expect_err("it is refused");
                }
                front.negotiate(features::VERSION_1).expect("features");
            }
            let count = |log: &str, words: &str| log.lines().filter(|line| line.contains(words)).count();
            let quiet = program.log();
            // The first three of each kind, the other one, and one for the minute. Each that takes
            // a second is told of, with three behind it.
            let most = 8 + 4 * (1 + begin.elapsed().as_secs() as usize);
            let mut front = connect(&path);
            for mtu in [66, 67] {
                front.set_mtu(mtu).expect_err("it is refused");
            }
            let words = ["front end connected", "MTU 66", "MTU 67"];
            let stays = || words.iter().all(|words| count(&program.log(), words) > count(&quiet, words));
            wait_until("it is told of", stays);
            drop(front);
            let mut guest = Guest::start(connect(&path));
            guest.ping(&mut Peer::new("zwlogi"));
            drop(guest);
            let (out, log) = program.stop();
            for words in ["front end connected", "connection ended"] {
                assert!((6..=most + 2).contains(&count(&log, words)), "{words}: {most}: {log}");
            }
            assert!((4..=most + 1).contains(&count(&log, "MTU 66")), "{most}: {log}");
            assert_eq!(["MTU 65", "MTU 67"].map(|words| count(&log, words)), [1, 1], "{log}");
            let stats: serde_json::Value = serde_json::from_str(&out).expect("JSON");
            assert_eq!(stats["vms"][0]["connections"], TIMES + 2, "{out}");
            assert!(log.contains("told of once a minute"), "{log}");
        });
    }
}

#[test]
fn an_error_that_is_repeated_leaves_the_log_to_others() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        // The lines of a confined VM are bounded together, also that which counts others.
        let program = start(dir.path(), ["zwlogc", "zwlogd"], "off", Restrict::default());
        let mut front = connect(&dir.path().join("zwlogc"));
        repeat_an_error(&mut front, REFUSED);
        let mut other = connect(&dir.path().join("zwlogd"));
        other.set_mtu(66).expect_err("another error");
        program.wait_log("zwlogd: NET_SET_MTU refused: MTU 66");
        drop((front, other));
        let (_, log) = program.stop();
        let written = log.lines().filter(|l| l.contains("zwlogc: NET_SET_MTU refused: MTU 67")).count();
        assert!((50..REFUSED / 10).contains(&written), "{written} lines");
        let left_out: usize = log
            .lines()
            .filter_map(|l| l.strip_prefix(" WARN zwlogc: ")?.split_once(" further lines are left out"))
            .map(|(count, _)| count.parse::<usize>().expect("a number"))
            .sum();
        // Those of the connection's end and the like may be among them.
        assert!(
            (REFUSED - written..=REFUSED - written + 5).contains(&left_out),
            "{written} and {left_out}\n{log}"
        );
    });
}

/// A unit may set it so.
#[test]
fn a_level_that_is_set_to_nothing_is_not_set() {
    let dir = tempfile::tempdir().expect("a directory");
    let control = dir.path().join("control");
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.args(["net", "--control"]).arg(&control).env("ZEROWIRE_LOG", "");
    let program = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_until("it listens", || UnixStream::connect(&control).is_ok());
    kill(program.id() as i32, libc::SIGTERM);
    let output = program.wait_with_output().expect("it ends");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && log.contains("INFO control socket at"), "{log}");
}
