//! The programs to start from, each run against a plain peer. What zcrx_receiver does on a NIC's
//! queue is not run here: no interface that a test can make gives a queue away.

use crate::support::program::{Ended, Running, example};
use crate::support::streams::{pattern, write_stream};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use zerowire_testkit::PATIENCE;
use zerowire_testkit::mapped::{Daemon, memfd};
use zerowire_testkit::net::lab::{HERE, NOBODY_MAC, in_lab};
use zerowire_wire::mapped::{ENTRY_DIRECT, ENTRY_EOM, PAGE};

/// No multiple of any buffer's length.
const LEN: usize = 3_000_017;

fn run(name: &str, args: &[&str]) -> Ended {
    Running::start(example(name).args(args)).end()
}

fn file(content: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().expect("text")
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn read(mut stream: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

fn ask(address: SocketAddr, request: &str) -> TcpStream {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

#[test]
fn the_file_server_lends_to_several_clients_at_once() {
    let content = pattern(1, 0, LEN);
    let (source, copy) = (file(&content), file(&[]));
    let whole = [format!("HTTP/1.0 200 OK\r\nContent-Length: {LEN}\r\n\r\n").as_bytes(), &content].concat();
    for mode in ["copy", "zerocopy", "auto"] {
        let args = [path(&source), "--listen", "127.0.0.1:0", "--mode", mode, "--clients", "3"];
        let (server, address) = Running::start(example("file_server").args(args)).address();
        // One that asks and doesn't read holds up nobody.
        let late = ask(address, "GET / HTTP/1.0\r\n\r\n");
        assert!(read(&ask(address, "GET /a HTTP/1.1\r\nHost: a\r\n\r\n")) == whole, "{mode}");
        let url = format!("http://{address}/b");
        let curl = Command::new("curl").args(["-sS", "--noproxy", "*", "-o", path(&copy), &url]).output();
        let curl = curl.unwrap_or_else(|e| panic!("curl can't be run: {e}; scripts/install.sh installs it"));
        assert!(curl.status.success(), "{mode}: {curl:?}");
        assert!(std::fs::read(copy.path()).unwrap() == content, "{mode}: curl");
        assert!(read(&late) == whole, "{mode}: the late one");
        drop(late);
        let ledgers = server.end().ledgers();
        assert_eq!(ledgers.len(), 3);
        for ledger in ledgers {
            assert_eq!(ledger.bytes as usize, whole.len(), "{mode}");
            // Over loopback the kernel copies what is lent.
            match mode {
                "copy" => assert_eq!(ledger.copied["asked"] as usize, whole.len(), "{ledger:?}"),
                "zerocopy" => assert!(ledger.copied["kernel"] as usize >= LEN, "{ledger:?}"),
                _ => {}
            }
        }
    }
}

#[test]
fn the_file_server_says_what_is_wrong() {
    run("file_server", &["/nonexistent"]).refused(&["/nonexistent"]);
    let source = file(b"content");
    run("file_server", &[path(&source), "--mode", "fast"]).refused(&["fast", "zerocopy"]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    run("file_server", &[path(&source), "--listen", &address]).refused(&[&address, "--listen"]);
    let args = [path(&source), "--listen", "127.0.0.1:0", "--clients", "1"];
    let (server, address) = Running::start(example("file_server").args(args)).address();
    let answer = read(&ask(address, "POST / HTTP/1.0\r\n\r\n"));
    assert!(answer.starts_with(b"HTTP/1.0 405 "), "{}", String::from_utf8_lossy(&answer));
    let ended = server.end();
    assert!(ended.stderr.contains("POST") && ended.stderr.contains("send GET"), "{ended:?}");
}

/// Writes one stream and reads another one at the same time, each to its end.
fn exchange(stream: &TcpStream, write: usize, expect: usize) {
    thread::scope(|scope| {
        scope.spawn(|| {
            write_stream(&mut stream.try_clone().unwrap(), write, LEN, 50_000);
            stream.shutdown(Shutdown::Write).unwrap();
        });
        assert!(read(stream) == pattern(expect, 0, LEN), "stream {expect}");
    });
}

#[test]
fn the_proxy_lends_both_ways() {
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = target.local_addr().unwrap().to_string();
    let args = ["127.0.0.1:0", &to, "--clients", "2"];
    let (proxy, address) = Running::start(example("proxy").args(args)).address();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                exchange(&target.accept().unwrap().0, 2, 1);
            }
        });
        for _ in 0..2 {
            exchange(&connect(address), 1, 2);
        }
    });
    // Received and sent, each way, of two clients.
    let ledgers = proxy.end().ledgers();
    assert_eq!(ledgers.len(), 8, "{ledgers:?}");
    assert!(ledgers.iter().all(|ledger| ledger.bytes as usize == LEN), "{ledgers:?}");
}

#[test]
fn the_proxy_forwards_one_way_and_names_a_target_that_is_not_there() {
    let target = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = target.local_addr().unwrap().to_string();
    let args = ["127.0.0.1:0", &to, "--one-way", "--clients", "1"];
    let (proxy, address) = Running::start(example("proxy").args(args)).address();
    let mut client = connect(address);
    let receiver = thread::spawn(move || read(&target.accept().unwrap().0));
    write_stream(&mut client, 3, LEN, 50_000);
    client.shutdown(Shutdown::Write).unwrap();
    assert!(receiver.join().unwrap() == pattern(3, 0, LEN));
    assert_eq!(proxy.end().ledgers().len(), 2);

    let args = ["127.0.0.1:0", &to, "--clients", "1"];
    let (proxy, address) = Running::start(example("proxy").args(args)).address();
    assert!(read(&connect(address)).is_empty(), "the end, and no byte");
    let ended = proxy.end();
    assert!(ended.stderr.contains(&to) && ended.stderr.contains("listen there"), "{ended:?}");
    run("proxy", &["nowhere", &to]).refused(&["can't listen at nowhere"]);
}

#[test]
fn the_zcrx_receiver_falls_back_and_says_why() {
    let copy = file(&[]);
    let args = ["-i", "lo", "-q", "0", "--listen", "127.0.0.1:0", "--to", path(&copy)];
    let mut receiver = Running::start(example("zcrx_receiver").args(args));
    let why = receiver.line();
    assert!(why.contains("queue 0 of lo") && why.contains("mlx5"), "{why}");
    let (receiver, address) = receiver.address();
    write_stream(&mut connect(address), 4, LEN, 50_000);
    let ledgers = receiver.end().ledgers();
    assert_eq!((ledgers.len(), ledgers[0].copied["kernel"] as usize), (1, LEN), "{ledgers:?}");
    assert!(std::fs::read(copy.path()).unwrap() == pattern(4, 0, LEN));

    let args = ["-i", "lo", "-q", "0", "--listen", "127.0.0.1:0", "--strict"];
    run("zcrx_receiver", &args).refused(&["queue 0 of lo", "mlx5"]);
}

#[test]
fn the_xdp_generator_sends_numbered_frames() {
    in_lab(|lab| {
        lab.veth();
        let capture = lab.capture();
        let to = NOBODY_MAC.map(|byte| format!("{byte:02x}")).join(":");
        // More than there are places.
        let ended = run("xdp_generator", &[HERE, "--count", "3000", "--len", "100", "--to", &to]);
        for number in 0..3000u64 {
            let frame = capture.expect();
            let want = [&NOBODY_MAC[..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &number.to_be_bytes(), &[0; 78]];
            assert_eq!(frame, want.concat(), "frame {number}");
        }
        assert_eq!(capture.rest().len(), 0);
        let ledgers = ended.ledgers();
        assert_eq!((ledgers.len(), ledgers[0].copied["kernel"]), (1, 300_000), "{ended:?}");
        assert!(ended.stdout.contains("3000 frames in ") && ended.stdout.contains(" frames/s"), "{ended:?}");
        assert!(ended.stdout.contains("copy mode"), "{ended:?}");

        run("xdp_generator", &["nowhere0"]).refused(&["nowhere0", "ip link"]);
        run("xdp_generator", &[HERE, "--queue", "4000"]).refused(&["no queue 4000"]);
        run("xdp_generator", &[HERE, "--len", "9000"]).refused(&["9000", "raise the MTU"]);
        run("xdp_generator", &[HERE, "--len", "20"]).refused(&["20", "60.."]);
        for to in ["02:zz", "+2:0:0:0:0:1"] {
            run("xdp_generator", &[HERE, "--to", to]).refused(&[to, "six bytes"]);
        }
    });
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("hash {hash:016x}; ")
}

#[test]
fn the_mapped_receiver_hashes_windows() {
    let content = pattern(5, 0, LEN);
    for messages in [false, true] {
        let (options, kind, flags): (&[&str], _, _) =
            if messages { (&["--messages", "--listen"], 2, ENTRY_EOM) } else { (&[], 1, 0) };
        let daemon = Daemon::new();
        let program = Running::start(example("mapped_vsock").arg(daemon.path()).arg("5000").args(options));
        let peer = daemon.accept();
        assert_eq!((peer.request.port, peer.request.kind), (5000, kind));
        if messages {
            peer.listening();
        }
        let mut writer = peer.connect();
        for part in content.chunks(LEN.div_ceil(3)) {
            writer.send(part, flags);
        }
        writer.end();
        let ended = program.end();
        assert!(ended.stdout.starts_with(&hash(&content)), "{ended:?}");
        assert_eq!(ended.stdout.contains(", 3 messages, "), messages, "{ended:?}");
        let all =
            format!("{LEN} bytes: 0 not copied, {LEN} copied by zerowire vsock (window), 0 by this program");
        assert!(ended.code == Some(0) && ended.stdout.contains(&all), "{ended:?}");
    }
}

#[test]
fn the_mapped_receiver_hashes_where_the_guest_has_it() {
    let daemon = Daemon::new();
    let program = Running::start(example("mapped_vsock").arg(daemon.path()).args(["5000", "--direct"]));
    let memory = memfd(2 * PAGE, rustix::fs::SealFlags::SHRINK);
    let content = pattern(6, 0, 3000);
    rustix::io::pwrite(&memory, &content, 5).unwrap();
    let mut writer = daemon.accept().connect_with(&[(memory, 0, 2 * PAGE as u64)]);
    writer.raw(0, &[(3000, ENTRY_DIRECT), (5, 0)]);
    writer.end();
    let ended = program.end();
    assert!(ended.stdout.starts_with(&hash(&content)), "{ended:?}");
    assert!(ended.stdout.contains("3000 bytes: 3000 not copied, 0 copied"), "{ended:?}");
}

#[test]
fn the_mapped_receiver_says_what_is_wrong() {
    let daemon = Daemon::new();
    let absent = daemon.folder().join("absent.map");
    run("mapped_vsock", &[absent.to_str().unwrap(), "5000"]).refused(&["absent.map", "--uds"]);
    let program = Running::start(example("mapped_vsock").arg(daemon.path()).arg("5000"));
    let peer = daemon.accept();
    let mut writer = peer.connect();
    writer.send(&[1; 56], 0);
    drop((writer, peer, daemon));
    let ended = program.end();
    ended.refused(&["zerowire vsock closed the connection"]);
    assert!(ended.stdout.contains("56 bytes: 0 not copied, 56 copied"), "{ended:?}");
}

#[test]
fn the_ledger_is_printed_as_json() {
    for mode in ["copy", "zerocopy", "auto"] {
        let ended = run("ledger_json", &["--bytes", "5000000", "--payload", "10000", "--mode", mode]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let said: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        for side in ["sent", "received"] {
            let ledger = &said[side]["ledger"];
            let copied = ledger["copied_bytes"].as_object().unwrap().values().map(|n| n.as_u64().unwrap());
            let booked = copied.sum::<u64>() + ledger["zero_copied_bytes"].as_u64().unwrap();
            assert_eq!((&ledger["bytes"], booked), (&5_000_000.into(), 5_000_000), "{mode}: {said}");
        }
        assert_eq!(said["received"]["zero_copied_is"], "exact", "{said}");
        let lent = said["sent"]["ledger"]["copied_bytes"]["asked"].is_null();
        assert_eq!(lent, mode != "copy", "{said}");
    }
    run("ledger_json", &["--payload", "0"]).refused(&["0", "1..=16777216"]);
}
