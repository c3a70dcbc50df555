use super::super::published::PUBLISHED;
use super::*;
use crate::compare::TAP;
use crate::compare::tests::reports_beside;
use crate::experiment::charts_into;

/// Two lengths; the bare loop takes 400 ns in the first round, the port 440, rising with the
/// rounds alike. Of the longer one there is a stream as well.
fn report() -> PortReport {
    let none = std::time::Duration::ZERO;
    PortReport {
        head: ReportHead::example("busy"),
        cases: reports_beside(["bare AF_XDP", "zerowire xdp", TAP], TAP),
        streams: reports_beside([RAW, "zerowire xdp", "bare AF_XDP"], RAW).split_off(1),
        published: PUBLISHED,
        idle: vec![PortIdle::new("zerowire xdp", std::time::Duration::from_secs(1), none, none)],
    }
}

#[test]
fn ratios_to_the_tap_are_of_the_same_round() {
    let report = report();
    let ratios = report.cases[0].lines.iter().map(|line| line.spread("cpu_to_tap_floor"));
    let ratios: Vec<Option<f64>> = ratios.map(|ratio| ratio.map(|ratio| ratio.max)).collect();
    assert_eq!(ratios, [Some(400.0 / 440.0), Some(1.0), None]);
}

#[test]
fn ratios_to_the_raw_socket_are_of_the_same_round() {
    let report = report();
    let [raw, port, _] = &report.streams[0].lines[..] else { panic!("three lines expected") };
    assert!(raw.spread("bandwidth_to_raw_socket").is_none() && raw.spread("load_to_raw_socket").is_none());
    // 60 000 bytes in 400 ns; of nine rounds the middle one takes six times the CPU time of the
    // warm-up before them.
    assert!((raw.middle("gigabits_per_second").unwrap() - 1200.0).abs() < 1e-6);
    assert!((raw.middle("cpu_load_percent").unwrap() - 600.0).abs() < 1e-6);
    assert!((port.middle("bandwidth_to_raw_socket").unwrap() - 400.0 / 440.0).abs() < 1e-9);
    assert!((port.middle("load_to_raw_socket").unwrap() - 1.0).abs() < 1e-9);
    assert!((port.spread("per_cpu_to_raw_socket").unwrap().max - 400.0 / 440.0).abs() < 1e-9);
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
    assert_eq!(
        (&json["cases"][0]["frame_len"], &json["streams"][0]["direction"]),
        (&64.into(), &"transmit".into())
    );
    assert!(json["cases"][0]["variants"][0]["cpu_to_tap_floor"]["median"].as_f64().unwrap() > 0.0);
    assert_eq!(json["streams"][0]["variants"][0]["name"], RAW);
    let port = &json["streams"][0]["variants"][1];
    assert_eq!(port["name"], "zerowire xdp");
    assert!(port["cpu_load_percent"]["median"].as_f64().unwrap() > 0.0);
    assert_eq!(json["published"][1]["gigabits_per_second"], 1.7);
    assert_eq!(json["idle"][0]["cpu_ns"], 0);
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = temporary.path().to_owned();
    let names = charts_into(&folder, report.charts()).unwrap();
    assert_eq!(names, ["port-cpu-tx.svg", "port-ratio-tx.svg", "port-bandwidth.svg", "port-load.svg"]);
    let read = |name: &String| std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(read(&names[0]).contains("zerowire xdp") && read(&names[2]).contains(RAW));
}

#[test]
fn charts_have_a_group_of_published_figures() {
    let charts = report().charts();
    for (file, words) in [
        ("port-bandwidth.svg", ["Bandwidth of a stream, 60000 B frames", "Gb/s"]),
        ("port-load.svg", ["CPU load of a stream, 60000 B frames", "percent of one CPU"]),
    ] {
        let (_, chart) = charts.iter().find(|(name, _)| name == file).unwrap();
        assert_eq!(chart.groups, ["transmit hot", "published"]);
        let svg = chart.render().unwrap();
        for word in words.into_iter().chain([RAW, "zerowire xdp", "published: zero copy"]) {
            assert!(svg.contains(word), "{word} is missing");
        }
    }
}
