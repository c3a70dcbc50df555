use super::*;
use crate::compare::tests::sample_reports;
use crate::experiment::{Number, Subject};

fn report() -> NetReport {
    NetReport {
        head: ReportHead::example("the back end was left out"),
        cases: sample_reports(),
        scaling: Vec::new(),
        idle: None,
        added: Vec::new(),
    }
}

/// Gives the second variant of the first case a figure.
fn set(report: &mut NetReport, key: &str, values: [f64; 3]) {
    let index = NetBench::FIGURES.iter().position(|figure| figure.key == key).unwrap();
    report.cases[0].lines[1].figures[index] = Summary::of(values).map(Number::Spread);
}

#[test]
fn text_names_machine_case_working_set_and_ratio() {
    let text = report().text();
    for word in [
        "Linux 6.18.0, Some CPU, 2 CPUs (virtual)",
        "Note: the back end was left out.",
        "tx 60000 B hot",
        "256 KiB",
        "1.10..1.10",
        "FAILED: broken (tx 64 B hot): round 2: lost a frame",
    ] {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
}

#[test]
fn the_ratio_to_the_bare_calls_is_there_where_they_were_measured() {
    let mut report = report();
    assert!(!report.text().contains("/bare calls\n"));
    assert!(!serde_json::to_string(&report).unwrap().contains("ratio_to_bare_calls"));
    set(&mut report, "ratio_to_bare_calls", [1.04, 1.05, 1.07]);
    let text = report.text();
    assert!(text.contains("/bare calls\n") && text.contains("1.05\n"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"][0]["variants"][1]["ratio_to_bare_calls"]["median"], 1.05);
}

#[test]
fn the_ratio_to_the_first_program_is_there_where_there_are_several() {
    let mut report = report();
    assert!(!report.text().contains("/before"));
    assert!(!serde_json::to_string(&report).unwrap().contains("ratio_to_before"));
    set(&mut report, "ratio_to_before", [1.012, 1.021, 1.034]);
    let text = report.text();
    assert!(text.contains("/floor, /before (the first program)") && text.contains("1.021"), "{text}");
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"][0]["variants"][1]["ratio_to_before"]["median"], 1.021);
}

#[test]
fn json_carries_every_run() {
    let json = serde_json::to_value(report()).unwrap();
    let case = &json["cases"][0];
    assert_eq!(case["direction"], "transmit");
    assert_eq!(case["working_set_bytes"], 256 << 10);
    assert_eq!(case["variants"][1]["samples"].as_array().unwrap().len(), 3);
    assert!(case["variants"][0]["ratio_to_floor"].is_null());
}

#[test]
fn charts_name_the_machine() {
    let [(_, ratio), _] = report().charts_of(Direction::Transmit);
    let svg = ratio.render().unwrap();
    assert!(svg.contains("Linux 6.18.0"));
    assert!(svg.contains("60000 B hot"));
    assert!(svg.contains("zero copy"));
}
