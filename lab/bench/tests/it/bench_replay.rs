//! `zerowire-bench packet-tx --replay`: the row of tcpreplay is there, or it is said how to get it.
//! Needs root, as the benchmark does, and tcpreplay (`scripts/install.sh base`).

use std::ffi::OsStr;
use std::process::Command;

use serde_json::Value;

/// What the benchmark says with this PATH; the smallest part of its other rows beside.
fn bench(path: Option<&OsStr>, json: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire-bench"));
    command.args(["packet-tx", "--replay", "--quick", "--rounds", "1", "--sizes", "1", "--columns", "udp"]);
    command.args(["--sink", "ifb", "--working-set", "hot", "--floor-only"]).args(json);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn replay(text: &str) -> Value {
    let report: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    report["replay"].clone()
}

/// The figures of one tool: one sample each, of all packets.
fn is_figure(summary: &Value) -> bool {
    summary["median"].as_f64().is_some_and(|median| median > 0.0)
}

#[test]
fn replay_is_measured_beside_tcpreplay() {
    let found = Command::new("tcpreplay").arg("--version").output();
    assert!(found.is_ok(), "tcpreplay is missing ({found:?}): 'scripts/install.sh base' installs it");
    let report = replay(&bench(None, &["--json", "-"]));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.iter().map(|row| &row["frame_bytes"]).collect::<Vec<_>>(), [64, 1400], "{report}");
    for row in rows {
        for name in ["zerowire", "tcpreplay", "ratio"] {
            assert!(is_figure(&row[name]), "no {name}: {report}");
        }
        let of = |name: &str| row[name]["median"].as_f64().unwrap_or(f64::NAN);
        let ratio = of("zerowire") / of("tcpreplay");
        assert!((of("ratio") - ratio).abs() < 1e-6 * ratio, "{row}");
        assert_eq!(row["failures"], Value::Null, "{row}");
    }
    assert_eq!(report["not_measured"], Value::Null, "{report}");
}

#[test]
fn without_tcpreplay_it_is_said_how_to_get_it() {
    let nothing = tempfile::tempdir().expect("an empty folder");
    let path = Some(nothing.path().as_os_str());
    let text = bench(path, &[]);
    assert!(text.contains("tcpreplay: not measured: install tcpreplay"), "{text}");
    // zerowire's own figures are there, and a column without any.
    for frame in ["64 B", "1400 B"] {
        let row = text.lines().find(|line| line.trim_start().starts_with(frame)).expect("a row");
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(&cells[3..], ["-", "-", "-"], "{text}");
        assert!(cells[2].parse::<f64>().is_ok_and(|rate| rate > 0.0), "{text}");
    }
    let report = replay(&bench(path, &["--json", "-"]));
    assert_eq!(report["not_measured"], "tcpreplay: not measured: install tcpreplay", "{report}");
    for row in report["rows"].as_array().expect("rows") {
        assert!(is_figure(&row["zerowire"]) && row["tcpreplay"] == Value::Null, "{report}");
    }
}
