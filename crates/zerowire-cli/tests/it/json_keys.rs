//! Keys of JSON that programs read are snake_case, and stand on a page; those of a VM's
//! configuration are the file's.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::install::root;
use crate::support::control::Controlled;
use crate::support::recv::Recv;
use crate::support::replay::in_lab;
use crate::support::vsock::Guest as VsockGuest;
use crate::support::{Guest, Peer, connect, in_netns, replay, send};

/// JSON pointers to the keys that are not of `[a-z0-9_]+`.
fn odd_keys(value: &Value) -> Vec<String> {
    let below =
        |at: String, value: &Value| odd_keys(value).into_iter().map(move |below| format!("{at}{below}"));
    match value {
        Value::Object(map) => map
            .iter()
            .flat_map(|(key, value)| {
                let is_snake = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
                let odd = key.is_empty() || !key.bytes().all(is_snake);
                let at = format!("/{key}");
                odd.then(|| at.clone()).into_iter().chain(below(at, value))
            })
            .collect(),
        Value::Array(list) => {
            list.iter().enumerate().flat_map(|(i, value)| below(format!("/{i}"), value)).collect()
        }
        _ => Vec::new(),
    }
}

/// Counts by reason, and a ledger, whose keys have a table of their own.
const OPEN: [&str; 6] = [
    "copied_bytes",
    "dropped_frames",
    "copied_bytes_per_second",
    "dropped_frames_per_second",
    "skipped",
    "ledger",
];

/// The keys of all objects as a page names them, such as `vms.name`.
fn keys(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(map) => {
            let key_and_below = |(key, value): (&String, &Value)| {
                let below = if OPEN.contains(&key.as_str()) { BTreeSet::new() } else { keys(value) };
                match below.is_empty() {
                    true => BTreeSet::from([key.clone()]),
                    false => below.into_iter().map(|below| format!("{key}.{below}")).collect(),
                }
            };
            map.iter().flat_map(key_and_below).collect()
        }
        Value::Array(list) => list.iter().flat_map(keys).collect(),
        _ => BTreeSet::new(),
    }
}

/// What stands on a page of docs/ below a heading.
fn section(page: &str, heading: &str) -> String {
    let path = root().join("docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let (_, below) =
        text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("{page}: {heading}"));
    below.split("\n#").next().expect("a part").to_owned()
}

/// The words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// The keys in the first column of the table below a heading.
fn listed(page: &str, heading: &str) -> BTreeSet<String> {
    let text = section(page, heading);
    let cells = text.lines().filter_map(|line| line.strip_prefix('|')?.split('|').next());
    cells.flat_map(quoted).map(str::to_owned).collect()
}

/// The statistics, the version, and the one VM, which has a guest.
fn walk(server: &Controlled, vm: &str, page: &str, of_the_file: &[&str]) {
    for target in ["/stats", "/version"] {
        let said = server.json(target);
        assert_eq!(odd_keys(&said), [""; 0], "{target}: {said}");
    }
    let text = section(page, "## Statistics");
    let named: BTreeSet<_> = quoted(&text).collect();
    for path in keys(&server.json("/stats")["vms"]) {
        let is_named = path.split('.').all(|key| named.contains(key));
        assert!(is_named, "{page} does not name {path}");
    }
    let said = server.json(&format!("/vms/{vm}"));
    assert!(said["statistics"].is_object() && said["config"].is_object(), "{said}");
    assert_eq!(odd_keys(&said), of_the_file, "{said}");
}

#[test]
fn of_a_network_device() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        let mut vm: Value = serde_json::from_str(&server.vm("zwkeys")).expect("JSON");
        vm["tx-limit"] = "1G/s".into();
        assert_eq!(server.ask("PUT", "/vms/zwkeys", &vm.to_string()).0, 201);
        let mut guest = Guest::start(connect(&server.path("zwkeys")));
        guest.ping(&mut Peer::new("zwkeys"));
        walk(&server, "zwkeys", "net.md", &["/config/socket-mode", "/config/tx-limit"]);
    });
}

#[test]
fn of_a_vsock_device() {
    let server = Controlled::start_vsock(&[]);
    let (socket, uds) = (server.path("s"), server.path("u"));
    let body = json!({ "socket": socket, "cid": 3, "uds": uds }).to_string();
    server.put("a", &body);
    let mut guest = VsockGuest::start(&socket);
    let (conn, mut stream) = guest.open(&uds, 1000);
    guest.ping(conn, &mut stream);
    walk(&server, "a", "vsock.md", &["/config/socket-mode", "/config/uds-mode"]);
    let text = section("vsock.md", "## Statistics");
    let example =
        text.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let example: Value = serde_json::from_str(example).expect("JSON");
    assert_eq!(keys(&example), keys(&server.json("/stats")));
}

#[test]
fn of_rates() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        server.add("zwrates");
        let mut top = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        top.arg("top").arg("--control").arg(server.control()).args(["--json", "--once", "--interval", "0.1"]);
        let rates = send::json(&top.output().expect("run"));
        assert_eq!(keys(&rates), listed("control.md", "### Rates as JSON"));
        assert_eq!(odd_keys(&rates), [""; 0]);
    });
}

/// A summary: its keys are those of its page, and those of its ledger those of all ledgers.
fn is_listed(summary: &Value, page: &str) {
    assert_eq!(keys(summary), listed(page, "### JSON"));
    assert_eq!(keys(&summary["ledger"]), listed("ledger.md", "## Counts"));
    assert_eq!(odd_keys(summary), [""; 0]);
}

#[test]
fn of_send() {
    let receiver = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let to = receiver.local_addr().expect("its address").to_string();
    let file = send::file(&send::pattern(100_000));
    let path = file.path().to_str().expect("a path");
    let output = send::command(&["--to", &to, "--udp", path, "--json", "-"]).output().expect("run");
    is_listed(&send::json(&output), "send.md");
}

/// One connection ends well, and one is reset.
#[test]
fn of_recv() {
    let recv = Recv::start(&["--connections", "2", "--json", "-"]);
    drop(recv.connect());
    let reset = recv.connect();
    rustix::net::sockopt::set_socket_linger(&reset, Some(Duration::ZERO)).expect("no linger");
    drop(reset);
    is_listed(&recv.end().json(), "recv.md");
}

#[test]
fn of_replay() {
    in_lab(|lab| {
        lab.veth();
        is_listed(&replay::sent(&replay::capture(&replay::frames(5), 0), &["-t"]), "replay.md");
    });
}

#[test]
fn of_the_doctor() {
    let program = env!("CARGO_BIN_EXE_zerowire");
    let output = Command::new(program).args(["doctor", "--json"]).output().expect("run");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["checks"].as_array().is_some_and(|checks| checks.len() > 10), "{report}");
    assert_eq!(odd_keys(&report), [""; 0]);

    // The page names all keys, and no others.
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/doctor.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (_, page) = page.split_once("\n## JSON\n").expect("the heading");
    for (name, object) in [
        ("machine", &report["machine"]),
        ("checks", &report["checks"][0]),
        ("verdicts", &report["verdicts"][0]),
    ] {
        let (_, line) = page.split_once(&format!("\n- `{name}`")).expect(name);
        let line = line.split('.').next().expect("a sentence");
        let words =
            line.split([' ', ',', ':']).filter(|word| !["", "each", "with", "or", "null"].contains(word));
        let keys = object.as_object().expect("an object").keys();
        assert_eq!(words.collect::<BTreeSet<_>>(), keys.map(String::as_str).collect(), "{name}");
    }
}
