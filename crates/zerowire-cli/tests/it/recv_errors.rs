//! `zerowire recv`: what is wrong is named, with the value and the remedy.

use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use crate::support::processes::{kill, wait_idle};
use crate::support::recv::{Recv, command};
use crate::support::wait_until;

#[test]
fn what_is_wrong_is_named_with_the_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    // Wrong arguments end it with 2, what can't be had here with 1.
    for (status, args, words) in [
        (2, vec!["-r", "0"], vec!["-r 0", "1 megabyte"]),
        (2, vec!["-r", "99999999999999999"], vec!["-r 99999999999999999", "at most"]),
        (2, vec!["--timeout=-1"], vec!["--timeout -1", "greater than 0"]),
        (2, vec!["--mode", "queue"], vec!["--mode queue", "-i IF -q QUEUE"]),
        (2, vec!["--mode", "plain", "-i", "lo", "-q", "3"], vec!["-i lo -q 3", "--mode plain"]),
        (2, vec!["--to", "-", "--connections", "2"], vec!["--connections 2", "FILE.1"]),
        (2, vec!["--to", "-", "--json", "-"], vec!["--to -", "--json FILE"]),
        (1, vec!["--to", "/no/such/file"], vec!["--to /no/such/file"]),
        (2, vec!["--buffer", "100"], vec!["100 bytes", "multiple of 64"]),
        (2, vec!["--buffers", "1"], vec!["1 receive buffers", "2 to 32768"]),
        (1, vec!["--bind", "no.such.name.invalid"], vec!["no.such.name.invalid"]),
        (1, vec!["--bind", "192.0.2.7"], vec!["192.0.2.7", "no interface"]),
        (1, vec!["--bind", "127.0.0.1", "-p", &port], vec![&port, "is in use", "another -p"]),
        (1, vec!["-i", "lo", "-q", "0"], vec!["queue 0 of lo", "mlx5_core"]),
        (1, vec!["-i", "nowhere0", "-q", "0"], vec!["nowhere0"]),
        (2, vec!["-i", "lo", "-q", "0", "--rx-buf-len", "5000"], vec!["5000", "power of two"]),
        (
            1,
            vec!["--huge", "--buffers", "32768", "--buffer", "1073741824"],
            vec!["16777216 huge pages", "nr_hugepages"],
        ),
    ] {
        let mut all = if args.contains(&"-p") { vec![] } else { vec!["-p", "0"] };
        all.extend(&args);
        let output = command(&all).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{args:?}: no '{word}' in {text}");
        }
        // Not the same twice, as an error and its cause.
        let parts: Vec<_> = text.trim().split(": ").collect();
        assert!(
            parts.windows(2).all(|p| p[0] != p[1]) && !text.contains("nr_hugepages, or use normal pages: "),
            "{text}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn arguments_that_belong_together_are_asked_for() {
    for (args, word) in [
        (vec![], "--port"),
        (vec!["-p", "1", "-i", "lo"], "--queue"),
        (vec!["-p", "1", "-q", "1"], "--interface"),
        (vec!["-p", "70000"], "70000"),
        (vec!["-p", "1", "--mode", "fast"], "multishot"),
        (vec!["-p", "1", "--rx-buf-len", "4096"], "--queue"),
    ] {
        let output = command(&args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(word), "{args:?}: no '{word}' in {text}");
    }
}

/// What was there before is not cut off by a command that can't run.
#[test]
fn a_file_is_left_alone_by_a_receiver_that_cannot_be_made() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"kept").unwrap();
    let args = ["-p", "0", "-i", "lo", "-q", "0", "--to", file.path().to_str().unwrap()];
    assert_eq!(command(&args).output().unwrap().status.code(), Some(1));
    assert_eq!(std::fs::read(file.path()).unwrap(), b"kept");
}

/// Nobody reads the pipe: a port that is taken is told of all the same.
#[test]
fn a_port_that_is_taken_is_told_of_before_the_result_is_opened() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let (file, pipe) = (folder.path().join("file"), folder.path().join("pipe"));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for json in [&file, &pipe] {
        let args = ["--bind", "127.0.0.1", "-p", &port, "--json", json.to_str().unwrap()];
        let mut child = command(&args).stderr(Stdio::piped()).spawn().unwrap();
        let mut ended = None;
        wait_until("it has ended", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        let text = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
        assert_eq!(ended.unwrap().code(), Some(1), "{text}");
        assert!(text.contains("is in use"), "{text}");
        assert!(!file.exists(), "an empty file is left");
    }
}

/// It is in the queue of the listening socket until somebody reads the pipe.
#[test]
fn a_peer_may_connect_before_the_pipe_of_the_result_has_a_reader() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    // A port of its own: this address is nobody else's.
    let host = format!("127.77.{}.{}", std::process::id() >> 8 & 0xff, std::process::id() & 0xff);
    let args = ["--bind", &host, "-p", "7777", "--json", pipe.to_str().unwrap()];
    let mut child = command(&args).stderr(Stdio::null()).spawn().unwrap();
    let mut peer = None;
    wait_until("a connection", || {
        peer = std::net::TcpStream::connect((host.as_str(), 7777)).ok();
        peer.is_some()
    });
    std::io::Write::write_all(&mut peer.take().unwrap(), &[1; 1000]).unwrap();
    let result: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&pipe).unwrap()).unwrap();
    assert_eq!(result["bytes"], 1000, "{result}");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_full_disk_is_told_of() {
    let recv = Recv::start(&["--to", "/dev/full"]);
    std::io::Write::write_all(&mut recv.connect(), &[1; 1000]).unwrap();
    let ended = recv.end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(ended.stderr.contains("writing to /dev/full failed"), "{}", ended.stderr);
}

#[test]
fn a_standard_output_that_is_closed_is_told_of() {
    for (args, option) in [(["--to", "-"], "--to -"), (["--json", "-"], "--json -")] {
        // The shell closes it.
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$0\" recv -p 0 --timeout 1 \"$@\" >&-", env!("CARGO_BIN_EXE_zerowire")]);
        let output = shell.args(args).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("{option}: standard output is closed")), "{text}");
    }
}

#[test]
fn a_signal_ends_it_while_it_waits_for_who_reads_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    // Of the result nothing is told where there is none yet.
    for (option, status) in [("--to", (Some(143), None)), ("--json", (None, Some(libc::SIGTERM)))] {
        let args = ["-p", "0", option, pipe.to_str().unwrap()];
        let mut child = command(&args).stdout(Stdio::null()).spawn().unwrap();
        wait_idle(child.id() as i32);
        kill(child.id() as i32, libc::SIGTERM);
        let ended = child.wait().unwrap();
        assert_eq!((ended.code(), ended.signal()), status, "{option}");
    }
}

#[test]
fn a_pipe_gets_what_comes_once_somebody_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let at = pipe.clone();
    let reader = std::thread::spawn(move || std::fs::read(at).unwrap());
    let recv = Recv::start(&["--to", pipe.to_str().unwrap()]);
    std::io::Write::write_all(&mut recv.connect(), &[1; 200_000]).unwrap();
    assert!(recv.end().status.success());
    assert!(reader.join().unwrap() == [1; 200_000]);
}

#[test]
fn a_result_that_would_be_a_connections_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("f");
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::os::unix::fs::symlink(folder.path(), at("same")).unwrap();
    for (connections, json, is_refused) in [
        ("2", at("f.1"), true),
        ("0", at("f.70000"), true),
        ("2", at("same/f.2"), true),
        ("2", at("f.3"), false),
        ("2", at("f.json"), false),
        ("2", at("f.0"), false),
        ("2", at("f.01"), false),
        ("0", at("f.+1"), false),
        ("1", at("f.1"), false),
    ] {
        let args = ["-p", "0", "--timeout", "0.1", "-c", connections, "--json", &json, "--to"];
        let output = command(&args).arg(&to).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code() == Some(2), is_refused, "-c {connections} --json {json}: {text}");
        assert_eq!(text.contains("is the file of a connection"), is_refused, "{text}");
    }
}
