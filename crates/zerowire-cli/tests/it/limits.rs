//! Limits of the rate by option, file, control socket and `zerowire ctl`.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::control::Controlled;
use crate::support::{Guest, Peer, Program, connect, in_netns, wait_until};

#[test]
fn a_limit_of_the_command_line_holds_and_is_counted() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let path = socket.display().to_string();
        // A ping is three frames out, and the first is all that passes at once.
        let limits = ["--tx-limit", "ops=5/s,ops-burst=1", "--rx-limit", "1Gbit/s"];
        let program = Program::net(&[&["--socket", &path, "--port", "tap:zwrate"][..], &limits].concat());
        program.wait_log("listening on");
        Guest::start(connect(&socket)).ping(&mut Peer::new("zwrate"));
        let (out, _) = program.stop();
        assert!(out.contains("guest to port: waited ") && out.contains(" times for the limit, "), "{out}");
        assert!(!out.contains("port to guest: waited"), "{out}");
    });
}

#[test]
fn wrong_limits_are_named_with_what_to_give() {
    for (args, words) in [
        (["--tx-limit", "100M"], "limit '100M': '100M': give BYTES/s"),
        (["--rx-limit", "1M/s,burst=10"], "burst=10: at least 1000, what comes in a millisecond"),
    ] {
        let (code, out, log) = Program::run(&[&["--socket", "/no/s"][..], &args].concat());
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}:\n{log}");
        assert!(log.contains(words), "{args:?}:\n{log}");
    }
}

#[test]
fn a_limit_comes_changes_and_goes_while_the_guest_runs() {
    in_netns(|| {
        let server = Controlled::start(&[]);
        server.add("zwlim");
        let mut guest = Guest::start(connect(&server.path("zwlim")));
        let mut peer = Peer::new("zwlim");
        guest.ping(&mut peer);
        let waits = |way: &str| {
            let stats = server.json("/vms/zwlim")["statistics"][way].clone();
            (stats["limit_waits"].as_u64().expect("a number"), stats["limit_wait_seconds"].as_f64())
        };
        assert_eq!((waits("transmit"), waits("receive")), ((0, Some(0.0)), (0, Some(0.0))));
        let limit = json!({ "tx-limit": "ops=5/s,ops-burst=1" }).to_string();
        let (status, text) = server.ask("PATCH", "/vms/zwlim", &limit);
        let vm: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((status, vm["config"]["tx-limit"].as_str()), (200, Some("ops=5/s,ops-burst=1")));
        guest.ping(&mut peer);
        assert!(waits("transmit").0 > 0);
        let (_, metrics) = server.ask("GET", "/metrics", "");
        assert!(!metrics.contains("zerowire_limit_waits_total{vm=\"zwlim\",direction=\"transmit\"} 0\n"));
        assert!(metrics.contains("zerowire_limit_waits_total{vm=\"zwlim\",direction=\"receive\"} 0\n"));

        let said = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire"));
            let command = command.arg("ctl").args(arguments).arg("--control").arg(server.control());
            let output = command.output().expect("the program starts");
            let [out, log] =
                [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
            (output.status.code(), out, log)
        };
        let (code, out, _) = said(&["change", "zwlim", "--tx-limit", "off", "--rx-limit", "1M/s"]);
        assert_eq!(
            (code, out.as_str()),
            (Some(0), "zwlim: rx-limit 1000000/s,burst=100000\nzwlim: tx-limit off\n")
        );
        guest.ping(&mut peer);
        let config = server.json("/vms/zwlim")["config"].clone();
        assert_eq!(
            (&config["tx-limit"], &config["rx-limit"]),
            (&Value::Null, &json!("1000000/s,burst=100000"))
        );
        let (code, _, log) = said(&["change", "zwlim", "--tx-limit", "fast"]);
        assert!(code == Some(2) && log.contains("--tx-limit: limit 'fast': "), "{log}");
        let (code, _, log) = said(&["change", "zwlim"]);
        assert!(code == Some(2) && log.contains("--tx-limit"), "{log}");
        assert_eq!(server.json("/vms/zwlim")["config"], config, "nothing of that has changed it");
    });
}

/// The file is read again: the front end stays where only a limit differs.
#[test]
fn a_limit_of_the_file_changes_and_the_front_end_stays() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let file = dir.path().join("vms.toml");
        let write = |more: &str| {
            let path = socket.display();
            let text =
                format!("[[vm]]\nname = 'a'\n[vm.net]\nsocket = '{path}'\nport = 'tap:zwfile'\n{more}\n");
            std::fs::write(&file, text).expect("a file");
        };
        write("");
        let program = Program::net(&["--config", &file.display().to_string()]);
        program.wait_log("listening on");
        let mut guest = Guest::start(connect(&socket));
        let mut peer = Peer::new("zwfile");
        guest.ping(&mut peer);
        for (n, more) in (1..).zip(["tx-limit = 'ops=5/s,ops-burst=1'", ""]) {
            write(more);
            program.signal(libc::SIGHUP);
            wait_until("it was read again", || program.log().matches("read again").count() == n);
            guest.ping(&mut peer);
        }
        drop(guest);
        let (out, log) = program.stop();
        assert_eq!(log.matches("vms.toml read again; changed: a\n").count(), 2, "{log}");
        assert!(!log.contains("removed"), "{log}");
        assert!(out.contains(", 1 connections") && out.contains("guest to port: waited "), "{out}");
    });
}
