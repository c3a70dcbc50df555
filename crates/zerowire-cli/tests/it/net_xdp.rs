//! `zerowire net --port xdp:…` as a process: the program on the interface, other programs, kill -9,
//! and memory that may not be pinned.

use std::path::Path;

use crate::support::processes::{children, runs};
use crate::support::{Guest, Peer, Program, Restrict, connect, frames, in_netns, wait_until};
use zerowire_guest::net::{NetDriver, NetOptions};
use zerowire_guest::{GuestAddr, GuestMemory};
use zerowire_sys::netlink::{LinkInfo, XdpAttached};
use zerowire_sys::xdp::program::{Hook, Steering};
use zerowire_testkit::net::{ip, veth};

/// Bytes that a VM of 32 MiB needs: itself, the padding before it, and the slab of one queue pair.
const NEED_BYTES: u64 = (32 << 20) + (128 << 10) + 2048 * 256 + 512 * 4096;

fn start(dir: &Path, name: &str, port: &str, more: &[&str], restrict: Restrict) -> Program {
    let socket = dir.join(name).display().to_string();
    Program::restricted(&[&["--socket", &socket, "--port", port], more].concat(), restrict)
}

/// Two ends, `v0` for the program, with two queues.
fn veth() {
    veth::veth("v0", "v1", 2, 1500);
}

fn attached() -> Option<(XdpAttached, Option<u32>)> {
    LinkInfo::find("v0").expect("the interface").xdp
}

/// A guest whose ring is refused.
fn refused(dir: &Path, name: &str) {
    let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).expect("guest memory");
    let error = NetDriver::start(connect(&dir.join(name)), &memory, &NetOptions::default()).err();
    let text = error.map(|e| e.to_string()).expect("a refusal");
    assert!(text.contains("SET_VRING_KICK"), "{text}");
}

/// A frame goes out.
fn ping(dir: &Path, name: &str) {
    let mut guest = Guest::start(connect(&dir.join(name)));
    let mut peer = Peer::new("v1");
    let out = frames::frame(5, 900);
    guest.send(&out);
    assert_eq!(peer.expect().bytes, out);
}

/// Kills the supervisor, and waits for its children, which then end.
fn kill_whole(program: &mut Program) {
    let all = children(program);
    program.signal(libc::SIGKILL);
    program.wait();
    wait_until("its children have ended", || !all.iter().any(runs));
}

#[test]
fn killed_at_any_time_it_leaves_nothing_and_the_next_one_starts() {
    in_netns(|| {
        veth();
        let dir = tempfile::tempdir().expect("a directory");
        for round in 0..10 {
            let program = start(dir.path(), "a", "xdp:v0", &[], Restrict::default());
            program.wait_log("listening");
            ping(dir.path(), "a");
            assert!(matches!(attached(), Some((XdpAttached::Driver, Some(_)))), "round {round}");
            // Half of them with a guest that is connected.
            let guest = (round % 2 == 0).then(|| Guest::start(connect(&dir.path().join("a"))));
            let mut program = program;
            kill_whole(&mut program);
            assert_eq!(attached(), None, "round {round}");
            drop(guest);
        }
    });
}

/// The kernel undoes it.
#[test]
fn killed_it_leaves_no_interface_promiscuous() {
    in_netns(|| {
        veth();
        let dir = tempfile::tempdir().expect("a directory");
        for (port, want) in [("xdp:v0", 1), ("xdp:v0,promisc=off", 0)] {
            let mut program = start(dir.path(), "a", port, &[], Restrict::default());
            let mut guest = Guest::start(connect(&dir.path().join("a")));
            let mut peer = Peer::new("v1");
            guest.send(&frames::frame(1, 900));
            assert_eq!(peer.expect().bytes, frames::frame(1, 900));
            assert_eq!(veth::promiscuity("v0"), want, "{port}");
            kill_whole(&mut program);
            assert_eq!(veth::promiscuity("v0"), 0, "{port}");
        }
    });
}

/// The port runs, and says what it does without.
#[test]
fn without_packet_sockets_the_log_says_that_the_interface_may_filter() {
    in_netns(|| {
        veth();
        let dir = tempfile::tempdir().expect("a directory");
        for (errno, port, says) in [
            (libc::EPERM, "xdp:v0", true),
            (libc::EAFNOSUPPORT, "xdp:v0", true),
            (libc::EPERM, "xdp:v0,promisc=off", false),
        ] {
            let restrict = Restrict { no_sockets: Some((libc::AF_PACKET, errno)), ..Restrict::default() };
            let program = start(dir.path(), "a", port, &["--json"], restrict);
            ping(dir.path(), "a");
            ping(dir.path(), "a");
            assert_eq!(veth::promiscuity("v0"), 0, "{port}");
            let (out, log) = program.stop();
            let lines =
                log.lines().filter(|l| l.contains("v0 can't be made promiscuous")).collect::<Vec<_>>();
            assert_eq!(lines.is_empty(), !says, "{log}");
            for line in lines {
                for word in ["CAP_NET_RAW", "AF_PACKET", "ip link set v0 promisc on", "promisc=off"] {
                    assert!(line.contains(word), "no '{word}' in {line}");
                }
            }
            let stats: serde_json::Value = serde_json::from_str(&out).expect("statistics");
            assert_eq!(stats["vms"][0]["transmit"]["frames"], 2, "{stats}");
        }
    });
}

#[test]
fn one_that_starts_while_the_other_is_killed_takes_over() {
    in_netns(|| {
        veth();
        let dir = tempfile::tempdir().expect("a directory");
        let first = start(dir.path(), "a", "xdp:v0", &[], Restrict::default());
        wait_until("the program is attached", || attached().is_some());
        let second = start(dir.path(), "b", "xdp:v0", &[], Restrict::default());
        std::thread::sleep(std::time::Duration::from_millis(100));
        first.signal(libc::SIGKILL);
        second.wait_log("listening");
        wait_until("the program is attached", || attached().is_some());
        ping(dir.path(), "b");
        second.stop();
    });
}

#[test]
fn another_process_on_the_interface_is_named_with_the_remedy() {
    in_netns(|| {
        veth();
        let dir = tempfile::tempdir().expect("a directory");
        let first = start(dir.path(), "a", "xdp:v0,queue=0", &[], Restrict::default());
        wait_until("the program is attached", || attached().is_some());
        let id = attached().and_then(|(_, id)| id).expect("its number");
        let (code, _, log) = start(dir.path(), "b", "xdp:v0,queue=1", &[], Restrict::default()).result();
        assert_ne!(code, 0);
        for word in
            ["v0", "zerowire_steer", &format!("number {id}"), "another zerowire process", "one process"]
        {
            assert!(log.contains(word), "no '{word}' in\n{log}");
        }
        ping(dir.path(), "a");
        first.stop();
        assert_eq!(attached(), None);
    });
}

#[test]
fn a_program_of_somebody_else_stays_and_is_named() {
    in_netns(|| {
        veth();
        let dir = tempfile::tempdir().expect("a directory");
        // One of this test process in the stack: it is in the way of one in the driver as well.
        let theirs = Steering::attach("v0", 1, Hook::Generic).unwrap_or_else(|e| panic!("{e}"));
        let before = attached();
        let (code, _, log) = start(dir.path(), "a", "xdp:v0", &[], Restrict::default()).result();
        assert_ne!(code, 0);
        assert!(log.contains("attached as xdpgeneric"), "{log}");
        assert_eq!(attached(), before);
        drop(theirs);
        let program = start(dir.path(), "a", "xdp:v0", &[], Restrict::default());
        program.wait_log("listening");
        ping(dir.path(), "a");
        program.stop();
    });
}

/// What can be known without a guest is an error before one comes.
#[test]
fn what_no_guest_can_have_is_refused_at_the_start() {
    in_netns(|| {
        veth();
        ip(&["tuntap", "add", "zwtun", "mode", "tun"]);
        let dir = tempfile::tempdir().expect("a directory");
        let without = Restrict { no_net_raw: true, ..Restrict::default() };
        // RestrictAddressFamilies= of a unit.
        let unit =
            |family| Restrict { no_sockets: Some((family, libc::EAFNOSUPPORT)), ..Restrict::default() };
        let (no_packets, no_xdp) = (unit(libc::AF_PACKET), unit(libc::AF_XDP));
        for (port, restrict, words) in [
            ("packet:v0", no_packets, ["not permitted", "in a unit the drop-in packet.conf"]),
            ("xdp:v0", no_xdp, ["this unit has none", "the drop-in xdp.conf"]),
            ("xdp:lo", Restrict::default(), ["lo is a loopback interface", "one end of a veth"]),
            ("xdp:zwtun", Restrict::default(), ["zwtun is no Ethernet interface", "or a tap"]),
            ("xdp:v0,mode=zerocopy", Restrict::default(), ["v0 has no zero-copy mode", "mode=auto or copy"]),
            ("xdp:v0", without, ["not permitted", "CAP_NET_RAW"]),
            ("xdp:", Restrict::default(), ["name is missing", "xdp:IF"]),
        ] {
            let (code, _, log) = start(dir.path(), "a", port, &[], restrict).result();
            assert_eq!(code, if port == "xdp:" { 2 } else { 1 }, "{port}: {log}");
            for word in words {
                assert!(log.contains(word), "{port}: no '{word}' in {log}");
            }
            assert!(!dir.path().join("a").exists() && attached().is_none(), "{port}: nothing is left behind");
        }
    });
}

/// Why a guest has no zero copy: what would not help is not asked for.
#[test]
fn mode_auto_says_why_it_copies() {
    in_netns(|| {
        veth();
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), "a", "xdp:v0", &["--json"], Restrict::default());
        let _guest = Guest::start(connect(&dir.path().join("a")));
        // The socket is bound when the guest's rings run.
        program.wait_log("v0: copy mode, since its driver has no such mode");
        let mut asked = 0;
        wait_until("the path says why", || {
            program.signal(libc::SIGUSR1);
            asked += 1;
            let stats: serde_json::Value =
                serde_json::from_str(&program.wait_line(asked)).expect("statistics");
            let path = stats["vms"][0]["path"].as_str().expect("a path");
            path.ends_with("; no zero copy: its driver has no such mode")
        });
        program.stop();
    });
}

#[test]
fn memory_over_the_budget_is_refused_with_the_figure() {
    in_netns(|| {
        veth();
        let dir = tempfile::tempdir().expect("a directory");
        let memlock = (NEED_BYTES + 4096).to_string();
        let sockets = ["a", "b"].map(|n| dir.path().join(n).display().to_string());
        let vms = [
            format!("name=a,socket={},port=xdp:v0,queue=0", sockets[0]),
            format!("name=b,socket={},port=xdp:v0,queue=1", sockets[1]),
        ];
        let program = Program::net(&["--vm", &vms[0], "--vm", &vms[1], "--memlock", &memlock]);
        program.wait_log("b: listening");
        let mut peer = Peer::new("v1");
        let mut first = Guest::start(connect(&dir.path().join("a")));
        let out = frames::frame(1, 700);
        first.send(&out);
        assert_eq!(peer.expect().bytes, out);
        // The second VM would need as much again, which the first one has.
        refused(dir.path(), "b");
        let raise = (2 * NEED_BYTES).to_string();
        program.wait_log(&format!("raise it to {raise}"));
        let log = program.log();
        for word in [
            &format!("{NEED_BYTES} bytes can't be pinned"),
            &memlock,
            "--memlock",
            "of which",
            "(tap, packet)",
        ] {
            assert!(log.contains(word), "no '{word}' in\n{log}");
        }
        // The first one goes on; when it is gone the second one has what it needs.
        first.send(&frames::frame(2, 700));
        assert_eq!(peer.expect().bytes, frames::frame(2, 700));
        drop(first);
        program.wait_log("a: connection ended");
        let mut second = Guest::start(connect(&dir.path().join("b")));
        second.send(&frames::frame(3, 700));
        assert_eq!(peer.expect().bytes, frames::frame(3, 700));
        program.stop();
    });
}

#[test]
fn without_the_privilege_the_kernels_limit_is_named() {
    in_netns(|| {
        veth();
        let dir = tempfile::tempdir().expect("a directory");
        let restrict = Restrict { memlock: Some(1 << 20), ..Restrict::default() };
        let program = start(dir.path(), "a", "xdp:v0", &[], restrict);
        refused(dir.path(), "a");
        program.wait_log("can't be locked");
        let log = program.log();
        for word in
            [&NEED_BYTES.to_string(), "1048576", "ulimit -l", "LimitMEMLOCK=", "CAP_IPC_LOCK", "pin=partial"]
        {
            assert!(log.contains(word), "no '{word}' in\n{log}");
        }
        program.stop();
    });
}

/// As much is pinned as there may be, shared by the VMs, and frames pass whatever memory they lie
/// in.
#[test]
fn with_a_part_of_their_memory_pinned_two_vms_run() {
    in_netns(|| {
        veth();
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("vms.toml");
        let vm = |name: &str, queue: u32| {
            let socket = dir.path().join(name).display().to_string();
            format!(
                "[[vm]]\nname = '{name}'\n[vm.net]\nsocket = '{socket}'\nport = 'xdp:v0,queue={queue},pin=partial'\n"
            )
        };
        std::fs::write(&file, vm("a", 0) + &vm("b", 1)).expect("written");
        let memlock = NEED_BYTES.to_string();
        let program =
            Program::net(&["--config", &file.display().to_string(), "--memlock", &memlock, "--json"]);
        program.wait_log("b: listening");
        let mut peer = Peer::new("v1");
        let mut guests = ["a", "b"].map(|name| Guest::start(connect(&dir.path().join(name))));
        for n in 0..300 {
            let out = frames::frame(n, 60 + n as usize);
            guests[n as usize % 2].send(&out);
            assert_eq!(peer.expect().bytes, out);
        }
        program.signal(libc::SIGUSR1);
        let stats: serde_json::Value = serde_json::from_str(&program.wait_line(1)).expect("statistics");
        for vm in stats["vms"].as_array().expect("VMs") {
            let path = vm["path"].as_str().expect("a path");
            assert!(path.contains("14 of 32 MiB of the guest's memory are pinned"), "{path}");
            assert_eq!(vm["ring_errors"], 0, "{vm}");
        }
        program.stop();
    });
}
