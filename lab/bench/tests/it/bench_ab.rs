//! `zerowire-bench ab …`: two builds, which are the same one here. Needs root, as the benchmark
//! that they run does.

use std::process::Command;

use serde_json::Value;

#[test]
fn both_builds_run_in_turns_and_their_figures_are_divided() {
    let bench = env!("CARGO_BIN_EXE_zerowire-bench");
    let output = Command::new(bench)
        .args(["ab", "--rounds", "2", "--json", "-", bench, bench, "--"])
        .args(["packet-tx", "--quick", "--sizes", "1000", "--columns", "udp", "--sink", "ifb"])
        .args(["--working-set", "hot", "--auto-sends", "0"])
        .output()
        .expect("the program starts");
    let (text, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}\n{log}");
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let lines = report["lines"].as_array().expect("lines");
    let variants: Vec<_> = lines.iter().filter_map(|line| line["variant"].as_str()).collect();
    assert_eq!(variants, ["udp, bare", "udp, library"], "{report}");
    for line in lines {
        assert_eq!((&line["figure"], &line["case"]), (&"cpu_ns".into(), &"payload 1000, ifb, hot".into()));
        for figure in ["old", "new", "ratio"] {
            assert!(line[figure]["median"].as_f64().is_some_and(|value| value > 0.0), "{figure}: {line}");
        }
    }
}
