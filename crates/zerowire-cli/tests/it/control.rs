//! The control socket: each route, each error, and what a change leaves behind.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::support::control::{Controlled, dial, say, split};
use crate::support::processes::{ProcessTree, child, is_served, kill};
use crate::support::{Guest, Peer, connect, frames, http, in_netns, interface, wait_until};

#[test]
fn each_route_does_what_it_says() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        assert_eq!(server.json("/version")["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(server.json("/vms"), serde_json::json!({ "vms": [] }));

        let (status, text) = server.ask("PUT", "/vms/zwa", &server.vm("zwa"));
        let vm: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((status, &vm["name"], &vm["state"]), (201, &"zwa".into(), &"running".into()));
        assert_eq!(vm["config"]["port"], "tap:zwa,queues=1");
        assert_eq!(vm["config"]["socket-mode"], "0600");
        assert_eq!(vm["connected"], false);

        let mut guest = Guest::start(connect(&server.path("zwa")));
        guest.ping(&mut Peer::new("zwa"));
        let shown = server.json("/vms/zwa");
        assert_eq!((&shown["connected"], &shown["statistics"]["connections"]), (&true.into(), &1.into()));
        let stats = server.json("/stats");
        assert_eq!(stats["vms"][0]["transmit"]["frames"], 3);
        let text = |target: &str| {
            let request = format!("GET {target} HTTP/1.1\r\nAccept: text/plain\r\nConnection: close\r\n\r\n");
            say(&mut dial(&server.control()), request.as_bytes())
        };
        for target in ["/stats", "/vms/zwa"] {
            let (status, table) = text(target);
            assert!(status == 200 && table.contains("guest to port"), "{table}");
        }
        let (_, metrics) = server.ask("GET", "/metrics", "");
        assert!(
            metrics.contains("zerowire_frames_total{vm=\"zwa\",direction=\"transmit\"} 3\n"),
            "{metrics}"
        );

        // What it was added with adds it again.
        let config = shown["config"].to_string();
        drop(guest);
        assert_eq!(server.ask("DELETE", "/vms/zwa", "").0, 204);
        assert!(interface("zwa").is_none() && !server.path("zwa").exists());
        assert_eq!(server.ask("PUT", "/vms/another%20name", &config).0, 201);
        assert_eq!(server.names(), ["another name"]);
        assert_eq!(server.json("/vms/another%20name")["config"].to_string(), config);

        // A drained VM keeps its front end.
        let mut guest = Guest::start(connect(&server.path("zwa")));
        assert_eq!(server.ask("POST", "/vms/another%20name/drain", "").0, 202);
        assert_eq!(server.json("/vms/another%20name")["state"], "draining");
        guest.ping(&mut Peer::new("zwa"));
        drop(guest);
        wait_until("it is gone", || server.names().is_empty());
        let (_, log) = server.program.stop();
        assert!(!log.contains("ERROR"), "{log}");
        assert!(!server.dir.path().join("control").exists(), "the socket goes with the program");
    });
}

#[test]
fn metadata_change_while_the_guest_runs() {
    in_netns(|| {
        let server = Controlled::start(&["--metadata-token", "optional"]);
        let file = |name: &str, host: &str| {
            let text = format!("{{\"host\": \"{host}\"}}");
            std::fs::write(server.path(name), text).expect("a file");
            server.path(name).display().to_string()
        };
        let (one, two) = (file("one.json", "one"), file("two.json", "two"));
        let vm: Value = serde_json::from_str(&server.vm("zwm")).expect("JSON");
        let mut with = vm.clone();
        with["metadata"] = one.clone().into();
        assert_eq!(server.ask("PUT", "/vms/zwm", &with.to_string()).0, 201);
        let mut guest = Guest::start(connect(&server.path("zwm")));
        assert_eq!(http::get(&mut guest, 2000, "/host"), "one");
        let patch = serde_json::json!({ "metadata": two }).to_string();
        let (status, text) = server.ask("PATCH", "/vms/zwm", &patch);
        assert_eq!(status, 200, "{text}");
        let mut port = 2001;
        wait_until("the other metadata are served", || {
            port += 1;
            http::get(&mut guest, port, "/host") == "two"
        });
        // The same file is read again, and SIGHUP reads the new one.
        file("two.json", "three");
        assert_eq!(server.ask("PATCH", "/vms/zwm", &patch).0, 200);
        wait_until("it was read again", || {
            port += 1;
            http::get(&mut guest, port, "/host") == "three"
        });
        file("two.json", "four");
        server.program.signal(libc::SIGHUP);
        wait_until("it was read again", || {
            port += 1;
            http::get(&mut guest, port, "/host") == "four"
        });
        for (patch, status, pointer, words) in [
            ("{\"metadata\": null}", 409, "/metadata", "?reconnect"),
            ("{\"metadata-token\": \"required\"}", 409, "/metadata-token", "?reconnect"),
            ("{\"port\": \"tap:zwother\"}", 409, "/port", "?reconnect"),
            ("{\"socket\": \"/elsewhere\"}", 409, "/socket", "?reconnect"),
            ("{\"metadata\": \"/no/such/file\"}", 422, "/metadata", "/no/such/file"),
            ("{\"metadta\": \"/x\"}", 400, "/metadta", "unknown field"),
            ("{\"metadata\": 7}", 400, "/metadata", "string"),
        ] {
            let (got, text) = server.ask("PATCH", "/vms/zwm", patch);
            let said: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!((got, said["pointer"].as_str()), (status, Some(pointer)), "{patch}: {text}");
            assert!(said["error"].as_str().is_some_and(|e| e.contains(words)), "{patch}: {text}");
        }
        assert_eq!(http::get(&mut guest, 3000, "/host"), "four", "nothing of that has changed it");
        // A VM without metadata gets none while it runs.
        server.add("zwbare");
        assert_eq!(server.ask("PATCH", "/vms/zwbare", &patch).0, 409);
        assert_eq!(server.ask("PATCH", "/vms/zwbare", "{}").0, 200);
    });
}

/// What a VM says of tokens goes with its metadata, unless the command line's stand in for them.
#[test]
fn a_token_policy_stays_while_there_are_metadata() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let [all, own] = ["all.json", "own.json"].map(|name| dir.path().join(name).display().to_string());
        for path in [&all, &own] {
            std::fs::write(path, "{}").expect("a file");
        }
        let add = |args: &[&str]| {
            let server = Controlled::start(args);
            let mut vm: Value = serde_json::from_str(&server.vm("zwtok")).expect("JSON");
            (vm["metadata"], vm["metadata-token"]) = (own.clone().into(), "required".into());
            assert_eq!(server.ask("PUT", "/vms/zwtok", &vm.to_string()).0, 201);
            server
        };
        let change = |server: &Controlled, target: &str, patch: &str| {
            let (status, text) = server.ask("PATCH", target, patch);
            let config = &server.json("/vms/zwtok")["config"];
            let words = ["metadata", "metadata-token"].map(|key| config[key].as_str().map(str::to_owned));
            (status, words, text)
        };
        let now = |file: &str, token: &str| [Some(file.to_owned()), Some(token.to_owned())];
        let (here, anew) = ("/vms/zwtok", "/vms/zwtok?reconnect");
        let optional = "{\"metadata\": null, \"metadata-token\": \"optional\"}";

        let server = add(&["--metadata", &all, "--metadata-token", "optional"]);
        let (status, words, text) = change(&server, here, "{\"metadata\": null}");
        assert_eq!((status, words), (200, now(&all, "required")), "{text}");
        let required = "{\"metadata\": null, \"metadata-token\": \"required\"}";
        for (patch, token) in [(optional, "optional"), (required, "required")] {
            let (status, words, text) = change(&server, anew, patch);
            assert_eq!((status, words), (200, now(&all, token)), "{text}");
        }
        server.program.stop();

        let server = add(&[]);
        let (status, words, text) = change(&server, anew, optional);
        assert_eq!((status, words), (400, now(&own, "required")), "{text}");
        let (status, words, text) = change(&server, anew, "{\"metadata\": null}");
        assert_eq!((status, words), (200, [None, None]), "{text}");
    });
}

#[test]
fn a_guard_changes_while_the_guest_runs_and_the_next_process_has_it() {
    for sandbox in ["on", "off"] {
        in_netns(move || {
            let server = Controlled::start(&["--sandbox", sandbox]);
            server.add("zwgd");
            let mut guest = Guest::start(connect(&server.path("zwgd")));
            let mut peer = Peer::new("zwgd");
            guest.ping(&mut peer);
            let (status, text) =
                server.ask("PATCH", "/vms/zwgd", "{\"guard\": \"mac=02:00:00:00:00:77+vlan=off\"}");
            let vm: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(
                (status, vm["config"]["guard"].as_str()),
                (200, Some("mac=02:00:00:00:00:77+vlan=off"))
            );
            let refused = |server: &Controlled| {
                server.json("/vms/zwgd")["statistics"]["transmit"]["dropped_frames"]["guard_mac"].as_u64()
            };
            wait_until("the guard holds", || {
                guest.send(&frames::frame(1, 100));
                refused(&server) > Some(0)
            });
            if sandbox == "on" {
                // What does not hold yet is no success, and is what it is when the process goes on.
                kill(child(&server.program), libc::SIGSTOP);
                let (status, text) = server.ask("PATCH", "/vms/zwgd", "{\"guard\": \"vlan=7\"}");
                assert!(status == 503 && text.contains("does not answer"), "{status} {text}");
                kill(child(&server.program), libc::SIGCONT);
                let untagged = |server: &Controlled| {
                    server.json("/vms/zwgd")["statistics"]["transmit"]["dropped_frames"]["guard_vlan"]
                        .as_u64()
                };
                wait_until("the guard holds", || {
                    guest.send(&frames::frame(1, 100));
                    untagged(&server) > Some(0)
                });
                let mac = "{\"guard\": \"mac=02:00:00:00:00:77+vlan=off\"}";
                assert_eq!(server.ask("PATCH", "/vms/zwgd", mac).0, 200);
                kill(child(&server.program), libc::SIGKILL);
                let before = refused(&server);
                wait_until("the next process has it", || {
                    guest.send(&frames::frame(2, 100));
                    refused(&server) > before
                });
            }
            let (status, text) = server.ask("PATCH", "/vms/zwgd", "{\"guard\": \"ip=\"}");
            let said: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!((status, said["pointer"].as_str()), (400, Some("/guard")), "{text}");
            assert_eq!(server.ask("PATCH", "/vms/zwgd", "{\"guard\": null}").0, 200);
            assert_eq!(server.json("/vms/zwgd")["config"]["guard"], Value::Null);
            let mut peer = Peer::new("zwgd");
            wait_until("frames pass", || {
                guest.send(&frames::frame(3, 100));
                peer.recv(Duration::from_millis(50)).is_some_and(|got| got.bytes == frames::frame(3, 100))
            });
        });
    }
}

/// Method, target, body; status, pointer, words of the error.
type Refused<'a> = (&'a str, &'a str, &'a str, u16, Option<&'a str>, &'a str);

#[test]
fn a_bad_request_changes_nothing_and_says_what_and_where() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        server.add("zwthere");
        let before = server.json("/vms").to_string();
        let socket = server.path("zwnew").display().to_string();
        let with = |more: &str| format!("{{\"socket\": \"{socket}\", \"port\": \"tap:zwnew\"{more}}}");
        let vm = with("");
        let on = |key: &str, value: &str| {
            let mut vm: Value = serde_json::from_str(&vm).expect("JSON");
            vm[key] = value.into();
            vm.to_string()
        };
        std::fs::write(server.path("file"), "precious").expect("a file");
        let file = server.path("file").display().to_string();
        let there = server.path("zwthere").display().to_string();
        let cases: &[Refused<'_>] = &[
            ("GET", "/", "", 404, None, "no such path"),
            ("GET", "/vms/zwnone", "", 404, None, "no VM is named 'zwnone'"),
            ("DELETE", "/vms/zwnone", "", 404, None, "no VM is named"),
            ("POST", "/vms/zwnone/drain", "", 404, None, "no VM is named"),
            ("PATCH", "/vms/zwnone", "{}", 404, None, "no VM is named"),
            ("POST", "/vms/zwthere", "", 405, None, "GET, HEAD, PUT, PATCH, DELETE"),
            ("BREW", "/version", "", 405, None, "GET"),
            ("GET", "/stats?steam", "", 400, None, "'steam' is not known"),
            ("GET", "/vms?x", "", 400, None, "'x' is not known"),
            ("PUT", "/vms/zwnew", "", 400, Some(""), "EOF"),
            ("PUT", "/vms/zwnew", "socket=x", 400, Some(""), "expected"),
            ("PUT", "/vms/zwnew", "{\"socket\": \"/s\"}", 400, Some(""), "missing field `port`"),
            ("PUT", "/vms/zwnew", &with(", \"prt\": 1"), 400, Some("/prt"), "unknown field `prt`"),
            ("PUT", "/vms/zwnew", &with(", \"mac\": 1"), 400, Some("/mac"), "string"),
            ("PUT", "/vms/zwnew", &on("port", "tap:a,queues=0"), 400, Some("/port"), "1 to 128"),
            ("PUT", "/vms/zwnew", &on("port", "veth:a"), 400, Some("/port"), "the kind 'veth'"),
            ("PUT", "/vms/zwnew", &on("mac", "ff:ff:ff:ff:ff:ff"), 400, Some("/mac"), "give six bytes"),
            ("PUT", "/vms/zwnew", &on("socket-mode", "rw"), 400, Some("/socket-mode"), "octal"),
            ("PUT", "/vms/zwnew", &on("socket-owner", "no-such"), 400, Some("/socket-owner"), "/etc/passwd"),
            ("PUT", "/vms/zwnew", &on("metadata-token", "x"), 400, Some("/metadata-token"), "required or"),
            ("PUT", "/vms/%01", &vm, 400, None, "control characters"),
            ("PUT", "/vms/zwthere", &vm, 409, None, "two VMs are named 'zwthere'"),
            ("PUT", "/vms/zwnew", &on("socket", &there), 409, Some("/socket"), "is taken by"),
            ("PUT", "/vms/zwnew", &on("port", "tap:zwthere"), 409, Some("/port"), "is VM zwthere's"),
            ("PUT", "/vms/zwnew", &on("socket", &file), 422, Some("/socket"), "is not a socket"),
            ("PUT", "/vms/zwnew", &on("socket", ""), 422, Some("/socket"), "is empty"),
            ("PUT", "/vms/zwnew", &on("socket", "/no/such/s"), 422, Some("/socket"), "directory must exist"),
            ("PUT", "/vms/zwnew", &on("port", "packet:zwgone"), 422, Some("/port"), "zwgone"),
            ("PUT", "/vms/zwnew", &on("metadata", "/no/m"), 422, Some("/metadata"), "/no/m"),
            ("PUT", "/vms/zwnew", &on("metadata", &file), 422, Some("/metadata"), "line 1"),
        ];
        for (method, target, body, status, pointer, words) in cases {
            let (got, text) = server.ask(method, target, body);
            let said: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
            assert_eq!(got, *status, "{method} {target} {body}: {text}");
            assert_eq!(said["pointer"].as_str(), *pointer, "{method} {target} {body}: {text}");
            assert!(said["error"].as_str().is_some_and(|e| e.contains(words)), "{target} {body}: {text}");
            assert_eq!(server.json("/vms").to_string(), before, "{method} {target} {body}");
            assert!(interface("zwnew").is_none() && !server.path("zwnew").exists(), "{body}");
        }
        assert_eq!(std::fs::read_to_string(&file).expect("still there"), "precious");
        server.add("zwnew");
    });
}

#[test]
fn what_is_no_request_is_answered_and_ends_the_connection() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        for (bytes, status) in [
            ("\0\x01\x02\r\n\r\n", 400),
            ("GET / HTTP/2.0\r\n\r\n", 400),
            ("GET /%zz HTTP/1.1\r\n\r\n", 400),
            ("PUT /vms/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
            ("PUT /vms/a HTTP/1.1\r\nContent-Length: 1073741824\r\n\r\n", 413),
            (&format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(10_000)), 431),
        ] {
            let (got, text) = say(&mut dial(&server.control()), bytes.as_bytes());
            assert_eq!(got, status, "{text}");
            assert!(text.starts_with("{\"error\":"), "{text}");
        }
        assert_eq!(server.names(), [""; 0]);
    });
}

/// Several requests on one connection, in pieces and at once.
#[test]
fn a_connection_takes_one_request_after_another() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        let body = server.vm("zwkeep");
        let put = format!("PUT /vms/zwkeep HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let last = "GET /vms HTTP/1.1\r\nConnection: close\r\n\r\n";
        let mut stream = dial(&server.control());
        for byte in put.as_bytes() {
            stream.write_all(&[*byte]).expect("sent");
        }
        stream.write_all(b"DELETE /vms/zwkeep HTTP/1.1\r\n\r\nGET /version HTTP/1.1\r\n\r\n").expect("sent");
        stream.write_all(last.as_bytes()).expect("sent");
        let mut answers = String::new();
        stream.read_to_string(&mut answers).expect("all answers");
        let statuses: Vec<_> =
            answers.match_indices("HTTP/1.1 ").map(|(at, _)| &answers[at + 9..at + 12]).collect();
        assert_eq!(statuses, ["201", "204", "200", "200"], "{answers}");
        assert_eq!(split(&answers[answers.rfind("HTTP/1.1").expect("the last")..]).1, "{\"vms\":[]}\n");

        // A client that waits for a word before it sends the body gets it.
        let mut stream = dial(&server.control());
        let head = put.split_once("\r\n\r\n").expect("a head").0;
        stream
            .write_all(format!("{head}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n").as_bytes())
            .expect("sent");
        let mut word = [0; 25];
        stream.read_exact(&mut word).expect("a word");
        assert_eq!(&word, b"HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(say(&mut stream, body.as_bytes()).0, 201);
    });
}

/// The head alone, on a connection that goes on.
#[test]
fn head_answers_as_get_does_without_a_body() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        for (target, status) in
            [("/version", 200), ("/vms/zwnone", 404), ("/vms?x", 400), ("/vms/a/drain", 405)]
        {
            let answer = |method: &str| {
                let mut stream = dial(&server.control());
                let last = "GET /nothing HTTP/1.1\r\nConnection: close\r\n\r\n";
                write!(stream, "{method} {target} HTTP/1.1\r\n\r\n{last}").expect("sent");
                let mut answers = String::new();
                stream.read_to_string(&mut answers).expect("all answers");
                let (answer, _) = answers.split_at(answers.rfind("HTTP/1.1").expect("the last"));
                answer.to_owned()
            };
            let (got, head) = (answer("GET"), answer("HEAD"));
            assert_eq!((split(&got).0, head.as_str()), (status, &got[..head.len()]), "{target}");
            assert!(head.ends_with("\r\n\r\n") && head.contains("Content-Length: "), "{head}");
        }
        let mut stream = dial(&server.control());
        stream.write_all(b"HEAD /stats?stream HTTP/1.1\r\nConnection: close\r\n\r\n").expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("the end");
        assert!(answer.ends_with("Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"), "{answer}");
    });
}

#[test]
fn statistics_come_every_second() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        server.add("zwstream");
        let mut stream = dial(&server.control());
        stream.write_all(b"GET /stats?stream HTTP/1.1\r\n\r\n").expect("sent");
        let mut lines = BufReader::new(stream).lines().map(|line| line.expect("a line"));
        assert!(lines.any(|line| line.eq_ignore_ascii_case("Transfer-Encoding: chunked")));
        let mut uptime = Vec::new();
        while uptime.len() < 3 {
            let line = lines.next().expect("a line");
            if let Ok(stats) = serde_json::from_str::<Value>(&line)
                && let Some(seconds) = stats["uptime_seconds"].as_f64()
            {
                assert_eq!(stats["vms"][0]["name"], "zwstream");
                uptime.push(seconds);
            }
        }
        assert!(uptime.is_sorted(), "{uptime:?}");
        drop(lines);
        // Eight read streams at once; further ones are told so. The place of the one before comes
        // back by itself.
        let begin = || {
            let mut stream = dial(&server.control());
            stream.write_all(b"GET /stats?stream HTTP/1.1\r\n\r\n").expect("sent");
            let mut status = [0; 12];
            stream.read_exact(&mut status).expect("its begin");
            (&status == b"HTTP/1.1 200").then_some(stream)
        };
        let one = || {
            let mut stream = None;
            wait_until("there is a place", || {
                stream = begin();
                stream.is_some()
            });
            stream
        };
        let mut streams: Vec<_> = (0..8).map(|_| one()).collect();
        assert_eq!(server.ask("GET", "/stats?stream", "").0, 503);
        assert_eq!(server.names(), ["zwstream"], "others are answered");
        streams.pop();
        streams.push(one());
    });
}

#[test]
fn curl_can_manage_it() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        let control = server.control().display().to_string();
        let curl = |more: &[&str]| {
            let mut command = Command::new("curl");
            command.args(["-sS", "-w", "%{http_code}", "--unix-socket", &control]).args(more);
            let output = command.output().expect("curl (scripts/install.sh base)");
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).expect("text")
        };
        let at = "http://localhost";
        let added = curl(&["-X", "PUT", "-d", &server.vm("zwcurl"), &format!("{at}/vms/zwcurl")]);
        assert!(added.ends_with("201"), "{added}");
        assert!(curl(&[&format!("{at}/vms")]).contains("\"name\":\"zwcurl\""));
        assert!(curl(&[&format!("{at}/metrics")]).contains("zerowire_vms 1\n"));
        // A body of more than it may have comes with a question before it.
        std::fs::write(server.path("huge"), vec![b' '; 4 << 20]).expect("a file");
        let huge = format!("@{}", server.path("huge").display());
        let refused = curl(&["-X", "PUT", "--data-binary", &huge, &format!("{at}/vms/a")]);
        assert!(refused.ends_with("413"), "{refused}");
        assert_eq!(curl(&["-X", "DELETE", &format!("{at}/vms/zwcurl")]), "204");
    });
}

/// Adding and removing leaves nothing behind. ZEROWIRE_CONTROL_CYCLES says how often.
#[test]
fn vms_that_come_and_go_leave_nothing_behind() {
    let cycles = std::env::var("ZEROWIRE_CONTROL_CYCLES").map_or(300, |n| n.parse().expect("a number"));
    for sandbox in ["off", "on"] {
        in_netns(move || leave_nothing_behind(cycles, sandbox));
    }
}

fn leave_nothing_behind(cycles: u32, sandbox: &str) {
    let server = Controlled::start(&["--sandbox", sandbox]);
    server.add("zwstay");
    let mut guest = Guest::start(connect(&server.path("zwstay")));
    let mut peer = Peer::new("zwstay");
    let cycle = |n: u32| {
        server.add("zwcycle");
        // One in eight has a guest.
        let visitor = n.is_multiple_of(8).then(|| Guest::start(connect(&server.path("zwcycle"))));
        assert_eq!(server.ask("DELETE", "/vms/zwcycle", "").0, 204);
        drop(visitor);
    };
    (0..32).for_each(cycle);
    let ([descriptors, threads, mappings], kib) = (server.at_rest(), server.resident());
    let processes = ProcessTree::of(&server.program);
    assert_eq!(processes.pids.len(), if sandbox == "on" { 2 } else { 1 });
    (0..cycles).for_each(cycle);
    guest.ping(&mut peer);
    // The thread of the last request may not have ended yet.
    wait_until("it holds what it held", || server.holds()[..2] == [descriptors, threads]);
    // malloc(3) has up to eight arenas a CPU, each with two mappings.
    assert!(server.holds()[2] <= mappings + 64, "{} mappings, {mappings} before", server.holds()[2]);
    assert!(server.resident() <= kib + 1024, "{} KiB, {kib} before", server.resident());
    wait_until("its processes are those that stayed", || ProcessTree::of(&server.program) == processes);
    assert!(!is_served("zwcycle"), "a process is left");
    assert!(interface("zwcycle").is_none());
    assert_eq!(server.json("/vms/zwstay")["statistics"]["connections"], 1, "the other one stayed");
    let (_, log) = server.program.stop();
    assert!(!log.contains("ERROR"), "{log}");
}

/// A counter never falls.
#[test]
fn the_cpu_time_of_a_process_counts_on_when_its_vm_is_removed() {
    in_netns(|| {
        let server = Controlled::start(&["--sandbox", "on"]);
        let seconds = || server.json("/stats")["cpu_seconds"].as_f64().expect("a number");
        let mut before = seconds();
        for _ in 0..3 {
            server.add("zwcpu");
            let with = seconds();
            assert_eq!(server.ask("DELETE", "/vms/zwcpu", "").0, 204);
            let after = seconds();
            assert!(before <= with && with <= after, "{before} {with} {after}");
            before = after;
        }
        server.program.stop();
    });
}
