//! `zerowire send` that can't send everything: it fails, and a peer over TCP sees a reset.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;

use crate::support::processes::kill;
use crate::support::send::{command, file, json, pattern, spawn};

const MODES: [&str; 3] = ["copy", "zerocopy", "auto"];

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    (listener, to)
}

/// The peer of a sender that fails takes the rest: it sees a reset, not the end of the data.
fn expect_reset(mut stream: TcpStream, child: Child, status: Option<i32>, case: &str) -> Output {
    let error = std::io::copy(&mut stream, &mut std::io::sink()).expect_err(case);
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{case}");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), status, "{case}: {output:?}");
    output
}

/// Behind its end a file's last page has zeros, which the kernel sends.
#[test]
fn a_file_that_becomes_shorter_resets_the_connection() {
    let (content, within_the_last_page) = (pattern(40_000_100), 40_000_010);
    for (mode, len) in MODES.iter().flat_map(|mode| [4096, within_the_last_page].map(|len| (mode, len))) {
        let file = file(&content);
        let (listener, to) = listener();
        let path = file.path().to_str().unwrap();
        let child = spawn(&["--to", &to, path, "--mode", mode, "--json", "-"]);
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        file.as_file().set_len(len).unwrap();
        let result = json(&expect_reset(stream, child, Some(1), mode));
        assert!(result["error"].as_str().unwrap().contains("became shorter"), "{len}: {result}");
    }
}

#[test]
fn an_input_that_can_not_be_read_any_more_resets_the_connection() {
    for mode in MODES {
        let (inputs, at) = listener();
        let input = TcpStream::connect(at).unwrap();
        let mut far_end = inputs.accept().unwrap().0;
        let (listener, to) = listener();
        let child =
            command(&["--to", &to, "--mode", mode, "-q"]).stdin(OwnedFd::from(input)).spawn().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        far_end.write_all(&[1; 1000]).unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        set_socket_linger(&far_end, Some(Duration::ZERO)).unwrap();
        drop(far_end);
        let output = expect_reset(stream, child, Some(1), mode);
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(log.contains("reading failed"), "{log}");
    }
}

#[test]
fn a_sender_without_memory_for_buffers_resets_the_connection() {
    let (listener, to) = listener();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v 100000; exec \"$0\" send \"$@\"", env!("CARGO_BIN_EXE_zerowire")]);
    shell.args(["--to", &to, "--chunk", "4194304"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let child = shell.spawn().unwrap();
    let (stream, _) = listener.accept().unwrap();
    let output = expect_reset(stream, child, Some(1), "buffers");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(log.contains("no memory for buffers"), "{log}");
}

#[test]
fn a_sender_that_is_killed_resets_the_connection() {
    for mode in MODES {
        let (listener, to) = listener();
        let mut child = command(&["--to", &to, "--mode", mode]).stdin(Stdio::piped()).spawn().unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        child.stdin.as_mut().unwrap().write_all(&[1; 1000]).unwrap();
        stream.read_exact(&mut [0; 1000]).unwrap();
        kill(child.id() as i32, libc::SIGKILL);
        expect_reset(stream, child, None, mode);
    }
}

#[test]
fn a_standard_input_that_is_closed_is_told_of() {
    let (listener, to) = listener();
    listener.set_nonblocking(true).unwrap();
    // The shell closes it.
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" send \"$@\" <&-", env!("CARGO_BIN_EXE_zerowire"), "--to", &to]);
    let output = shell.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{log}");
    assert!(log.contains("standard input is closed"), "{log}");
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "it has connected");
}
