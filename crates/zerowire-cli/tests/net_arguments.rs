//! `zerowire net` started wrongly: it ends at once, leaves nothing behind, and says what was wrong and what to do.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;

use common::{HANDED_FD, Peer, Program, Restrict, connect, in_netns, interface, tap, wait_until};

/// Runs with `args`; the log must hold all `words`, and the exit code be `code`.
fn refused(args: &[&str], code: i32, words: &[&str]) {
    let (got, out, log) = Program::run(args);
    assert_eq!(got, code, "{args:?}:\n{log}");
    for word in words {
        assert!(log.contains(word), "{args:?}: no '{word}' in\n{log}");
    }
    assert!(!log.contains("panicked"), "{log}");
    assert_eq!(out, "", "{args:?}");
}

#[test]
fn wrong_arguments_are_named_with_what_to_give() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let write = |name: &str, text: &str| {
            std::fs::write(path(name), text).expect("a file");
            path(name)
        };
        let socket = path("s");
        let s = socket.as_str();
        refused(&["--socket", s, "--port", "veth:a"], 1, &["veth:a", "tap:NAME"]);
        refused(&["--socket", s, "--port", "tap:t,queues=0"], 1, &["queues=0", "1 to 128"]);
        refused(&["--socket", s, "--port", "tap:t,queues=129"], 1, &["queues=129", "1 to 128"]);
        refused(
            &["--socket", s, "--port", "tap:abcdefghijklmnop"],
            1,
            &["abcdefghijklmnop", "1 to 15 bytes"],
        );
        refused(&["--socket", s, "--port", "tap:"], 1, &["1 to 15 bytes"]);
        refused(&["--socket", s, "--port", "tap:a/b"], 1, &["'a/b'", "without '/'"]);
        refused(&["--socket", s, "--gather-max", "70000"], 1, &["70000", "65557"]);
        refused(&["--port", "tap:zwarg"], 1, &["--socket PATH", "--fd N"]);
        refused(&["--socket", s, "--fd", "3"], 2, &["--fd"]);
        refused(&["--socket", s, "--path", "fast"], 2, &["fast", "auto", "copy"]);
        refused(&["--vm", "name=a,socket=/x"], 1, &["--vm name=a,socket=/x", "port=PORT is missing"]);
        let one = format!("name=a,socket={s},port=tap:zwarg");
        refused(&["--vm", &one, "--vm", &one], 1, &["two VMs are named 'a'"]);
        refused(&["--config", &path("none.toml")], 1, &["none.toml", "No such file"]);
        refused(&["--config", &write("empty.toml", "")], 1, &["empty.toml", "[[vm]]"]);
        let vsock = "[[vm]]\nname='a'\n[vm.vsock]\nsocket='/s'\ncid=3\nuds='/u'\n";
        refused(&["--config", &write("vsock.toml", vsock)], 1, &["vsock.toml", "[vm.net]"]);
        let unknown = write("unknown.toml", "[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nprt='tap:t'\n");
        refused(&["--config", &unknown], 1, &["unknown.toml", "prt"]);
        let bad_port = write("port.toml", "[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nport='tun:t'\n");
        refused(&["--config", &bad_port], 1, &["port.toml", "VM a", "tun:t"]);

        let port = ["--socket", s, "--port", "tap:zwarg"];
        let with = |more: &[&str], words: &[&str]| refused(&[&port, more].concat(), 1, words);
        with(&["--metadata", &path("none.json")], &["none.json", "No such file"]);
        with(&["--metadata", &write("bad.json", "{\n \"a\": }")], &["bad.json", "line 2"]);
        with(&["--metadata", &write("list.json", "[1]")], &["list.json", "must be an object"]);

        let long = path(&"x".repeat(120));
        refused(&["--socket", &long, "--port", "tap:zwarg"], 1, &[&long, "107 bytes"]);
        let file = write("file", "precious");
        refused(&["--socket", &file, "--port", "tap:zwarg"], 1, &[&file, "is not a socket", "another path"]);
        assert_eq!(std::fs::read_to_string(&file).expect("still there"), "precious");
        let nowhere = path("no/such/directory/s");
        refused(&["--socket", &nowhere, "--port", "tap:zwarg"], 1, &[&nowhere, "directory must exist"]);
        assert_eq!(interface("zwarg"), None, "no tap is left behind");
        assert!(!std::path::Path::new(s).exists(), "no socket is left behind");
    });
}

#[test]
fn what_others_hold_is_left_to_them() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name).display().to_string();
        let first = Program::net(&["--socket", &path("a"), "--port", "tap:zwheld"]);
        first.wait_log("listening");
        let mut guest = common::Guest::start(connect(&dir.path().join("a")));
        let mut peer = Peer::new("zwheld");
        guest.ping(&mut peer);
        refused(
            &["--socket", &path("a"), "--port", "tap:zwother"],
            1,
            &[&path("a"), "in use by a running process"],
        );
        assert_eq!(interface("zwother"), None);
        refused(
            &["--socket", &path("b"), "--port", "tap:zwheld"],
            1,
            &["zwheld", "another program holds it"],
        );
        assert!(!dir.path().join("b").exists());
        guest.ping(&mut peer);
        first.stop();
        assert!(!dir.path().join("a").exists(), "the socket goes with the program");
        // The kernel lets go of what io_uring held a little after the process is gone.
        wait_until("a tap that it made goes with it", || interface("zwheld").is_none());

        tap::persistent("zwmulti", libc::IFF_MULTI_QUEUE);
        refused(&["--socket", &path("c"), "--port", "tap:zwmulti"], 1, &["zwmulti", "multi_queue"]);
    });
}

#[test]
fn a_socket_left_behind_is_replaced() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        drop(UnixListener::bind(&path).expect("a socket"));
        assert!(std::fs::symlink_metadata(&path).expect("it is there").file_type().is_socket());
        let program = Program::net(&["--socket", &path.display().to_string(), "--port", "tap:zwold"]);
        let mut guest = common::Guest::start(connect(&path));
        guest.ping(&mut Peer::new("zwold"));
        program.stop();
    });
}

#[test]
fn descriptors_that_are_no_unix_sockets_are_refused() {
    in_netns(|| {
        let number = HANDED_FD.to_string();
        refused(&["--fd", &number, "--port", "tap:zwfd"], 1, &[&number, "not a unix stream socket"]);
        refused(&["--fd", "-5", "--port", "tap:zwfd"], 2, &[]);
        let file = tempfile::tempfile().expect("a file");
        let udp = std::net::UdpSocket::bind("127.0.0.1:0");
        let mut fds = vec![file.as_raw_fd()];
        // Without an address on lo there may be no UDP socket; the file is enough then.
        fds.extend(udp.as_ref().map(AsRawFd::as_raw_fd));
        for fd in fds {
            let restrict = Restrict { fd: Some(fd), ..Restrict::default() };
            let mut program = Program::restricted(&["--fd", &number, "--port", "tap:zwfd"], restrict);
            assert_eq!(program.wait().code(), Some(1), "{}", program.log());
            assert!(program.log().contains("not a unix stream socket"), "{}", program.log());
        }
    });
}

#[test]
fn capabilities_are_printed_as_management_programs_expect() {
    let (code, out, log) = Program::run(&["--print-capabilities"]);
    assert_eq!((code, log.as_str()), (0, ""));
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["type"], "net");
    assert!(value["features"].is_array());
}
