//! `zerowire-bench vsock`: the floor alone, and the back end of the program `zerowire` of the same
//! build.

use clap::ValueEnum;
use serde_json::Value;
use zerowire_bench::case::WorkingSet;
use zerowire_bench::experiment::Files;
use zerowire_bench::vsock::weapons::Attack;
use zerowire_bench::vsock::{EndOptions, SocketKind};
use zerowire_bench::{VsockBenchOptions, run_vsock};

use crate::support::program;

fn small() -> VsockBenchOptions {
    VsockBenchOptions {
        quick: true,
        rounds: Some(1),
        writes: vec![4096, 100_000],
        credits: vec![65_536],
        working_sets: vec![WorkingSet::Hot],
        idle: vec![1, 20],
        ..Default::default()
    }
}

#[test]
fn the_floor_moves_every_byte_both_ways() {
    let mut text = Vec::new();
    let report = run_vsock(&small(), &mut text).unwrap();
    assert_eq!(report.cases.len(), 4);
    assert_eq!(report.failures(), Vec::<String>::new());
    for case in &report.cases {
        assert_eq!(case.lines.len(), 3);
        for variant in &case.lines {
            assert_eq!(variant.samples[0].bytes, case.facts.bytes as u64);
            assert!(variant.spread("cpu_s_per_gb").unwrap().median > 0.0);
        }
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("Host to guest") && text.contains("only the floor was measured"), "{text}");
}

#[test]
fn the_back_end_accounts_for_every_byte_and_every_part_reports() {
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = temporary.path().to_owned();
    let json = folder.join("report.json");
    let options = VsockBenchOptions {
        program: Some(program()),
        files: Files { json: Some(json.clone()), svg: Some(folder.clone()) },
        ..small()
    };
    let mut text = Vec::new();
    let report = run_vsock(&options, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(report.failures(), Vec::<String>::new(), "{text}");
    let value: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert!(folder.join("vsock-cpu-rx-64k.svg").is_file());

    for case in value["cases"].as_array().unwrap() {
        let variants = case["variants"].as_array().unwrap();
        let names: Vec<&str> = variants.iter().map(|variant| variant["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["floor", "copy + floor", "floor, room as credit", "zerowire", "zerowire, guest sleeps"]
        );
        for variant in &variants[3..] {
            let ledger = &variant["ledger"];
            let bytes = ledger["bytes"].as_u64().unwrap();
            // The warm-up, and one round.
            assert!(bytes > case["bytes"].as_u64().unwrap());
            let copied: u64 = ledger
                .as_object()
                .unwrap()
                .iter()
                .filter(|(key, _)| key.starts_with("copied_bytes."))
                .map(|(_, count)| count.as_u64().unwrap())
                .sum();
            assert_eq!(bytes, ledger["zero_copied_bytes"].as_u64().unwrap_or(0) + copied);
            assert!(variant["system_calls_per_packet"].as_f64().unwrap() > 0.0);
        }
    }
    assert_eq!(value["latency"].as_array().unwrap().len(), 4);
    assert_eq!(value["guest_to_guest"].as_array().unwrap().len(), 2);
    let stalled = &value["crowd"][1];
    assert_eq!((&stalled["connections"], &stalled["other"]), (&64.into(), &"stalled".into()));
    assert!(stalled["stalled_bytes"].as_u64().unwrap() > 0);
    assert!(stalled["rate_ratio"]["median"].as_f64().unwrap() > 0.0);
    assert_eq!(value["idle"]["rows"][1]["connections"], 20);
    let attacks = &value["attacks"];
    assert_eq!(attacks["alone"].as_array().unwrap().len(), 3);
    let rows = attacks["rows"].as_array().unwrap();
    assert_eq!(rows.len(), Attack::value_variants().len());
    for (row, attack) in rows.iter().zip(Attack::value_variants()) {
        assert_eq!(row["attack"], serde_json::to_value(attack).unwrap());
        // The control that spins sends nothing; whatever else attacks does attack.
        assert_eq!(row["per_second"]["median"].as_f64().unwrap() > 0.0, *attack != Attack::Spin, "{row}");
        let victims: Vec<&str> =
            row["victims"].as_array().unwrap().iter().map(|v| v["victim"].as_str().unwrap()).collect();
        assert_eq!(victims, ["same_vm", "same_group", "other_group"]);
        assert!(text.contains(&attack.to_string()), "{text}");
    }
}

#[test]
fn without_extras_nothing_is_attacked() {
    let options = VsockBenchOptions {
        program: Some(program()),
        writes: vec![4096],
        idle: vec![0],
        ends: EndOptions { no_sleeping_guest: true, ..small().ends },
        no_extras: true,
        ..small()
    };
    let report = run_vsock(&options, &mut Vec::new()).unwrap();
    assert_eq!(report.failures(), Vec::<String>::new());
    assert!(report.attacks.is_none() && report.crowd.is_empty() && report.latency.is_empty());
}

/// The content is checked within, and that each message arrives whole and as one.
#[test]
fn messages_are_counted_both_ways() {
    let options = VsockBenchOptions {
        program: Some(program()),
        socket: SocketKind::Seqpacket,
        writes: vec![64, 5000, 65_536],
        ..small()
    };
    let mut text = Vec::new();
    let report = run_vsock(&options, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(report.failures(), Vec::<String>::new(), "{text}");
    assert_eq!(report.cases.len(), 6);
    for case in &report.cases {
        assert_eq!(case.lines.len(), 5);
        for variant in &case.lines {
            assert_eq!(variant.samples[0].bytes, case.facts.bytes as u64);
            assert!(variant.spread("messages_per_second").unwrap().median > 0.0);
            let device = variant.variant.starts_with("zerowire");
            assert_eq!(variant.facts.system_calls_per_message.is_some_and(|calls| calls > 0.0), device);
        }
    }
    assert!(text.contains("calls/message") && text.contains("with --type stream"), "{text}");
    assert!(report.latency.is_empty() && report.idle.is_none() && report.attacks.is_none());
}

#[test]
fn wrong_options_are_refused_before_anything_is_started() {
    let refused = |options: VsockBenchOptions| run_vsock(&options, &mut Vec::new()).unwrap_err().to_string();
    assert!(refused(VsockBenchOptions { rounds: Some(0), ..small() }).contains("at least 1"));
    assert!(refused(VsockBenchOptions { writes: vec![0], ..small() }).contains("0 bytes"));
    assert!(refused(VsockBenchOptions { credits: vec![1], ..small() }).contains("credit of 1"));
    let socket = SocketKind::Seqpacket;
    assert!(refused(VsockBenchOptions { socket, ..small() }).contains("messages of 100000 bytes"));
    let ends = EndOptions { rx_buffer: 44, ..small().ends };
    assert!(refused(VsockBenchOptions { ends, ..small() }).contains("44"));
    assert!(refused(VsockBenchOptions { idle: vec![9000], ..small() }).contains("9000"));
}
