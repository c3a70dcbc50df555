//! `zerowire vsock` started wrongly: it ends at once, leaves nothing behind, and says what was
//! wrong and what to do.

use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::support::{HANDED_FD, Program, Restrict, left_behind};

/// Runs with `args`; the log must hold all `words`, and the exit code be `code`.
fn refused(args: &[&str], code: i32, words: &[&str]) {
    let (got, out, log) = Program::vsock(args, Restrict::default()).result();
    assert_eq!(got, code, "{args:?}:\n{log}");
    for word in words {
        assert!(log.contains(word), "{args:?}: no '{word}' in\n{log}");
    }
    assert!(!log.contains("panicked"), "{log}");
    assert_eq!(out, "", "{args:?}");
}

/// A directory with nothing in it, and paths there as text.
struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).expect("a file");
        self.path(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.0.path())
            .expect("the directory")
            .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn wrong_arguments_are_named_with_what_to_give() {
    let dir = Dir::new();
    let (socket, uds) = (dir.path("s"), dir.path("u"));
    let (s, u) = (socket.as_str(), uds.as_str());
    let one = ["--socket", s, "--cid", "3", "--uds", u];
    let with = |more: &[&str], code: i32, words: &[&str]| refused(&[&one, more].concat(), code, words);

    refused(&[], 2, &["--socket PATH", "--fd N", "--vm SPEC", "--config FILE"]);
    refused(&["--socket", s], 2, &["--cid N", "--uds PATH"]);
    refused(&["--socket", s, "--cid", "3"], 2, &["--cid N", "--uds PATH"]);
    refused(&["--socket", s, "--cid", "three", "--uds", u], 2, &["three", "--cid"]);
    for cid in ["0", "1", "2", "4294967295", "4294967296"] {
        refused(&["--socket", s, "--cid", cid, "--uds", u], 2, &[cid, "3", "4294967294"]);
    }
    with(&["--fd", "3"], 2, &["--fd"]);
    with(&["--vm", "name=a"], 2, &["--vm"]);
    with(&["--groups", ""], 2, &["--groups", "at least one byte"]);
    with(&["--groups", "a++b"], 2, &["--groups a++b", "at least one byte"]);
    for bytes in ["0", "4095", "16777217"] {
        with(&["--buffer", bytes], 2, &[bytes, "4096..=16777216"]);
    }
    for n in ["0", "65537"] {
        with(&["--max-connections", n], 2, &[n, "1..=65536"]);
    }
    with(&["--max-connections", "8", "--map-connections", "9"], 2, &["9 mapped connections", "0 to 8"]);
    for bytes in ["65535", "1099511627777"] {
        with(&["--map-total", bytes], 2, &[bytes, "65536..=1099511627776"]);
    }
    for n in ["1000001", "many"] {
        with(&["--request-rate", n], 2, &["--request-rate", n]);
    }
    with(&["--request-rate", "1000001"], 2, &["0..=1000000"]);
    assert_eq!(dir.names(), Vec::<String>::new(), "no socket is left behind");
}

#[test]
fn several_vms_are_checked_against_each_other() {
    let dir = Dir::new();
    let vm = |name: &str, cid: u64, at: &str| {
        format!("name={name},cid={cid},socket={},uds={}", dir.path(&format!("{at}.s")), dir.path(at))
    };
    refused(&["--vm", "name=a,cid=3,socket=/x"], 2, &["--vm name=a,cid=3,socket=/x", "uds=PATH is missing"]);
    refused(&["--vm", "name=a,port=tap:t"], 2, &["'port'", "name, cid, socket, uds, groups"]);
    let two = |first: &str, second: &str, words: &[&str]| {
        refused(&["--vm", first, "--vm", second], 2, words);
        assert_eq!(dir.names(), Vec::<String>::new(), "no socket is left behind");
    };
    two(&vm("a", 3, "a"), &vm("a", 4, "b"), &["two VMs are named 'a'"]);
    two(&vm("a", 3, "a"), &vm("b", 3, "b"), &["a and b", "CID 3"]);
    two(&vm("a", 3, "a"), &vm("b", 4, "a"), &[&dir.path("a")]);
}

#[test]
fn files_are_checked() {
    let dir = Dir::new();
    let config = |name: &str, text: &str, words: &[&str]| {
        refused(&["--config", &dir.write(name, text)], 2, &[&[name], words].concat());
    };
    refused(&["--config", &dir.path("none.toml")], 2, &["none.toml", "No such file"]);
    config("empty.toml", "", &["[[vm]]", "[vm.vsock]"]);
    config("net.toml", "[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nport='tap:t'\n", &["[vm.vsock]"]);
    let vsock = "[[vm]]\nname='a'\n[vm.vsock]\nsocket='/s'\nuds='/u'\n";
    config("missing.toml", vsock, &["cid"]);
    config("unknown.toml", &format!("{vsock}cid=3\ngroup='x'\n"), &["group"]);
    config("empty-groups.toml", &format!("{vsock}cid=3\ngroups=[]\n"), &["VM a", "group of its own"]);
    config("string.toml", &format!("{vsock}cid='three'\n"), &["cid", "line"]);
}

#[test]
fn paths_that_can_not_be_listened_on_are_named() {
    let dir = Dir::new();
    let (socket, uds) = (dir.path("s"), dir.path("u"));
    let ends = |code, socket: &str, uds: &str, words: &[&str]| {
        refused(&["--socket", socket, "--cid", "3", "--uds", uds], code, words);
    };
    let on = |socket: &str, uds: &str, words: &[&str]| ends(1, socket, uds, words);
    let long = dir.path(&"x".repeat(120));
    ends(2, &long, &uds, &[&long, "107 bytes"]);
    ends(2, &socket, &long, &[&long, "107 bytes"]);
    let nowhere = dir.path("no/such/directory/u");
    on(&socket, &nowhere, &[&nowhere, "directory must exist"]);
    let file = dir.write("file", "precious");
    on(&file, &uds, &[&file, "is not a socket"]);
    on(&socket, &file, &[&file, "is not a socket"]);
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "precious");
    let held = UnixListener::bind(dir.path("held")).expect("a socket");
    on(&socket, &dir.path("held"), &[&dir.path("held"), "in use by a running process"]);
    drop(held);
    assert_eq!(dir.names(), ["file", "held"], "no socket is left behind");
}

#[test]
fn it_listens_says_what_runs_and_stops_cleanly() {
    let dir = Dir::new();
    // One is left behind by a process that was killed.
    left_behind(dir.path("u").as_ref());
    let args = ["--socket", &dir.path("s"), "--cid", "7", "--uds", &dir.path("u"), "--name", "web", "--json"];
    let program = Program::vsock(&args, Restrict::default());
    program.wait_log("web: listening on");
    crate::support::wait_until("the front end's socket", || UnixStream::connect(dir.path("s")).is_ok());
    for name in ["u", "u.seqpacket"] {
        assert!(Path::new(&dir.path(name)).exists(), "{name}");
    }
    program.signal(libc::SIGHUP);
    program.wait_log("nothing to read again");
    program.signal(libc::SIGUSR1);
    let stats: serde_json::Value = serde_json::from_str(&program.wait_line(1)).expect("JSON");
    let vm = &stats["vms"][0];
    assert_eq!((&vm["name"], &vm["cid"]), (&"web".into(), &7.into()), "{vm}");
    assert_eq!((&vm["connections_open"], &vm["transmit"]["bytes"]), (&0.into(), &0.into()), "{vm}");
    let (out, log) = program.stop();
    assert_eq!(out.lines().count(), 2, "{out}");
    for word in
        ["CID 7", "u.seqpacket", "groups default", "262144 bytes of credit", "8192 connections", "path: "]
    {
        assert!(log.contains(word), "no '{word}' in\n{log}");
    }
    assert_eq!(dir.names(), Vec::<String>::new(), "its sockets go with it");
}

#[test]
fn without_json_the_end_shows_a_table() {
    let dir = Dir::new();
    let vm = |name: &str, cid: u64| {
        let (socket, uds) = (dir.path(&format!("{name}.s")), dir.path(name));
        format!("name={name},cid={cid},socket={socket},uds={uds},groups=x+{name}")
    };
    let program = Program::vsock(&["--vm", &vm("a", 3), "--vm", &vm("b", 4)], Restrict::default());
    crate::support::wait_until("the sockets", || {
        ["a.s", "b.s"].iter().all(|name| UnixStream::connect(dir.path(name)).is_ok())
    });
    let (out, _) = program.stop();
    for word in
        ["a: CID 3", "b: CID 4", "groups b, x", "0 opened", "from guest", "to guest", "none dropped", "CPU"]
    {
        assert!(out.contains(word), "no '{word}' in\n{out}");
    }
}

#[test]
fn too_low_a_limit_of_open_files_is_named() {
    let dir = Dir::new();
    let args = ["--socket", &dir.path("s"), "--cid", "3", "--uds", &dir.path("u")];
    let low = Restrict { descriptors: Some((256, 1024)), ..Restrict::default() };
    let program = Program::vsock(&args, low);
    program.wait_log("--max-connections");
    for word in ["8192 connections", "170 of them mapped", "need 9012", "limit is 1024", "LimitNOFILE=9012"] {
        assert!(program.log().contains(word), "no '{word}' in\n{}", program.log());
    }
    // The soft limit is its own to raise.
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", program.pid())).expect("its limits");
    let line = limits.lines().find(|l| l.starts_with("Max open files")).expect("the limit of open files");
    assert_eq!(line.split_whitespace().nth(3), Some("1024"), "{line}");
    program.wait_log("listening on");
    program.stop();

    let enough = [&args[..], &["--max-connections", "374", "--map-connections", "85"]].concat();
    let program = Program::vsock(&enough, low);
    program.wait_log("listening on");
    let (_, log) = program.stop();
    assert!(!log.contains("open files"), "{log}");
}

#[test]
fn descriptors_that_are_no_unix_sockets_are_refused() {
    let dir = Dir::new();
    let number = HANDED_FD.to_string();
    let uds = dir.path("u");
    let args = ["--fd", &number, "--cid", "3", "--uds", &uds];
    refused(&args, 2, &[&number, "not a unix stream socket"]);
    let file = tempfile::tempfile().expect("a file");
    let restrict = Restrict { fd: Some(file.as_raw_fd()), ..Restrict::default() };
    let (code, _, log) = Program::vsock(&args, restrict).result();
    assert_eq!(code, 2, "{log}");
    assert!(log.contains("not a unix stream socket"), "{log}");
    assert_eq!(dir.names(), Vec::<String>::new(), "no socket is left behind");
}

#[test]
fn with_a_connected_socket_the_program_ends_with_the_connection() {
    let dir = Dir::new();
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let restrict = Restrict { fd: Some(theirs.as_raw_fd()), ..Restrict::default() };
    let args = ["--fd", &HANDED_FD.to_string(), "--cid", "3", "--uds", &dir.path("u"), "--json"];
    let program = Program::vsock(&args, restrict);
    drop(theirs);
    program.wait_log("listening on");
    drop(ours);
    let (code, out, log) = program.result();
    assert_eq!(code, 0, "{log}");
    assert_eq!(out.lines().count(), 1, "{out}");
    assert_eq!(dir.names(), Vec::<String>::new(), "its sockets go with it");
}

#[test]
fn capabilities_are_printed_as_management_programs_expect() {
    let (code, out, log) = Program::vsock(&["--print-capabilities"], Restrict::default()).result();
    assert_eq!((code, log.as_str()), (0, ""));
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["type"], "vsock");
    assert!(value["features"].is_array());
}
