//! The server's JSON in words.

use std::fmt::Write as _;

use serde_json::Value;
use zerowire_cli::logging::printable;

/// `GET /version`.
pub fn version(answer: &Value) -> String {
    let confined = match (&answer["sandbox"], &answer["sandbox_reason"]) {
        (Value::Null, _) => String::new(),
        (_, Value::Null) => "VMs are confined\n".to_owned(),
        (_, why) => format!("VMs are not confined: {}\n", text(why)),
    };
    format!("zerowire {}\n{confined}", text(&answer["version"]))
}

/// `GET /vms`.
pub fn list(answer: &Value) -> String {
    const HEAD: [&str; 5] = ["name", "state", "front end", "port", "socket"];
    let vms = answer["vms"].as_array().map(Vec::as_slice).unwrap_or_default();
    if vms.is_empty() {
        return "no VMs\n".to_owned();
    }
    let row = |vm: &Value| {
        let front_end = if vm["connected"] == true { "connected" } else { "-" };
        let config = &vm["config"];
        let (name, state) = (text(&vm["name"]), text(&vm["state"]));
        [name, state, front_end.to_owned(), port(config), text(&config["socket"])]
    };
    let rows: Vec<_> = std::iter::once(HEAD.map(str::to_owned)).chain(vms.iter().map(row)).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..HEAD.len()).map(width).collect();
    let line = |row: &[String; 5]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// `PUT /vms/NAME`.
pub fn added(answer: &Value) -> String {
    format!("{}: added; {}\n", text(&answer["name"]), place(answer))
}

/// `PATCH /vms/NAME?reconnect`.
pub fn reconnects(answer: &Value) -> String {
    format!("{}: {}\n", text(&answer["name"]), place(answer))
}

/// Where a front end meets a VM, and where that leads.
fn place(answer: &Value) -> String {
    let config = &answer["config"];
    let socket = text(&config["socket"]);
    match &config["uds"] {
        uds @ Value::String(_) => {
            format!("a front end can connect to {socket}, {}, host end {}", port(config), text(uds))
        }
        _ => format!("a front end can connect to {socket}, port {}", port(config)),
    }
}

/// `PATCH /vms/NAME`: what the VM has now of the keys of `patch`.
pub fn changed(answer: &Value, patch: &Value) -> String {
    let mut words = String::new();
    for key in patch.as_object().into_iter().flat_map(|patch| patch.keys()) {
        let about = if key == "metadata" { "metadata read from" } else { key };
        let _ = match &answer["config"][key] {
            Value::Null => writeln!(words, "{}: {about} off", text(&answer["name"])),
            value @ Value::String(_) => {
                writeln!(words, "{}: {about} {}", text(&answer["name"]), text(value))
            }
            value => writeln!(words, "{}: {about} {value}", text(&answer["name"])),
        };
    }
    words
}

/// `GET /capture` and `PUT /capture`.
pub fn captured(answer: &Value) -> String {
    let file = text(&answer["file"]);
    let unknown: Vec<_> = answer["unknown_vms"].as_array().into_iter().flatten().map(text).collect();
    match answer["state"] == "running" {
        true if unknown.is_empty() => format!("capturing to {file}\n"),
        true => {
            format!("capturing to {file}; these VMs are captured when they come: {}\n", unknown.join(", "))
        }
        false => format!("the capture to {file} has ended: the server's log says why\n"),
    }
}

/// What tells a VM's device from others.
fn port(config: &Value) -> String {
    match config["cid"].as_u64() {
        Some(cid) => format!("CID {cid}"),
        None => text(&config["port"]),
    }
}

/// What stands there, on one line: paths may have any character.
fn text(value: &Value) -> String {
    printable(value.as_str().unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn vms_are_a_table() {
        assert_eq!(list(&json!({ "vms": [] })), "no VMs\n");
        let vm = |name: &str, connected: bool| {
            json!({ "name": name, "state": "running", "connected": connected,
                "config": { "port": "tap:t", "socket": "/s" } })
        };
        let table = list(&json!({ "vms": [vm("a", true), vm("longer", false)] }));
        assert_eq!(
            table,
            "name    state    front end  port   socket\n\
             a       running  connected  tap:t  /s\n\
             longer  running  -          tap:t  /s\n"
        );
    }

    #[test]
    fn paths_neither_begin_a_line_nor_move_the_cursor() {
        let vm = json!({ "name": "a", "state": "running", "connected": true,
            "config": { "port": "tap:t", "socket": "/s\u{1b}[2J\nfake  running" } });
        let table = list(&json!({ "vms": [vm] }));
        assert!(table.ends_with("  /s\\u{1b}[2J\\nfake  running\n") && table.lines().count() == 2, "{table}");
        assert!(added(&vm).ends_with("to /s\\u{1b}[2J\\nfake  running, port tap:t\n"));
        let vsock = json!({ "name": "b", "config": { "socket": "/s", "cid": 3, "uds": "/\u{9b}u" } });
        assert!(added(&vsock).ends_with("host end /\\u{9b}u\n"));
        let changes = json!({ "name": "a", "config": { "metadata": "/\rm" } });
        assert_eq!(changed(&changes, &json!({ "metadata": "" })), "a: metadata read from /\\rm\n");
    }

    #[test]
    fn what_was_done_is_said() {
        let vm = json!({ "name": "a", "config": { "socket": "/s", "port": "tap:t", "metadata": "/m" } });
        assert_eq!(added(&vm), "a: added; a front end can connect to /s, port tap:t\n");
        assert_eq!(reconnects(&vm), "a: a front end can connect to /s, port tap:t\n");
        assert_eq!(changed(&vm, &json!({ "metadata": "m" })), "a: metadata read from /m\n");
        let mut capture = json!({ "file": "/f", "state": "running" });
        assert_eq!(captured(&capture), "capturing to /f\n");
        capture["unknown_vms"] = json!(["x", "y"]);
        assert_eq!(captured(&capture), "capturing to /f; these VMs are captured when they come: x, y\n");
        let vsock = json!({ "name": "b", "config": { "socket": "/s", "cid": 3, "uds": "/u" } });
        assert_eq!(added(&vsock), "b: added; a front end can connect to /s, CID 3, host end /u\n");
        // Only what was asked for, in the server's words.
        let limited =
            json!({ "name": "a", "config": { "metadata": "/m", "tx-limit": "1000/s,burst=100", "cid": 3 } });
        let asked = json!({ "tx-limit": "1k/s,burst=100" });
        assert_eq!(changed(&limited, &asked), "a: tx-limit 1000/s,burst=100\n");
        let off = json!({ "guard": null, "rx-limit": null, "cid": 3 });
        assert_eq!(changed(&limited, &off), "a: cid 3\na: guard off\na: rx-limit off\n");
        assert_eq!(version(&json!({ "version": "1.2.3" })), "zerowire 1.2.3\n");
        let on = json!({ "version": "1.2.3", "sandbox": "on", "sandbox_reason": null });
        assert_eq!(version(&on), "zerowire 1.2.3\nVMs are confined\n");
        let off = json!({ "version": "1.2.3", "sandbox": "off", "sandbox_reason": "--sandbox off" });
        assert_eq!(version(&off), "zerowire 1.2.3\nVMs are not confined: --sandbox off\n");
    }
}
