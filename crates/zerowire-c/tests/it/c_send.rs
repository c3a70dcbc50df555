//! Sending from C: the example, each call, and the check of lent memory, compiled by the system's
//! compiler.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output};
use std::thread::JoinHandle;

use crate::support::compile;

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port().to_string();
    (listener, port)
}

/// Reads one connection to its end.
fn receiver(listener: TcpListener) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut from, _) = listener.accept().expect("a connection");
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("the end of the stream");
        bytes
    })
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// The example sends a file; what arrives is the file, and the ledger has each byte once.
fn sends(program: &Path, options: &[&str], len: usize, expected: &[&str]) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    let bytes: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(&file, &bytes).expect("written");
    let (listener, port) = listener();
    let receiver = receiver(listener);
    let out =
        Command::new(program).args(options).args(["127.0.0.1", &port]).arg(&file).output().expect("started");
    assert!(out.status.success(), "{options:?}: {}", text(&out));
    assert!(receiver.join().expect("received") == bytes, "{options:?}: other bytes arrived");
    let out = text(&out);
    let total: usize = out
        .lines()
        .filter(|l| l.starts_with("copied, ") || l.starts_with("zero-copied: "))
        .map(|l| l.rsplit(": ").next().and_then(|n| n.parse::<usize>().ok()).expect("a number"))
        .sum();
    assert_eq!(total, len, "{out}");
    assert!(out.starts_with(&format!("{len} bytes in ")), "{out}");
    for text in expected {
        assert!(out.contains(text), "{options:?}: no {text:?} in {out}");
    }
}

#[test]
fn the_example_sends_with_the_shared_library() {
    let program = compile("examples/c/send_file.c", true);
    sends(&program, &[], 10_000_001, &["path: socket calls over tcp"]);
    sends(&program, &["-m", "copy"], 1_000_000, &["copied, asked: 1000000\n"]);
    sends(&program, &["-l"], 20_000_000, &["path: "]);
    sends(&program, &[], 0, &["0 bytes in 0 payloads"]);
}

#[test]
fn the_example_sends_with_the_static_library() {
    let program = compile("examples/c/send_file.c", false);
    // To a receiver on this machine the kernel copies what was lent, and says so.
    let lent = ["copied, kernel: 30000000\n", "MSG_ZEROCOPY"];
    sends(&program, &["-m", "zerocopy", "-b", "socket"], 30_000_000, &lent);
    sends(&program, &["-m", "zerocopy", "-b", "socket", "-c", "-l"], 30_000_000, &lent);
}

#[test]
fn the_example_says_what_failed() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile("examples/c/send_file.c", false);
    let file = folder.path().join("file");
    // More than the sockets' buffers hold, so that the reset comes in between.
    std::fs::write(&file, vec![0; 64 << 20]).expect("written");
    let (listener, port) = listener();
    let receiver = std::thread::spawn(move || drop(listener.accept().expect("a connection")));
    let out = Command::new(&program)
        .args(["-m", "zerocopy", "127.0.0.1", &port])
        .arg(&file)
        .output()
        .expect("started");
    receiver.join().expect("ended");
    assert_eq!(out.status.code(), Some(1), "{}", text(&out));
    assert!(text(&out).contains("the connection is gone"), "{}", text(&out));
}

/// Each function, with sound and with wrong arguments; what arrives is compared here.
#[test]
fn each_call_does_what_the_header_says() {
    let program = compile("tests/c/send_calls.c", true);
    let (listener, port) = listener();
    let receiver = std::thread::spawn(move || {
        // In the order of the program: two that only connect, the one that sends, the one whose
        // calls are refused, one more that only connects.
        [(); 5].map(|()| {
            let (mut from, _) = listener.accept().expect("a connection");
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).expect("the end of the stream");
            String::from_utf8(bytes).expect("text")
        })
    });
    let sink = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let sink_port = sink.local_addr().expect("an address").port().to_string();
    let out = Command::new(program).args([port, sink_port]).output().expect("started");
    assert!(out.status.success(), "{}", text(&out));
    let lengths = [1000, 1000, 50, 50, 50, 10, 100, 100, 100, 100, 100, 100, 200, 100, 300];
    assert_eq!(lengths.map(|_| sink.recv(&mut [0; 2000]).expect("a datagram")), lengths);
    let ten = "0123456789".repeat(10);
    assert_eq!(receiver.join().expect("received"), ["", "", ten.as_str(), "", ""]);
}

/// Memory comes back when the kernel has let go of it, whoever lent before on the connection.
#[test]
fn senders_follow_each_other_on_a_connection() {
    let program = compile("tests/c/send_again.c", true);
    let out = Command::new(program).output().expect("started");
    assert!(out.status.success(), "{}", text(&out));
}

#[test]
fn calls_that_fail_while_a_thread_ends_return_their_error() {
    let program = compile("tests/c/thread_ends.c", true);
    let out = Command::new(program).output().expect("started");
    assert!(out.status.success(), "{}", text(&out));
}

/// The peer accepts, and reads nothing before the program has ended.
fn changes(what: &str, how: &str, check: &str) -> Output {
    let program = compile("tests/c/send_changed.c", true);
    let (listener, port) = listener();
    let out = Command::new(program).args([&port, what, how, check]).output().expect("started");
    drop(listener);
    out
}

#[test]
fn lent_memory_that_changes_aborts_the_program() {
    for what in ["lent", "lease"] {
        let out = changes(what, "changed", "checked");
        assert_eq!(out.status.signal(), Some(libc::SIGABRT), "{what}: {}", text(&out));
        let text = text(&out);
        assert!(
            text.contains(
                "the memory of ticket 1 was changed while it was lent, between offset 512 and 1023"
            ),
            "{what}: {text}"
        );
        assert!(!text.contains("ended"), "{what}: {text}");
    }
}

#[test]
fn lent_memory_that_is_left_alone_does_not() {
    for what in ["lent", "lease"] {
        let out = changes(what, "kept", "checked");
        assert!(out.status.success() && text(&out) == "ended\n", "{what}: {}", text(&out));
    }
}

#[test]
fn debug_builds_check_by_themselves() {
    let out = changes("lent", "changed", "default");
    let aborted = out.status.signal() == Some(libc::SIGABRT);
    assert_eq!(aborted, cfg!(debug_assertions), "{}", text(&out));
    assert_eq!(out.status.success(), !cfg!(debug_assertions), "{}", text(&out));
}
