//! `zerowire-bench ab …`: two builds, which are the same one here. Needs root, as the benchmark
//! that they run does.

use std::process::Command;

use serde_json::Value;

/// The lines of a comparison of this build with itself, in two rounds of `command`.
fn lines(command: &[&str]) -> Vec<Value> {
    let bench = env!("CARGO_BIN_EXE_zerowire-bench");
    let output = Command::new(bench)
        .args(["ab", "--rounds", "2", "--json", "-", bench, bench, "--"])
        .args(command)
        .output()
        .expect("the program starts");
    let (text, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}\n{log}");
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let lines = report["lines"].as_array().expect("lines").clone();
    for line in &lines {
        for figure in ["old", "new", "ratio"] {
            assert!(line[figure]["median"].as_f64().is_some_and(|value| value > 0.0), "{figure}: {line}");
        }
    }
    lines
}

#[test]
fn both_builds_run_in_turns_and_their_figures_are_divided() {
    let lines = lines(&[
        "packet-tx",
        "--quick",
        "--sizes",
        "1000",
        "--columns",
        "udp",
        "--sink",
        "ifb",
        "--working-set",
        "hot",
        "--auto-sends",
        "0",
    ]);
    let variants: Vec<_> = lines.iter().filter_map(|line| line["variant"].as_str()).collect();
    assert_eq!(variants, ["udp, bare", "udp, library"], "{lines:?}");
    for line in lines {
        assert_eq!((&line["figure"], &line["case"]), (&"cpu_ns".into(), &"payload 1000, ifb, hot".into()));
    }
}

#[test]
fn the_table_of_vsock_rx_prints_json_alone() {
    let lines = lines(&[
        "vsock-rx",
        "--table",
        "--floor-only",
        "-m",
        "1",
        "--sizes",
        "4096",
        "--direction",
        "tx",
        "--working-set",
        "hot",
    ]);
    let floor = |line: &Value| {
        line["variant"] == "floor-touch" && line["case"] == "transmit, len 4096, windows 64, hot"
    };
    assert!(lines.iter().any(floor), "{lines:?}");
}
