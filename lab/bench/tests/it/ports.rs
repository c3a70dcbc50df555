//! The bare loops of `zerowire-bench net --port` on real veth pairs in a namespace of their own.
//! Needs root, as the benchmark does; without it it fails and says so. What the program's own ports
//! do is tested in bench_port.rs.

use zerowire_bench::NetOptions;
use zerowire_bench::case::{Direction, WorkingSet};
use zerowire_bench::compare::{CaseReport, RAW, TAP};
use zerowire_bench::ports::{PortReport, run_ports};

fn small() -> NetOptions {
    NetOptions { quick: true, rounds: Some(1), working_sets: vec![WorkingSet::Hot], ..NetOptions::default() }
}

#[test]
fn the_bare_loops_account_for_every_frame_both_ways() {
    let mut text = Vec::new();
    // A lost frame voids a run, which is a failure here.
    let report = run_ports(&small(), &mut text).unwrap_or_else(|e| panic!("{e:#}"));
    let text = String::from_utf8(text).unwrap();
    assert_eq!(report.failures(), Vec::<String>::new(), "{text}");
    assert_eq!(report.cases.len(), 4);
    for case in &report.cases {
        assert_eq!(names(case), ["bare AF_XDP", TAP, RAW]);
        for variant in &case.lines {
            assert_eq!(variant.samples[0].frames, case.facts.frames as u64);
            let cpu = variant.spread("cpu_ns_per_frame").unwrap();
            assert!(cpu.median > 0.0);
            // Only what a veth pair receives has a kernel thread, and there it has most of the
            // work.
            let kernel = variant.facts.ledger.get("kernel_thread_ns_per_frame").copied().unwrap_or(0) as f64;
            let received = case.at.direction == Direction::Receive && variant.variant != TAP;
            assert_eq!(kernel > 20.0, received, "{}: {} {kernel}", case.at, variant.variant);
            assert!(kernel < cpu.max * 1.5);
            assert_eq!(variant.spread("cpu_to_tap_floor").is_some(), variant.variant != TAP);
        }
    }
    // Each posted buffer has a place of its own.
    let received = report.cases.iter().find(|c| c.at.to_string() == "rx 1500 B hot").unwrap();
    assert_eq!(received.facts.working_set_bytes, 512 << 10);
    for words in ["tx 64 B hot", "/bare XDP", "/tap floor", "no back end was given"] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
    assert!(report.idle.is_empty());
    streams_have_bandwidth_and_load_both_ways(&report, &text);
}

fn names(case: &CaseReport) -> Vec<&str> {
    case.lines.iter().map(|line| line.variant.as_str()).collect()
}

fn streams_have_bandwidth_and_load_both_ways(report: &PortReport, text: &str) {
    let cases: Vec<String> = report.streams.iter().map(|stream| stream.at.to_string()).collect();
    assert_eq!(cases, ["tx 1500 B hot", "rx 1500 B hot"]);
    for stream in &report.streams {
        assert_eq!(names(stream), [RAW, "bare AF_XDP"]);
        assert!(stream.lines.iter().all(|v| v.samples[0].frames == stream.facts.frames as u64));
    }
    for line in report.streams.iter().flat_map(|stream| &stream.lines) {
        for figure in ["gigabits_per_second", "cpu_load_percent"] {
            assert!(line.middle(figure).unwrap() > 0.0, "{figure}: {line:?}");
        }
        for ratio in ["bandwidth_to_raw_socket", "load_to_raw_socket", "per_cpu_to_raw_socket"] {
            assert_eq!(line.spread(ratio).is_some(), line.variant != RAW, "{ratio}: {line:?}");
        }
    }
    for words in ["stream of 1500 B", "tx Gb/s", "tx CPU %", "rx Gb/s", "rx CPU %", "bare AF_XDP, hot"] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
    // The same columns for what was published, both ways.
    let published: Vec<&str> = text.lines().filter(|line| line.starts_with("published:")).collect();
    assert_eq!(published.len(), 2, "{text}");
    assert_eq!(published[1].matches("140..160").count(), 2, "{text}");
}

#[test]
fn wrong_options_are_refused_before_anything_is_made() {
    let refused = |options: NetOptions| run_ports(&options, &mut Vec::new()).unwrap_err().to_string();
    assert!(refused(NetOptions { rounds: Some(0), ..small() }).contains("at least 1"));
    assert!(refused(NetOptions { sizes: vec![64, 1515], ..small() }).contains("1515"));
    assert!(refused(NetOptions { bare_calls: true, ..small() }).contains("--bare-calls is for taps"));
}
