//! The C example, compiled by the system's compiler against both libraries. It talks to a small
//! daemon of the tests that can also refuse. c_daemon.rs has the real one.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::compile;
use rustix::net::RecvFlags;
use zerowire_testkit::mapped::Daemon;
use zerowire_wire::mapped;

/// A guest sends three messages, the last one over several windows; the program says what came.
fn receives(shared: bool, options: &[&str], listens: bool) {
    let program = compile("examples/c/recv_vsock.c", shared);
    let daemon = Daemon::new();
    let child = Command::new(program)
        .args(options)
        .arg(daemon.path())
        .arg("5000")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let peer = daemon.accept();
    if listens {
        peer.listening();
    }
    assert_eq!((peer.request.port, peer.request.kind), (5000, 2));
    let mut writer = peer.connect();
    let big = vec![3u8; 3 * 128 * 4096];
    writer.send(&[1; 56], mapped::ENTRY_EOM);
    writer.send(&[2; 8200], mapped::ENTRY_EOM);
    writer.send(&big, mapped::ENTRY_EOM);
    writer.end();
    let mut bytes = [0; 16];
    let (n, _) = rustix::net::recv(&writer.socket, &mut bytes, RecvFlags::empty()).expect("sound");
    assert_eq!(&bytes[..n], b"done\n");
    let out = child.wait_with_output().expect("ended");
    let total = 56 + 8200 + big.len();
    let sum = 56 + 2 * 8200 + 3 * big.len();
    assert_eq!(
        String::from_utf8_lossy(&out.stdout),
        format!("{total} bytes, 5 packets, 3 messages, sum {sum}\n"),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    assert!(out.status.success());
}

#[test]
fn the_example_receives_with_the_static_library() {
    receives(false, &["-q"], false);
}

#[test]
fn the_example_receives_with_the_shared_library() {
    receives(true, &["-q", "-z", "-l"], true);
}

#[test]
fn the_example_says_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile("examples/c/recv_vsock.c", false);
    let run = |path: &Path| {
        let out = Command::new(&program).arg(path).arg("5000").output().expect("started");
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8_lossy(&out.stderr).into_owned()
    };
    let text = run(&folder.path().join("absent.map"));
    assert!(text.contains("--uds") && text.contains("(error 2)"), "{text}");
    let daemon = Daemon::new();
    let path = daemon.path();
    let refusing = std::thread::spawn(move || {
        daemon.accept().refuse(libc::EPERM, "user 1000 may not: --map-allow 1000")
    });
    let text = run(&path);
    assert!(text.contains("user 1000 may not: --map-allow 1000") && text.contains("--map-allow"), "{text}");
    refusing.join().expect("ended");
}

/// A daemon that is killed marks no end: a program that sleeps and one that spins both notice.
#[test]
fn the_example_ends_with_its_daemon() {
    let program = compile("examples/c/recv_vsock.c", false);
    for options in [&[][..], &["-z"]] {
        let daemon = Daemon::new();
        let mut command = Command::new(&program);
        command.args(options).arg(daemon.path()).arg("5000").stderr(Stdio::piped());
        let child = command.spawn().expect("started");
        let peer = daemon.accept();
        let mut writer = peer.connect();
        writer.send(&[1; 56], 0);
        drop((writer, peer, daemon));
        let out = child.wait_with_output().expect("ended");
        let text = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{options:?}: {text}");
        assert!(text.contains("zerowire vsock"), "{options:?}: {text}");
    }
}
