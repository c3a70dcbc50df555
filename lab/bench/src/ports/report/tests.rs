use super::super::bandwidth::RAW;
use super::*;
use crate::compare::tests::sample_reports;
use crate::experiment::charts_into;

/// Two lengths; the bare loop takes 400 ns in the first round, the port 440, rising with the
/// rounds alike. Of the longer one there is a stream as well.
fn report() -> PortReport {
    let named = |mut case: CaseReport, first: &str| {
        case.lines[0].variant = first.to_owned();
        case.lines[1].variant = "zerowire xdp".to_owned();
        case
    };
    let mut cases: Vec<CaseReport> =
        sample_reports().into_iter().map(|case| named(case, "bare AF_XDP")).collect();
    for case in &mut cases {
        let mut tap = case.lines[1].clone();
        tap.variant = super::super::compare::TAP.to_owned();
        case.lines.push(tap);
    }
    let streams = vec![named(sample_reports().swap_remove(1), RAW)];
    let machine = Machine::example();
    let mut report = PortReport::new(machine, true, vec!["busy".into()], cases, streams);
    report.idle.push(PortIdle::new(
        "zerowire xdp",
        std::time::Duration::from_secs(1),
        std::time::Duration::ZERO,
        std::time::Duration::ZERO,
    ));
    report
}

#[test]
fn ratios_to_the_tap_are_of_the_same_round() {
    let report = report();
    assert_eq!(report.comparisons.len(), 6);
    let port = &report.comparisons[1];
    assert_eq!(port.variant, "zerowire xdp");
    assert!((port.cpu_to_tap_floor.unwrap().max - 1.0).abs() < 1e-9);
    assert!(report.comparisons[2].cpu_to_tap_floor.is_none());
}

#[test]
fn text_has_both_tables_and_the_idle_port() {
    let text = report().text();
    for word in [
        "Linux 6.18.0, Some CPU",
        "Note: busy.",
        "tx 60000 B hot",
        "/bare XDP",
        "/tap floor",
        "1.10..1.10",
        "a stream of 60000 B frames",
        "tx Gb/s",
        "tx CPU %",
        "zerowire xdp, hot",
        "0.91",
        "120..140",
        "0.00 %",
        "FAILED: broken (tx 64 B hot)",
        "FAILED: broken (tx 60000 B hot, stream)",
    ] {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
    // Only one way was measured.
    assert!(!text.contains("rx Gb/s"));
    // Published figures stand in the columns of the measured ones: 1.7 to 1.1, 150 to 130, and
    // 1.13 to 0.85.
    let cells = |name: &str| -> Vec<String> {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.trim_start_matches(name).split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(cells("published: raw socket"), ["1.10", "1", "120..140", "1", "0.85", "1"]);
    assert_eq!(cells("published: zero copy"), ["1.70", "1.55", "140..160", "1.15", "1.13", "1.34"]);
}

#[test]
fn json_and_charts_carry_all_variants() {
    let report = report();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"][0]["variants"][1]["samples"].as_array().unwrap().len(), 3);
    assert_eq!(json["comparisons"][1]["variant"], "zerowire xdp");
    assert_eq!(json["comparisons"][1]["frame_len"], 64);
    assert_eq!(json["streams"][0]["variants"][0]["name"], RAW);
    let port = &json["bandwidth"][1];
    assert_eq!((&port["variant"], &port["direction"]), (&"zerowire xdp".into(), &"transmit".into()));
    assert!(port["cpu_load_percent"]["median"].as_f64().unwrap() > 0.0);
    assert_eq!(json["published"][1]["gigabits_per_second"], 1.7);
    assert_eq!(json["idle"][0]["cpu_ns"], 0);
    let folder = std::env::temp_dir().join(format!("zerowire-port-charts-{}", std::process::id()));
    let names = charts_into(&folder, report.charts()).unwrap();
    assert_eq!(names, ["port-cpu-tx.svg", "port-ratio-tx.svg", "port-bandwidth.svg", "port-load.svg"]);
    let read = |name: &String| std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(read(&names[0]).contains("zerowire xdp") && read(&names[2]).contains(RAW));
    std::fs::remove_dir_all(&folder).unwrap();
}
