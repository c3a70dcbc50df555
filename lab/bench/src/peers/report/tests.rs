use super::*;
use crate::case::{Case, Direction, WorkingSet};
use crate::experiment::{Base, Failure, Runs, Tried};
use crate::transfer::TransferSample;

/// Runs of a program, with these nanoseconds of CPU and wall time.
fn tried(name: &str, frames: u64, runs: &[(u64, u64)]) -> Tried<Peers> {
    let sample = |&(cpu_ns, wall_ns): &(u64, u64)| TransferSample { cpu_ns, wall_ns, frames, bytes: 1000 };
    let bases = match name {
        OURS => Vec::new(),
        _ => vec![Base { label: OURS, variant: OURS.to_owned() }],
    };
    let runs = Runs { samples: runs.iter().map(sample).collect(), failed: None };
    Tried { variant: name.to_owned(), bases, facts: (), runs }
}

fn broken(name: &str) -> Tried<Peers> {
    let failed = Some(anyhow::anyhow!("it made no tap"));
    Tried { runs: Runs { samples: Vec::new(), failed }, ..tried(name, 1, &[]) }
}

fn report() -> PeersReport {
    let absent = |name: &str, reason: &str| Failure { variant: name.into(), reason: reason.into() };
    let case = |frame_len| Case { direction: Direction::Transmit, frame_len, working_set: WorkingSet::Hot };
    let other = vec![absent("other", "other is not installed (Debian package other)")];
    let net = |len, peer: &[(u64, u64)]| {
        let tried = vec![
            tried(OURS, 10, &[(1000, 2000), (2000, 4000), (4000, 8000)]),
            tried("dpdk-testpmd", 10, peer),
        ];
        CellReport::of(PeerCell::Net(case(len)), (), tried, other.clone())
    };
    let cases = vec![
        // Twice the CPU time and half the rate in each round, though all rounds differ.
        net(64, &[(2000, 4000), (4000, 8000), (8000, 16_000)]),
        net(1500, &[(3000, 2000), (6000, 4000), (12_000, 8000)]),
        CellReport::of(
            PeerCell::Replay { frame_len: 64 },
            (),
            vec![tried(OURS, 10, &[(1000, 1000)]), broken("tcpreplay")],
            Vec::new(),
        ),
        CellReport::of(
            PeerCell::Tcp { direction: Direction::Receive },
            (),
            vec![tried(OURS, 0, &[(250, 500)])],
            vec![absent("iperf3", "iperf3 is not installed (Debian package iperf3)")],
        ),
    ];
    PeersReport {
        head: ReportHead::example("others were at work"),
        quick: false,
        rounds: 3,
        programs: vec![ProgramVersion { name: "iperf3".into(), version: Some("iperf 3.12".into()) }],
        summary: summary(&cases),
        cases,
    }
}

#[test]
fn ratios_are_those_of_one_round() {
    let report = report();
    let line = report.cases[0].line(&"dpdk-testpmd".to_owned()).unwrap();
    assert_eq!(line.middle("cpu_ns_per_frame"), Some(400.0));
    let (cpu, rate) = (line.spread("cpu_to_zerowire").unwrap(), line.spread("rate_to_zerowire").unwrap());
    assert_eq!((cpu.min, cpu.max, rate.min, rate.max), (2.0, 2.0, 0.5, 0.5));
    assert_eq!(report.cases[0].line(&OURS.to_owned()).unwrap().spread("cpu_to_zerowire"), None);
}

#[test]
fn text_has_each_part_what_is_missing_and_the_summary() {
    let text = report().text();
    for words in [
        "Linux 6.18.0, Some CPU, 2 CPUs (virtual)",
        "Note: others were at work.",
        "iperf 3.12",
        "=== net:",
        "net tx 1500 B hot",
        "not measured: other is not installed (Debian package other)",
        "not measured: iperf3 is not installed (Debian package iperf3)",
        "FAILED: tcpreplay (replay 64 B): it made no tap",
        "2.00 to 3.00",
        "0.50 to 1.00",
    ] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
    // Once a part, not once a row.
    assert_eq!(text.matches("other is not installed").count(), 1, "{text}");
    assert!(!text.contains("=== vsock"), "{text}");
}

#[test]
fn json_has_figures_runs_and_what_is_absent() {
    let json = serde_json::to_value(report()).unwrap();
    let cell = &json["cases"][0];
    assert_eq!((&cell["part"], &cell["frame_len"]), (&"net".into(), &64.into()));
    let [ours, peer] = &cell["programs"].as_array().unwrap()[..] else { panic!("two programs: {cell}") };
    assert_eq!((&ours["name"], &peer["name"]), (&"zerowire".into(), &"dpdk-testpmd".into()));
    assert!(ours["cpu_to_zerowire"].is_null());
    assert_eq!(peer["cpu_to_zerowire"]["median"], 2.0);
    assert_eq!(peer["samples"].as_array().map(Vec::len), Some(3));
    assert_eq!(cell["absent"][0]["variant"], "other");
    let stream = &json["cases"][3]["programs"][0];
    assert_eq!(stream["cpu_s_per_gb"]["median"], 0.25);
    assert!(stream.get("cpu_ns_per_frame").is_none() && stream.get("frames_per_second").is_none());
    let row = &json["summary"][0];
    assert_eq!((&row["part"], &row["name"]), (&"net".into(), &"dpdk-testpmd".into()));
    assert_eq!(row["cpu_to_zerowire"], serde_json::json!([2.0, 3.0]));
    assert_eq!(json["summary"].as_array().map(Vec::len), Some(1), "one that failed has no row");
}

#[test]
fn charts_show_the_peers_against_one() {
    let charts = report().charts();
    let (_, bars) = charts.iter().find(|(name, _)| name == "peers-net-cpu.svg").unwrap();
    assert_eq!(bars.groups, ["net tx 64 B hot", "net tx 1500 B hot"]);
    assert_eq!(bars.series.len(), 1);
    assert_eq!((bars.series[0].name.as_str(), bars.reference), ("dpdk-testpmd", Some(1.0)));
}
