//! The control socket of `zerowire vsock`: VMs come, go and change while others are served, by the
//! program itself and by confined processes. Run as root.

use std::io::Read;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use zerowire_guest::vsock::HOST_CID;

use crate::support::control::{Controlled, ask, dial, say};
use crate::support::modes::{CONFINED, Mode, PLAIN, in_both_modes};
use crate::support::processes::{ProcessTree, children, held, is_served};
use crate::support::vsock::{Guest, reach};
use crate::support::{Program, Restrict, is_refused, wait_until};

in_both_modes! {
    each_route_does_what_it_says
    limits_change_and_nothing_else_does
    a_bad_request_changes_nothing_and_says_what_and_where
    no_guest_manages_the_program
    relative_and_absolute_paths_of_one_socket_are_the_same
    captures_begin_and_end_while_vms_run
    ctl_and_top_work_on_it
    vms_that_come_and_go_leave_nothing_behind
    a_file_that_is_read_again_changes_what_differs
    the_last_vm_of_the_file_goes_and_comes
}

fn start(mode: Mode, more: &[&str]) -> Controlled {
    Controlled::start_vsock(&[mode, more].concat())
}

/// The body that adds a VM whose sockets have its name.
fn table(dir: &Path, name: &str, cid: u64) -> Value {
    json!({ "socket": dir.join(format!("{name}.s")), "cid": cid, "uds": dir.join(name) })
}

fn add(server: &Controlled, name: &str, cid: u64) {
    server.put(name, &table(server.dir.path(), name, cid).to_string());
}

fn guest(server: &Controlled, name: &str) -> Guest {
    Guest::start(&server.path(&format!("{name}.s")))
}

fn each_route_does_what_it_says(mode: Mode) {
    let server = start(mode, &[]);
    assert_eq!(server.json("/version")["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(server.json("/vms"), json!({ "vms": [] }));

    add(&server, "a", 3);
    let vm = server.json("/vms/a");
    assert_eq!((&vm["state"], &vm["connected"]), (&"running".into(), &false.into()));
    assert_eq!((&vm["config"]["cid"], &vm["config"]["groups"]), (&3.into(), &json!(["default"])));
    assert_eq!((&vm["config"]["socket-mode"], &vm["config"]["uds-mode"]), (&"0600".into(), &"0600".into()));
    server.program.wait_log("listening on");

    let mut a = guest(&server, "a");
    let (conn, mut stream) = a.open(&server.path("a"), 1000);
    a.ping(conn, &mut stream);
    let shown = server.json("/vms/a");
    assert_eq!((&shown["connected"], &shown["statistics"]["connections_open"]), (&true.into(), &1.into()));
    assert_eq!(server.json("/stats")["vms"][0]["transmit"]["bytes"], 5);
    for target in ["/stats", "/vms/a"] {
        let request = format!("GET {target} HTTP/1.1\r\nAccept: text/plain\r\nConnection: close\r\n\r\n");
        let (status, text) = say(&mut dial(&server.control()), request.as_bytes());
        assert!(status == 200 && text.contains("from guest"), "{text}");
    }
    let (_, metrics) = server.ask("GET", "/metrics", "");
    for line in [
        "zerowire_vms 1\n",
        "zerowire_front_end_connected{vm=\"a\"} 1\n",
        "zerowire_vsock_open_connections{vm=\"a\"} 1\n",
        "zerowire_vsock_bytes_total{vm=\"a\",direction=\"transmit\"} 5\n",
    ] {
        assert!(metrics.contains(line), "{line}{metrics}");
    }

    // A sibling comes while the connection goes on, and goes again.
    add(&server, "b", 4);
    let mut b = guest(&server, "b");
    let (to_b, _) = reach(&mut a.stack, &mut b.stack, 4, 9);
    assert_eq!(server.ask("DELETE", "/vms/b", "").0, 204);
    assert!(!server.path("b.s").exists() && !server.path("b").exists());
    wait_until("the reset", || {
        a.turn();
        a.stack.state(to_b) != zerowire_guest::vsock::ConnState::Established
    });
    a.ping(conn, &mut stream);

    // What it was added with adds it again.
    let config = shown["config"].to_string();
    assert_eq!(server.ask("DELETE", "/vms/a", "").0, 204);
    assert_eq!(server.ask("PUT", "/vms/another%20name", &config).0, 201);
    assert_eq!(server.json("/vms/another%20name")["config"].to_string(), config);

    // A drained VM keeps its front end.
    let mut a = guest(&server, "a");
    assert_eq!(server.ask("POST", "/vms/another%20name/drain", "").0, 202);
    assert_eq!(server.json("/vms/another%20name")["state"], "draining");
    wait_until("others are refused", || is_refused(&server.path("a.s")));
    let (conn, mut stream) = a.open(&server.path("a"), 1001);
    a.ping(conn, &mut stream);
    drop(a);
    wait_until("it is gone", || server.names().is_empty());
    let (_, log) = server.program.stop();
    assert!(!log.contains("ERROR"), "{log}");
}

fn limits_change_and_nothing_else_does(mode: Mode) {
    let server = start(mode, &[]);
    add(&server, "a", 3);
    let (status, text) = server.ask("PATCH", "/vms/a", "{\"tx-limit\": \"1M/s\", \"rx-limit\": \"2M/s\"}");
    let vm: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (status, vm["config"]["tx-limit"].as_str().map(|l| l.starts_with("1"))),
        (200, Some(true)),
        "{text}"
    );
    let (_, text) = server.ask("PATCH", "/vms/a", "{\"tx-limit\": null}");
    let vm: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&vm["config"]["tx-limit"], vm["config"]["rx-limit"].is_string()),
        (&Value::Null, true),
        "{text}"
    );
    for same in [
        "{\"groups\": null, \"socket-owner\": null}",
        "{\"groups\": [\"default\", \"default\"]}",
        "{\"socket-owner\": \"root\", \"uds-mode\": \"600\"}",
    ] {
        let (status, text) = server.ask("PATCH", "/vms/a", same);
        assert_eq!(status, 200, "{same} changes nothing: {text}");
    }
    for (patch, status, pointer, words) in [
        ("{\"cid\": 4}", 409, "/cid", "?reconnect"),
        ("{\"groups\": [\"x\"]}", 409, "/groups", "?reconnect"),
        ("{\"uds\": \"/elsewhere\"}", 409, "/uds", "without it only the limits can change"),
        ("{\"uds-mode\": \"0666\"}", 409, "/uds-mode", "?reconnect"),
        ("{\"rx-limit\": \"fast\"}", 400, "/rx-limit", "fast"),
        ("{\"port\": \"tap:a\"}", 400, "/port", "unknown field"),
    ] {
        let (got, text) = server.ask("PATCH", "/vms/a", patch);
        let said: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((got, said["pointer"].as_str()), (status, Some(pointer)), "{patch}: {text}");
        assert!(said["error"].as_str().is_some_and(|e| e.contains(words)), "{patch}: {text}");
    }
    assert_eq!(server.json("/vms/a")["config"], vm["config"], "nothing of that has changed it");
}

fn a_bad_request_changes_nothing_and_says_what_and_where(mode: Mode) {
    let server = start(mode, &[]);
    add(&server, "there", 3);
    let dir = server.dir.path();
    for (name, cid, group) in [("x", 5, "x"), ("y", 6, "y")] {
        let mut vm = table(dir, name, cid);
        vm["groups"] = json!([group]);
        assert_eq!(server.ask("PUT", &format!("/vms/{name}"), &vm.to_string()).0, 201);
    }
    let before = server.json("/vms").to_string();
    let on = |key: &str, value: Value| {
        let mut vm = table(dir, "new", 4);
        vm[key] = value;
        vm
    };
    std::fs::write(server.path("file"), "precious").expect("a file");
    let cases = [
        ("new", on("cid", json!("four")), 400, Some("/cid"), "invalid type"),
        ("new", on("cid", json!(2)), 400, Some("/cid"), "is the host's"),
        ("new", on("cid", json!(3)), 409, Some("/cid"), "VMs there and new both have CID 3"),
        ("new", on("cdi", json!(4)), 400, Some("/cdi"), "unknown field `cdi`"),
        ("new", on("port", json!("tap:a")), 400, Some("/port"), "unknown field `port`"),
        ("new", on("groups", json!([])), 400, Some("/groups"), "no group is named"),
        ("new", on("groups", json!(["a+b"])), 400, Some("/groups"), "give names"),
        ("new", on("groups", json!(["x", "y"])), 409, Some("/groups"), "connect VMs x with y"),
        ("new", on("tx-limit", json!("fast")), 400, Some("/tx-limit"), "fast"),
        ("new", on("uds-mode", json!("rw")), 400, Some("/uds-mode"), "octal"),
        ("new", on("socket-owner", json!("no-such")), 400, Some("/socket-owner"), "/etc/passwd"),
        ("new", on("socket", json!(dir.join("there.s"))), 409, Some("/socket"), "is taken by"),
        ("new", on("uds", json!(dir.join("there"))), 409, Some("/uds"), "is taken by"),
        ("new", on("uds", json!(dir.join("there_80"))), 409, Some("/uds"), "guest to port 80 arrive"),
        ("new", on("socket", json!(dir.join("there_80"))), 409, Some("/socket"), "guest to port 80 arrive"),
        ("new", on("socket", json!(dir.join("file"))), 422, Some("/socket"), "is not a socket"),
        ("new", on("uds", json!(dir.join("file"))), 422, Some("/uds"), "is not a socket"),
        ("new", on("socket", json!("")), 422, Some("/socket"), "is empty"),
        ("new", on("uds", json!("")), 422, Some("/uds"), "is empty"),
        ("new", on("uds", json!("/no/such/u")), 422, Some("/uds"), "directory must exist"),
        ("there", table(dir, "new", 4), 409, None, "two VMs are named 'there'"),
        ("%01", table(dir, "new", 4), 400, None, "control characters"),
    ];
    for (name, body, status, pointer, words) in cases {
        let (got, text) = server.ask("PUT", &format!("/vms/{name}"), &body.to_string());
        let said: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert_eq!((got, said["pointer"].as_str()), (status, pointer), "{body}: {text}");
        assert!(said["error"].as_str().is_some_and(|e| e.contains(words)), "{body}: {text}");
        assert_eq!(server.json("/vms").to_string(), before, "{body}");
        for socket in ["new", "new.s", "new.seqpacket", "new.map"] {
            assert!(!server.path(socket).exists(), "{body}: {socket}");
        }
    }
    let no_uds = json!({ "socket": dir.join("s"), "cid": 4 }).to_string();
    assert!(server.ask("PUT", "/vms/new", &no_uds).1.contains("missing field `uds`"));
    assert_eq!(std::fs::read_to_string(server.path("file")).expect("still there"), "precious");
    add(&server, "new", 4);
}

/// The control socket lies at no port of a guest's: not at the start, not of a VM that comes, and
/// not by a link.
fn no_guest_manages_the_program(mode: Mode) {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let config = file(dir.path(), &[("c", 5, "")]);
    for (control, words) in [("c_22", "its guest to port 22"), ("c", "is the control socket's")] {
        let control = at(control).display().to_string();
        let args = [&["--config", &config, "--control", &control], mode].concat();
        let (code, _, log) = Program::vsock(&args, Restrict::default()).result();
        assert!(code == 2 && log.contains("VM c: ") && log.contains(words), "{code} {log}");
        assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 1, "the file alone is left");
    }

    let control = at("new_22");
    let path = control.display().to_string();
    let args = [&["--config", &config, "--control", &path], mode].concat();
    let program = Program::vsock(&args, Restrict::default());
    program.wait_log("control socket at");
    let put = ask(&control, "PUT", "/vms/new", &table(dir.path(), "new", 6).to_string());
    let said: Value = serde_json::from_str(&put.1).expect("JSON");
    assert_eq!((put.0, said["pointer"].as_str()), (409, Some("/uds")), "{said}");
    file(dir.path(), &[("new", 6, "")]);
    program.signal(libc::SIGHUP);
    program.wait_log("nothing has changed");
    assert!(program.log().contains("its guest to port 22"), "{}", program.log());
    assert!(at("c").exists() && !at("new").exists());

    let mut guest = Guest::start(&at("c.s"));
    std::os::unix::fs::symlink(&control, at("c_6000")).expect("a link");
    assert_eq!(guest.connect(HOST_CID, 6000), None, "nobody listens there");
    drop(guest);
    program.stop();
}

/// A confined process, which has no folder, serves VMs with relative paths all the same.
fn relative_and_absolute_paths_of_one_socket_are_the_same(mode: Mode) {
    let dir = tempfile::tempdir().expect("a directory");
    let at = |name: &str| dir.path().join(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.current_dir(dir.path()).args(["vsock", "--control", "control"]).args(mode);
    let program = Program::of(command, Restrict::default());
    program.wait_log("control socket at");
    let put = |name: &str, cid: u64, socket: &str, uds: &str| {
        let body = json!({ "socket": socket, "cid": cid, "uds": uds }).to_string();
        let (status, text) = ask(&at("control"), "PUT", &format!("/vms/{name}"), &body);
        let said: Value = serde_json::from_str(&text).expect("JSON");
        (status, said["pointer"].as_str().unwrap_or_default().to_owned())
    };
    for (name, cid) in [("a", 3), ("b", 4)] {
        assert_eq!(put(name, cid, &format!("{name}.s"), name).0, 201);
    }
    for (socket, uds, pointer) in [
        ("a.s", "c", "/socket"),
        ("c.s", "a", "/uds"),
        ("control", "c", "/socket"),
        ("a_22", "c", "/socket"),
        ("c.s", "b_22", "/uds"),
    ] {
        let (socket, uds) = (at(socket).display().to_string(), at(uds).display().to_string());
        assert_eq!(put("c", 5, &socket, &uds), (409, pointer.to_owned()), "{socket} {uds}");
    }
    for name in ["a", "b"] {
        let mut guest = Guest::start(&at(&format!("{name}.s")));
        let (conn, mut stream) = guest.open(&at(name), 1000);
        guest.ping(conn, &mut stream);
    }
    let (_, log) = program.stop();
    assert!(!log.contains("ERROR") && !log.contains("died"), "{log}");
}

fn captures_begin_and_end_while_vms_run(mode: Mode) {
    let dir = tempfile::tempdir().expect("a directory");
    let server = start(mode, &["--pcap-dir", &dir.path().display().to_string()]);
    add(&server, "a", 3);
    let mut a = guest(&server, "a");
    let (conn, mut stream) = a.open(&server.path("a"), 1000);
    assert_eq!(server.ask("PUT", "/capture", "{\"file\": \"c.pcapng\"}").0, 201);
    a.ping(conn, &mut stream);
    add(&server, "b", 4);
    wait_until("packets are captured", || {
        server.json("/vms/a")["statistics"]["capture"]["captured"].as_u64() >= Some(2)
    });
    assert!(server.json("/vms/b")["statistics"]["capture"].is_object(), "one that came later, too");
    assert_eq!(server.ask("DELETE", "/capture", "").0, 204);
    assert!(server.json("/vms/a")["statistics"]["capture"].is_null());
    let file = zerowire_testkit::captures::read_file(&dir.path().join("c.pcapng"));
    assert!(file.packets.len() >= 2, "{} packets", file.packets.len());
    a.ping(conn, &mut stream);
}

/// What a command of `zerowire` prints, and its status.
fn run(server: &Controlled, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.args(arguments).arg("--control").arg(server.control());
    let output = command.output().expect("the program starts");
    let texts = [output.stdout, output.stderr].concat();
    // Lines are wrapped.
    let text = String::from_utf8(texts).expect("text");
    (output.status.code(), text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn ctl_and_top_work_on_it(mode: Mode) {
    let server = start(mode, &[]);
    let [socket, uds] = ["a.s", "a"].map(|name| server.path(name).display().to_string());
    let add = ["ctl", "add", "a", "--socket", &socket, "--cid", "3", "--uds", &uds, "--groups", "x+y"];
    let (status, text) = run(&server, &add);
    assert!(
        status == Some(0) && text.contains(&format!("connect to {socket}, CID 3, host end {uds}")),
        "{text}"
    );
    let (_, text) = run(&server, &["ctl", "list"]);
    assert!(text.contains("a running - CID 3 "), "{text}");
    let (status, text) = run(&server, &["ctl", "change", "a", "--tx-limit", "1M/s"]);
    assert!(status == Some(0) && text.contains("a: tx-limit "), "{text}");
    let mut a = guest(&server, "a");
    let (conn, mut stream) = a.open(&server.path("a"), 1000);
    a.ping(conn, &mut stream);
    for command in [&["ctl", "show", "a"][..], &["ctl", "stats"]] {
        let (status, text) = run(&server, command);
        assert!(status == Some(0) && text.contains("CID 3") && text.contains("groups x, y"), "{text}");
    }
    let (status, text) = run(&server, &["top", "--once", "--interval", "0.1"]);
    assert!(status == Some(0) && text.contains(" a connected "), "{text}");
    for (arguments, code, words) in [
        (&["ctl", "add", "b", "--socket", "/s", "--cid", "4"][..], 2, "--uds <PATH>"),
        (&["ctl", "add", "b", "--socket", "/s"], 2, "--port <PORT>"),
        (&["ctl", "add", "b", "--socket", "/s", "--port", "tap:b", "--cid", "4"], 2, "cannot be used with"),
        (&["ctl", "add", "b", "--socket", "/s", "--port", "tap:b"], 2, "unknown field `port`"),
        (&["ctl", "add", "b", "--socket", "/s", "--cid", "3", "--uds", "/u"], 1, "--cid: VMs a and b both"),
    ] {
        let (status, text) = run(&server, arguments);
        assert!(status == Some(code) && text.contains(words), "{arguments:?}: {status:?} {text}");
    }
    assert_eq!(run(&server, &["ctl", "remove", "a"]).1, "a: removed");
}

/// Adding and removing leaves nothing behind. ZEROWIRE_CONTROL_CYCLES says how often.
fn vms_that_come_and_go_leave_nothing_behind(mode: Mode) {
    let cycles = std::env::var("ZEROWIRE_CONTROL_CYCLES")
        .map_or(if mode == PLAIN { 1000 } else { 200 }, |n| n.parse().expect("a number"));
    let server = start(mode, &[]);
    add(&server, "stay", 3);
    let mut stays = guest(&server, "stay");
    let (conn, mut stream) = stays.open(&server.path("stay"), 1000);
    let cycle = |n: u32| {
        // One in two has a thread of its own.
        let mut vm = table(server.dir.path(), "cycle", 4);
        vm["groups"] = json!([if n.is_multiple_of(2) { "default" } else { "own" }]);
        server.put("cycle", &vm.to_string());
        // One in eight has a guest, whose connection goes with it.
        let visitor = (n % 8 < 2 && n % 16 < 8).then(|| {
            let mut guest = guest(&server, "cycle");
            let (conn, mut stream) = guest.open(&server.path("cycle"), 1000);
            guest.ping(conn, &mut stream);
            (guest, stream)
        });
        assert_eq!(server.ask("DELETE", "/vms/cycle", "").0, 204);
        if let Some((_, mut stream)) = visitor {
            assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
        }
    };
    (0..64).for_each(cycle);
    let ([descriptors, threads, mappings], kib) = (server.at_rest(), server.resident());
    // Confined processes: that of the one which stays.
    let confined = || children(&server.program).into_iter().map(held).collect::<Vec<_>>();
    let before = confined();
    let processes = ProcessTree::of(&server.program);
    assert_eq!(processes.pids.len(), if mode == CONFINED { 2 } else { 1 });
    (0..cycles).for_each(cycle);
    stays.ping(conn, &mut stream);
    wait_until("it holds what it held", || server.holds()[..2] == [descriptors, threads]);
    wait_until("its child does, too", || confined() == before);
    wait_until("its processes are those that stayed", || ProcessTree::of(&server.program) == processes);
    // The same test without confined processes runs beside this one.
    assert!(mode == PLAIN || !is_served("cycle"), "a process is left");
    // malloc(3) has up to eight arenas a CPU, each with two mappings.
    assert!(server.holds()[2] <= mappings + 64, "{} mappings, {mappings} before", server.holds()[2]);
    assert!(server.resident() <= kib + 1024, "{} KiB, {kib} before", server.resident());
    assert!(!server.path("cycle").exists() && !server.path("cycle.s").exists());
    assert_eq!(server.json("/vms/stay")["statistics"]["connections"], 1, "the other one stayed");
    let (_, log) = server.program.stop();
    assert!(!log.contains("ERROR"), "{log}");
}

/// A file with VMs: name, CID, further lines.
fn file(dir: &Path, vms: &[(&str, u64, &str)]) -> String {
    let table = |(name, cid, more): &(&str, u64, &str)| {
        let (socket, uds) = (dir.join(format!("{name}.s")), dir.join(name));
        let (socket, uds) = (socket.display(), uds.display());
        format!(
            "[[vm]]\nname = '{name}'\n[vm.vsock]\nsocket = '{socket}'\ncid = {cid}\nuds = '{uds}'\n{more}\n"
        )
    };
    let path = dir.join("vms.toml");
    std::fs::write(&path, vms.iter().map(table).collect::<String>()).expect("a file");
    path.display().to_string()
}

fn a_file_that_is_read_again_changes_what_differs(mode: Mode) {
    let dir = tempfile::tempdir().expect("a directory");
    let (x, y) = ("groups = ['x']", "groups = ['y']");
    let config = file(dir.path(), &[("kept", 3, ""), ("gone", 4, ""), ("other", 5, x)]);
    let program = Program::vsock(&[&["--config", &config], mode].concat(), Restrict::default());
    program.wait_log("CID 5");
    let mut kept = Guest::start(&dir.path().join("kept.s"));
    // Two that connect with a third are put together, in whatever order they stand.
    let both = "groups = ['y', 'z']";
    let vms = [
        ("kept", 3, "tx-limit = '1G/s'"),
        ("other", 6, x),
        ("y", 7, y),
        ("z", 8, "groups = ['z']"),
        ("both", 9, both),
    ];
    file(dir.path(), &vms);
    program.signal(libc::SIGHUP);
    program.wait_log("read again; added: y, both, z; removed: gone; removed and added again: other");
    assert!(!dir.path().join("gone").exists() && !dir.path().join("gone.s").exists());
    let mut both = Guest::start(&dir.path().join("both.s"));
    let mut z = Guest::start(&dir.path().join("z.s"));
    reach(&mut both.stack, &mut z.stack, 8, 9);

    // A bad file changes nothing, and says why.
    for (refused, (bad, words)) in (1..).zip([
        ("[[vm]\n".to_owned(), "vms.toml: TOML parse error at line 1"),
        (
            "[[vm]]\nname='a'\n[vm.vsock]\nsocket='/s'\ncid=3\nuds='/u'\nuid=1\n".to_owned(),
            "unknown field `uid`",
        ),
        ("[[vm]]\nname='a'\n[vm.vsock]\nsocket='/s'\ncid=2\nuds='/u'\n".to_owned(), "CID 2 is the host's"),
        (String::new(), "no [[vm]] with a [vm.vsock] table"),
    ]) {
        std::fs::write(&config, bad).expect("a file");
        program.signal(libc::SIGHUP);
        wait_until("it is refused", || program.log().matches("nothing has changed").count() == refused);
        assert!(program.log().contains(words), "{words}: {}", program.log());
    }
    file(dir.path(), &vms[..1]);
    program.signal(libc::SIGHUP);
    program.wait_log("read again; removed: other, y, both, z");
    assert!(kept.stack.turn(std::time::Duration::ZERO).is_ok());
    drop((kept, both, z));
    let (out, _) = program.stop();
    assert!(out.contains("kept: CID 3") && !out.contains("other"), "{out}");
}

fn the_last_vm_of_the_file_goes_and_comes(mode: Mode) {
    let dir = tempfile::tempdir().expect("a directory");
    let config = file(dir.path(), &[("last", 3, "")]);
    let server = start(mode, &["--config", &config]);
    for _ in 0..2 {
        file(dir.path(), &[]);
        server.program.signal(libc::SIGHUP);
        wait_until("it is gone", || server.names().is_empty());
        assert!(!dir.path().join("last").exists() && !dir.path().join("last.s").exists());
        file(dir.path(), &[("last", 3, "")]);
        server.program.signal(libc::SIGHUP);
        wait_until("it is there again", || server.names() == ["last"]);
    }
    let mut guest = Guest::start(&dir.path().join("last.s"));
    let (conn, mut stream) = guest.open(&dir.path().join("last"), 1000);
    guest.ping(conn, &mut stream);
    drop(guest);
    let (_, log) = server.program.stop();
    assert!(!log.contains("ERROR"), "{log}");
}
