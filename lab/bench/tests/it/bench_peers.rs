//! `zerowire-bench peers`: a short run with the peers that `scripts/install.sh base` installs, and
//! what is said of those that aren't there. Needs root, as the command does.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// The report of a run of `parts` with one round. `path` stands in place of PATH.
fn report(parts: &str, path: Option<&Path>, more: &[&str]) -> Value {
    let text = run(parts, path, &[&["--json", "-"], more].concat());
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn run(parts: &str, path: Option<&Path>, more: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire-bench"));
    command.args(["peers", "--quick", "--rounds", "1", "--parts", parts]).args(more);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// The names of the programs of each row.
fn names(report: &Value) -> Vec<Vec<&str>> {
    fn of(cell: &Value) -> Vec<&str> {
        let programs = cell["programs"].as_array().expect("programs");
        programs.iter().filter_map(|program| program["name"].as_str()).collect()
    }
    report["cases"].as_array().expect("rows").iter().map(of).collect()
}

fn is_installed(program: &str) {
    let found = Command::new(program).arg("--version").output();
    assert!(found.is_ok(), "{program} is missing ({found:?}): 'scripts/install.sh base' installs it");
}

#[test]
fn tcpreplay_and_iperf3_are_measured_beside_ours() {
    is_installed("tcpreplay");
    is_installed("iperf3");
    let report = report("replay,tcp", None, &[]);
    let replay = ["zerowire", "tcpreplay", "tcpreplay -K"];
    let send = ["zerowire", "iperf3 -F", "iperf3", "iperf3 -Z"];
    let rows = [&replay[..], &replay[..], &send[..], &["zerowire", "iperf3 -s"]];
    assert_eq!(names(&report), rows, "{report}");
    for cell in report["cases"].as_array().expect("rows") {
        for program in cell["programs"].as_array().expect("programs") {
            let sample = &program["samples"][0];
            assert!(sample["cpu_ns"].as_u64() > Some(0) && sample["wall_ns"].as_u64() > Some(0), "{cell}");
            // All programs moved the same; iperf3 may send one buffer more.
            let ours = &cell["programs"][0]["samples"][0];
            let bytes = |sample: &Value| sample["bytes"].as_u64().expect("bytes");
            assert_eq!(sample["frames"], ours["frames"], "{cell}");
            assert!((bytes(ours)..=bytes(ours) + (128 << 10)).contains(&bytes(sample)), "{cell}");
            let ours = program["name"] == "zerowire";
            for ratio in ["cpu_to_zerowire", "rate_to_zerowire"] {
                assert_eq!(program[ratio]["median"].as_f64().is_none_or(|r| r <= 0.0), ours, "{program}");
            }
        }
    }
    let versions = report["programs"].as_array().expect("versions");
    let iperf3 = versions.iter().find(|program| program["name"] == "iperf3").expect("iperf3");
    assert!(iperf3["version"].as_str().is_some_and(|v| v.starts_with("iperf 3")), "{iperf3}");
}

#[test]
fn what_is_not_installed_is_named_with_its_package_and_the_rest_is_measured() {
    let nothing = tempfile::tempdir().expect("an empty folder");
    let text = run("net,udp,vsock,replay,tcp", Some(nothing.path()), &[]);
    for words in [
        "not measured: dpdk-testpmd is not installed (Debian package dpdk-dev)",
        "not measured: passt is not installed (Debian package passt)",
        "not measured: vhost-device-vsock is not installed",
        "not measured: tcpreplay is not installed (Debian package tcpreplay)",
        "not measured: iperf3 is not installed (Debian package iperf3)",
    ] {
        assert_eq!(text.matches(words).count(), 1, "{words}:\n{text}");
    }
    for row in [
        "net tx 64 B hot",
        "net rx 1500 B hot",
        "udp 64 B",
        "vsock tx 64 KiB hot",
        "replay 1400 B",
        "tcp send",
        "tcp recv",
    ] {
        let ours = text.lines().find(|line| line.starts_with(row) && line.contains(" zerowire "));
        assert!(ours.is_some_and(|line| line.split_whitespace().count() > 6), "{row}:\n{text}");
    }
}

/// One that is there and does not work is a failure, and no other program suffers.
#[test]
fn a_peer_that_does_not_work_is_a_failure() {
    let output = Command::new(env!("CARGO_BIN_EXE_zerowire-bench"))
        .args(["peers", "--quick", "--rounds", "1", "--parts", "replay", "--json", "-"])
        .args(["--peer", "tcpreplay=/bin/false"])
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(names(&report), [["zerowire"], ["zerowire"]], "{report}");
    let reason = report["cases"][0]["failures"][0]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("/bin/false ended with"), "{report}");
}

/// Nobody waits for one that has ended, and its own words are the reason.
#[test]
fn a_peer_that_ends_before_it_connects_is_named_alone() {
    let output = Command::new(env!("CARGO_BIN_EXE_zerowire-bench"))
        .args(["peers", "--quick", "--rounds", "1", "--parts", "tcp", "--json", "-"])
        .args(["--peer", "iperf3=/bin/false"])
        .env("RUST_BACKTRACE", "1")
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert_eq!(names(&report), [["zerowire"], ["zerowire"]], "{report}");
    let failures = report["cases"].as_array().expect("rows").iter();
    let failures: Vec<_> = failures.flat_map(|row| row["failures"].as_array().expect("failures")).collect();
    assert_eq!(failures.len(), 4, "{report}");
    for failure in failures {
        let reason = "the warm-up failed: /bin/false ended with exit status: 1: it wrote nothing";
        assert_eq!(failure["reason"], reason, "{report}");
    }
}
