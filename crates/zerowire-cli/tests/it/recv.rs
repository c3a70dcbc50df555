//! `zerowire recv` with senders of all kinds: every byte arrives, the ledger adds up, and it ends
//! when it was told to.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::program_for_everybody;
use crate::support::recv::{Recv, command, pattern};
use zerowire_testkit::PATIENCE;

/// Modes that run on every kernel with io_uring.
const MODES: [&str; 3] = ["auto", "plain", "multishot"];

/// As [`command`], with signals as the arguments of `env` in `signals` set them. A test run may
/// ignore some, when nohup(1) or a shell started it in the background, and its programs inherit
/// that.
fn command_with(signals: &[&str], args: &[&str]) -> Command {
    let mut env = Command::new("env");
    env.args(signals).arg(env!("CARGO_BIN_EXE_zerowire")).args(["recv", "-p", "0"]).args(args);
    env
}

/// All bytes are in the ledger, once.
fn assert_booked(result: &serde_json::Value, bytes: usize) {
    assert_eq!(result["bytes"], bytes, "{result}");
    assert_eq!(result["zero_copied_is"], "exact", "{result}");
    let sum = result["copied_bytes"].as_u64().unwrap() + result["zero_copied_bytes"].as_u64().unwrap();
    assert_eq!(sum, bytes as u64, "{result}");
    assert_eq!(result["ledger"]["bytes"], bytes, "{result}");
}

#[test]
fn what_zerowire_send_sends_arrives_in_a_file_by_every_mode() {
    let content = pattern(5_000_001, 0);
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    std::fs::write(&from, &content).unwrap();
    for mode in MODES {
        for host in ["127.0.0.1", "[::1]"] {
            let recv = Recv::start(&["--mode", mode, "--to", to.to_str().unwrap(), "--json", "-"]);
            let sent = Command::new(env!("CARGO_BIN_EXE_zerowire"))
                .args(["send", "-q", "--to", &format!("{host}:{}", recv.port)])
                .arg(&from)
                .status()
                .unwrap();
            let ended = recv.end();
            assert!(sent.success() && ended.status.success(), "{mode}: {}", ended.stderr);
            let result = ended.json();
            assert_booked(&result, content.len());
            assert!(std::fs::read(&to).unwrap() == content, "{mode}: other bytes arrived");
            assert_eq!(result["outcome"], "complete");
            assert_eq!(result["mode"], mode);
            assert_eq!(result["connections"]["ended"], 1);
            let peer = result["list"][0]["peer"].as_str().unwrap();
            assert!(peer.starts_with(&format!("{host}:")), "{peer}");
            assert!(result["nanoseconds"].as_u64().unwrap() > 0, "{result}");
            let word = if mode == "auto" { "" } else { mode };
            assert!(result["path"].as_str().unwrap().contains(word), "{result}");
        }
    }
}

#[test]
fn a_plain_sender_of_another_origin_is_received() {
    let content = pattern(3_000_000, 1);
    let recv = Recv::start(&["--to", "-"]);
    let mut ncat = Command::new("ncat")
        .args(["--send-only", "127.0.0.1", &recv.port.to_string()])
        .stdin(Stdio::piped())
        .spawn()
        .expect("ncat must be installed");
    ncat.stdin.take().unwrap().write_all(&content).unwrap();
    let ended = recv.end();
    assert!(ncat.wait().unwrap().success() && ended.status.success(), "{}", ended.stderr);
    assert!(ended.stdout == content, "other bytes arrived");
    // The summary goes where it doesn't mix with the bytes.
    assert!(ended.stderr.contains("Total bytes: 3000000, nsec: "), "{}", ended.stderr);
}

#[test]
fn the_summary_reads_as_users_of_such_tools_expect() {
    let recv = Recv::start(&[]);
    recv.connect().write_all(&pattern(2_000_000, 0)).unwrap();
    let text = recv.end().text();
    for line in [
        "  copy bytes: 2000000",
        "    ZC bytes: 0",
        " Total bytes: 2000000, nsec: ",
        "        Rate: ",
        "  why copied: kernel 2000000",
        " connections: 1, 1 ended, 0 failed, 0 open",
        "        path: ",
    ] {
        assert!(text.lines().any(|l| l.starts_with(line)), "no line '{line}' in\n{text}");
    }
}

#[test]
fn the_json_says_where_it_listened_and_what_each_connection_brought() {
    let recv = Recv::start(&["--connections", "2", "--json", "-"]);
    let port = recv.port;
    recv.connect().write_all(&[1; 1000]).unwrap();
    recv.connect().write_all(&[2; 500]).unwrap();
    let ended = recv.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    let json = ended.json();
    let listen = json["listen"].as_str().unwrap();
    assert!(listen.ends_with(&format!(":{port}")), "{listen}");
    assert!(json["error"].is_null() && json["cpu_seconds"].is_f64() && json["gigabits_per_second"].is_f64());
    let bytes: Vec<_> =
        json["list"].as_array().unwrap().iter().map(|c| c["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [1000, 500]);
    assert_eq!(json["bytes"], 1500);
}

#[test]
fn each_connection_has_a_file_of_its_own() {
    const CONNECTIONS: usize = 20;
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("f");
    for mode in MODES {
        let count = CONNECTIONS.to_string();
        let recv = Recv::start(&[
            "--mode",
            mode,
            "--connections",
            &count,
            "--to",
            to.to_str().unwrap(),
            "--json",
            "-",
        ]);
        // One after the other is connected, so that the order is known; all send at the same time.
        let streams: Vec<_> = (0..CONNECTIONS).map(|_| recv.connect()).collect();
        let senders: Vec<_> = streams
            .into_iter()
            .enumerate()
            .map(|(i, mut stream)| {
                std::thread::spawn(move || stream.write_all(&pattern(300_000 + i, i)).unwrap())
            })
            .collect();
        senders.into_iter().for_each(|s| s.join().unwrap());
        let ended = recv.end();
        let result = ended.json();
        assert!(ended.status.success(), "{result}");
        assert_eq!(result["connections"]["accepted"], CONNECTIONS);
        assert_eq!(result["list"].as_array().unwrap().len(), CONNECTIONS);
        for i in 0..CONNECTIONS {
            let name = format!("{}.{}", to.display(), i + 1);
            assert!(std::fs::read(&name).unwrap() == pattern(300_000 + i, i), "{mode}: {name}");
        }
    }
}

#[test]
fn the_limit_ends_it_while_the_sender_goes_on() {
    for mode in MODES {
        let recv = Recv::start(&["--mode", mode, "-r", "20", "--json", "-"]);
        let mut stream = recv.connect();
        let sender = std::thread::spawn(move || {
            let block = vec![7; 100_000];
            while stream.write_all(&block).is_ok() {}
        });
        let ended = recv.end();
        sender.join().unwrap();
        let result = ended.json();
        assert!(ended.status.success(), "{mode}: {result}");
        let bytes = result["bytes"].as_u64().unwrap();
        // No more than one batch, which fits the area, comes on top.
        assert!((20_000_000..20_000_000 + (256 << 16)).contains(&bytes), "{mode}: {bytes}");
        assert_booked(&result, usize::try_from(bytes).unwrap());
        assert_eq!(result["list"][0]["state"], "open");
    }
}

#[test]
fn connections_beyond_the_number_are_not_taken() {
    let recv = Recv::start(&["--json", "-"]);
    let mut first = recv.connect();
    first.write_all(b"one").unwrap();
    // Accepting ends with the first one. Until then the second waits in the backlog; afterwards it
    // is refused or reset.
    loop {
        let Ok(mut second) = TcpStream::connect(("127.0.0.1", recv.port)) else { break };
        second.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        match second.read(&mut [0; 1]) {
            Ok(0) => break,
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break,
            _ => {}
        }
    }
    drop(first);
    let result = recv.end().json();
    assert_eq!((&result["bytes"], &result["connections"]["accepted"]), (&3.into(), &1.into()), "{result}");
}

#[test]
fn a_reset_is_told_and_the_others_go_on() {
    for mode in MODES {
        let recv = Recv::start(&["--mode", mode, "--connections", "2", "--json", "-"]);
        let (bad, mut good) = (recv.connect(), recv.connect());
        rustix::net::sockopt::set_socket_linger(&bad, Some(Duration::ZERO)).unwrap();
        drop(bad);
        good.write_all(&pattern(1_000_000, 0)).unwrap();
        drop(good);
        let ended = recv.end();
        let result = ended.json();
        assert_eq!(ended.status.code(), Some(1), "{mode}: {result}");
        assert_eq!(result["outcome"], "failed");
        let error = result["error"].as_str().unwrap();
        assert!(error.contains("1 of 2 connections failed") && error.contains("reset"), "{mode}: {error}");
        assert_booked(&result, 1_000_000);
        assert!(ended.stderr.contains("reset"), "{}", ended.stderr);
    }
}

#[test]
fn a_signal_ends_it_with_the_summary() {
    let signals = [(libc::SIGINT, 130), (libc::SIGTERM, 143), (libc::SIGHUP, 129), (libc::SIGQUIT, 131)];
    for (signal, code) in signals {
        for mode in MODES {
            // With a connection that says nothing more, and without any.
            for sent in [Some(1000), None] {
                let file = tempfile::NamedTempFile::new().unwrap();
                let args = ["--mode", mode, "--to", file.path().to_str().unwrap(), "--json", "-"];
                let recv = Recv::of(&mut command_with(&["--default-signal=INT,TERM,HUP,QUIT"], &args));
                let stream = sent.map(|n| {
                    let mut stream = recv.connect();
                    stream.write_all(&pattern(n, 0)).unwrap();
                    while file.as_file().metadata().unwrap().len() < n as u64 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    stream
                });
                recv.signal(signal);
                let ended = recv.end();
                drop(stream);
                let result = ended.json();
                assert_eq!(ended.status.code(), Some(code), "{mode}: {result}");
                assert_eq!(result["outcome"], "interrupted");
                assert_booked(&result, sent.unwrap_or(0));
            }
        }
    }
}

#[test]
fn a_signal_that_it_was_started_to_ignore_is_ignored() {
    let recv = Recv::of(&mut command_with(&["--ignore-signal=HUP"], &["--json", "-"]));
    let mut stream = recv.connect();
    stream.write_all(b"before").unwrap();
    recv.signal(libc::SIGHUP);
    std::thread::sleep(Duration::from_millis(50));
    stream.write_all(b"behind").unwrap();
    drop(stream);
    let ended = recv.end();
    assert!(ended.status.success(), "{}", ended.stderr);
    assert_booked(&ended.json(), 12);
}

#[test]
fn a_reader_of_the_output_that_stops_reading_holds_nobody_up_for_ever() {
    let recv = Recv::start(&["--to", "-"]);
    let mut stream = recv.connect();
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    // Nobody reads the pipe: the window closes, and no byte is dropped for it.
    let block = vec![1; 1 << 20];
    let mut taken = 0;
    while let Ok(n) = stream.write(&block) {
        taken += n;
        assert!(taken < 1 << 30, "nothing held it back");
    }
    recv.signal(libc::SIGTERM);
    let ended = recv.end();
    assert_eq!(ended.status.code(), Some(143), "{}", ended.stderr);
    assert!(ended.stderr.contains("Total bytes: "), "{}", ended.stderr);
}

#[test]
fn a_reader_of_the_output_that_goes_is_told_of() {
    let mut recv = Recv::start(&["--to", "-"]);
    let mut stream = recv.connect();
    drop(recv.child.stdout.take());
    let block = vec![1; 1 << 20];
    while stream.write_all(&block).is_ok() {}
    let ended = recv.end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("writing to standard output failed"), "{}", ended.stderr);
}

#[test]
fn silence_ends_it_after_the_timeout() {
    for connected in [false, true] {
        let begin = Instant::now();
        let (_stream, ended) = loop {
            let recv = Recv::start(&["--timeout", "0.3", "--json", "-"]);
            let stream = connected.then(|| TcpStream::connect(("127.0.0.1", recv.port)));
            let ended = recv.end();
            // It may have ended before this thread asked.
            match stream.transpose() {
                Ok(stream) => break (stream, ended),
                Err(e) => assert!(begin.elapsed() < PATIENCE, "{e}"),
            }
        };
        let result = ended.json();
        assert_eq!(ended.status.code(), Some(1), "{result}");
        assert!(result["error"].as_str().unwrap().contains("nothing has come for 0.3 s"), "{result}");
    }
}

/// Without privileges, with the usual limit of locked memory; and by itself in some way with next
/// to none.
#[test]
fn an_ordinary_user_receives() {
    assert!(rustix::process::geteuid().is_root(), "this test becomes another user: run it as root");
    let (_folder, program) = program_for_everybody();
    let usual = MODES.map(|mode| (mode, "--memlock=8388608"));
    for (mode, limit) in usual.into_iter().chain([("auto", "--memlock=65536"), ("plain", "--memlock=0")]) {
        let mut command = Command::new("prlimit");
        command.args([limit, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.arg(&program).args(["recv", "-p", "0", "--mode", mode, "--json", "-"]);
        let recv = Recv::of(&mut command);
        recv.connect().write_all(&pattern(1_000_000, 0)).unwrap();
        let ended = recv.end();
        assert!(ended.status.success(), "{mode}: {}", ended.stderr);
        assert_booked(&ended.json(), 1_000_000);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&program);
    let output = command.args(["recv", "-p", "0", "--mode", "nodev"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("zero-copy receive without a device"), "{text}");
}

#[test]
fn quiet_says_nothing_and_json_goes_to_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // Its port can't be read then: a free one is taken, which nobody else takes in the moment until
    // it listens.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let child = command(&["-p", &port.to_string(), "--quiet", "--json", file.path().to_str().unwrap()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    stream.write_all(&[1; 10]).unwrap();
    drop(stream);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let result: serde_json::Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    assert_booked(&result, 10);
}

/// Each takes two descriptors. Those that there are none for wait until others have ended.
#[test]
fn connections_beyond_the_limit_of_descriptors_wait() {
    for mode in MODES {
        let dir = tempfile::tempdir().unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -n 20; exec \"$0\" recv \"$@\"", env!("CARGO_BIN_EXE_zerowire")]);
        shell.args(["-p", "0", "--mode", mode, "-c", "40", "--json", "-", "--to"]).arg(dir.path().join("f"));
        let recv = Recv::of(&mut shell);
        let mut peers: Vec<_> = (0..40).map(|_| recv.connect()).collect();
        for peer in &mut peers {
            peer.write_all(b"hello").unwrap();
        }
        drop(peers);
        let ended = recv.end();
        assert!(ended.status.success(), "{mode}: {}", ended.stderr);
        assert!(ended.stderr.contains(" of 40 connections at a time"), "{mode}: {}", ended.stderr);
        for number in 1..=40 {
            assert_eq!(std::fs::read(dir.path().join(format!("f.{number}"))).unwrap(), b"hello");
        }
    }
}
