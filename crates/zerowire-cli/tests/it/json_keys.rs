//! Keys of JSON that programs read are snake_case; those of a VM's configuration are the file's.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::control::Controlled;
use crate::support::vsock::Guest as VsockGuest;
use crate::support::{Guest, Peer, connect, in_netns};

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

/// The statistics, the version, and the one VM, which has a guest.
fn walk(server: &Controlled, vm: &str, of_the_file: &[&str]) {
    for target in ["/stats", "/version"] {
        let said = server.json(target);
        assert_eq!(odd_keys(&said), [""; 0], "{target}: {said}");
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
        walk(&server, "zwkeys", &["/config/socket-mode", "/config/tx-limit"]);
    });
}

#[test]
fn of_a_vsock_device() {
    let server = Controlled::start_vsock(&[]);
    let (socket, uds) = (server.path("s"), server.path("u"));
    let body = json!({ "socket": socket, "cid": 3, "uds": uds }).to_string();
    let (status, text) = server.ask("PUT", "/vms/a", &body);
    assert_eq!(status, 201, "{text}");
    let mut guest = VsockGuest::start(&socket);
    let (conn, mut stream) = guest.open(&uds, 1000);
    guest.ping(conn, &mut stream);
    walk(&server, "a", &["/config/socket-mode", "/config/uds-mode"]);
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
