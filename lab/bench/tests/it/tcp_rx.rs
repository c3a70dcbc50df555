//! `bench tcp-rx`: every way with every byte accounted for, by its own sender and by iperf3. Needs
//! root, as the benchmark does.
//!
//! A run raises the limit of open files, and select() takes low descriptors only: each has a
//! process of its own.

use std::process::{Command, Stdio};

use serde_json::Value;
use zerowire_bench::experiment::Files;
use zerowire_bench::tcp_rx::report::{MemoryTraffic, TcpRxReport};
use zerowire_bench::tcp_rx::{Client, TcpRxOptions, WayName, run_tcp_rx};
use zerowire_testkit::own_process;

fn small() -> TcpRxOptions {
    TcpRxOptions {
        quick: true,
        rounds: Some(2),
        megabytes: Some(5),
        connections: vec![1, 16],
        ..TcpRxOptions::default()
    }
}

fn run(options: &TcpRxOptions) -> (TcpRxReport, String) {
    let mut text = Vec::new();
    let report = run_tcp_rx(options, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert_eq!(report.failures(), Vec::<String>::new(), "{text}");
    (report, text)
}

/// A run that gets a byte too few or too many fails within.
#[test]
fn every_way_receives_all_bytes() {
    own_process!();
    for touch in [false, true] {
        let (report, text) = run(&TcpRxOptions { touch, ..small() });
        assert_eq!(report.cases.iter().map(|c| c.at.connections).collect::<Vec<_>>(), [1, 16]);
        for case in &report.cases {
            for way in small().ways().into_iter().filter(|way| way.serves(case.at.connections)) {
                // Without a device this way needs a newer kernel: then the report gives the reason.
                if let Some(absent) = case.absent.iter().find(|a| a.variant == way.to_string()) {
                    assert!(way == WayName::Nodev && absent.reason.contains("ZCRX_REG_NODEV"), "{absent:?}");
                    assert!(text.contains("not measured: nodev: "), "{text}");
                    continue;
                }
                let line = case.line(&way).unwrap_or_else(|| panic!("{way}: {text}"));
                assert_eq!(line.samples.len(), 2);
                for sample in &line.samples {
                    // A whole number of bytes on each connection.
                    let all = 5_000_000u64.div_ceil(case.at.connections as u64) * case.at.connections as u64;
                    assert_eq!(sample.tally.bytes, all, "{way}");
                    assert!(sample.tally.calls > 0 && sample.tally.pieces > 0 && sample.cpu_seconds > 0.0);
                }
                assert_eq!(line.spread("cpu_to_recv").is_some(), case.at.connections == 1, "{way}");
                assert!(line.spread("cpu_to_epoll").is_some());
            }
        }
        assert!(text.contains("=== 1 connection\n") && text.contains("=== 16 connections\n"), "{text}");
        match &report.memory {
            MemoryTraffic::Measured(what) => assert!(text.contains(&format!("Memory traffic: {what}"))),
            MemoryTraffic::NotMeasured(why) => assert!(text.contains(&format!("not measured: {why}"))),
        }
    }
}

#[test]
fn the_report_is_json_and_charts_too() {
    own_process!();
    let temporary = tempfile::tempdir().expect("a folder");
    let dir = temporary.path().to_owned();
    let options = TcpRxOptions {
        connections: vec![2],
        ways: vec![WayName::Multishot, WayName::Epoll],
        files: Files { json: Some("-".into()), svg: Some(dir.clone()) },
        ..small()
    };
    let (_, text) = run(&options);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&json["client"], &json["rounds"]), (&"own".into(), &2.into()));
    let case = &json["cases"][0];
    assert_eq!(case["connections"], 2);
    let ways: Vec<_> = case["lines"].as_array().unwrap().iter().map(|l| l["way"].clone()).collect();
    assert_eq!(ways, ["epoll", "multishot"]);
    for line in case["lines"].as_array().unwrap() {
        for key in ["gigabits_per_second", "cpu_seconds_a_gigabyte", "calls_a_megabyte", "pieces_a_megabyte"]
        {
            assert!(line[key]["median"].as_f64().is_some_and(|v| v > 0.0), "{key}: {line}");
        }
        assert!(line["samples"][0]["bytes"].as_u64().is_some_and(|n| n >= 5_000_000), "{line}");
    }
    assert!(json["memory"].is_object());
    for name in ["cpu", "rate", "calls"] {
        let svg = std::fs::read_to_string(dir.join(format!("tcp-rx-{name}.svg"))).unwrap();
        assert!(svg.contains("multishot"), "{name}");
    }
}

/// A sender of another origin: one test a run, the warm-up included.
#[test]
fn iperf3_is_received_and_ends_well() {
    own_process!();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let options = TcpRxOptions {
        rounds: Some(1),
        ways: vec![WayName::Select, WayName::Multishot],
        client: Client::External,
        bind: "127.0.0.1".to_owned(),
        port: Some(port),
        ..small()
    };
    let clients = std::thread::spawn(move || {
        let run = |arguments: &[&str]| {
            let port = port.to_string();
            let mut command = Command::new("iperf3");
            command.args(["-c", "127.0.0.1", "-p", &port, "-J"]).args(arguments);
            command.stdin(Stdio::null()).output().expect("iperf3 must be installed")
        };
        // It may not listen yet.
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // A refused client gets the reason, and the server waits for the next one.
        let refused = run(&["-R", "-n", "1M"]);
        (refused, (0..4).map(|_| run(&["-n", "20M", "-P", "3"])).collect::<Vec<_>>())
    });
    let (report, text) = run(&options);
    let (refused, served) = clients.join().unwrap();
    let refused: Value = serde_json::from_slice(&refused.stdout).unwrap();
    assert!(refused["error"].as_str().is_some_and(|e| e.contains("busy")), "{refused}");
    for output in served {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let sums = ["sum_sent", "sum_received"].map(|sum| json["end"][sum]["bytes"].as_u64().unwrap());
        assert!(sums[0] >= 20 << 20 && sums[0] == sums[1], "{sums:?}");
    }
    let [case] = &report.cases[..] else { panic!("{text}") };
    assert_eq!((case.at.connections, case.lines.len()), (3, 2), "{text}");
    assert!(case.lines.iter().all(|l| l.samples[0].tally.bytes >= 20 << 20));
    assert!(text.contains("Sender: iperf3 elsewhere"), "{text}");
}

#[test]
fn options_that_cannot_be_are_named() {
    let refused = |options: TcpRxOptions| format!("{:#}", run_tcp_rx(&options, &mut Vec::new()).unwrap_err());
    assert!(refused(TcpRxOptions { connections: vec![0], ..small() }).contains("0 connections"));
    let files = Files { json: None, svg: Some("/proc/no/such/folder".into()) };
    let ways = vec![WayName::Epoll];
    let one = TcpRxOptions { connections: vec![1], megabytes: Some(1), ways, ..small() };
    assert!(refused(TcpRxOptions { files, ..one.clone() }).contains("/proc/no/such/folder"));
    let bind = "no.such.name.invalid".to_owned();
    assert!(
        refused(TcpRxOptions { client: Client::External, bind, port: Some(1), ..one })
            .contains("no.such.name.invalid")
    );
}
