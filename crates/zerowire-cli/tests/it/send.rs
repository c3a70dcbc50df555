//! `zerowire send` to plain receivers on this machine: every byte arrives, the ledger adds up, and
//! each wrong thing is named.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::support::processes::kill;
use crate::support::send::{PATIENCE, booked, command, file, json, pattern, spawn};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

/// Everything that one TCP connection brings.
fn receive_all(listener: TcpListener) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        all
    })
}

#[test]
fn a_file_arrives_by_every_mode_and_back_end() {
    let content = pattern(5_000_001);
    let file = file(&content);
    for mode in ["copy", "zerocopy", "auto"] {
        for backend in ["socket", "uring"] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap().to_string();
            let receiver = receive_all(listener);
            let path = file.path().to_str().unwrap();
            let output = spawn(&["--to", &to, path, "--mode", mode, "--backend", backend, "--json", "-"])
                .wait_with_output()
                .unwrap();
            let result = json(&output);
            assert!(output.status.success(), "{mode} {backend}: {result}");
            assert!(receiver.join().unwrap() == content, "{mode} {backend}: other bytes arrived");
            assert_eq!(result["bytes"], content.len());
            assert_eq!(booked(&result), content.len() as u64, "{mode} {backend}: {result}");
            assert_eq!(result["outcome"], "complete");
            assert_eq!(result["left"]["payloads"], 0);
            let copied = &result["ledger"]["copied_bytes"];
            match mode {
                "copy" => assert_eq!(copied["asked"], content.len(), "{result}"),
                // The receiver is on this machine.
                "zerocopy" => assert_eq!(copied["kernel"], content.len(), "{result}"),
                _ => assert!(result["choices"][0]["sends"].as_u64() > Some(0), "{result}"),
            }
        }
    }
}

#[test]
fn standard_input_arrives_from_a_pipe_and_from_the_middle_of_a_file() {
    let content = pattern(3_000_000);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let receiver = receive_all(listener);
    let mut child =
        command(&["--to", &to, "--mode", "zerocopy", "--json", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for part in content.chunks(7001) {
        input.write_all(part).unwrap();
    }
    drop(input);
    let result = json(&child.wait_with_output().unwrap());
    assert!(receiver.join().unwrap() == content, "other bytes arrived: {result}");
    assert_eq!(booked(&result), content.len() as u64);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let receiver = receive_all(listener);
    let file = file(&content);
    let mut open = std::fs::File::open(file.path()).unwrap();
    std::io::Seek::seek(&mut open, std::io::SeekFrom::Start(1_000_001)).unwrap();
    let output = command(&["--to", &to, "-q"]).stdin(open).output().unwrap();
    assert!(output.status.success());
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "quiet says nothing: {output:?}");
    assert!(receiver.join().unwrap() == content[1_000_001..]);
}

#[test]
fn datagrams_have_the_length_asked_for() {
    for (datagram, segmented) in [("1000", true), ("40000", false), ("1", true)] {
        let length: usize = datagram.parse().unwrap();
        let content = pattern(length * 50 + length / 2);
        let file = file(&content);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 8 << 20).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let to = socket.local_addr().unwrap().to_string();
        let path = file.path().to_str().unwrap();
        let output = spawn(&["--to", &to, "--udp", "--datagram", datagram, path, "--json", "-"])
            .wait_with_output()
            .unwrap();
        let result = json(&output);
        assert!(output.status.success(), "{result}");
        let mut got = Vec::new();
        let mut buffer = vec![0; 70_000];
        while got.len() < content.len() {
            let n = socket.recv(&mut buffer).expect("a datagram");
            assert_eq!(n, length.min(content.len() - got.len()), "a datagram's length");
            got.extend_from_slice(&buffer[..n]);
        }
        assert!(got == content);
        let datagrams = content.len().div_ceil(length) as u64;
        let payloads = result["ledger"]["frames"].as_u64().unwrap();
        assert_eq!(payloads < datagrams, segmented, "{payloads} payloads of {datagrams} datagrams");
    }
}

#[test]
fn unix_sockets_are_copied_to_and_the_ledger_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("s");
    let listener = UnixListener::bind(&at).unwrap();
    let content = pattern(700_000);
    let file = file(&content);
    let receiver = std::thread::spawn(move || {
        let mut all = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut all).unwrap();
        all
    });
    let to = format!("unix:{}", at.display());
    let path = file.path().to_str().unwrap();
    let output = spawn(&["--to", &to, path, "--mode", "zerocopy", "--json", "-"]).wait_with_output().unwrap();
    let result = json(&output);
    assert!(receiver.join().unwrap() == content);
    assert_eq!(result["ledger"]["copied_bytes"]["unsupported"], content.len(), "{result}");

    let at = dir.path().join("d");
    let socket = UnixDatagram::bind(&at).unwrap();
    let to = format!("unix:{}", at.display());
    let child = spawn(&["--to", &to, path, "--udp", "--datagram", "10000"]);
    let mut got = Vec::new();
    let mut buffer = vec![0; 70_000];
    while got.len() < content.len() {
        let n = socket.recv(&mut buffer).unwrap();
        got.extend_from_slice(&buffer[..n]);
    }
    assert!(got == content);
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("unsupported 700.0 kB"), "{text}");
}

#[test]
fn an_empty_input_is_an_empty_stream() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let receiver = receive_all(listener);
    let output = spawn(&["--to", &to, "--json", "-"]).wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(json(&output)["bytes"], 0);
    assert!(receiver.join().unwrap().is_empty());
}

#[test]
fn progress_goes_on_beside_json_unless_it_is_to_be_quiet() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("result.json");
    let at = at.to_str().unwrap();
    for (args, speaks) in [
        (vec!["--json", at], true),
        (vec!["--json", "-"], true),
        (vec!["--json", at, "-q"], false),
        (vec!["--json", "-", "-q"], false),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().to_string();
        let receiver = receive_all(listener);
        let output = spawn(&[&["--to", &to], &args[..]].concat()).wait_with_output().unwrap();
        assert!(output.status.success() && receiver.join().unwrap().is_empty(), "{args:?}");
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(log.contains(&format!("to {to}: ")), speaks, "{args:?}: {log}");
        assert!(speaks || log.is_empty(), "{args:?}: {log}");
        let result = match args[1] {
            "-" => json(&output),
            _ => {
                assert!(output.stdout.is_empty(), "{args:?}: no summary: {output:?}");
                serde_json::from_str(&std::fs::read_to_string(at).unwrap()).unwrap()
            }
        };
        assert_eq!(result["outcome"], "complete", "{args:?}");
    }
}

#[test]
fn a_peer_that_resets_is_told_of() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let mut child =
        command(&["--to", &to, "/dev/zero", "--mode", "zerocopy", "--json", "-"]).spawn().unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut [0; 100_000]).unwrap();
    // Unread bytes: a reset.
    drop(stream);
    let output = child.wait().map(|_| child.wait_with_output().unwrap()).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let result = json(&output);
    assert_eq!(result["outcome"], "failed");
    assert!(result["error"].as_str().unwrap().contains("the connection is gone"), "{result}");
}

#[test]
fn a_stalled_peer_ends_it_after_the_timeout_with_what_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let child = spawn(&["--to", &to, "/dev/zero", "--timeout", "0.3", "--json", "-"]);
    let (_stream, _) = listener.accept().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let result = json(&output);
    assert!(result["error"].as_str().unwrap().contains("timed out"), "{result}");
}

#[test]
fn a_signal_ends_it_with_the_summary() {
    for (signal, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        // A peer that reads nothing more, and an input that doesn't come.
        for input in ["/dev/zero", "-"] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap().to_string();
            let mut child =
                command(&["--to", &to, input, "--json", "-"]).stdin(Stdio::piped()).spawn().unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            // Something has come, so a signal ends the sending from now on, with the summary.
            child.stdin.as_mut().unwrap().write_all(&[0; 1000]).unwrap();
            stream.read_exact(&mut [0; 1000]).unwrap();
            let start = Instant::now();
            // SAFETY: kill(2) has no memory effects; the child is this test's and not reaped.
            assert_eq!(unsafe { libc::kill(i32::try_from(child.id()).unwrap(), signal) }, 0);
            let held = child.stdin.take();
            let output = child.wait_with_output().unwrap();
            drop(held);
            assert_eq!(
                output.status.code(),
                Some(code),
                "{input} {}",
                String::from_utf8_lossy(&output.stderr)
            );
            assert_eq!(json(&output)["outcome"], "interrupted");
            assert!(start.elapsed() < PATIENCE);
        }
    }
}

/// Also while other descriptors of its socket are open: a duplicate, and those of io_uring.
#[test]
fn a_signal_resets_the_connection() {
    for (mode, backend) in [("copy", "socket"), ("zerocopy", "socket"), ("zerocopy", "uring")] {
        for input in ["/dev/zero", "-"] {
            let case = format!("{mode} {backend} {input}");
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap().to_string();
            let args = ["--to", &to, input, "--mode", mode, "--backend", backend, "-q"];
            let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            child.stdin.as_mut().unwrap().write_all(&[0; 1000]).unwrap();
            stream.read_exact(&mut [0; 1000]).unwrap();
            kill(child.id() as i32, libc::SIGTERM);
            let error = std::io::copy(&mut stream, &mut std::io::sink()).expect_err(&case);
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{case}");
            assert_eq!(child.wait().unwrap().code(), Some(143), "{case}");
        }
    }
}

#[test]
fn a_file_that_becomes_shorter_is_told_of() {
    let content = pattern(40_000_000);
    let file = file(&content);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let path = file.path().to_str().unwrap();
    let child = spawn(&["--to", &to, path, "--mode", "copy", "--json", "-"]);
    let (mut stream, _) = listener.accept().unwrap();
    stream.read_exact(&mut [0; 1000]).unwrap();
    file.as_file().set_len(4096).unwrap();
    let drain = std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
    let output = child.wait_with_output().unwrap();
    let _ = drain.join().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let result = json(&output);
    assert!(result["error"].as_str().unwrap().contains("became shorter"), "{result}");
}

#[test]
fn what_is_wrong_is_named_with_the_remedy() {
    // Bound, so that nobody else gets the port, and nobody listens.
    let closed = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&closed, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let closed = SocketAddr::try_from(getsockname(&closed).unwrap()).unwrap().to_string();
    let big = (64 << 20).to_string();
    for (status, args, words) in [
        (2, vec!["--to", "nowhere"], vec!["nowhere", "HOST:PORT"]),
        (1, vec!["--to", &closed], vec!["can't connect to", &closed]),
        (2, vec!["--to", &closed, "--chunk", "0"], vec!["--chunk 0", "4194304"]),
        (2, vec!["--to", &closed, "--chunk", &big], vec!["--chunk 67108864"]),
        (2, vec!["--to", &closed, "--udp", "--datagram", "65508"], vec!["--datagram 65508", "65507"]),
        (2, vec!["--to", &closed, "--timeout=-1"], vec!["--timeout -1", "greater than 0"]),
        (1, vec!["--to", &closed, "/"], vec!["/ is a directory"]),
        (1, vec!["--to", &closed, "/no/such/file"], vec!["/no/such/file"]),
        (2, vec!["--to", "vsock:2:1", "--udp"], vec!["no datagrams"]),
        (1, vec!["--to", "unix:/no/such/socket"], vec!["unix:/no/such/socket"]),
    ] {
        let output = spawn(&args).wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{args:?}: no '{word}' in {text}");
        }
        // A cause is named once.
        for line in text.lines() {
            let clauses: Vec<&str> = line.split(": ").collect();
            assert!(clauses.windows(2).all(|two| two[0] != two[1]), "{line}");
        }
        assert!(output.stdout.is_empty());
    }
}

/// sysfs maps no files.
#[test]
fn a_file_that_can_not_be_mapped_is_read() {
    let path = "/sys/class/net/lo/mtu";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let receiver = receive_all(listener);
    let output = spawn(&["--to", &to, path]).wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(receiver.join().unwrap(), std::fs::read(path).unwrap());
}

#[test]
fn the_next_program_goes_on_behind_what_was_sent() {
    let content = pattern(100_000);
    let file = file(&content);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let receivers = [(); 2].map(|()| receive_all(listener.try_clone().unwrap()));
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$0\" \"$@\" && \"$0\" \"$@\"", env!("CARGO_BIN_EXE_zerowire"), "send", "--to", &to]);
    assert!(shell.stdin(file.reopen().unwrap()).stdout(Stdio::null()).status().unwrap().success());
    let mut got = receivers.map(|receiver| receiver.join().unwrap());
    got.sort();
    assert!(got == [vec![], content], "{} and {} bytes arrived", got[0].len(), got[1].len());
}
