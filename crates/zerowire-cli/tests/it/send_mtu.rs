//! `zerowire send --udp` over a path with an MTU. The kernel cuts datagrams that fit; longer ones
//! go one by one as IP fragments, and the output says which. All arrive whole at a plain receiver.
//! Needs root.

use std::io::Write;
use std::net::UdpSocket;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::support::send::{PATIENCE, booked, command, file, json, pattern, spawn};
use serde_json::Value;
use zerowire::send::longest_segment;
use zerowire_testkit::net::lab::{self, HERE, Lab, in_lab};
use zerowire_testkit::net::set_option;

/// A socket of the peer's.
fn receiver(lab: &Lab, ipv6: bool) -> UdpSocket {
    if !ipv6 {
        return lab.udp().0;
    }
    lab.at_peer(|| {
        let socket = UdpSocket::bind("[fd77::2]:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        set_option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 64 << 20);
        socket
    })
}

/// The next `content` as datagrams of `length` bytes each. Where what was read ends, one may be
/// shorter.
fn expect(socket: &UdpSocket, content: &[u8], length: usize, case: &str) {
    let mut buffer = vec![0; 70_000];
    for (number, part) in content.chunks(length).enumerate() {
        let received = std::iter::repeat_with(|| socket.recv(&mut buffer))
            .find(|r| !r.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::Interrupted));
        let n = received.expect("an answer").unwrap_or_else(|e| panic!("{case}: datagram {number}: {e}"));
        assert!(n == part.len() && buffer[..n] == *part, "{case}: datagram {number} of {n} bytes");
    }
}

/// Waits for the end.
fn end(mut child: Child) -> Output {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "it doesn't end");
        lab::stir();
        std::thread::sleep(Duration::from_millis(1));
    }
    child.wait_with_output().unwrap()
}

fn sent(lab: &Lab, ipv6: bool, args: &[&str], expected: usize) -> Value {
    let content = pattern(expected * 150 + 7);
    let file = file(&content);
    let receiver = receiver(lab, ipv6);
    let to = receiver.local_addr().unwrap().to_string();
    let path = file.path().to_str().unwrap();
    let args = [&["--to", &to, "--udp", "--json", "-", path], args].concat();
    let child = spawn(&args);
    // Meanwhile: lent fragments to a receiver of this machine are back when it has read them.
    expect(&receiver, &content, expected, &format!("{args:?}"));
    let output = end(child);
    let result = json(&output);
    assert!(output.status.success(), "{args:?}: {result}");
    assert_eq!(booked(&result), content.len() as u64, "{args:?}: {result}");
    assert_eq!(result["bytes"], content.len(), "{args:?}");
    assert_eq!(result["datagrams"]["bytes"], expected, "{args:?}: {result}");
    result
}

fn longer_than_the_path(lab: &Lab, ipv6: bool, longest: usize) {
    for mode in ["copy", "zerocopy", "auto"] {
        for backend in ["socket", "uring"] {
            for length in [longest, longest + 1, 9000, 30_000, 32_753] {
                let asked = length.to_string();
                let args = ["--datagram", &asked, "--mode", mode, "--backend", backend];
                let result = sent(lab, ipv6, &args, length);
                let fits = length == longest;
                let told = &result["datagrams"];
                assert_eq!(told["segmented"], fits, "{args:?}: {result}");
                assert_eq!(told["unsegmented_because"].is_null(), fits, "{args:?}: {result}");
                if !fits {
                    let why = told["unsegmented_because"].as_str().unwrap();
                    assert!(why.contains(&format!("longer than the {longest}")), "{why}");
                    assert_eq!(result["ledger"]["frames"], 151, "{args:?}: each is a payload");
                }
            }
        }
    }
}

#[test]
fn datagrams_longer_than_the_path_takes_arrive_whole_and_it_is_said() {
    in_lab(|lab| {
        lab.veth();
        lab.ipv6();
        for mtu in [1500, 1420] {
            lab.mtu(HERE, mtu);
            longer_than_the_path(lab, false, mtu - 28);
            longer_than_the_path(lab, true, mtu - 48);
        }
    });
}

#[test]
fn the_length_that_nobody_asked_for_follows_the_path() {
    in_lab(|lab| {
        lab.veth();
        lab.ipv6();
        // WireGuard has 1420, and IPv6 at least 1280.
        for (mtu, ipv6, expected) in [
            (1500, false, 1400),
            (1500, true, 1400),
            (1420, false, 1392),
            (1420, true, 1372),
            (1280, true, 1232),
            (576, false, 548),
        ] {
            lab.mtu(HERE, mtu);
            let result = sent(lab, ipv6, &[], expected);
            assert_eq!(result["datagrams"]["segmented"], true, "{mtu}: {result}");
        }
    });
}

/// What the path takes may become less while it is sent.
#[test]
fn an_mtu_that_falls_while_it_is_sent_costs_nothing_but_calls() {
    in_lab(|lab| {
        lab.veth();
        for backend in ["socket", "uring"] {
            lab.mtu(HERE, 1500);
            let receiver = receiver(lab, false);
            let to = receiver.local_addr().unwrap().to_string();
            let mut child =
                command(&["--to", &to, "--udp", "--backend", backend]).stdin(Stdio::piped()).spawn().unwrap();
            let mut input = child.stdin.take().unwrap();
            let content = pattern(14_000);
            input.write_all(&content).unwrap();
            expect(&receiver, &content, 1400, "before");
            lab.mtu(HERE, 1300);
            for round in 0..3 {
                input.write_all(&content).unwrap();
                expect(&receiver, &content, 1400, &format!("{backend}, behind it, {round}"));
            }
            drop(input);
            let output = end(child);
            let (out, log) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{out}{log}");
            // The summary is broken into lines for a terminal.
            let unbroken = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            for text in [unbroken(&out), unbroken(&log)] {
                let said =
                    "datagrams of 1400 bytes, not segmented: segment_bytes 1400 is more than the path takes";
                assert_eq!(text.matches(said).count(), 1, "once: {text}");
                assert!(text.contains("1272 bytes"), "{text}");
            }
            assert!(log.contains("datagrams of 1400 bytes, up to 46 in one call (UDP_SEGMENT)"), "{log}");
        }
    });
}

/// A router on the path has the smaller MTU, and answers a datagram that was too long.
#[test]
fn a_router_with_a_smaller_mtu_does_not_end_it() {
    in_lab(|lab| {
        lab.veth();
        lab.behind(1280);
        for (backend, to) in [("socket", "10.78.0.11:5000"), ("uring", "10.78.0.12:5000")] {
            let args = ["--to", to, "--udp", "--json", "-", "--datagram", "1400", "--backend", backend];
            let mut child = command(&args).stdin(Stdio::piped()).spawn().unwrap();
            let mut input = child.stdin.take().unwrap();
            let known = UdpSocket::bind("0.0.0.0:0").unwrap();
            known.connect(to).unwrap();
            input.write_all(&pattern(1400)).unwrap();
            let start = Instant::now();
            while longest_segment(&known) != Some(1252) {
                assert!(start.elapsed() < PATIENCE, "{backend}: no answer");
                std::thread::sleep(Duration::from_millis(1));
            }
            // Whoever waits for input hears of the answer now, or else the next datagram does.
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(20));
                // It may have ended.
                let _ = input.write_all(&pattern(2800));
            }
            drop(input);
            let output = end(child);
            let result = json(&output);
            assert!(output.status.success(), "{backend}: {result}");
            assert_eq!(result["bytes"], 1400 + 3 * 2800, "{backend}: {result}");
            assert_eq!(result["datagrams"]["segmented"], false, "{backend}: {result}");
        }
    });
}
