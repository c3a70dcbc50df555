//! `zerowire-demo --soft` from the outside, with the program `zerowire` of the same build beside
//! it. Needs root (or user namespaces) and /dev/net/tun.

use std::io::Read as _;
use std::process::{Command, Stdio};

use serde_json::Value;
use zerowire_testkit::conventions::{fits_80_columns, refuses, survives_closed_output};
use zerowire_testkit::terminal::terminal;

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire-demo"));
    command.args(arguments);
    command
}

/// The whole story, short: its summary must show both transfers, nearly all bytes
/// zero-copied (or their reason named), and no error.
#[test]
fn the_demo_moves_bytes_both_ways_and_says_how() {
    let output = demo(&["--soft", "--json", "--mib", "16"]).output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let summary: Value = serde_json::from_slice(&output.stdout).expect("one JSON document");

    assert_eq!(summary["metadata"]["instance-id"], "i-demo");
    assert_eq!(summary["round_trip_microseconds"].as_array().map(Vec::len), Some(3));
    for device in [&summary, &summary["vsock"]] {
        let transfers = device["transfers"].as_array().expect("transfers");
        assert_eq!(transfers.len(), 2);
        for transfer in transfers {
            assert_eq!(transfer["bytes"], 16 << 20, "{transfer}");
        }
    }
    let vm = &summary["statistics"]["vms"][0];
    assert_eq!(vm["ring_errors"], 0, "{vm}");
    assert_eq!(vm["connection_errors"], 0, "{vm}");
    for way in ["transmit", "receive"] {
        let count = |name: &str| vm[way][name].as_u64().expect(name);
        assert!(count("bytes") >= 16 << 20, "{vm}");
        let copied = vm[way]["copied_bytes"].as_object().expect("copied bytes by reason");
        let reasons: u64 = copied.values().filter_map(Value::as_u64).sum();
        // A guest that is late with its buffers makes the program copy. How much depends on the
        // load of the machine: it is named, and does not count against the path.
        let late = copied.get("overflow").and_then(Value::as_u64).unwrap_or(0);
        assert!((count("zero_copied_bytes") + late) * 10 >= count("bytes") * 9, "{way}: {vm}");
        assert!(count("zero_copied_bytes") > count("bytes") / 4, "{way}: {vm}");
        assert!(reasons > 0, "{way}: {vm}");
    }
    let vm = &summary["vsock"]["statistics"]["vms"][0];
    assert_eq!((&vm["ring_errors"], &vm["connection_errors"]), (&0.into(), &0.into()), "{vm}");
    assert_eq!((&vm["connections_opened"], &vm["connections_open"]), (&2.into(), &0.into()), "{vm}");
    for way in ["transmit", "receive"] {
        let count = |name: &str| vm[way][name].as_u64().expect(name);
        assert_eq!(count("bytes"), 16 << 20, "payload, each byte once: {way}: {vm}");
        // How much a host thread that is late makes the program hold depends on the load of the
        // machine.
        let held = vm[way]["copied_bytes"]["held"].as_u64().unwrap_or(0);
        assert_eq!(count("zero_copied_bytes") + held, 16 << 20, "{way}: {vm}");
        assert!(count("system_calls") < count("frames"), "{way}: {vm}");
    }
}

#[test]
fn a_closed_standard_output_ends_it_without_a_panic() {
    for arguments in [&["--soft", "--mib", "1"][..], &["--soft", "--mib", "1", "--json"]] {
        survives_closed_output(&mut demo(arguments));
    }
}

#[test]
fn what_is_printed_fits_80_columns() {
    for arguments in [&["--help"][..], &["-h"], &["--soft", "--mib", "1"]] {
        fits_80_columns(&mut demo(arguments));
    }
}

/// What the short story shows on a terminal.
fn shown(no_color: &str) -> String {
    let (mut here, there) = terminal(80);
    let mut command = demo(&["--soft", "--mib", "1"]);
    command.env("TERM", "xterm").env("NO_COLOR", no_color).stdin(Stdio::null());
    let mut child = command.stdout(there).stderr(Stdio::null()).spawn().expect("the program starts");
    // Its end of the terminal is the only one that is left.
    drop(command);
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    // At the end of the last writer a terminal says EIO.
    while let Ok(n @ 1..) = here.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..n]);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(child.wait().expect("its status").success(), "{text}");
    text
}

#[test]
fn a_terminal_has_colours_unless_it_wants_none() {
    let text = shown("");
    assert!(text.contains("\x1b[1;36m[1/"), "{text}");
    let mut parts = text.split("\x1b[");
    let plain = parts.next().unwrap_or_default().to_owned();
    let plain = parts.fold(plain, |plain, part| plain + part.split_once('m').map_or("", |(_, rest)| rest));
    for line in plain.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    assert!(!shown("1").contains('\x1b'));
}

/// The last line is a command for this machine.
#[test]
fn the_end_is_a_line_to_type() {
    let output = demo(&["--soft", "--mib", "1"]).output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.trim_end().lines().rev();
    let line = lines.next().unwrap_or_default();
    let is_command = ["  make ", "  target/release/zerowire "].iter().any(|begin| line.starts_with(begin));
    assert!(is_command, "{text}");
    let why = lines.take_while(|line| !line.is_empty()).last().unwrap_or_default();
    assert!(why.starts_with("To try next here: "), "{text}");
}

#[test]
fn what_is_said_of_the_guest_without_a_vm_is_refused_for_the_other_one() {
    for arguments in
        [&["--mib", "1"][..], &["--json"], &["--soft", "--mib", "0"], &["--soft", "--guest", "x"]]
    {
        refuses(&mut demo(arguments), "");
    }
}
