//! A guest that sees the link of its port (`link=follow`): nobody serves its front end while the
//! interface carries no frames. Run as root.

use std::fs::Permissions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use zerowire_testkit::net::{ip, veth};

use crate::sandbox::stats;
use crate::support::modes::{CONFINED, Mode, in_both_modes};
use crate::support::processes::{child, kill};
use crate::support::{Guest, PATIENCE, Peer, Program, connect, in_netns, wait_until};

in_both_modes! {
    front_ends_are_refused_until_the_interface_is_back
}

/// A VM on a packet port `v0`, whose other end is `v1`.
fn start(mode: Mode, socket: &Path) -> Program {
    veth::veth("v0", "v1", 1, 30_000);
    let socket = socket.display().to_string();
    Program::net(&[mode, &["--json", "--socket", &socket, "--port", "packet:v0,link=follow"]].concat())
}

/// The VM's statistics, the `count`th that were asked for.
fn vm(program: &Program, count: usize) -> Value {
    stats(program, count)["vms"][0].clone()
}

fn is_refused(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

/// The front end is disconnected, and its process is refused for longer than one is let in.
fn goes_down(program: &Program, socket: &Path) {
    let (before, turned_away) = (program.log().matches("front end connected").count(), "(link=follow)");
    let count = program.log().matches(turned_away).count();
    ip(&["link", "set", "v1", "down"]);
    wait_until("the front end is disconnected", || program.log().matches(turned_away).count() > count);
    wait_until("nobody listens", || is_refused(socket));
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(4) {
        assert!(is_refused(socket), "{}", program.log());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(program.log().matches("front end connected").count(), before, "{}", program.log());
}

/// A guest, as soon as somebody listens. Frames pass.
fn guest(socket: &Path) -> Guest {
    let (mut guest, mut peer) = (Guest::start(connect(socket)), Peer::new("v1"));
    guest.wait_for_frames(&mut peer);
    guest.ping(&mut peer);
    guest
}

fn front_ends_are_refused_until_the_interface_is_back(mode: Mode) {
    in_netns(move || {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let program = start(mode, &socket);
        let mut served = guest(&socket);
        std::fs::set_permissions(&socket, Permissions::from_mode(0o640)).expect("a mode");
        std::os::unix::fs::chown(&socket, Some(123), Some(456)).expect("an owner");
        // The socket that is made anew is closed as well.
        for count in 1..=2 {
            goes_down(&program, &socket);
            let link = vm(&program, count)["link"].clone();
            assert_eq!((&link["up"], &link["disconnects"]), (&false.into(), &count.into()));
            drop(served);
            ip(&["link", "set", "v1", "up"]);
            served = guest(&socket);
            let file = std::fs::metadata(&socket).expect("its file");
            assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o640, 123, 456));
        }
        assert_eq!(vm(&program, 3)["last_error"], Value::Null);
        program.stop();
        assert!(!socket.exists());
    });
}

/// Another process takes the place of one that has had the socket closed.
#[test]
fn a_vm_whose_process_dies_while_nobody_listens_is_served_again() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let program = start(CONFINED, &socket);
        let served = guest(&socket);
        goes_down(&program, &socket);
        drop(served);
        let dead = child(&program);
        kill(dead, libc::SIGKILL);
        // The next one knows of nobody who was turned away.
        let mut stream = None;
        wait_until("a front end is let in", || {
            stream = UnixStream::connect(&socket).ok();
            stream.is_some()
        });
        let mut stream = stream.expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        assert_eq!(stream.read_to_end(&mut Vec::new()).expect("the end of the connection"), 0);
        wait_until("nobody listens", || is_refused(&socket));
        ip(&["link", "set", "v1", "up"]);
        guest(&socket);
        program.stop();
    });
}
