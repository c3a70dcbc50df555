//! `zerowire-bench vsock-rx`: client and server by themselves, and the table with the program
//! `zerowire` of the same build.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use zerowire_bench::case::WorkingSet;
use zerowire_bench::experiment::Files;
use zerowire_bench::vsock_rx::options::PORT;
use zerowire_bench::vsock_rx::{
    ClientOptions, ReceiveMode, RxPlace, ServerOptions, TableOptions, run_client, run_server, run_table,
};

use crate::support::program;

fn small() -> TableOptions {
    TableOptions {
        quick: true,
        rounds: Some(1),
        megabytes: Some(4),
        sizes: vec![4096, 128 << 10],
        working_sets: vec![WorkingSet::Hot],
        ..Default::default()
    }
}

#[test]
fn the_floors_count_every_byte() {
    let mut text = Vec::new();
    let report = run_table(&small(), &mut text).unwrap();
    assert_eq!(report.cases.len(), 4);
    assert_eq!(report.failures(), Vec::<String>::new());
    for case in &report.cases {
        assert_eq!(case.lines.len(), 4);
        assert!(case.lines.iter().all(|line| line.samples[0].bytes == 4 << 20));
    }
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("only the floors were measured") && text.contains("Host to guest"), "{text}");
}

/// The content is checked within: the warm-up of each line fails with a byte that is lost or
/// changed.
#[test]
fn each_mode_moves_the_right_bytes_both_ways() {
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = temporary.path().to_owned();
    let json = folder.join("report.json");
    let options = TableOptions {
        program: Some(program()),
        tool: env!("CARGO_BIN_EXE_zerowire-bench").into(),
        files: Files { json: Some(json.clone()), svg: Some(folder.clone()) },
        ..small()
    };
    let mut text = Vec::new();
    let report = run_table(&options, &mut text).unwrap();
    assert_eq!(report.failures(), Vec::<String>::new());
    assert!(!report.head.notes.iter().any(|note| note.contains("left out")), "{:?}", report.head.notes);
    let value: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    for chart in ["cpu-tx-hot", "cpu-rx-hot", "ratio-tx-hot", "ratio-rx-hot"]
        .map(|name| format!("vsock-rx-{name}.svg"))
    {
        assert!(folder.join(&chart).is_file(), "{chart}");
    }

    for case in value["cases"].as_array().unwrap() {
        // Both lengths were published.
        assert!(case["published_ratio"].as_f64().unwrap() > 0.0, "{case}");
        let lines = case["lines"].as_array().unwrap();
        let names: Vec<&str> = lines.iter().map(|line| line["line"].as_str().unwrap()).collect();
        let direct: &[&str] = if case["direction"] == "transmit" { &["direct"] } else { &[] };
        let floors = ["floor-touch", "floor-copy-touch", "floor-touch-woken", "floor-copy-touch-woken"];
        let modes = ["copy", "mapped", "polling"].iter().chain(direct).chain(&["mapped-copied"]);
        assert_eq!(names, floors.iter().chain(modes).copied().collect::<Vec<&str>>());
        for line in lines {
            let sample = &line["samples"][0];
            assert_eq!(sample["bytes"], 4 << 20, "{line}");
            assert!(line["cpu_s_per_gb"]["median"].as_f64().unwrap() > 0.0);
            let dequeues = sample["dequeues"].as_u64().unwrap();
            assert!(dequeues > 0);
            // D against copying, as it was published.
            let name = line["line"].as_str().unwrap();
            assert_eq!(
                line["dequeue_to_copy"].is_null(),
                name == "copy" || name.starts_with("floor"),
                "{line}"
            );
            match name {
                "direct" => assert!(line["direct_share"].as_f64().unwrap() > 0.0),
                // Host to guest, windows are the device's buffers.
                "mapped" | "polling" if case["direction"] == "transmit" => {
                    assert!(line["dequeue_len"].as_f64().unwrap() <= case["len"].as_f64().unwrap());
                }
                _ => {}
            }
        }
    }
}

#[test]
fn server_and_client_meet_and_agree_on_the_bytes() {
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = temporary.path().to_owned();
    let uds = folder.join("end");
    let options = ServerOptions {
        place: RxPlace::Host(uds.clone()),
        port: PORT,
        bytes: 3_000_001,
        tx_buffer: 1 << 20,
        check: true,
    };
    let server = std::thread::spawn(move || run_server(&options));
    let path = folder.join(format!("end_{PORT}"));
    // What comes from the guest arrives here as any unix stream does.
    let stream = loop {
        match std::os::unix::net::UnixStream::connect(&path) {
            Ok(stream) => break stream,
            Err(_) if !server.is_finished() => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}: {:?}", server.join()),
        }
    };
    let options = ClientOptions {
        place: RxPlace::Host(uds),
        cid: 3,
        port: PORT,
        mode: ReceiveMode::Copy,
        pages: 16,
        lowat: 65_536,
        credit: 0,
        windows: 0,
        copy_out: false,
        check: true,
    };
    let client = zerowire_bench::vsock_rx::connection::receive(&stream, &options).unwrap();
    drop(stream);
    let server = server.join().unwrap().unwrap();
    assert_eq!((client.bytes, server.bytes), (3_000_001, 3_000_001));
    assert!(client.sum.is_some() && client.sum == server.sum);
    assert_eq!(client.dequeues, 3_000_001_u64.div_ceil(65_536));
    let text = client.to_string();
    for word in ["receive loop:", "in dequeue calls:", "wake-ups:", "average dequeue:"] {
        assert!(text.contains(word), "{text}");
    }
    assert!(server.to_string().contains("send loop:"));
}

#[test]
fn wrong_options_and_places_are_named_with_the_remedy() {
    let refused = |options: TableOptions| run_table(&options, &mut Vec::new()).unwrap_err().to_string();
    assert!(refused(TableOptions { rounds: Some(0), ..small() }).contains("at least 1"));
    assert!(refused(TableOptions { sizes: vec![100], ..small() }).contains("100 bytes"));

    let client = ClientOptions {
        place: RxPlace::Kernel,
        cid: 2,
        port: PORT,
        mode: ReceiveMode::Mapped,
        pages: 1,
        lowat: 1,
        credit: 0,
        windows: 0,
        copy_out: false,
        check: false,
    };
    let failed = |options: ClientOptions| format!("{:#}", run_client(&options).unwrap_err());
    let nowhere = RxPlace::Device("somewhere".to_owned());
    assert!(failed(ClientOptions { place: nowhere, ..client.clone() }).contains("'somewhere'"));
    let nobody = RxPlace::Host(PathBuf::from("/nonexistent/vsock"));
    assert!(failed(ClientOptions { place: nobody, ..client }).contains("/nonexistent/vsock.map"));
}
