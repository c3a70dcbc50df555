//! `bench packet-tx`: every column on both sinks, with every frame or byte accounted for. Needs
//! root, as the benchmark does.
//!
//! The CPU time of a send to the ifb is that of the whole process: such a run has a process of its
//! own.

use clap::ValueEnum;
use serde_json::Value;
use zerowire_bench::case::WorkingSet;
use zerowire_bench::experiment::Files;
use zerowire_bench::packet_tx::report::{Caller, TxReport};
use zerowire_bench::packet_tx::{Column, MoreParts, PacketTxOptions, SinkKind, run_packet_tx};
use zerowire_testkit::own_process;

fn small(sink: SinkKind) -> PacketTxOptions {
    PacketTxOptions {
        quick: true,
        rounds: Some(1),
        sizes: vec![100, 65_000],
        sinks: vec![sink],
        working_sets: vec![WorkingSet::Hot],
        auto_sends: Some(0),
        ..PacketTxOptions::default()
    }
}

fn run(options: &PacketTxOptions) -> (TxReport, String) {
    let mut text = Vec::new();
    let report = run_packet_tx(options, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(report.failures(), Vec::<String>::new(), "{text}");
    (report, text)
}

/// Columns that lend memory to a UDP socket.
const LENDING: [Column; 4] = [Column::Zc, Column::ZcBatched, Column::SendZc, Column::SendZcFixed];

/// The sink's own counters are compared with the number of sends within: a frame too few or too
/// many fails the line.
#[test]
fn every_column_sends_the_right_count_to_the_ifb() {
    own_process!();
    let (report, text) = run(&small(SinkKind::Ifb));
    assert_eq!(report.cases.len(), 2);
    for case in &report.cases {
        for &column in Column::value_variants() {
            for kind in [Caller::Bare, Caller::Library] {
                let Some(line) = case.variant(column, kind) else {
                    assert_eq!((column, kind), (Column::Auto, Caller::Bare));
                    continue;
                };
                assert_eq!(line.samples.len(), 1);
                assert_eq!(line.samples[0].sends as usize, case.facts.sends);
                assert!(line.middle("cpu_ns").unwrap() > 0.0);
                let to_bare = line.spread("cpu_to_bare");
                assert_eq!(to_bare.is_some(), kind == Caller::Library && column != Column::Auto);
                assert_eq!(line.facts.path.is_empty(), kind == Caller::Bare, "{column}: {}", line.facts.path);
                // The warm-up counts as well.
                let least = (case.facts.sends * case.at.payload) as u64;
                assert!(line.facts.proof.total() > least, "{column} {kind}: {:?}", line.facts.proof);
            }
            if LENDING.contains(&column) || column == Column::Ring {
                for kind in [Caller::Bare, Caller::Library] {
                    let proof = case.variant(column, kind).unwrap().facts.proof;
                    assert_eq!(proof.zero_copied_share(), 1.0, "{column} {kind}: {proof:?}");
                }
            }
        }
    }
    for words in ["ifb: true zero copy", "Library / bare", "published recvmmsg", "send-zc-fixed"] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
}

#[test]
fn every_column_reaches_the_receiver_and_lent_memory_is_copied_for_it() {
    own_process!();
    let (report, text) = run(&small(SinkKind::Veth));
    for case in &report.cases {
        for column in LENDING {
            for kind in [Caller::Bare, Caller::Library] {
                let line = case.variant(column, kind).unwrap();
                assert_eq!(line.facts.proof.kernel_copied_share(), Some(1.0), "{column} {kind}");
                assert!(line.spread("receiver_ns").is_some());
            }
        }
        assert_eq!(case.lines.len(), 2 * Column::value_variants().len() - 1);
        assert!(!case.variant(Column::Ring, Caller::Library).unwrap().facts.kernel_tells);
    }
    for words in ["not told", "negative control", "of the receiver", "published zc"] {
        assert!(text.contains(words), "{words:?} is missing in:\n{text}");
    }
}

#[test]
fn columns_are_filtered_and_the_floor_can_be_alone() {
    own_process!();
    let options = PacketTxOptions {
        columns: vec![Column::Udp, Column::ZcBatched],
        floor_only: true,
        sizes: vec![1000],
        ..small(SinkKind::Ifb)
    };
    let (report, text) = run(&options);
    assert_eq!(report.columns(), [Column::Udp, Column::ZcBatched]);
    let lines = &report.cases[0].lines;
    assert!(lines.iter().all(|line| line.variant.kind == Caller::Bare) && lines.len() == 2);
    let figures = ["times_less_than_copying", "published_rate_to_copying"];
    assert!(figures.iter().all(|key| lines[1].middle(key).is_some()));
    assert!(text.contains("only the bare loops") && !text.contains("sendmmsg"), "{text}");
}

#[test]
fn json_takes_the_place_of_the_text_or_goes_to_a_file_with_charts() {
    own_process!();
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = temporary.path().to_owned();
    let file = folder.join("report.json");
    let options = PacketTxOptions {
        columns: vec![Column::Udp, Column::Auto],
        sizes: vec![10_000],
        auto_sends: Some(2048),
        files: Files { json: Some(file.clone()), svg: Some(folder.clone()) },
        ..small(SinkKind::Ifb)
    };
    let (_, text) = run(&options);
    assert!(text.contains("Auto against the better") && text.contains("chart: "), "{text}");
    let json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let case = &json["cases"][0];
    assert_eq!(
        (&case["sink"], &case["working_set"], &case["payload"]),
        (&"ifb".into(), &"hot".into(), &10_000.into())
    );
    assert_eq!(case["published"]["recvmmsg"], 405.0);
    let line = &case["lines"][0];
    assert_eq!((&line["column"], &line["kind"]), (&"udp".into(), &"bare".into()));
    assert!(line["samples"][0]["cpu_ns"].as_u64().unwrap() > 0);
    assert_eq!(json["auto"][0]["lines"][0]["sends"], 2048);
    assert!(folder.join("packet-tx-cpu-ifb-hot.svg").is_file());

    let mut out = Vec::new();
    let options = PacketTxOptions {
        columns: vec![Column::Udp],
        files: Files { json: Some("-".into()), svg: None },
        ..options
    };
    run_packet_tx(&options, &mut out).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&out).unwrap()["rounds"], 1);
}

/// With perf there are shares; without it the report says why there are none.
#[test]
fn cycles_are_measured_or_said_to_be_missing() {
    own_process!();
    let options = PacketTxOptions {
        columns: vec![Column::Udp, Column::SendZcFixed],
        sizes: vec![65_000],
        more: MoreParts { cycles: true, ..MoreParts::default() },
        ..small(SinkKind::Ifb)
    };
    let (report, text) = run(&options);
    for kind in [Caller::Bare, Caller::Library] {
        let cycles =
            |column| report.cases[0].variant(column, kind).and_then(|line| line.facts.cycles.as_ref());
        match [cycles(Column::Udp), cycles(Column::SendZcFixed)] {
            [Some(copying), Some(lending)] => {
                assert!(copying.kernel_copy_share > lending.kernel_copy_share, "{text}");
                assert!(text.contains("cpu-clock"), "{text}");
            }
            _ => assert!(report.head.notes.iter().any(|note| note.contains("not measured")), "{text}"),
        }
    }
}

#[test]
fn impossible_options_are_refused_before_anything_is_made() {
    let options = PacketTxOptions { sizes: vec![65_001], ..small(SinkKind::Ifb) };
    let error = run_packet_tx(&options, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("65001") && error.contains("65000"), "{error}");
}

#[test]
fn the_report_fits_a_terminal_of_80_columns() {
    let arguments = "packet-tx --quick --rounds 1 --sizes 10000 --columns udp,auto --sink ifb --working-set hot \
                     --auto-sends 2048";
    let bench = env!("CARGO_BIN_EXE_zerowire-bench");
    let out = std::process::Command::new(bench).args(arguments.split(' ')).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains(" chose: "), "{text}");
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}\n{text}");
    }
}
