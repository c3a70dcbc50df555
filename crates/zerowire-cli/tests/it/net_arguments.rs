//! `zerowire net` started wrongly: it ends at once, leaves nothing behind, and says what was wrong
//! and what to do.

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;

use crate::support::{
    HANDED_FD, Peer, Program, Restrict, connect, in_netns, interface, left_behind, tap, wait_until,
};
use zerowire_testkit::net::veth;

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
        refused(&["--socket", s, "--port", "veth:a"], 2, &["the kind 'veth'", "tap:a"]);
        refused(&["--socket", s, "--port", "tap:t,queues=0"], 2, &["queues=0", "1 to 128"]);
        refused(&["--socket", s, "--port", "tap:t,queues=129"], 2, &["queues=129", "1 to 128"]);
        refused(
            &["--socket", s, "--port", "tap:abcdefghijklmnop"],
            2,
            &["abcdefghijklmnop", "1 to 15 bytes"],
        );
        refused(&["--socket", s, "--port", "tap:"], 2, &["1 to 15 bytes"]);
        refused(&["--socket", s, "--port", "tap:a/b"], 2, &["'tap:a/b'", "none of them '/'"]);
        refused(&["--socket", s, "--gather-max", "70000"], 2, &["--gather-max 70000", "65557"]);
        refused(&["--socket", s, "--rx-copybreak", "65558"], 2, &["--rx-copybreak 65558", "65557"]);
        refused(&["--port", "tap:zwarg"], 2, &["--socket PATH", "--fd N"]);
        let two = ["a", "b"].map(|vm| format!("name={vm},socket={s}{vm},port=tap:zwarg{vm}"));
        refused(
            &["--postcopy", "--vm", &two[0], "--vm", &two[1]],
            2,
            &["--postcopy with 2 VMs", "a process of its own"],
        );
        refused(&["--socket", s, "--fd", "3"], 2, &["--fd"]);
        refused(&["--socket", s, "--path", "fast"], 2, &["fast", "auto", "copy"]);
        refused(&["--socket", s, "--pin", "on"], 2, &["'--pin'", "register no guest memory", "pin=partial"]);
        refused(&["--socket", s, "--syscalls", "plain"], 2, &["'--syscalls'", "as the C library makes them"]);
        refused(&["--socket", s, "--io", "uring"], 2, &["'--io'", "system calls move all frames"]);
        let on_a_tap = format!("name=a,socket={s},port=tap:zwarg,pin=on");
        refused(&["--vm", &on_a_tap], 2, &["'pin=on' is not known"]);
        let key = write("pin.toml", "[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nport='tap:t'\npin='on'\n");
        refused(&["--config", &key], 2, &["pin.toml", "`pin`"]);
        refused(&["--vm", "name=a,socket=/x"], 2, &["--vm name=a,socket=/x", "port=PORT is missing"]);
        let one = format!("name=a,socket={s},port=tap:zwarg");
        refused(&["--vm", &one, "--vm", &one], 2, &["two VMs are named 'a'"]);
        refused(&["--config", &path("none.toml")], 2, &["none.toml", "No such file"]);
        refused(&["--config", &write("empty.toml", "")], 2, &["empty.toml", "[[vm]]"]);
        let vsock = "[[vm]]\nname='a'\n[vm.vsock]\nsocket='/s'\ncid=3\nuds='/u'\n";
        refused(&["--config", &write("vsock.toml", vsock)], 2, &["vsock.toml", "[vm.net]"]);
        let unknown = write("unknown.toml", "[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nprt='tap:t'\n");
        refused(&["--config", &unknown], 2, &["unknown.toml", "prt"]);
        let bad_port = write("port.toml", "[[vm]]\nname='a'\n[vm.net]\nsocket='/s'\nport='tun:t'\n");
        refused(&["--config", &bad_port], 2, &["port.toml", "VM a", "tun:t"]);

        let port = ["--socket", s, "--port", "tap:zwarg"];
        let with = |more: &[&str], words: &[&str]| refused(&[&port, more].concat(), 1, words);
        with(&["--metadata", &path("none.json")], &["none.json", "No such file"]);
        with(&["--metadata", &write("bad.json", "{\n \"a\": }")], &["bad.json", "line 2"]);
        with(&["--metadata", &write("list.json", "[1]")], &["list.json", "must be an object"]);

        let long = path(&"x".repeat(120));
        refused(&["--socket", &long, "--port", "tap:zwarg"], 2, &[&long, "107 bytes"]);
        let by_file =
            write("long.toml", &format!("[[vm]]\nname='a'\n[vm.net]\nsocket='{long}'\nport='tap:zwarg'\n"));
        refused(&["--config", &by_file], 2, &["long.toml: VM a", &long, "107 bytes"]);
        refused(&["--socket", s, "--port", "tap:zwarg", "--control", &long], 2, &["--control", "107 bytes"]);
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
        let mut guest = crate::support::Guest::start(connect(&dir.path().join("a")));
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
        wait_until("a tap that it made goes with it", || interface("zwheld").is_none());
    });
}

#[test]
fn interfaces_that_are_not_the_tap_that_was_asked_for_are_told_apart() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s").display().to_string();
        let refused_port = |port: &str, words: &[&str]| {
            refused(&["--socket", &socket, "--port", port], 1, words);
            assert!(!dir.path().join("s").exists(), "{port}: no socket is left behind");
        };
        tap::persistent("zwmulti", libc::IFF_MULTI_QUEUE);
        refused_port("tap:zwmulti", &["'zwmulti'", "with multi_queue", "queues=2 or more"]);
        tap::persistent("zwsingle", 0);
        refused_port("tap:zwsingle,queues=2", &["'zwsingle'", "without multi_queue", "leave queues=N out"]);
        tap::make("zwtun", libc::IFF_TUN | libc::IFF_NO_PI);
        refused_port("tap:zwtun", &["'zwtun'", "it is a tun", "name of a tap"]);
        refused_port("tap:lo", &["'lo'", "can't be a port", "of none yet", "type veth peer name"]);
        veth::veth("zwend", "zwpeer", 1, 1500);
        refused_port("tap:zwend", &["'zwend'", "no tap", "packet:zwend", "xdp:zwend"]);
    });
}

#[test]
fn a_tap_that_may_not_be_made_is_named_with_what_to_ask_for() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s").display().to_string();
        for (port, flag) in
            [("tap:zwmay", " user USER'"), ("tap:zwmay,queues=2", "vnet_hdr multi_queue user USER'")]
        {
            let restrict = Restrict { no_net_admin: true, ..Restrict::default() };
            let program = Program::restricted(&["--socket", &socket, "--port", port], restrict);
            let (code, _, log) = program.result();
            assert_eq!(code, 1, "{log}");
            for word in ["tap 'zwmay' can't be opened", "CAP_NET_ADMIN", "ip tuntap add zwmay mode tap", flag]
            {
                assert!(log.contains(word), "no '{word}' in\n{log}");
            }
        }
    });
}

/// A number that is none of the user's may be one that the program would use for something of its
/// own.
#[test]
fn numbers_of_no_descriptor_are_refused_before_anything_is_opened() {
    in_netns(|| {
        for number in 3..=12 {
            let words = [&format!("descriptor {number} is not a unix stream socket"), "was started with"];
            refused(&["--fd", &number.to_string(), "--port", "tap:zwnofd"], 2, &words);
            assert_eq!(interface("zwnofd"), None, "no tap is left behind");
        }
    });
}

fn path_of(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).display().to_string()
}

#[test]
fn several_vms_are_checked_against_each_other() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let vm = |name: &str, socket: &str, tap: &str| {
            format!("name={name},socket={}/{socket},port=tap:{tap}", dir.path().display())
        };
        let toml = |name: &str, socket: &str, tap: &str| {
            let socket = format!("{}/{socket}", dir.path().display());
            format!("[[vm]]\nname = '{name}'\n[vm.net]\nsocket = '{socket}'\nport = 'tap:{tap}'\n")
        };
        let file = dir.path().join("vms.toml");
        let config = file.display().to_string();
        for (second, words, in_file) in [
            (["a", "b", "zwtwob"], ["two VMs are named 'a'", "names must differ"], "lines 2 and 7"),
            (["b", "./a", "zwtwob"], ["VM b: socket path", "is taken by a socket of VM a"], "/./a"),
            (["b", "b", "zwtwoa"], ["VM b: tap 'zwtwoa' is VM a's", "another one"], "vms.toml: VM b"),
        ] {
            let [name, socket, tap] = second;
            refused(&["--vm", &vm("a", "a", "zwtwoa"), "--vm", &vm(name, socket, tap)], 2, &words);
            std::fs::write(&file, toml("a", "a", "zwtwoa") + &toml(name, socket, tap)).expect("a file");
            refused(&["--config", &config], 2, &[&config, in_file]);
        }
        let xdp = |name: &str, queues: &str| {
            format!("name={name},socket={}/{name},port=xdp:zwnone,{queues}", dir.path().display())
        };
        refused(
            &["--vm", &xdp("a", "queue=1,queues=2"), "--vm", &xdp("b", "queue=2")],
            2,
            &["VM b: queue 2 of interface zwnone is VM a's"],
        );
        refused(&["--vm", &vm("", "a", "zwtwoa")], 2, &["VM name \"\"", "at least one character"]);
        std::fs::write(&file, toml("a", "a", "zwtwoa").replace("'a'", "\"a\\u0000b\"")).expect("a file");
        refused(&["--config", &config], 2, &["VM name \"a\\0b\"", "no control characters"]);
        let (own, none) = (path_of(&dir, "own.json"), path_of(&dir, "none.json"));
        std::fs::write(&own, "{}").expect("metadata");
        let with = vm("a", "a", "zwtwoa") + ",metadata=" + &own;
        let both = ["--vm", &with, "--vm", &vm("b", "b", "zwtwob"), "--metadata", &none];
        refused(&both, 1, &["VM b: metadata file", "none.json", "No such file"]);
        std::fs::remove_file(own).expect("metadata");
        let twice = vm("a", "a", "zwtwoa") + ",name=b";
        refused(&["--vm", &twice], 2, &["name=a and name=b: give 'name' once"]);
        let names: Vec<_> = std::fs::read_dir(dir.path()).expect("the directory").flatten().collect();
        assert_eq!(names.len(), 1, "no socket is left behind: {names:?}");
        assert_eq!((interface("zwtwoa"), interface("zwtwob")), (None, None), "no tap is left behind");
    });
}

#[test]
fn mistakes_in_files_are_named_with_their_line() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("vms.toml").display().to_string();
    let good = "[[vm]]\nname = 'a'\n[vm.net]\nsocket = '/nowhere/s'\nport = 'tap:zwfile'\n";
    for (from, to, words) in [
        ("name = 'a'", "name = 3", ["line 2", "name = 3", "expected a string"]),
        ("port = 'tap:zwfile'", "port = ['tap:t']", ["line 5", "port = ['tap:t']", "expected a string"]),
        ("port = ", "prt = ", ["line 5", "unknown field `prt`", "`port`"]),
        ("socket = ", "metadata = ", ["line 3", "[vm.net]", "missing field `socket`"]),
        ("[[vm]]", "[vm]", ["line 1", "[vm]", "expected a sequence"]),
        ("[vm.net]", "[vm.net", ["line 3", "[vm.net", "unclosed"]),
        ("[vm.net]", "[vm.nett]", ["line 3", "unknown field `nett`", "`net`"]),
        (
            "port = ",
            "metadata-token = 'maybe'\nport = ",
            ["VM a", "metadata-token 'maybe'", "required or optional"],
        ),
        ("'tap:zwfile'", "'xdp:zwfile,pin=half'", ["VM a", "pin=half", "partial or off"]),
        ("port = ", "socket = '/x'\nport = ", ["line 5", "socket = '/x'", "duplicate key"]),
    ] {
        std::fs::write(&file, good.replace(from, to)).expect("a file");
        refused(&["--config", &file], 2, &[&[file.as_str()][..], &words].concat());
    }
}

#[test]
fn a_level_that_is_none_is_refused_with_the_choice() {
    refused(
        &["--log", "lots", "--socket", "/nowhere/s"],
        2,
        &["'lots'", "--log", "error, warn, info, debug, trace"],
    );
    refused(&["--memlock", "1T", "--socket", "/nowhere/s"], 2, &["'1T'", "--memlock", "256M or 1G"]);
}

#[test]
fn a_socket_left_behind_is_replaced() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        left_behind(&path);
        assert!(std::fs::symlink_metadata(&path).expect("it is there").file_type().is_socket());
        let program = Program::net(&["--socket", &path.display().to_string(), "--port", "tap:zwold"]);
        let mut guest = crate::support::Guest::start(connect(&path));
        guest.ping(&mut Peer::new("zwold"));
        program.stop();
    });
}

#[test]
fn descriptors_that_are_no_unix_sockets_are_refused() {
    in_netns(|| {
        let number = HANDED_FD.to_string();
        refused(&["--fd", &number, "--port", "tap:zwfd"], 2, &[&number, "not a unix stream socket"]);
        refused(&["--fd", "-5", "--port", "tap:zwfd"], 2, &[]);
        for standard in ["0", "1", "2"] {
            let words = [&format!("descriptor {standard} is one of the standard ones"), "3<&"];
            refused(&["--fd", standard, "--port", "tap:zwfd"], 2, &words);
        }
        let file = tempfile::tempfile().expect("a file");
        let udp = std::net::UdpSocket::bind("127.0.0.1:0");
        let mut fds = vec![file.as_raw_fd()];
        // Without an address on lo there may be no UDP socket; the file is enough then.
        fds.extend(udp.as_ref().map(AsRawFd::as_raw_fd));
        for fd in fds {
            let restrict = Restrict { fd: Some(fd), ..Restrict::default() };
            let mut program = Program::restricted(&["--fd", &number, "--port", "tap:zwfd"], restrict);
            assert_eq!(program.wait().code(), Some(2), "{}", program.log());
            assert!(program.log().contains("not a unix stream socket"), "{}", program.log());
        }
    });
}

/// What QEMU and libvirt ask a back end before they use it.
#[test]
fn capabilities_are_printed_as_management_programs_expect() {
    let (code, out, log) = Program::run(&["--print-capabilities"]);
    assert_eq!((code, log.as_str()), (0, ""));
    let value: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["type"], "net");
    assert!(value["features"].is_array());
    // "Other options and arguments should be ignored" (QEMU docs/interop/vhost-user.rst, "Backend
    // program conventions").
    for more in [&["--fd=3", "--socket-path=/nowhere/s"][..], &["--port", "bogus"], &["--of-another-version"]]
    {
        for args in [[&["--print-capabilities"], more].concat(), [more, &["--print-capabilities"]].concat()] {
            assert_eq!(Program::run(&args), (0, out.clone(), String::new()), "{args:?}");
        }
    }
}

/// Management programs read the JSON file that is installed, and start the program that it names
/// without further words.
#[test]
fn the_installed_file_names_a_program_that_is_such_a_back_end() {
    let dir = tempfile::tempdir().expect("a directory");
    for device in ["net", "vsock"] {
        let template = format!("{}/../../dist/50-zerowire-{device}.json.in", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(template).expect("the file as it is before it is installed");
        let text = text.replace("@libexecdir@", &dir.path().display().to_string());
        let file: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert!(file["description"].is_string() && file["type"] == device, "{file}");
        let binary = file["binary"].as_str().expect("a path");
        // As `make install` does.
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_zerowire"), binary).expect("a link");
        let output =
            std::process::Command::new(binary).arg("--print-capabilities").output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(said["type"], device, "{said}");
        let alone = std::process::Command::new(binary).output().expect("it starts");
        assert_eq!(alone.status.code(), Some(2), "{alone:?}");
        assert!(String::from_utf8_lossy(&alone.stderr).contains("--socket PATH"), "{alone:?}");
    }
}
