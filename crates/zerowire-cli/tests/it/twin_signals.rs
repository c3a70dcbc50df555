//! A signal that comes twice at once, as timeout(1) sends it: `zerowire send`, `recv` and `replay`
//! end with their result. One that comes later ends them while nobody reads that.

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::NamedTempFile;

use crate::support::pipe::{fill, small_pipe};
use crate::support::processes::{kill, status};
use crate::support::replay::{self, HERE, in_lab, lab::Lab};
use crate::support::{recv, send, wait_until};

/// Sends the signal twice. False: that took so long that the second one may count.
fn signal_twice(pid: i32) -> bool {
    let begin = Instant::now();
    for _ in 0..2 {
        kill(pid, libc::SIGTERM);
        // A signal that is pending already is dropped.
        wait_until("the signal is taken", || {
            let pending = u64::from_str_radix(&status(pid, "ShdPnd"), 16).expect("a mask");
            pending & 1 << (libc::SIGTERM - 1) == 0
        });
    }
    begin.elapsed() < Duration::from_millis(500)
}

/// `start` starts a command with a pipe for its result, which is full until both signals are taken,
/// and what it needs meanwhile. `key` of the result has this `value` then.
fn assert_ends_with_result<T>(key: &str, value: &str, start: impl Fn(Stdio) -> (Child, T)) {
    loop {
        let (mut result, mut full) = small_pipe();
        let filled = fill(&mut full);
        let (mut child, _held) = start(full.into());
        let in_time = signal_twice(child.id() as i32);
        let mut text = Vec::new();
        result.read_to_end(&mut text).expect("its result");
        let ended = child.wait().expect("its end");
        if in_time {
            let text = String::from_utf8_lossy(&text[filled..]);
            let result: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert_eq!((ended.code(), &result[key]), (Some(143), &Value::from(value)));
            return;
        }
    }
}

#[test]
fn send_ends_with_its_result() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let start = |stdout: Stdio| {
        let child = send::command(&["--to", &to, "/dev/zero", "--json", "-"]).stdout(stdout).spawn().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        (child, stream)
    };
    assert_ends_with_result("outcome", "interrupted", start);
}

#[test]
fn recv_ends_with_its_result() {
    let start = |stdout: Stdio| {
        let mut command = recv::command(&["-p", "0", "--json", "-"]);
        let mut child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        stderr.read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on "), "{line}");
        (child, stderr)
    };
    assert_ends_with_result("outcome", "interrupted", start);
}

/// Starts a replay that waits for an hour behind its first frame.
fn start_replay(lab: &Lab, stdout: Stdio) -> (Child, NamedTempFile) {
    let file = replay::write(&replay::capture(&replay::frames(2), 3_600_000_000_000));
    let path = file.path().to_str().unwrap();
    let peer = lab.capture();
    let child = replay::command(&["-i", HERE, "-q", "--json", "-", path]).stdout(stdout).spawn().unwrap();
    peer.expect();
    (child, file)
}

#[test]
fn replay_ends_with_its_result() {
    in_lab(|lab| {
        lab.veth();
        assert_ends_with_result("ended", "SIGTERM", |stdout| start_replay(lab, stdout));
    });
}

#[test]
fn replay_ends_without_a_reader_of_its_result() {
    in_lab(|lab| {
        lab.veth();
        let (mut result, mut full) = small_pipe();
        let filled = fill(&mut full);
        let (mut child, _file) = start_replay(lab, full.into());
        wait_until("a later signal ends it", || {
            kill(child.id() as i32, libc::SIGTERM);
            child.try_wait().unwrap().is_some()
        });
        assert_eq!(child.wait().unwrap().code(), Some(143));
        let mut text = Vec::new();
        result.read_to_end(&mut text).unwrap();
        assert_eq!(text.len(), filled, "it has no room");
    });
}
