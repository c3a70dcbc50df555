//! Without `--sandbox` VMs are confined, and where that can't be had they are served all the same.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;

use crate::support::control::Controlled;
use crate::support::processes::{child, children, status};
use crate::support::{Guest, HANDED_FD, Peer, Program, Restrict, connect, in_netns, wait_until};
use zerowire_testkit::net::veth;

/// What the log says of VMs that have no child.
const NOT_CONFINED: &str = "WARN the VMs are not confined: ";

/// `zerowire vsock` of one VM, in a folder.
fn vsock(dir: &Path, more: &[&str], restrict: Restrict) -> Program {
    let uds = dir.join("host").display().to_string();
    Program::vsock(&[&["--cid", "3", "--uds", &uds], more].concat(), restrict)
}

#[test]
fn vms_are_confined_where_nothing_is_said() {
    in_netns(|| {
        let server = Controlled::start(&["--user", "1"]);
        server.add("zwauto");
        Guest::start(connect(&server.path("zwauto"))).ping(&mut Peer::new("zwauto"));
        assert_eq!(status(child(&server.program), "Uid"), "1");
        let version = server.json("/version");
        assert!(version["sandbox"] == "on" && version["sandbox_reason"].is_null(), "{version}");
        assert!(!server.program.log().contains("not confined"), "{}", server.program.log());
    });
    in_netns(|| {
        let server = Controlled::start(&["--sandbox", "off"]);
        server.add("zwopen");
        assert_eq!(children(&server.program), Vec::<i32>::new());
        let version = server.json("/version");
        assert!(version["sandbox"] == "off" && version["sandbox_reason"] == "--sandbox off", "{version}");
    });
}

/// The option that has no confined form is named, with what to do.
#[test]
fn what_no_child_can_do_is_served_without() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s").display().to_string();
        veth::veth("v0", "v1", 1, 1500);
        let program = Program::net(&["--socket", &socket, "--port", "tap:zwgo", "--postcopy"]);
        program.wait_log("listening on");
        let log = program.log();
        let lines: Vec<_> = log.lines().filter(|line| line.contains(NOT_CONFINED)).collect();
        let words = ["--postcopy", "--sandbox off"];
        assert!(lines.len() == 1 && words.iter().all(|word| lines[0].contains(word)), "{log}");
        assert!(!log.contains("--sandbox on"), "nobody has asked for that: {log}");
        assert_eq!(children(&program), Vec::<i32>::new());
        program.stop();
        let few = Restrict { descriptors: Some((256, 512)), ..Restrict::default() };
        let program = Program::restricted(&["--socket", &socket, "--port", "packet:v0"], few);
        program.wait_log("listening on");
        let log = program.log();
        assert!(log.contains(NOT_CONFINED) && log.contains("'ulimit -n 1024'"), "{log}");
        assert!(!log.contains("--sandbox on"), "nobody has asked for that: {log}");
        program.stop();
        // The supervisor may pin all, and can't let a child pin as much.
        let mut bound = Command::new("setpriv");
        let limit = "ulimit -l 8192 && exec \"$0\" \"$@\"";
        bound.args(["--bounding-set=-sys_resource", "sh", "-c", limit, env!("CARGO_BIN_EXE_zerowire")]);
        bound.args(["net", "--socket", &socket, "--port", "xdp:v0"]);
        let program = Program::of(bound, Restrict::default());
        program.wait_log("listening on");
        let log = program.log();
        assert!(log.contains(NOT_CONFINED) && log.contains("pins 8388608 bytes at most"), "{log}");
        program.stop();
    });
}

/// Starts both devices as root without CAP_SYS_ADMIN, by a shell that does something `first`.
/// Returns what is missing, and what the process that serves the VM has.
fn without_admin(first: &str) -> Vec<(String, Vec<String>)> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (socket, uds) = (path("s"), path("u"));
    let start = |device: &[&str]| {
        let line = format!("{first} exec setpriv --bounding-set=-sys_admin \"$0\" \"$@\"");
        let mut without = Command::new("unshare");
        without.args(["-Urn", "sh", "-c", &line, env!("CARGO_BIN_EXE_zerowire")]);
        without.args(device).args(["--name", "less", "--socket", &socket, "--sandbox", "on"]);
        let program = Program::of(without, Restrict::default());
        program.wait_log("listening on");
        program.wait_log("served by a confined process");
        let log = program.log();
        let begin = "WARN less: served by a confined process, without: ";
        let missing = log.split_once(begin).unwrap_or_else(|| panic!("{log}")).1;
        let missing = missing.lines().next().unwrap_or_default().to_owned();
        let pid = child(&program);
        for (key, wanted) in [("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapBnd", "0000000000000000")] {
            assert_eq!(status(pid, key), wanted, "{key}");
        }
        let of = |pid: &str, name: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).expect("one");
        let ours = program.pid().to_string();
        let has = |name: &&str| of(&pid.to_string(), name) != of(&ours, name);
        let own = ["ipc", "mnt", "net", "pid", "user"].into_iter().filter(has).map(str::to_owned).collect();
        program.stop();
        (missing, own)
    };
    [["net", "--port", "tap:zwless"].as_slice(), &["vsock", "--cid", "3", "--uds", &uds]].map(start).into()
}

/// Also root's own: namespaces take CAP_SYS_ADMIN, or a user namespace. Another user takes the
/// former.
#[test]
fn without_cap_sys_admin_a_child_has_namespaces_and_no_other_user() {
    for (missing, own) in without_admin("") {
        assert!(missing.starts_with("own user (") && missing.contains("CAP_SYS_ADMIN"), "{missing}");
        assert!(!missing.contains(';'), "{missing}");
        assert_eq!(own, ["ipc", "mnt", "net", "pid", "user"]);
    }
}

#[test]
fn layers_that_the_platform_refuses_are_named() {
    let limit = |kind| format!("echo 0 >/proc/sys/user/max_{kind}_namespaces &&");
    for (missing, own) in without_admin(&limit("pid")) {
        for layer in ["own processes (", "own user ("] {
            assert!(missing.contains(layer), "{layer}: {missing}");
        }
        assert_eq!(own, ["ipc", "mnt", "net", "user"]);
    }
    for (missing, own) in without_admin(&limit("user")) {
        for layer in ["own processes (", "own IPC (", "own network (", "no files (", "own user ("] {
            assert!(missing.contains(layer), "{layer}: {missing}");
        }
        assert!(missing.contains("CAP_SYS_ADMIN or a user namespace"), "{missing}");
        assert_eq!(own, [""; 0]);
    }
}

#[test]
fn a_vsock_device_is_served_without_where_no_child_can_do_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (socket, fd) = (path("s"), HANDED_FD.to_string());
    let (connected, other) = UnixStream::pair().expect("a pair");
    for (args, word) in [
        (&["--socket", &socket, "--share-guest-memory"][..], "--share-guest-memory"),
        (&["--fd", &fd], "which is connected"),
    ] {
        let restrict = Restrict { fd: Some(connected.as_raw_fd()), ..Restrict::default() };
        let program = vsock(dir.path(), args, restrict);
        program.wait_log(NOT_CONFINED);
        wait_until("it serves", || dir.path().join("host").exists());
        let log = program.log();
        assert!(log.contains(word) && log.contains("--sandbox off"), "{log}");
        assert!(!log.contains("--sandbox on"), "nobody has asked for that: {log}");
        assert_eq!(children(&program), Vec::<i32>::new());
        program.stop();
    }
    drop(other);
}

#[test]
fn a_vsock_device_is_confined_where_nothing_is_said() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s").display().to_string();
    let [control, pcap] = ["control", "pcap"].map(|name| dir.path().join(name).display().to_string());
    let more = ["--control", &control, "--metrics", "127.0.0.1:0", "--pcap", &pcap];
    let program = vsock(dir.path(), &[&["--socket", &socket], &more[..]].concat(), Restrict::default());
    program.wait_log("control socket at");
    assert_eq!(status(child(&program), "Seccomp"), "2");
    program.stop();
}

/// As in a container that allows no filter, and without /proc.
#[test]
fn where_no_confined_process_can_be_had_vms_are_served_without() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let args = ["net", "--socket", &socket.display().to_string(), "--port", "tap:zwnone"];
        let refused = Restrict { refused: Some((libc::SYS_seccomp, libc::EINVAL)), ..Restrict::default() };
        let mut no_proc = Command::new("unshare");
        no_proc.args([
            "-m",
            "sh",
            "-c",
            "umount -l /proc && exec \"$0\" \"$@\"",
            env!("CARGO_BIN_EXE_zerowire"),
        ]);
        let plain = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        for (mut command, restrict, word) in
            [(plain, refused, "list of system calls"), (no_proc, Restrict::default(), "/proc/self/exe")]
        {
            command.args(args);
            let program = Program::of(command, restrict);
            Guest::start(connect(&socket)).ping(&mut Peer::new("zwnone"));
            // Another thread reads what the program writes.
            [NOT_CONFINED, word, "--sandbox off"].iter().for_each(|text| program.wait_log(text));
            assert_eq!(children(&program), Vec::<i32>::new());
            program.stop();
        }
        // What was asked for by name is refused.
        let (code, _, log) =
            Program::restricted(&[&args[1..], &["--sandbox", "on"]].concat(), refused).result();
        assert!(code == 1 && log.contains("list of system calls"), "{code} {log}");
    });
}
