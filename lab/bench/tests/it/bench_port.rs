//! `zerowire-bench net --port …`: arguments, and a short run with the program's own ports. The run
//! needs root, as the command does.

use std::process::{Command, Output};

use crate::support::program;

fn bench(args: &[&str]) -> (Output, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_zerowire-bench"))
        .arg("net")
        .args(args)
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, text, log)
}

#[test]
fn wrong_arguments_are_named_with_the_choice() {
    for (args, words) in [
        (&["--port", "veth"][..], &["veth", "xdp"][..]),
        (&["--port", "tap,veth"], &["veth", "tap"]),
        (&["--port", "xdp", "--sizes", "9000"], &["9000", "1514", "--port tap"]),
        (&["--port", "xdp", "--vms", "2"], &["--vms", "--port xdp"]),
        (&["--port", "packet", "--fragment-len", "4096"], &["--fragment-len", "--port packet"]),
        (&["--port", "packet", "--program", "a=/none"], &["a=/none", "there is no such file"]),
        (&["--port", "packet", "--bare-calls"], &["--bare-calls", "--port packet"]),
        (&["--port", "xdp,packet", "--rounds", "0"], &["0 rounds"]),
        (&["--port", "xdp", "--direction", "up"], &["up", "tx, rx"]),
    ] {
        let (output, _, log) = bench(args);
        assert!(!output.status.success(), "{args:?}");
        for word in words {
            assert!(log.contains(word), "{args:?}: no {word:?} in\n{log}");
        }
    }
}

#[test]
fn the_xdp_port_is_measured_beside_the_bare_loops_and_costs_nothing_when_idle() {
    let folder = tempfile::tempdir().expect("a directory");
    let json = folder.path().join("report.json").display().to_string();
    let svg = folder.path().display().to_string();
    let (output, text, log) = bench(&[
        "--port",
        "xdp",
        "--quick",
        "--rounds",
        "1",
        "--sizes",
        "1500",
        "--working-set",
        "hot",
        "--json",
        &json,
        "--svg",
        &svg,
    ]);
    assert!(output.status.success(), "{text}\n{log}");
    assert_eq!(log.contains("not optimised: runs move an eighth"), cfg!(debug_assertions), "{log}");
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&json).expect("the report")).expect("JSON");
    let cases = report["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 2);
    for case in cases {
        let names: Vec<&str> =
            case["variants"].as_array().into_iter().flatten().filter_map(|v| v["name"].as_str()).collect();
        assert_eq!(names, ["bare AF_XDP", "zerowire xdp", "zerowire tap", "tap floor", "raw socket"]);
        // Every frame went out of the guest's memory, or came into it, without a copy in this
        // process.
        all_frames_zero_copied(&case["variants"][1], case);
        all_frames_counted(&case["variants"][2], case);
    }
    let streams = report["streams"].as_array().expect("streams");
    assert_eq!(streams.len(), 2);
    for stream in streams {
        let names: Vec<&str> =
            stream["variants"].as_array().into_iter().flatten().filter_map(|v| v["name"].as_str()).collect();
        assert_eq!(names, ["raw socket", "zerowire xdp", "zerowire tap", "bare AF_XDP"]);
        all_frames_zero_copied(&stream["variants"][1], stream);
        all_frames_counted(&stream["variants"][2], stream);
        for variant in stream["variants"].as_array().into_iter().flatten() {
            for figure in ["gigabits_per_second", "cpu_load_percent"] {
                assert!(variant[figure]["median"].as_f64().expect("a figure") > 0.0, "{variant}");
            }
        }
    }
    let idle = &report["idle"][0];
    assert_eq!(idle["variant"], "zerowire xdp");
    // Asleep, not polling: a hundredth of one CPU leaves room for a stray wake-up.
    assert!(idle["load_percent"].as_f64().expect("a load") < 1.0, "{idle}");
    for word in [
        "/bare XDP",
        "/tap floor",
        "tx CPU %",
        "rx CPU %",
        "zerowire tap, hot",
        "published: zero copy",
        "Idle: zerowire xdp",
        "port-cpu-rx.svg",
        "port-ratio-tx.svg",
        "port-bandwidth.svg",
        "port-load.svg",
    ] {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
}

fn all_frames_counted(port: &serde_json::Value, case: &serde_json::Value) {
    let frames = port["ledger"]["frames"].as_u64().unwrap_or(0);
    assert!(frames >= case["frames"].as_u64().unwrap_or(u64::MAX), "{port}");
}

fn all_frames_zero_copied(port: &serde_json::Value, case: &serde_json::Value) {
    all_frames_counted(port, case);
    assert_eq!(port["ledger"]["zero_copied_frames"], port["ledger"]["frames"], "{port}");
}

#[test]
fn programs_are_set_beside_the_first() {
    let folder = tempfile::tempdir().expect("a directory");
    let json = folder.path().join("report.json").display().to_string();
    let path = program().display().to_string();
    let (old, new) = (format!("old={path}"), format!("new={path}"));
    let case = ["--sizes", "1500", "--working-set", "hot", "--direction", "tx", "--json", &json];
    let programs = ["--port", "packet", "--quick", "--rounds", "1", "--program", &old, "--program", &new];
    let (output, text, log) = bench(&[&programs[..], &case].concat());
    assert!(output.status.success() && text.contains("/before"), "{text}\n{log}");
    let said = std::fs::read_to_string(&json).expect("the report");
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let ratio = |name: &str| {
        let variants = report["cases"][0]["variants"].as_array().expect("variants");
        let variant =
            variants.iter().find(|v| v["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"));
        variant["ratio_to_before"]["median"].as_f64()
    };
    assert_eq!((ratio("old packet"), ratio("old tap")), (None, None));
    for name in ["new packet", "new tap"] {
        assert!(ratio(name).is_some_and(|r| r > 0.0), "{name}: {report}");
    }
}
