//! dist/zerowire-api.yaml describes what the program does.

use std::collections::BTreeSet;

use zerowire_vhost::serve::VmState;

use super::CaptureTable;
use super::api::{Version, VmShown};
use super::capture::{CaptureState, ShownCapture};
use super::http::{Response, ResponseBody};
use super::manage::{ManageError, ManagedVm};
use super::routes::{ROUTES, asks};
use crate::file::{Net, Vsock};

fn description() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/zerowire-api.yaml");
    std::fs::read_to_string(path).expect("the description")
}

/// The lines of the block below the line `head`, as far as they are indented deeper.
fn block<'a>(lines: &[&'a str], head: &str) -> Vec<&'a str> {
    let at = lines.iter().position(|line| *line == head).unwrap_or_else(|| panic!("no {head:?}"));
    let depth = |line: &str| line.len() - line.trim_start().len();
    let below = lines[at + 1..].iter().take_while(|line| line.is_empty() || depth(line) > depth(head));
    below.copied().collect()
}

/// The lines of a schema of the description.
fn schema<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let lines: Vec<_> = text.lines().collect();
    block(&block(&lines, "  schemas:"), &format!("    {name}:"))
}

/// The keys of a block that are indented by `depth`.
fn keys(lines: &[&str], depth: usize) -> Vec<String> {
    let indent = " ".repeat(depth);
    let own = lines.iter().filter_map(|line| line.strip_prefix(&indent)).filter(|l| !l.starts_with(' '));
    own.filter_map(|line| line.split_once(':')).map(|(key, _)| key.to_owned()).collect()
}

#[test]
fn paths_and_methods_are_those_of_the_router() {
    let text = description();
    let lines: Vec<_> = text.lines().collect();
    let paths = block(&lines, "paths:");
    let mut described = BTreeSet::new();
    for path in keys(&paths, 2) {
        let methods = keys(&block(&paths, &format!("  {path}:")), 4);
        let methods = methods.into_iter().filter(|key| key != "parameters");
        described.extend(methods.map(|method| (path.clone(), method)));
    }
    let served: BTreeSet<_> =
        ROUTES.iter().map(|r| (r.path.to_owned(), r.method.name().to_lowercase())).collect();
    assert_eq!(described, served);
}

#[test]
fn queries_are_those_that_are_read() {
    let text = description();
    let lines: Vec<_> = text.lines().collect();
    let paths = block(&lines, "paths:");
    for route in &ROUTES {
        let methods = block(&paths, &format!("  {}:", route.path));
        let method = block(&methods, &format!("    {}:", route.method.name().to_lowercase()));
        let described: Vec<_> =
            method.iter().filter_map(|line| line.strip_prefix("        - name: ")).collect();
        for word in ["stream", "reconnect"] {
            let is_read = asks(route.action, word) == Some(true);
            assert_eq!(described.contains(&word), is_read, "{:?} {}", route.method, route.path);
        }
    }
}

#[test]
fn keys_of_a_vm_are_those_that_are_read() {
    let text = |s: &str| Some(s.to_owned());
    let all = Net {
        socket: "/s".into(),
        port: "tap:t".to_owned(),
        metadata: Some("/m".into()),
        metadata_token: text("required"),
        mac: text("52:54:00:00:00:01"),
        guard: text("mac"),
        tx_limit: text("1M/s"),
        rx_limit: text("1M/s"),
        socket_owner: text("0"),
        socket_group: text("0"),
        socket_mode: text("0600"),
    };
    described_as("Net", &all, "[socket, port]");
}

#[test]
fn keys_of_a_vsock_vm_are_those_that_are_read() {
    let text = |s: &str| Some(s.to_owned());
    let all = Vsock {
        socket: "/s".into(),
        cid: 3,
        uds: "/u".into(),
        groups: Some(vec!["x".to_owned()]),
        tx_limit: text("1M/s"),
        rx_limit: text("1M/s"),
        socket_owner: text("0"),
        socket_group: text("0"),
        socket_mode: text("0600"),
        uds_owner: text("0"),
        uds_group: text("0"),
        uds_mode: text("0600"),
    };
    described_as("Vsock", &all, "[socket, cid, uds]");
}

/// The schema has the keys of a table in which none is missing. `required` have no default.
fn described_as(name: &str, table: &impl serde::Serialize, required: &str) {
    let read: BTreeSet<_> = match serde_json::to_value(table).expect("JSON") {
        serde_json::Value::Object(keys) => keys.into_iter().map(|(key, _)| key).collect(),
        other => panic!("{other}"),
    };
    let text = description();
    let described = schema(&text, name);
    let properties = block(&described, "      properties:");
    assert_eq!(keys(&properties, 8).into_iter().collect::<BTreeSet<_>>(), read);
    let required = format!("      required: {required}");
    assert!(described.contains(&required.as_str()), "{name}: {required}");
}

#[test]
fn keys_of_a_capture_are_those_that_are_read() {
    let (snaplen, rotate) = (Some(1), Some("1M,2".to_owned()));
    let (file, vms, filter) = ("f".to_owned(), vec!["v".to_owned()], Some("ip".to_owned()));
    let all = CaptureTable { file, snaplen, rotate, vms, filter };
    let read = serde_json::to_value(all).expect("JSON");
    let read: BTreeSet<_> = read.as_object().expect("keys").keys().cloned().collect();
    let text = description();
    let properties = block(&schema(&text, "Capture"), "      properties:");
    assert_eq!(keys(&properties, 8).into_iter().collect::<BTreeSet<_>>(), read);
}

/// Keys of a schema at this depth, those of the schema that it refers to included.
fn answered(name: &str, depth: usize) -> BTreeSet<String> {
    let text = description();
    let described = schema(&text, name);
    let indent = " ".repeat(depth);
    let mut all: BTreeSet<_> =
        keys(&block(&described, &format!("{indent}properties:")), depth + 2).into_iter().collect();
    let reference = "        - $ref: \"#/components/schemas/";
    for line in described {
        if let Some(other) = line.strip_prefix(reference) {
            all.extend(answered(other.trim_end_matches('"'), 6));
        }
    }
    all
}

#[test]
fn keys_of_answers_are_described() {
    let vm = || ManagedVm { name: "a".to_owned(), state: VmState::Running, connected: false, config: () };
    let keys_of = |answer: serde_json::Result<serde_json::Value>| -> BTreeSet<_> {
        answer.expect("JSON").as_object().expect("keys").keys().cloned().collect()
    };
    assert_eq!(keys_of(serde_json::to_value(Version::now())), answered("Version", 6));
    assert_eq!(keys_of(serde_json::to_value(vm())), answered("Vm", 6));
    let shown = VmShown { vm: vm(), statistics: Some(()) };
    assert_eq!(keys_of(serde_json::to_value(shown)), answered("ShownVm", 10));
    let (file, filter) = ("f".to_owned(), Some("ip".to_owned()));
    let (vms, rotate) = (vec!["v".to_owned()], Some("1M,2".to_owned()));
    let table = CaptureTable { file, snaplen: Some(1), rotate, vms, filter };
    let shown = ShownCapture { table, state: CaptureState::Running, unknown_vms: vec!["v".to_owned()] };
    assert_eq!(keys_of(serde_json::to_value(shown)), answered("ShownCapture", 10));
}

/// What a schema says of a key below it.
fn line_of(name: &str, key: &str) -> String {
    let text = description();
    let described = schema(&text, name);
    let line = described.iter().find_map(|line| line.trim_start().strip_prefix(&format!("{key}: ")));
    line.unwrap_or_else(|| panic!("{name} has no {key}")).to_owned()
}

fn has_states(name: &str, states: &[impl serde::Serialize]) {
    let words = states.iter().map(|state| serde_json::to_value(state).expect("JSON"));
    let words: Vec<_> = words.filter_map(|word| word.as_str().map(str::to_owned)).collect();
    assert_eq!(line_of(name, "enum"), format!("[{}]", words.join(", ")), "{name}");
}

#[test]
fn states_are_those_that_there_are() {
    has_states("Vm", &[VmState::Opening, VmState::Running, VmState::Draining, VmState::Leaving]);
    has_states("ShownCapture", &[CaptureState::Running, CaptureState::Ended]);
}

/// The keys of a body.
fn keys_of_body(response: Response) -> BTreeSet<String> {
    let ResponseBody::Whole(body) = response.body else { panic!("it goes on") };
    let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
    body.as_object().expect("keys").keys().cloned().collect()
}

#[test]
fn errors_have_the_keys_that_are_described() {
    let error = || ManageError::new(409, "no");
    assert_eq!(keys_of_body(error().of_key("port").into()), answered("Error", 6));
    // The pointer is there where a key is to blame.
    assert_eq!(line_of("Error", "required"), "[error]");
    assert_eq!(keys_of_body(error().into()), BTreeSet::from(["error".to_owned()]));
}

/// Keys that nobody gave are not shown.
#[test]
fn a_capture_has_the_keys_that_are_required() {
    let least = super::body::parse::<CaptureTable>(b"{\"file\": \"f\"}").expect("a capture");
    assert_eq!(line_of("Capture", "required"), "[file]");
    assert_eq!(line_of("ShownCapture", "required"), "[state]");
    let shown = ShownCapture { table: least, state: CaptureState::Ended, unknown_vms: Vec::new() };
    let keys = ["file", "state"].map(str::to_owned);
    assert_eq!(keys_of_body(Response::json(200, &shown)), BTreeSet::from(keys));
    let unknown = super::body::parse::<CaptureTable>(b"{\"file\": \"f\", \"fle\": 1}");
    assert_eq!(unknown.expect_err("a key that there is not").pointer, "/fle");
    // A request has no other keys; what is shown has one more.
    let only = "$ref: \"#/components/schemas/Capture\"\n              unevaluatedProperties: false\n";
    assert!(description().contains(only));
    assert!(!schema(&description(), "Capture").iter().any(|line| line.contains("additionalProperties")));
}
