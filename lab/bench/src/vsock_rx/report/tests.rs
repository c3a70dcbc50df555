use anyhow::anyhow;

use super::*;
use crate::experiment::{Runs, Tried};

fn tried(way: RxWay, cost: f64) -> Tried<VsockRx> {
    let runs = Runs { samples: samples(cost), failed: None };
    Tried { variant: way, bases: way.bases(), facts: (), runs }
}

fn report() -> RxReport {
    let case = |direction, len| {
        let mut refused = tried(RxWay::Direct, 1.0);
        refused.runs.failed = Some(anyhow!("refused"));
        let ways = vec![
            tried(RxWay::FloorCopyTouch, 1.0),
            tried(RxWay::Copy, 4.0),
            tried(RxWay::Mapped, 2.0),
            refused,
        ];
        let case = RxCase { direction, len, working_set: WorkingSet::Hot, windows: 4 };
        CellReport::of(case, RxFacts::of(&case, 3, 1 << 20), ways, Vec::new())
    };
    RxReport {
        head: ReportHead::example("the machine was busy"),
        megabytes: 1,
        rounds: 3,
        credit: 65_536,
        host_cpu: HostCpu::Backend,
        cases: vec![case(Direction::Transmit, 4096), case(Direction::Receive, 5 << 12)],
    }
}

fn samples(cost: f64) -> Vec<RxSample> {
    let one = |round: f64| RxSample {
        bytes: 1 << 20,
        send_seconds: 0.5,
        loop_seconds: 0.6,
        dequeue_seconds: cost * round * 1e-4,
        touch_seconds: cost * round * 1e-4,
        dequeues: 256,
        wake_ups: 128,
        backend_cpu_seconds: cost * round * 1e-3,
        program_cpu_seconds: cost * round * 1e-3,
        direct_bytes: 0,
        held_bytes: 0,
    };
    [1.0, 2.0, 3.0].map(one).to_vec()
}

#[test]
fn text_has_the_cells_the_ratios_and_what_failed() {
    let text = report().text();
    for word in [
        "Linux 6.18.0, Some CPU, 2 CPUs",
        "Note: the machine was busy.",
        "Guest to host, hot (256 KiB).",
        "0.500/0.600",
        "0.50 (0.50..0.50)",
        "published, copy  D",
        "7039",
        "FAILED: direct (guest -> host, 4 KiB dequeues, hot): refused",
    ] {
        assert!(text.contains(word), "{word:?} is missing in:\n{text}");
    }
}

/// The cells of a row of the ratios, by their headings.
fn cells<'a>(text: &'a str, row: &str) -> Vec<(&'a str, &'a str)> {
    let split = |line: &'a str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    let headings = text.lines().find(|line| line.contains("D / copy  ")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(row)).unwrap_or_default();
    split(headings).zip(split(line).skip(1)).collect()
}

#[test]
fn what_was_published_is_a_column_beside_the_ratios() {
    let text = report().text();
    let mapped = cells(&text, "mapped, 4 KiB ");
    assert_eq!(
        mapped[..3],
        [("D / copy", "0.50 (0.50..0.50)"), ("published", "1.93"), ("D+ / copy", "0.50 (0.50..0.50)")],
        "{text}"
    );
    assert_eq!(mapped[4], ("CPU / floor", "2.00 (2.00..2.00)"));
    // Nothing was published of copying alone, and not of this length.
    assert_eq!(cells(&text, "copy, 4 KiB ")[1], ("published", "-"));
    assert_eq!(cells(&text, "mapped, 20 KiB ")[1], ("published", "-"));
}

#[test]
fn every_length_is_in_every_table() {
    let mut report = report();
    let case = report.cases.remove(0);
    report.cases = reference::LENS
        .iter()
        .map(|len| {
            let at = RxCase { len: *len, ..case.at };
            let facts = RxFacts::of(&at, 3, 1 << 20);
            CellReport { at, facts, lines: case.lines.clone(), absent: Vec::new(), failures: Vec::new() }
        })
        .collect();
    let text = report.text();
    let lens = reference::LENS.map(bytes);
    let headings: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    // Times and CPU seconds have a column a length, ratios a row.
    assert_eq!(headings.iter().filter(|cells| **cells == lens).count(), 2, "{text}");
    for (len, ratio) in lens.iter().zip(["1.93", "1.05", "0.85", "0.48", "0.44", "0.34"]) {
        assert_eq!(cells(&text, &format!("mapped, {len} "))[1], ("published", ratio), "{text}");
    }
}

#[test]
fn json_carries_every_run_and_the_published_cells() {
    let json = serde_json::to_value(report()).unwrap();
    let case = &json["cases"][0];
    assert_eq!((&case["direction"], &case["len"]), (&"transmit".into(), &4096.into()));
    assert_eq!(case["lines"][2]["line"], "mapped");
    assert_eq!(case["lines"][2]["samples"].as_array().unwrap().len(), 3);
    assert_eq!(case["lines"][2]["cpu_to_floor"]["median"], 2.0);
    assert!(case["lines"][1]["time_to_copy"].is_null());
    assert_eq!(case["published"][1]["dequeue_ns"], 13598.0);
    assert!((case["published_ratio"].as_f64().unwrap() - 1.93).abs() < 0.01);
    assert_eq!(case["lines"][2]["dequeue_to_copy"]["median"], 0.5);
    // A length that was not published.
    assert!(json["cases"][1]["published"].is_null());
}

#[test]
fn charts_name_the_machine() {
    let report = report();
    let cases: Vec<&RxCell> = report.cases.iter().take(1).collect();
    for (chart, words) in [
        (report.cpu_chart(Direction::Transmit, WorkingSet::Hot, &cases), ["mapped", "CPU seconds a GB"]),
        (report.ratio_chart(Direction::Transmit, WorkingSet::Hot, &cases), ["D, published", "D+"]),
    ] {
        let svg = chart.render().unwrap();
        for word in words.into_iter().chain(["Linux 6.18.0", "4 KiB", "guest to host"]) {
            assert!(svg.contains(word), "{word} is missing");
        }
    }
}
