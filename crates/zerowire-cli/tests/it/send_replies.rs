//! `zerowire send` to a peer that sends, too: what comes is read and dropped, so that the peer goes
//! on taking. And to one that does not get everything at the end.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::processes::kill;
use crate::support::send::{PATIENCE, command, file, json, pattern, spawn};

/// Sends back what comes, and returns it.
fn echo<S: Read + Write>(stream: &mut S, pause: Duration) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        let count = stream.read(&mut buffer).expect("no reset");
        if count == 0 {
            return all;
        }
        all.extend_from_slice(&buffer[..count]);
        stream.write_all(&buffer[..count]).expect("the sender reads what comes back");
        thread::sleep(pause);
    }
}

fn limited(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.set_write_timeout(Some(PATIENCE)).expect("set");
    stream
}

#[test]
fn a_peer_that_echoes_gets_everything() {
    // More than the buffers of both sides take.
    let content = pattern(24 << 20);
    let file = file(&content);
    for (mode, backend, from_pipe) in [
        ("copy", "socket", false),
        ("zerocopy", "socket", false),
        ("zerocopy", "socket", true),
        ("zerocopy", "uring", true),
    ] {
        let case = format!("{mode} {backend}, from a pipe: {from_pipe}");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().to_string();
        let path = if from_pipe { "-" } else { file.path().to_str().unwrap() };
        let mut child = command(&["--to", &to, path, "--mode", mode, "--backend", backend, "--json", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let mut stream = limited(listener.accept().unwrap().0);
        let got = thread::scope(|scope| {
            scope.spawn(|| {
                if from_pipe {
                    input.write_all(&content).unwrap();
                }
                drop(input);
            });
            let got = echo(&mut stream, Duration::ZERO);
            drop(stream);
            got
        });
        let output = child.wait_with_output().unwrap();
        let result = json(&output);
        assert!(output.status.success(), "{case}: {result}");
        assert!(got == content, "{case}: {} bytes arrived", got.len());
        assert_eq!(result["replied_bytes"], got.len(), "{case}");
    }
}

#[test]
fn a_unix_peer_that_echoes_gets_everything() {
    let content = pattern(4 << 20);
    let (folder, file) = (tempfile::tempdir().unwrap(), file(&content));
    let at = folder.path().join("s");
    let listener = UnixListener::bind(&at).unwrap();
    let child = spawn(&["--to", &format!("unix:{}", at.display()), file.path().to_str().unwrap()]);
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let got = echo(&mut stream, Duration::ZERO);
    drop(stream);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && got == content, "{} bytes arrived: {text}", got.len());
    assert!(text.contains("the peer sent 4.2 MB, which were dropped"), "{text}");
}

/// All of it lies in the socket's buffer when the input ends, and takes longer than the peer may
/// take to close.
#[test]
fn a_slow_peer_that_echoes_gets_everything() {
    let content = pattern(600_000);
    let file = file(&content);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 8 << 10).unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let child = spawn(&["--to", &to, file.path().to_str().unwrap(), "--mode", "copy"]);
    let mut stream = limited(listener.accept().unwrap().0);
    let got = echo(&mut stream, Duration::from_millis(100));
    drop(stream);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && got == content, "{} bytes arrived: {output:?}", got.len());
}

#[test]
fn a_peer_that_replies_and_closes_its_half_gets_everything() {
    let content = pattern(6 << 20);
    let file = file(&content);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let child = spawn(&["--to", &to, file.path().to_str().unwrap(), "--json", "-"]);
    let mut stream = limited(listener.accept().unwrap().0);
    stream.write_all(b"a greeting").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).expect("no reset");
    drop(stream);
    let output = child.wait_with_output().unwrap();
    let result = json(&output);
    assert!(output.status.success() && got == content, "{} bytes arrived: {result}", got.len());
    assert_eq!(result["replied_bytes"], 10);
}

/// A listener whose connections keep little that is not read. They inherit it before they announce
/// their window.
fn small_listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 8 << 10).unwrap();
    let to = listener.local_addr().unwrap().to_string();
    (listener, to)
}

#[test]
fn a_slow_peer_that_closes_its_half_gets_everything() {
    let content = pattern(600_000);
    let file = file(&content);
    let (listener, to) = small_listener();
    let child = spawn(&["--to", &to, file.path().to_str().unwrap(), "--mode", "copy"]);
    let mut stream = limited(listener.accept().unwrap().0);
    stream.shutdown(Shutdown::Write).unwrap();
    // Longer than one may take to close that has everything.
    thread::sleep(Duration::from_millis(2500));
    let (mut got, mut buffer) = (Vec::new(), vec![0; 16 << 10]);
    loop {
        match stream.read(&mut buffer).expect("no reset") {
            0 => break,
            count => got.extend_from_slice(&buffer[..count]),
        }
        thread::sleep(Duration::from_millis(100));
    }
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && got == content, "{} bytes arrived: {output:?}", got.len());
}

/// All of it lies in the socket's buffer when the input ends.
#[test]
fn a_peer_that_talks_and_takes_nothing_is_given_up() {
    let file = file(&pattern(600_000));
    let (listener, to) = small_listener();
    let path = file.path().to_str().unwrap();
    let child = spawn(&["--to", &to, path, "--mode", "copy", "--json", "-", "--timeout", "2"]);
    let mut stream = limited(listener.accept().unwrap().0);
    // For ever is longer than the patience of a test.
    let talker = thread::spawn(move || {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && stream.write_all(b"words").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    let output = child.wait_with_output().unwrap();
    talker.join().unwrap();
    let result = json(&output);
    assert_eq!(output.status.code(), Some(1), "{result}");
    assert_eq!(result["outcome"], "failed", "{result}");
    let error = result["error"].as_str().unwrap();
    assert!(error.contains("took nothing for 2 s") && error.contains("--timeout"), "{result}");
}

/// Until the peer has closed, it may still say that it did not get everything.
#[test]
fn a_peer_that_resets_at_the_end_and_a_signal_then_are_told_of() {
    let content = pattern(100_000);
    let file = file(&content);
    for (signal, code, outcome) in [(None, 1, "failed"), (Some(libc::SIGTERM), 143, "interrupted")] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().to_string();
        let child = spawn(&["--to", &to, file.path().to_str().unwrap(), "--json", "-"]);
        let mut stream = limited(listener.accept().unwrap().0);
        let mut got = Vec::new();
        stream.read_to_end(&mut got).expect("no reset");
        let held = match signal {
            Some(signal) => {
                kill(child.id() as i32, signal);
                Some(stream)
            }
            None => {
                rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                drop(stream);
                None
            }
        };
        let output = child.wait_with_output().unwrap();
        drop(held);
        let result = json(&output);
        assert!(got == content, "{} bytes arrived: {result}", got.len());
        assert_eq!(output.status.code(), Some(code), "{result}");
        assert_eq!(result["outcome"], outcome, "{result}");
    }
}

#[test]
fn a_unix_peer_may_read_the_end_late() {
    let content = pattern(100_000);
    let (folder, file) = (tempfile::tempdir().unwrap(), file(&content));
    let at = folder.path().join("s");
    let listener = UnixListener::bind(&at).unwrap();
    let child = spawn(&["--to", &format!("unix:{}", at.display()), file.path().to_str().unwrap()]);
    let (mut stream, _) = listener.accept().unwrap();
    let output = child.wait_with_output().unwrap();
    let mut got = Vec::new();
    stream.read_to_end(&mut got).unwrap();
    assert!(output.status.success() && got == content, "{} bytes arrived: {output:?}", got.len());
}
