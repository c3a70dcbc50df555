//! `zerowire vsock --sandbox on --control`: VMs join the processes of others and leave them, and
//! processes die meanwhile. `control_vsock.rs` runs with the sandbox as well. Run as root.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::Value;
use zerowire_guest::vsock::ConnState;

use crate::support::control::Controlled;
use crate::support::processes::{children, held, kill, wait_idle};
use crate::support::vsock::{Guest, reach};
use crate::support::{PATIENCE, median_within, wait_until};

fn start(more: &[&str]) -> Controlled {
    Controlled::start_vsock(&[&["--sandbox", "on"], more].concat())
}

/// Adds a VM with these groups. Returns how long that took.
fn add(server: &Controlled, name: &str, cid: u64, groups: &[&str]) -> Duration {
    let begin = Instant::now();
    server.add_vsock(name, cid, groups);
    begin.elapsed()
}

fn guest(server: &Controlled, name: &str) -> Guest {
    Guest::start(&server.path(&format!("{name}.s")))
}

fn remove(server: &Controlled, name: &str) {
    let (status, text) = server.ask("DELETE", &format!("/vms/{name}"), "");
    assert_eq!(status, 204, "{text}");
}

/// The one process that is not among `others`.
fn other_child(server: &Controlled, others: &[i32]) -> i32 {
    let all: Vec<_> = children(&server.program).into_iter().filter(|pid| !others.contains(pid)).collect();
    assert_eq!(all.len(), 1, "{}", server.program.log());
    all[0]
}

#[test]
fn vms_join_the_process_of_their_groups_and_leave_it() {
    let server = start(&[]);
    add(&server, "a", 3, &["x"]);
    let a_and_b = other_child(&server, &[]);
    let alone = held(a_and_b);
    add(&server, "b", 4, &["x"]);
    assert_eq!(other_child(&server, &[]), a_and_b, "one process serves both");
    add(&server, "c", 5, &["y"]);
    let of_c = other_child(&server, &[a_and_b]);

    let (mut a, mut b, mut c) = (guest(&server, "a"), guest(&server, "b"), guest(&server, "c"));
    let (conn, mut stream) = a.open(&server.path("a"), 1000);
    a.ping(conn, &mut stream);
    reach(&mut a.stack, &mut b.stack, 4, 9);
    let of_b = b.open(&server.path("b"), 1000);
    server.program.wait_log("b: front end connected");
    assert_eq!(server.json("/vms/b")["statistics"]["connections_open"], 2);

    // What b had goes with it, and a goes on.
    drop((b, of_b));
    remove(&server, "b");
    assert!(!server.path("b").exists() && !server.path("b.s").exists());
    a.ping(conn, &mut stream);
    drop((a, stream));
    wait_until("the process has what it had", || held(a_and_b) == alone);
    remove(&server, "a");
    assert_eq!(children(&server.program), [of_c], "a process ends with its last VM");

    // A drained VM goes with its front end, and its process with it.
    assert_eq!(server.ask("POST", "/vms/c/drain", "").0, 202);
    assert_eq!(server.json("/vms/c")["state"], "draining");
    let (conn, mut stream) = c.open(&server.path("c"), 1000);
    c.ping(conn, &mut stream);
    drop(c);
    wait_until("it is gone", || server.names().is_empty() && children(&server.program).is_empty());
    assert!(!server.path("c").exists() && !server.path("c.s").exists());
    // Its name and its paths are free.
    add(&server, "c", 5, &["y"]);
    let (_, log) = server.program.stop();
    assert!(!log.contains("ERROR"), "{log}");
}

/// That of its VM, which the supervisor says.
#[test]
fn a_removal_is_one_line_of_the_log() {
    let server = start(&[]);
    let vms = ["a", "b", "c", "d"];
    for (name, cid) in vms.iter().zip(3..) {
        add(&server, name, cid, &["x"]);
    }
    vms.iter().rev().for_each(|name| remove(&server, name));
    let removed = |log: &str| {
        let mut lines: Vec<_> =
            log.lines().filter(|line| line.contains("removed")).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    wait_until("the log has it", || removed(&server.program.log()).len() >= vms.len());
    let (_, log) = server.program.stop();
    assert_eq!(removed(&log), vms.map(|name| format!(" INFO {name}: removed")), "{log}");
}

/// Nobody is told twice of a VM that is removed as soon as it is drained.
#[test]
fn a_vm_that_is_drained_and_removed_at_once_has_one_line() {
    let server = start(&[]);
    let names: Vec<_> = (0..12).map(|n| format!("vm{n}")).collect();
    for (name, cid) in names.iter().zip(3..) {
        // Some have a process of their own, and some share one.
        add(&server, name, cid, &[if cid % 3 == 0 { name.as_str() } else { "x" }]);
    }
    server.gone_at_once(&names);
}

/// Each with a process of its own.
#[test]
fn a_vm_is_added_within_20_ms() {
    let server = start(&[]);
    median_within("a VM is added", Duration::from_millis(20), || {
        let vms: Vec<_> = (3..35).map(|cid| (format!("vm{cid}"), cid)).collect();
        let took = vms.iter().map(|(name, cid)| add(&server, name, *cid, &[name])).collect();
        assert_eq!(children(&server.program).len(), vms.len());
        vms.iter().for_each(|(name, _)| remove(&server, name));
        took
    });
    server.program.stop();
}

/// A VM that connected two others leaves them in one process, which a fourth one joins, also one
/// that came after a death.
#[test]
fn a_set_stays_together_when_the_vm_leaves_that_connected_it() {
    let server = start(&[]);
    for (name, cid, groups) in [("a", 3, &["x"][..]), ("middle", 4, &["x", "y"]), ("c", 5, &["y"])] {
        add(&server, name, cid, groups);
    }
    remove(&server, "middle");
    let pid = other_child(&server, &[]);
    kill(pid, libc::SIGKILL);
    wait_until("another one serves", || children(&server.program).iter().any(|other| *other != pid));
    add(&server, "middle", 4, &["x", "y"]);
    let (mut middle, mut c) = (guest(&server, "middle"), guest(&server, "c"));
    reach(&mut middle.stack, &mut c.stack, 5, 9);
    server.program.stop();
}

#[test]
fn the_next_process_serves_the_vms_that_are_there() {
    let server = start(&[]);
    add(&server, "a", 3, &["x"]);
    for (name, cid) in [("b", 4), ("gone", 5), ("drained", 6)] {
        add(&server, name, cid, &["x"]);
    }
    remove(&server, "gone");
    assert_eq!(server.ask("PATCH", "/vms/b", "{\"tx-limit\": \"1M/s\"}").0, 200);
    let limits = server.json("/vms/b")["config"]["tx-limit"].clone();
    let drained = guest(&server, "drained");
    wait_until("it is connected", || server.json("/vms/drained")["connected"] == true);
    assert_eq!(server.ask("POST", "/vms/drained/drain", "").0, 202);

    let pid = other_child(&server, &[]);
    kill(pid, libc::SIGKILL);
    server.program.wait_log("b: its process ended: killed by signal 9; another one takes its place");
    drop(drained);
    wait_until("the drained one is gone", || server.names() == ["a", "b"]);
    let mut b = guest(&server, "b");
    let (conn, mut stream) = b.open(&server.path("b"), 1000);
    b.ping(conn, &mut stream);
    let shown = server.json("/vms/b");
    let error = shown["statistics"]["last_error"].as_str().unwrap_or_default();
    assert!(error.contains("killed by signal 9"), "{shown}");
    assert_eq!((&shown["config"]["tx-limit"], &shown["connected"]), (&limits, &Value::Bool(true)));
    assert!(!server.program.log().contains("gone: its process"), "{}", server.program.log());
    // The new process takes further VMs.
    add(&server, "gone", 5, &["x"]);
    let mut late = guest(&server, "gone");
    let (conn, mut stream) = late.open(&server.path("gone"), 1000);
    late.ping(conn, &mut stream);
    assert_eq!(children(&server.program).len(), 1);
    server.program.stop();
}

/// Front ends of VMs that were added one by one stay connected. One VM has gone, so numbers are not
/// places.
#[test]
fn a_vm_that_has_joined_keeps_its_front_end_when_its_process_dies() {
    let server = start(&[]);
    let [descriptors, ..] = server.at_rest();
    for (name, cid) in [("gone", 3), ("a", 4), ("b", 5), ("drained", 6)] {
        add(&server, name, cid, &["x"]);
    }
    remove(&server, "gone");
    let (mut a, mut b, mut drained) = (guest(&server, "a"), guest(&server, "b"), guest(&server, "drained"));
    let of_a = a.open(&server.path("a"), 1000);
    let of_b = b.open(&server.path("b"), 1000);
    drop(drained.open(&server.path("drained"), 1000));
    assert_eq!(server.ask("POST", "/vms/drained/drain", "").0, 202);
    // Counters of a process count as it told them last.
    let told = server.json("/stats");
    assert!(told["vms"].as_array().expect("a list").iter().all(|vm| vm["connections"] == 1), "{told}");
    for deaths in 1..=2 {
        let pid = other_child(&server, &[]);
        wait_idle(pid);
        kill(pid, libc::SIGKILL);
        wait_until("another one serves", || children(&server.program).iter().any(|other| *other != pid));
        if deaths == 1 {
            // The next process finds the names of their connections.
            for (guest, (conn, _)) in [(&mut a, &of_a), (&mut b, &of_b)] {
                let state = guest.stack.wait_closed(*conn, PATIENCE).expect("a sound ring");
                assert_eq!(state, ConnState::Reset);
            }
        }
        for (guest, name) in [(&mut a, "a"), (&mut b, "b"), (&mut drained, "drained")] {
            let (conn, mut stream) = guest.open(&server.path(name), 1000 + deaths);
            guest.ping(conn, &mut stream);
        }
    }
    for name in ["a", "b"] {
        let shown = server.json(&format!("/vms/{name}"));
        assert_eq!((&shown["connected"], &shown["statistics"]["connections"]), (&true.into(), &1.into()));
    }
    // The front end of a VM that is drained has left now.
    drop(drained);
    wait_until("it is gone", || server.names() == ["a", "b"]);
    // The supervisor keeps no session of a VM that is removed.
    remove(&server, "a");
    remove(&server, "b");
    wait_until("it has what it had", || server.holds()[0] <= descriptors);
    server.program.stop();
}

/// The process has not answered by then.
#[test]
fn a_vm_that_joins_while_its_process_dies_is_served_by_the_next_one() {
    let server = start(&[]);
    add(&server, "a", 3, &["x"]);
    let pid = other_child(&server, &[]);
    kill(pid, libc::SIGSTOP);
    std::thread::scope(|scope| {
        let added = scope.spawn(|| add(&server, "b", 4, &["x"]));
        wait_until("its sockets are there", || server.path("b.s").exists());
        // The process is asked.
        std::thread::sleep(Duration::from_millis(100));
        assert!(!added.is_finished());
        kill(pid, libc::SIGKILL);
        added.join().expect("it is added");
    });
    for name in ["a", "b"] {
        let mut guest = guest(&server, name);
        let (conn, mut stream) = guest.open(&server.path(name), 1000);
        guest.ping(conn, &mut stream);
        let shown = server.json(&format!("/vms/{name}"));
        let error = shown["statistics"]["last_error"].as_str().unwrap_or_default();
        assert_eq!(error.contains("killed by signal 9"), name == "a", "{shown}");
    }
    assert!(!server.program.log().contains("b: its process ended"), "{}", server.program.log());
    server.program.stop();
}

/// A counter never falls.
#[test]
fn the_cpu_time_of_a_process_counts_on_when_it_has_ended() {
    let server = start(&[]);
    let seconds = || server.json("/stats")["cpu_seconds"].as_f64().expect("a number");
    let mut before = seconds();
    for deaths in 0..2 {
        add(&server, "a", 3, &["x"]);
        let mut a = guest(&server, "a");
        let (conn, mut stream) = a.open(&server.path("a"), 1000);
        (0..500).for_each(|_| a.ping(conn, &mut stream));
        let with = seconds();
        assert!(with >= before, "{with} {before}");
        if deaths == 1 {
            kill(other_child(&server, &[]), libc::SIGKILL);
            server.program.wait_log("a: its process ended");
            assert!(seconds() >= with);
        }
        remove(&server, "a");
        before = seconds();
        assert!(before >= with, "{before} {with}");
    }
    server.program.stop();
}

/// Its set alone waits for it.
#[test]
fn a_process_that_hangs_keeps_no_vm() {
    let server = start(&[]);
    add(&server, "a", 3, &["x"]);
    add(&server, "b", 4, &["x"]);
    let hangs = other_child(&server, &[]);
    kill(hangs, libc::SIGSTOP);
    std::thread::scope(|scope| {
        let removed = scope.spawn(|| remove(&server, "a"));
        wait_until("it is being removed", || server.json("/vms/a")["state"] == "leaving");
        add(&server, "other", 5, &["y"]);
        let mut other = guest(&server, "other");
        let (conn, mut stream) = other.open(&server.path("other"), 1000);
        other.ping(conn, &mut stream);
        assert_eq!(server.json("/stats")["vms"][1]["connected"], true);
        remove(&server, "other");
        assert!(!removed.is_finished(), "it waits for the process");
        removed.join().expect("it is removed");
    });
    assert!(!server.path("a").exists() && !server.path("a.s").exists());
    server.program.wait_log("a: its process does not let it go, and is ended");
    // The next process serves the other VM.
    let mut b = guest(&server, "b");
    let (conn, mut stream) = b.open(&server.path("b"), 1000);
    b.ping(conn, &mut stream);
    assert_ne!(other_child(&server, &[]), hangs);
    server.program.stop();
}

#[test]
fn limits_hold_when_the_request_is_answered_or_the_answer_says_so() {
    let server = start(&[]);
    add(&server, "a", 3, &["x"]);
    let pid = other_child(&server, &[]);
    let limit = || server.ask("PATCH", "/vms/a", "{\"tx-limit\": \"1M/s\"}");
    kill(pid, libc::SIGSTOP);
    for _ in 0..2 {
        let (status, text) = limit();
        assert!(status == 503 && text.contains("holds when it does"), "{status} {text}");
    }
    kill(pid, libc::SIGCONT);
    let (status, text) = limit();
    assert!(status == 200 && text.contains("\"tx-limit\":\"1"), "{status} {text}");
    server.program.stop();
}

#[test]
fn metrics_are_served_over_tcp() {
    let server = start(&["--metrics", "127.0.0.1:0"]);
    server.program.wait_log("metrics at http://");
    add(&server, "a", 3, &["x"]);
    let mut a = guest(&server, "a");
    let (conn, mut stream) = a.open(&server.path("a"), 1000);
    a.ping(conn, &mut stream);
    let log = server.program.log();
    let address = log.split("metrics at http://").nth(1).and_then(|rest| rest.split('/').next());
    let mut client = TcpStream::connect(address.expect("an address")).expect("it listens");
    client.write_all(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").expect("room");
    let mut text = String::new();
    client.read_to_string(&mut text).expect("an answer");
    for line in [
        "zerowire_front_end_connected{vm=\"a\"} 1\n",
        "zerowire_vsock_bytes_total{vm=\"a\",direction=\"transmit\"} 5\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    server.program.stop();
}
