//! `zerowire ctl`, and metrics over TCP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixListener;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::control::{Controlled, split};
use crate::support::processes::{kill, status};
use crate::support::{Guest, PATIENCE, Peer, connect, in_netns, wait_until};
use zerowire_testkit::net::ip;

fn ctl(server: &Controlled, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.arg("ctl").args(arguments).arg("--control").arg(server.control());
    command.output().expect("the program starts")
}

/// What it prints; it must succeed.
fn said(server: &Controlled, arguments: &[&str]) -> String {
    let output = ctl(server, arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn each_command_says_what_it_did() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        let version = concat!("zerowire ", env!("CARGO_PKG_VERSION"), "\nVMs are confined\n");
        assert_eq!(said(&server, &["version"]), version);
        assert_eq!(said(&server, &["list"]), "no VMs\n");
        let socket = server.path("zwctl").display().to_string();
        let add = ["add", "zwctl", "--socket", &socket, "--port", "tap:zwctl"];
        let added = said(&server, &add);
        assert!(added.starts_with("zwctl: added; a front end can connect to"), "{added}");
        let mut guest = Guest::start(connect(&server.path("zwctl")));
        guest.ping(&mut Peer::new("zwctl"));
        let table = said(&server, &["list"]);
        assert_eq!(table.lines().count(), 2, "{table}");
        assert!(table.contains("zwctl  running  connected  tap:zwctl,queues=1"), "{table}");
        for command in [&["show", "zwctl"][..], &["stats"]] {
            let text = said(&server, command);
            assert!(text.contains("guest to port") && text.contains("1 connections"), "{text}");
            let json: Value =
                serde_json::from_str(&said(&server, &[command, &["--json"]].concat())).expect("JSON");
            let vm = if command[0] == "show" { &json["statistics"] } else { &json["vms"][0] };
            assert_eq!(vm["transmit"]["frames"], 3);
        }
        assert!(said(&server, &["metrics"]).ends_with("# EOF\n"));
        let list: Value = serde_json::from_str(&said(&server, &["list", "--json"])).expect("JSON");
        assert_eq!(list["vms"][0]["name"], "zwctl");

        let change = ["change", "zwctl", "--port", "tap:zwctm", "--tx-limit", "1G/s"];
        let output = ctl(&server, &change);
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && text.contains("ctl change NAME --reconnect"), "{text}");
        guest.ping(&mut Peer::new("zwctl"));
        let changed = said(&server, &[&change[..], &["--reconnect"]].concat());
        assert!(
            changed.contains("zwctl: a front end can connect to") && changed.contains("tap:zwctm"),
            "{changed}"
        );
        drop(guest);
        let mut guest = Guest::start(connect(&server.path("zwctl")));
        guest.ping(&mut Peer::new("zwctm"));

        assert!(said(&server, &["drain", "zwctl"]).contains("takes no further front end"));
        assert!(said(&server, &["list"]).contains("zwctl  draining"));
        assert_eq!(said(&server, &["remove", "zwctl"]), "zwctl: removed\n");
        assert_eq!(said(&server, &["list"]), "no VMs\n");
    });
}

/// A path has any character. On a terminal it neither begins a line nor moves the cursor.
#[test]
fn control_characters_of_paths_are_escaped() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        let socket = server.path("s\u{1b}[2J\nfake  running").display().to_string();
        for command in [
            &["add", "zwesc", "--socket", &socket, "--port", "tap:zwesc"][..],
            &["list"],
            &["show", "zwesc"],
            &["stats"],
        ] {
            let text = said(&server, command);
            assert!(!text.contains('\u{1b}') && text.contains("s\\u{1b}[2J\\nfake"), "{command:?}: {text}");
        }
        let list: Value = serde_json::from_str(&said(&server, &["list", "--json"])).expect("JSON");
        assert_eq!(list["vms"][0]["config"]["socket"], socket);
    });
}

#[test]
fn what_can_not_be_done_has_a_reason_and_a_status() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        let socket = server.path("s").display().to_string();
        for (arguments, code, words) in [
            (&["show", "nobody"][..], 1, "no VM is named 'nobody'"),
            (&["remove", "nobody"], 1, "no VM is named"),
            (&["change", "nobody", "--metadata", "/m"], 1, "no VM is named"),
            (&["change", "nobody", "--groups", "x", "--reconnect"], 1, "no VM is named"),
            (&["change", "nobody", "--reconnect"], 2, "nothing is to change"),
            (&["add", "a", "--socket", &socket, "--port", "tun:a"], 2, "--port: port 'tun:a'"),
            (&["add", "a", "--socket", "/no/such/s", "--port", "tap:a"], 1, "--socket: VM a: can't listen"),
            (&["add", "a", "--port", "tap:a"], 2, "--socket <PATH>"),
            (
                &["add", "a", "--socket", &socket, "--port", "tap:a", "--socket-mode", "9"],
                2,
                "--socket-mode: mode",
            ),
            (&["metrics", "--json"], 2, "leave it out"),
            (&["lsit"], 2, "'list'"),
        ] {
            let output = ctl(&server, arguments);
            let text = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
            assert!(text.contains(words), "{arguments:?}: {text}");
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        let output =
            command.args(["ctl", "--control", "/no/such/socket", "list"]).output().expect("it starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && text.contains("no server can be reached at /no/such/socket"),
            "{text}"
        );
    });
}

#[test]
fn statistics_can_be_followed() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        server.add("zwfollow");
        let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        command.args(["ctl", "stats", "--follow", "--json", "--control"]).arg(server.control());
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        for line in lines.by_ref().take(3) {
            let stats: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
            assert_eq!(stats["vms"][0]["name"], "zwfollow");
        }
        // The end of the server is its end.
        server.program.stop();
        lines.for_each(|line| drop(line.expect("a line")));
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    });
}

#[test]
fn a_server_that_is_killed_is_no_end_of_its_statistics() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
        command.args(["ctl", "stats", "--follow", "--json", "--control"]).arg(server.control());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        lines.next().expect("statistics").expect("a line");
        server.program.kill();
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), text.contains("ends early")), (Some(1), true), "{text}");
    });
}

/// An answer, of which `ctl` gets `sent`, and is stopped and goes on while it waits for that.
fn answered(sent: &str) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("control");
    let server = UnixListener::bind(&path).expect("a socket");
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
    command.args(["ctl", "version", "--json", "--control"]).arg(&path);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let (mut client, _) = server.accept().expect("it connects");
    client.set_read_timeout(Some(PATIENCE)).expect("a limit");
    let (mut request, pid) = (BufReader::new(&client).lines(), child.id() as i32);
    assert!(request.any(|line| line.expect("a line").is_empty()), "a request");
    wait_until("it waits", || status(pid, "State") == "S");
    for (signal, then) in [(libc::SIGSTOP, "T"), (libc::SIGCONT, "S")] {
        kill(pid, signal);
        wait_until("it is stopped, or goes on", || status(pid, "State") == then);
    }
    client.write_all(sent.as_bytes()).expect("it reads");
    drop(client);
    let output = child.wait_with_output().expect("it ends");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_answer_is_taken_whole_and_by_a_client_that_was_stopped() {
    let (code, text) = answered("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n{}\n");
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = answered("HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{}\n");
    assert_eq!(
        (code, text.contains("the server's answer ends early: 3 of 30 bytes came")),
        (Some(1), true),
        "{text}"
    );
}

#[test]
fn prometheus_reads_metrics_over_tcp() {
    in_netns(|| {
        ip(&["link", "set", "lo", "up"]);
        let server = Controlled::start(&["--metrics", "127.0.0.1:0"]);
        server.program.wait_log("metrics at http://");
        let log = server.program.log();
        let at = log.find("metrics at http://").expect("a line") + "metrics at http://".len();
        let address = log[at..].split('/').next().expect("an address").to_owned();
        server.add("zwprom");
        let ask = |request: &str| {
            let mut stream = TcpStream::connect(&address).expect("a connection");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            stream.write_all(request.as_bytes()).expect("sent");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            let (status, body) = split(&answer);
            (status, answer, body)
        };
        let accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        let (status, answer, body) =
            ask(&format!("GET /metrics HTTP/1.1\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"));
        assert!(status == 200 && body.ends_with("# EOF\n"), "{answer}");
        assert!(answer.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{answer}");
        let (_, answer, body) = ask("GET /metrics HTTP/1.0\r\n\r\n");
        assert!(answer.contains("Content-Type: text/plain; version=0.0.4"), "{answer}");
        assert!(body.contains("\nzerowire_front_end_connected{vm=\"zwprom\"} 0\n"), "{body}");
        // Nothing else is served there.
        for request in ["GET /vms", "DELETE /vms/zwprom", "PUT /vms/a", "GET /stats"] {
            let (status, answer, _) = ask(&format!("{request} HTTP/1.1\r\nConnection: close\r\n\r\n"));
            assert_eq!(status, 404, "{answer}");
        }
        // It has one listener, whoever asks.
        let clients: Vec<_> = (0..100).map(|_| TcpStream::connect(&address).expect("a connection")).collect();
        assert_eq!(ask("GET /metrics HTTP/1.0\r\n\r\n").0, 200, "idle clients keep nobody out");
        drop(clients);
        server.program.stop();
    });
}
