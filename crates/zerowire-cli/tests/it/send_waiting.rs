//! `zerowire send` where something is waited for: a slow peer, a silent input, a connection, a
//! pipe.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, accept, bind, getsockname, listen, socket_with};

use crate::support::pipe::{fill, small_pipe};
use crate::support::processes::{kill, status, wait_idle};
use crate::support::send::{PATIENCE, command, file, json, pattern, spawn};
use crate::support::wait_until;

/// A receiver whose whole takes several times the timeout, and that always goes on.
#[test]
fn a_slow_peer_that_takes_some_all_the_time_gets_everything() {
    let content = pattern(600_000);
    let file = file(&content);
    for mode in ["copy", "zerocopy"] {
        for from_pipe in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            // The connection inherits it before it announces its window.
            rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 8 << 10).unwrap();
            let to = listener.local_addr().unwrap().to_string();
            let path = if from_pipe { "-" } else { file.path().to_str().unwrap() };
            let mut child = command(&["--to", &to, path, "--mode", mode, "--timeout", "1.5", "--json", "-"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let mut input = child.stdin.take().unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let start = Instant::now();
            let mut got = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if from_pipe {
                        input.write_all(&content).unwrap();
                    }
                    drop(input);
                });
                let mut buffer = vec![0; 16 << 10];
                loop {
                    match stream.read(&mut buffer).unwrap() {
                        0 => break,
                        n => got.extend_from_slice(&buffer[..n]),
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            });
            assert!(start.elapsed() > Duration::from_secs(3), "the receiver was not slow");
            let output = child.wait_with_output().unwrap();
            let result = json(&output);
            assert!(output.status.success(), "{mode}, from a pipe: {from_pipe}: {result}");
            assert!(got == content, "{mode}, from a pipe: {from_pipe}: {} bytes arrived", got.len());
        }
    }
}

/// A program with an input that stays open, and a unix socket, which takes some 200 kB at once.
fn to_unix(dir: &tempfile::TempDir, args: &[&str]) -> (Child, std::process::ChildStdin, UnixStream) {
    let at = dir.path().join("s");
    let listener = UnixListener::bind(&at).unwrap();
    let to = format!("unix:{}", at.display());
    let mut child = command(&[&["--to", &to, "--chunk", "4194304", "--json", "-"], args].concat())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let input = child.stdin.take().unwrap();
    rustix::pipe::fcntl_setpipe_size(&input, 1 << 20).unwrap();
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    (child, input, stream)
}

#[test]
fn the_end_of_a_burst_goes_out_while_the_input_is_silent() {
    let content = pattern(1 << 20);
    let dir = tempfile::tempdir().unwrap();
    let (child, mut input, mut stream) = to_unix(&dir, &[]);
    input.write_all(&content).unwrap();
    let mut got = vec![0; content.len()];
    stream.read_exact(&mut got).expect("all of it, though the input is open");
    assert!(got == content);
    drop(input);
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 0);
    drop(stream);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn the_timeout_counts_while_the_input_is_silent_and_something_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let (child, mut input, stream) = to_unix(&dir, &["--timeout", "0.3"]);
    input.write_all(&pattern(1 << 20)).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let result = json(&output);
    assert!(result["error"].as_str().unwrap().contains("timed out"), "{result}");
    assert_eq!(result["left"]["payloads"], 1);
    drop((input, stream));
}

#[test]
fn the_timeout_does_not_count_while_only_input_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (child, mut input, mut stream) = to_unix(&dir, &["--timeout", "0.2"]);
    for part in [b"first", b"after"] {
        input.write_all(part).unwrap();
        let mut got = [0; 5];
        stream.read_exact(&mut got).unwrap();
        assert_eq!(&got, part);
        std::thread::sleep(Duration::from_millis(800));
    }
    drop((input, stream));
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn a_reset_is_noticed_while_the_input_is_silent() {
    for mode in ["copy", "zerocopy"] {
        for backend in ["socket", "uring"] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap().to_string();
            let mut child = command(&["--to", &to, "--mode", mode, "--backend", backend, "--json", "-"])
                .stdin(Stdio::piped())
                .spawn()
                .unwrap();
            let mut input = child.stdin.take().unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            input.write_all(b"some bytes").unwrap();
            stream.read_exact(&mut [0; 4]).unwrap();
            // Unread bytes: a reset.
            drop(stream);
            let output = child.wait_with_output().unwrap();
            assert_eq!(output.status.code(), Some(1), "{mode}, {backend}");
            let result = json(&output);
            let error = result["error"].as_str().unwrap();
            assert!(error.contains("the connection is gone"), "{mode}, {backend}: {result}");
            drop(input);
        }
    }
}

/// A listener that takes no connection any more, and what fills its queue.
fn full_listener() -> (std::os::fd::OwnedFd, Vec<TcpStream>, String) {
    let listener = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &std::net::SocketAddrV4::new(std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    listen(&listener, 0).unwrap();
    let address = std::net::SocketAddr::try_from(getsockname(&listener).unwrap()).unwrap();
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
        held.push(stream);
    }
    (listener, held, address.to_string())
}

#[test]
fn the_timeout_counts_for_connecting() {
    let (_listener, _held, to) = full_listener();
    let output = spawn(&["--to", &to, "/dev/zero", "--timeout", "0.3"]).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&to) && text.contains("no answer within 300ms (--timeout)"), "{text}");

    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("s");
    let _full = full_unix_listener(&at);
    let to = format!("unix:{}", at.display());
    let output = spawn(&["--to", &to, "/dev/zero", "--timeout", "0.3"]).wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&to) && text.contains("no answer within 300ms (--timeout)"), "{text}");
}

/// Waits until the program has the signals blocked, to take them in good order.
fn wait_for_mask(child: &Child) {
    let end = Instant::now() + PATIENCE;
    let want = 1u64 << (libc::SIGINT - 1) | 1 << (libc::SIGTERM - 1);
    loop {
        let text = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let blocked = text.lines().find_map(|l| l.strip_prefix("SigBlk:")).expect("SigBlk");
        if u64::from_str_radix(blocked.trim(), 16).unwrap() & want == want {
            return;
        }
        assert!(Instant::now() < end, "the signals are not blocked: {blocked}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_signal_ends_it_while_it_opens_or_connects() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let (_listener, _held, full) = full_listener();
    for (to, input, signal, code) in [
        ("127.0.0.1:1", fifo.to_str().unwrap(), libc::SIGINT, 130),
        (full.as_str(), "/dev/zero", libc::SIGTERM, 143),
    ] {
        let child = spawn(&["--to", to, input]);
        wait_for_mask(&child);
        // SAFETY: kill(2) has no memory effects; the child is this test's and not reaped.
        assert_eq!(unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) }, 0);
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{to} {input}: {text}");
        assert!(text.contains(&format!("stopped by signal {signal} before anything was sent")), "{text}");
        assert!(output.stdout.is_empty());
    }
}

/// The first one ends sending, and the summary finds its pipe full.
#[test]
fn a_second_signal_ends_it_though_nobody_reads_its_summary() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let (_reader, mut full) = small_pipe();
    fill(&mut full);
    let mut child = command(&["--to", &to, "/dev/zero"]).stdout(full).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    kill(child.id() as i32, libc::SIGINT);
    // Those that come soon are the first one's twins.
    let ended = loop {
        std::thread::sleep(Duration::from_millis(100));
        match child.try_wait().unwrap() {
            Some(ended) => break ended,
            None => kill(child.id() as i32, libc::SIGTERM),
        }
    };
    assert_eq!(ended.code(), Some(143));
}

/// The same on a unix socket.
fn full_unix_listener(at: &Path) -> (OwnedFd, UnixStream, String) {
    let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &rustix::net::SocketAddrUnix::new(at).unwrap()).unwrap();
    listen(&listener, 0).unwrap();
    (listener, UnixStream::connect(at).unwrap(), format!("unix:{}", at.display()))
}

/// Suspends a program that waits for a connection.
fn suspend(child: &Child) {
    wait_idle(child.id() as i32);
    kill(child.id() as i32, libc::SIGSTOP);
    wait_until("it is suspended", || status(child.id() as i32, "State") == "T");
}

/// The kernel does not go on by itself with a connect whose time is limited (signal(7)).
#[test]
fn a_program_that_is_suspended_while_it_connects_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (unix, first, unix_peer) = full_unix_listener(&dir.path().join("s"));
    let (tcp, held, to) = full_listener();
    let content = pattern(1000);
    let file = file(&content);
    let filled: [(_, _, Vec<OwnedFd>); 2] =
        [(tcp, to, held.into_iter().map(OwnedFd::from).collect()), (unix, unix_peer, vec![first.into()])];
    for (listener, to, held) in filled {
        let path = file.path().to_str().unwrap();
        let child = spawn(&["--to", &to, path, "--timeout", "60", "--json", "-"]);
        suspend(&child);
        kill(child.id() as i32, libc::SIGCONT);
        wait_idle(child.id() as i32);
        // Those before it say nothing.
        drop(held);
        let mut got = Vec::new();
        while got.is_empty() {
            std::fs::File::from(accept(&listener).unwrap()).read_to_end(&mut got).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && got == content, "{to}: {output:?}");
    }
}

/// The kernel connects meanwhile, or can at once.
#[test]
fn a_program_that_is_suspended_for_longer_than_its_timeout_connects() {
    const TIMEOUT: &str = "3";
    let dir = tempfile::tempdir().unwrap();
    let (unix, first, unix_peer) = full_unix_listener(&dir.path().join("s"));
    let (tcp, held, tcp_peer) = full_listener();
    let file = file(&pattern(1000));
    let children = [&tcp_peer, &unix_peer].map(|to| {
        let child = spawn(&["--to", to, file.path().to_str().unwrap(), "--timeout", TIMEOUT, "-q"]);
        suspend(&child);
        child
    });
    let since = Instant::now();

    let others: Vec<_> = held.iter().map(|stream| stream.local_addr().unwrap()).collect();
    drop((held, first));
    let accept_tcp = || TcpStream::from(accept(&tcp).unwrap());
    let is_other = |stream: &TcpStream| stream.peer_addr().map_or(true, |peer| others.contains(&peer));
    let stream = std::iter::repeat_with(accept_tcp).find(|stream| !is_other(stream)).unwrap();
    drop(accept(&unix).unwrap());
    let timeout = Duration::from_secs(TIMEOUT.parse().unwrap());
    std::thread::sleep(timeout.saturating_sub(since.elapsed()));

    children.iter().for_each(|child| kill(child.id() as i32, libc::SIGCONT));
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    for mut peer in [OwnedFd::from(stream), accept(&unix).unwrap()].map(std::fs::File::from) {
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        assert!(got == pattern(1000));
    }
}

/// Until it begins to send a signal ends it without a summary.
#[test]
fn a_signal_behind_the_connect_says_that_a_signal_came() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    for _ in 0..30 {
        let child = command(&["--to", &to, "--json", "-"]).stdin(Stdio::piped()).spawn().unwrap();
        let _stream = listener.accept().unwrap();
        kill(child.id() as i32, libc::SIGINT);
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(130), "{text}");
        let is_early = text.contains("stopped by signal 2 before anything was sent");
        assert_eq!(is_early, output.stdout.is_empty(), "{text}");
    }
}
