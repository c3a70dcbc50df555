//! `zerowire-bench packet-tx --replay`: the rows of tcpreplay are there, or it is said how to get
//! it. Needs root, as the benchmark does, and tcpreplay (`scripts/install.sh base`).

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

/// The rows of the replay: a frame length, and the programs' names and figures.
fn replay(text: &str) -> Vec<(u64, Vec<(String, Value)>)> {
    let report: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    let name = |program: &Value| (program["name"].as_str().unwrap_or_default().to_owned(), program.clone());
    let programs = |row: &Value| row["programs"].as_array().expect("programs").iter().map(name).collect();
    let rows = report["replay"].as_array().expect("rows").iter();
    rows.map(|row| (row["frame_len"].as_u64().expect("a length"), programs(row))).collect()
}

#[test]
fn replay_is_measured_beside_tcpreplay() {
    let found = Command::new("tcpreplay").arg("--version").output();
    assert!(found.is_ok(), "tcpreplay is missing ({found:?}): 'scripts/install.sh base' installs it");
    let rows = replay(&bench(None, &["--json", "-"]));
    assert_eq!(rows.iter().map(|(len, _)| *len).collect::<Vec<_>>(), [64, 1400], "{rows:?}");
    for (_, programs) in rows {
        let names: Vec<&str> = programs.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["zerowire", "tcpreplay", "tcpreplay -K"]);
        let of = |index: usize, key: &str| programs[index].1[key]["median"].as_f64().unwrap_or(f64::NAN);
        for index in 0..names.len() {
            // One sample each, of all packets.
            assert!(of(index, "frames_per_second") > 0.0, "{programs:?}");
            assert_eq!(programs[index].1["samples"][0]["frames"], 200_000, "{programs:?}");
        }
        let ratio = of(1, "frames_per_second") / of(0, "frames_per_second");
        assert!((of(1, "rate_to_zerowire") - ratio).abs() < 1e-6 * ratio, "{programs:?}");
    }
}

#[test]
fn without_tcpreplay_it_is_said_how_to_get_it() {
    let nothing = tempfile::tempdir().expect("an empty folder");
    let path = Some(nothing.path().as_os_str());
    let text = bench(path, &[]);
    let missing = "not measured: tcpreplay is not installed (Debian package tcpreplay)";
    assert!(text.contains(missing), "{text}");
    // zerowire's own figures are there.
    for frame in ["replay 64 B", "replay 1400 B"] {
        let row = text.lines().find(|line| line.starts_with(frame)).expect("a row");
        assert!(row.contains(" zerowire "), "{text}");
    }
    for (_, programs) in replay(&bench(path, &["--json", "-"])) {
        assert_eq!(programs.len(), 1, "{programs:?}");
        assert!(programs[0].1["frames_per_second"]["median"].as_f64() > Some(0.0), "{programs:?}");
    }
}
