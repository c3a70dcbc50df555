//! `zerowire-bench vsock --program …`: two programs in one run, which are the same one here,
//! without the sandbox and with it.

use std::process::Command;

use serde_json::Value;

use crate::support::program;

#[test]
fn programs_are_measured_in_turns_and_set_beside_the_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let json = folder.path().join("report.json").display().to_string();
    let path = program().display().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_zerowire-bench"))
        .args(["vsock", "--quick", "--rounds", "1", "--writes", "65536", "--direction", "tx"])
        .args([
            "--credit",
            "262144",
            "--working-set",
            "hot",
            "--no-sleeping-guest",
            "--with",
            "--peer-connections 7",
        ])
        .args(["--program", &format!("old={path}"), "--json", &json])
        .args(["--program", &format!("new={path} --sandbox on")])
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for words in ["/before (the first program)", "new --peer-connections 7", "Note: what is not a stream"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
    let said = std::fs::read_to_string(&json).expect("the report");
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    let variants = report["cases"][0]["variants"].as_array().expect("variants");
    let ratios = variants.iter().map(|v| (v["name"].as_str(), v["ratio_to_before"]["median"].as_f64()));
    let ratios: Vec<_> = ratios.filter(|(name, _)| !name.is_some_and(|n| n.contains("floor"))).collect();
    let names: Vec<_> = ratios.iter().filter_map(|(name, _)| *name).collect();
    assert_eq!(names, ["old", "new", "old --peer-connections 7", "new --peer-connections 7"], "{report}");
    for (index, (name, ratio)) in ratios.iter().enumerate() {
        // The first program has none; what the other one's is, is for a quiet machine to say. The
        // supervisor alone, without the process that moves the bytes, would take next to nothing.
        assert_eq!(ratio.is_some_and(|r| r > 0.1), index % 2 == 1, "{name:?}: {report}");
    }
}
