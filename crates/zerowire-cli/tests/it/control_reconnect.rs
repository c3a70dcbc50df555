//! `PATCH /vms/NAME?reconnect`: a VM becomes another device, and its front end connects again.
//! Others go on. Run as root.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use zerowire_guest::vsock::ConnState;
use zerowire_testkit::SetAtEnd;
use zerowire_testkit::net::ip;

use crate::support::control::Controlled;
use crate::support::modes::{Mode, in_both_modes};
use crate::support::vsock::{Guest as VsockGuest, reach};
use crate::support::{Guest, Peer, connect, in_netns, interface, wait_until};

in_both_modes! {
    another_port_takes_the_place_of_the_first
    a_bad_change_leaves_the_front_end_connected
    a_vm_whose_new_port_fails_late_has_its_old_one_again
    nobody_gets_what_a_vm_has_while_it_is_away
    other_groups_and_another_cid
    a_bad_change_of_a_vsock_vm_leaves_its_connections
}

/// A request that must be refused: its text, and the key that is to blame.
fn refused(server: &Controlled, target: &str, patch: &Value, status: u16) -> (String, Option<String>) {
    let (got, text) = server.ask("PATCH", target, &patch.to_string());
    assert_eq!(got, status, "{target} {patch}: {text}");
    let said: Value = serde_json::from_str(&text).expect("JSON");
    let pointer = said["pointer"].as_str().map(str::to_owned);
    (said["error"].as_str().expect("a text").to_owned(), pointer)
}

fn changed(server: &Controlled, target: &str, patch: &Value) -> Value {
    let (status, text) = server.ask("PATCH", target, &patch.to_string());
    assert_eq!(status, 200, "{target} {patch}: {text}");
    serde_json::from_str::<Value>(&text).expect("JSON")["config"].take()
}

fn another_port_takes_the_place_of_the_first(mode: Mode) {
    in_netns(move || {
        let server = Controlled::start(mode);
        server.add("zwra");
        server.add("zwro");
        let mut guest = Guest::start(connect(&server.path("zwra")));
        guest.ping(&mut Peer::new("zwra"));
        let mut other = Guest::start(connect(&server.path("zwro")));
        let mut peer_of_other = Peer::new("zwro");
        let metadata = server.path("metadata.json");
        std::fs::write(&metadata, "{}").expect("a file");

        let patch =
            json!({ "port": "tap:zwrb", "tx-limit": "1G/s", "guard": "vlan=off", "metadata": metadata });
        let (text, pointer) = refused(&server, "/vms/zwra", &patch, 409);
        assert!(text.contains("?reconnect") && pointer.as_deref() == Some("/port"), "{text}");
        let (text, _) = refused(&server, "/vms/zwra", &json!({ "metadata": metadata }), 409);
        assert!(text.contains("?reconnect"), "{text}");
        guest.ping(&mut Peer::new("zwra"));

        let is_done = AtomicBool::new(false);
        let (status, text) = std::thread::scope(|scope| {
            let _ends = SetAtEnd(&is_done);
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    other.ping(&mut peer_of_other);
                }
                other.ping(&mut peer_of_other);
            });
            server.ask("PATCH", "/vms/zwra?reconnect", &patch.to_string())
        });
        assert_eq!(status, 200, "{text}");
        let config = serde_json::from_str::<Value>(&text).expect("JSON")["config"].take();
        assert_eq!(config["port"], "tap:zwrb,queues=1");
        assert_eq!((&config["guard"], config["tx-limit"].is_string()), (&"vlan=off".into(), true));
        assert_eq!(config["metadata"], json!(metadata));
        assert!(interface("zwra").is_none());
        drop(guest);
        let mut guest = Guest::start(connect(&server.path("zwra")));
        let mut peer = Peer::new("zwrb");
        guest.ping(&mut peer);
        assert_eq!(server.json("/vms/zwro")["statistics"]["connections"], 1, "the other one stayed");

        // What takes no other device disconnects nobody.
        assert_eq!(changed(&server, "/vms/zwra?reconnect", &json!({ "guard": null }))["guard"], Value::Null);
        guest.ping(&mut peer);
        assert_eq!(server.json("/vms/zwra")["statistics"]["connections"], 1);
        server.program.wait_log("its front end has to connect again");
        let log = server.program.log();
        assert!(!log.contains("ERROR"), "{log}");
    });
}

fn a_bad_change_leaves_the_front_end_connected(mode: Mode) {
    in_netns(move || {
        let server = Controlled::start(mode);
        server.add("zwba");
        server.add("zwbo");
        let mut guest = Guest::start(connect(&server.path("zwba")));
        let mut peer = Peer::new("zwba");
        guest.ping(&mut peer);
        std::fs::write(server.path("file"), "precious").expect("a file");
        let before = server.json("/vms").to_string();
        let path = |name: &str| server.path(name).display().to_string();
        for (patch, status, key, words) in [
            (json!({ "port": "packet:zwgone" }), 422, "/port", "zwgone"),
            (json!({ "port": "tap:lo" }), 422, "/port", "'lo'"),
            (json!({ "port": "tap:zwbo" }), 409, "/port", "is VM zwbo's"),
            (json!({ "port": "tun:zwbn" }), 400, "/port", "the kind 'tun'"),
            (json!({ "port": "tap:" }), 400, "/port", "1 to 15 bytes"),
            (json!({ "port": "tap:all" }), 400, "/port", "'all' and 'default' are no names"),
            (json!({ "port": "tap:zwbn", "mac": "x" }), 400, "/mac", "'x'"),
            (json!({ "port": "tap:zwbn", "prt": 1 }), 400, "/prt", "unknown field"),
            (json!({ "port": "tap:zwbn", "metadata": "/no/m" }), 422, "/metadata", "/no/m"),
            (json!({ "port": "tap:zwbn", "socket": path("file") }), 422, "/socket", "is not a socket"),
            (json!({ "socket": "/no/such/s" }), 422, "/socket", "directory must exist"),
            (json!({ "socket": path("zwbo") }), 409, "/socket", "is taken by"),
        ] {
            let (text, pointer) = refused(&server, "/vms/zwba?reconnect", &patch, status);
            assert!(text.contains(words) && pointer.as_deref() == Some(key), "{patch}: {text} {pointer:?}");
            assert_eq!(server.json("/vms").to_string(), before, "{patch}");
            assert!(interface("zwbn").is_none(), "{patch}");
        }
        for (target, status) in [("/vms/zwnone?reconnect", 404), ("/vms/zwba?reconnects", 400)] {
            refused(&server, target, &json!({ "mac": "02:00:00:00:00:01" }), status);
        }
        guest.ping(&mut peer);
        assert_eq!(server.json("/vms/zwba")["statistics"]["connections"], 1);
        // One that drains does not come again.
        assert_eq!(server.ask("POST", "/vms/zwba/drain", "").0, 202);
        refused(&server, "/vms/zwba?reconnect", &json!({ "port": "tap:zwbn" }), 409);
        assert_eq!(server.json("/vms/zwba")["state"], "draining");
        guest.ping(&mut peer);
    });
}

/// A tap of another kind can't be tried while the VM has it.
fn a_vm_whose_new_port_fails_late_has_its_old_one_again(mode: Mode) {
    in_netns(move || {
        ip(&["tuntap", "add", "zwlate", "mode", "tap", "vnet_hdr"]);
        ip(&["link", "set", "zwlate", "up"]);
        let server = Controlled::start(mode);
        server.add("zwlate");
        let mut guest = Guest::start(connect(&server.path("zwlate")));
        let mut peer = Peer::new("zwlate");
        guest.wait_for_frames(&mut peer);
        guest.ping(&mut peer);
        let before = server.json("/vms/zwlate")["config"].clone();
        let patch = json!({ "port": "tap:zwlate,queues=2", "tx-limit": "1G/s" });
        let (text, pointer) = refused(&server, "/vms/zwlate?reconnect", &patch, 422);
        let words = "VM zwlate has its old settings again, and its front end has to connect again";
        assert!(text.contains(words) && pointer.as_deref() == Some("/port"), "{text}");
        assert_eq!(server.json("/vms/zwlate")["config"], before);
        drop(guest);
        let mut guest = Guest::start(connect(&server.path("zwlate")));
        guest.wait_for_frames(&mut peer);
        guest.ping(&mut peer);
    });
}

fn nobody_gets_what_a_vm_has_while_it_is_away(mode: Mode) {
    in_netns(move || {
        let server = Controlled::start(mode);
        server.add("zwaway");
        let thief = json!({ "socket": server.path("zwaway"), "port": "tap:zwthief" }).to_string();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let ends = SetAtEnd(&is_done);
            let asks = scope.spawn(|| {
                let mut statuses = Vec::new();
                while !is_done.load(Ordering::Relaxed) {
                    statuses.push(server.ask("PUT", "/vms/zwthief", &thief).0);
                    statuses.push(server.ask("PATCH", "/vms/zwaway", "{\"mac\": \"02:00:00:00:00:01\"}").0);
                }
                statuses
            });
            let change = |port| {
                let patch = json!({ "port": port }).to_string();
                server.ask("PATCH", "/vms/zwaway?reconnect", &patch).0
            };
            let changes: Vec<_> = (0..10).map(|n| change(["tap:zwelse", "tap:zwaway"][n % 2])).collect();
            drop(ends);
            let statuses = asks.join().expect("no panic");
            assert!(statuses.iter().all(|status| *status == 409), "{statuses:?}");
            assert_eq!(changes, [200; 10]);
        });
        assert_eq!(server.names(), ["zwaway"]);
    });
}

fn socket(server: &Controlled, name: &str) -> std::path::PathBuf {
    server.path(&format!("{name}.s"))
}

fn other_groups_and_another_cid(mode: Mode) {
    let server = Controlled::start_vsock(mode);
    for (name, cid, group) in [("a", 3, "x"), ("b", 4, "x"), ("c", 5, "y")] {
        server.add_vsock(name, cid, &[group]);
    }
    let [mut a, mut b, mut c] = ["a", "b", "c"].map(|name| VsockGuest::start(&socket(&server, name)));
    let (conn, mut stream) = a.open(&server.path("a"), 1000);
    a.ping(conn, &mut stream);
    let (to_b, _) = reach(&mut a.stack, &mut b.stack, 4, 9);

    let patch = json!({ "groups": ["y"], "cid": 6, "uds": server.path("u"), "rx-limit": "1G/s" });
    let (text, pointer) = refused(&server, "/vms/b", &patch, 409);
    assert!(text.contains("?reconnect") && pointer.as_deref() == Some("/cid"), "{text}");
    let config = changed(&server, "/vms/b?reconnect", &patch);
    assert_eq!((&config["cid"], &config["groups"]), (&6.into(), &json!(["y"])));
    assert!(config["rx-limit"].is_string());
    assert!(server.path("u").exists() && !server.path("b").exists());
    wait_until("the reset", || {
        a.turn();
        a.stack.state(to_b) != ConnState::Established
    });
    drop(b);
    let mut b = VsockGuest::start(&socket(&server, "b"));
    reach(&mut b.stack, &mut c.stack, 5, 9);
    let (to_host, mut host) = b.open(&server.path("u"), 1000);
    b.ping(to_host, &mut host);
    a.ping(conn, &mut stream);
    assert_eq!(a.connect(6, 10), None, "they share no group");
    for name in ["a", "c"] {
        assert_eq!(server.json(&format!("/vms/{name}"))["statistics"]["connections"], 1, "{name} stayed");
    }
    server.program.wait_log("changed by the control socket");
    let log = server.program.log();
    assert!(!log.contains("ERROR"), "{log}");
}

fn a_bad_change_of_a_vsock_vm_leaves_its_connections(mode: Mode) {
    let server = Controlled::start_vsock(mode);
    for (name, cid, group) in [("a", 3, "x"), ("b", 4, "x"), ("c", 5, "y")] {
        server.add_vsock(name, cid, &[group]);
    }
    std::fs::write(server.path("file"), "precious").expect("a file");
    let [mut a, mut b] = ["a", "b"].map(|name| VsockGuest::start(&socket(&server, name)));
    let (conn, mut stream) = b.open(&server.path("b"), 1000);
    b.ping(conn, &mut stream);
    let (_, of_a) = reach(&mut a.stack, &mut b.stack, 4, 9);
    let before = server.json("/vms").to_string();
    let path = |name: &str| Path::new(server.dir.path()).join(name);
    for (patch, status, key, words) in [
        (json!({ "groups": ["x", "y"] }), 409, "/groups", "connect VMs a with c"),
        (json!({ "groups": [] }), 400, "/groups", "no group is named"),
        (json!({ "cid": 5 }), 409, "/cid", "both have CID 5"),
        (json!({ "cid": 2 }), 400, "/cid", "is the host's"),
        (json!({ "uds": "/no/such/u" }), 422, "/uds", "directory must exist"),
        (json!({ "uds": path("file") }), 422, "/uds", "is not a socket"),
        (json!({ "uds": path("c") }), 409, "/uds", "is taken by"),
        (json!({ "cid": 9, "socket": path("file") }), 422, "/socket", "is not a socket"),
        (json!({ "cid": 9, "tx-limit": "fast" }), 400, "/tx-limit", "fast"),
    ] {
        let (text, pointer) = refused(&server, "/vms/b?reconnect", &patch, status);
        assert!(text.contains(words) && pointer.as_deref() == Some(key), "{patch}: {text} {pointer:?}");
        assert_eq!(server.json("/vms").to_string(), before, "{patch}");
    }
    b.ping(conn, &mut stream);
    assert_eq!(b.stack.state(of_a), ConnState::Established);
    assert_eq!(server.json("/vms/b")["statistics"]["connections"], 1);
}
