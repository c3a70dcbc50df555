//! Receiving from C: the example and each call, compiled by the system's compiler.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use crate::support::compile;

const CONNECTIONS: usize = 5;

/// Starts a receiver on a free port, which it prints first. Returns it with the rest of its output.
fn started(command: &mut Command) -> (Child, BufReader<ChildStdout>, u16) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("the port");
    let port = line.trim().trim_start_matches("port ").parse().expect("a number");
    (child, out, port)
}

/// Several senders at once: every byte is counted and summed, and each of them gets its number.
fn receives(program: &Path, mode: &str, path: &str) {
    let args = ["-e", "-m", mode, "0", &CONNECTIONS.to_string()];
    let (mut child, mut out, port) = started(Command::new(program).args(args));
    let senders: Vec<_> = (0..CONNECTIONS)
        .map(|seed| {
            std::thread::spawn(move || {
                let len = 1_000_001 * seed;
                let bytes: Vec<u8> = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
                let mut to = TcpStream::connect(("127.0.0.1", port)).expect("connected");
                to.write_all(&bytes).expect("written");
                to.shutdown(Shutdown::Write).expect("shut down");
                let mut answer = String::new();
                to.read_to_string(&mut answer).expect("an answer");
                assert_eq!(answer, format!("{len}\n"));
                bytes.iter().map(|b| u64::from(*b)).sum::<u64>()
            })
        })
        .collect();
    let sum: u64 = senders.into_iter().map(|s| s.join().expect("sent")).sum();
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("text");
    assert!(child.wait().expect("ended").success(), "{rest}");
    let total = 1_000_001 * (0..CONNECTIONS).sum::<usize>();
    for wanted in [
        format!("{total} bytes, sum {sum}\n"),
        format!("zero-copied: 0, copied: {total}\n"),
        format!("accepted: {CONNECTIONS}, "),
        format!("path: {path}"),
    ] {
        assert!(rest.contains(&wanted), "{mode}: no {wanted:?} in {rest}");
    }
}

#[test]
fn the_example_receives_with_the_shared_library() {
    let program = compile("examples/c/recv_sockets.c", true);
    receives(&program, "auto", "multishot: ");
    receives(&program, "plain", "plain: ");
}

#[test]
fn the_example_receives_with_the_static_library() {
    let program = compile("examples/c/recv_sockets.c", false);
    receives(&program, "multishot", "multishot: ");
}

/// The answer of -e to a client that is gone fails, and others are served on.
#[test]
fn the_example_goes_on_when_a_client_resets() {
    let program = compile("examples/c/recv_sockets.c", false);
    // What it prints at the end must find its pipe open.
    let (mut child, _out, port) = started(Command::new(program).args(["-e", "0", "2"]).stderr(Stdio::null()));
    let resets = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    rustix::net::sockopt::set_socket_linger(&resets, Some(Duration::ZERO)).expect("set");
    drop(resets);
    let mut stays = TcpStream::connect(("127.0.0.1", port)).expect("connected");
    stays.write_all(b"ten bytes!").expect("written");
    stays.shutdown(Shutdown::Write).expect("shut down");
    let mut answer = String::new();
    stays.read_to_string(&mut answer).expect("an answer");
    assert_eq!(answer, "10\n");
    assert!(child.wait().expect("ended").success());
}

#[test]
fn the_example_refuses_a_way_that_there_is_none_of() {
    let program = compile("examples/c/recv_sockets.c", false);
    let out = Command::new(program).args(["-m", "mapped", "0", "1"]).output().expect("started");
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("called mapped"));
}

fn succeeds(source: &'static str, shared: bool) {
    let program = compile(source, shared);
    let out = Command::new(program).output().expect("started");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn each_call_and_how_it_fails() {
    succeeds("tests/c/recv_calls.c", false);
}

#[test]
fn arrivals_are_given_before_the_error_behind_them() {
    succeeds("tests/c/recv_late_error.c", true);
}
