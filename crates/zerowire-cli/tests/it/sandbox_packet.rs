//! `zerowire net --sandbox on` with packet ports: frames, link, an interface that comes back, and
//! what a child can't do with its sockets. Run as root.

use std::path::Path;

use serde_json::Value;

use crate::sandbox::stats;
use crate::support::control::Controlled;
use crate::support::processes::{child, children, kill, wait_idle};
use crate::support::{Guest, Peer, Program, connect, frames, in_netns, wait_until};
use zerowire_testkit::captures::read_file;
use zerowire_testkit::net::{ip, veth};

/// A VM on a packet port `v0`, whose other end is `v1`.
fn start(dir: &Path, options: &str) -> Program {
    start_with(dir, options, &[])
}

fn start_with(dir: &Path, options: &str, more: &[&str]) -> Program {
    veth::veth("v0", "v1", 1, 30_000);
    let socket = dir.join("s").display().to_string();
    let port = format!("packet:v0{options}");
    let args = ["--json", "--sandbox", "on", "--name", "boxed", "--socket", &socket, "--port", &port];
    let program = Program::net(&[&args, more].concat());
    program.wait_log("boxed: served by a confined process");
    program
}

fn guest(dir: &Path) -> Guest {
    Guest::start(connect(&dir.join("s")))
}

#[test]
fn frames_pass_both_ways_by_the_ring_and_by_the_socket() {
    in_netns(|| {
        for (options, word) in [
            ("", "frames in by a TPACKET_V2 ring"),
            (",receive=ring", "TPACKET_V2"),
            (",receive=socket", "as asked"),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let program = start(dir.path(), options);
            // One guest behind the other has the same sockets.
            for count in 1..=3 {
                let mut guest = guest(dir.path());
                let mut peer = Peer::new("v1");
                guest.ping(&mut peer);
                // One that is longer than a place of the ring, and one with a tag.
                let long = frames::frame(4, 20_000);
                peer.send(&long);
                assert_eq!(guest.expect_numbered(), long);
                let mut tagged = frames::frame(5, 100);
                tagged.splice(12..12, [0x81, 0, 0, 7]);
                peer.send(&tagged);
                while guest.expect() != tagged {}
                let vm = stats(&program, count)["vms"][0].clone();
                let path = vm["path"].as_str().unwrap_or_default();
                assert!(path.contains(word), "{vm}");
                assert_eq!(vm["interface_state"], "up", "{vm}");
                drop(guest);
                // Nobody reads it: the next guest does not get it either.
                Peer::new("v1").send(&frames::frame(99, 200));
            }
            assert!(!program.log().contains("its process ended"), "{}", program.log());
            program.stop();
            ip(&["link", "del", "v0"]);
        }
    });
}

/// The frame is the child's own: no guest sends it.
#[test]
fn a_guest_that_has_moved_is_announced() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), "");
        let mut guest = guest(dir.path());
        let mut peer = Peer::new("v1");
        guest.ping(&mut peer);
        let mac = [2, 0, 0, 0, 0, 9];
        guest.driver.transport().send_rarp(mac).expect("sent");
        while peer.expect().bytes[6..14] != [2, 0, 0, 0, 0, 9, 0x80, 0x35] {}
        program.stop();
    });
}

#[test]
fn frames_of_a_child_are_captured() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("c.pcapng").display().to_string();
        let program = start_with(dir.path(), "", &["--pcap", &file, "--path", "copy"]);
        guest(dir.path()).ping(&mut Peer::new("v1"));
        program.stop();
        let capture = read_file(Path::new(&file));
        assert_eq!(capture.packets.iter().filter(|p| p.direction == 2).count(), 3);
    });
}

#[test]
fn a_child_that_dies_is_replaced_and_the_vm_goes_on() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), "");
        let mut guest = guest(dir.path());
        guest.ping(&mut Peer::new("v1"));
        let dead = child(&program);
        wait_idle(dead);
        kill(dead, libc::SIGKILL);
        wait_until("another child is there", || children(&program).iter().any(|now| *now != dead));
        guest.ping(&mut Peer::new("v1"));
        assert!(guest.driver.transport().is_alive(), "it was never disconnected");
        drop(guest);
        self::guest(dir.path()).ping(&mut Peer::new("v1"));
        program.stop();
    });
}

/// It closes its sockets then.
#[test]
fn a_vm_that_is_drained_and_removed_at_once_has_one_line() {
    in_netns(|| {
        let server = Controlled::start(&["--sandbox", "on"]);
        let names: Vec<_> = (0..8).map(|n| format!("zwgone{n}")).collect();
        names.iter().for_each(|name| server.add(name));
        server.gone_at_once(&names);
    });
}

#[test]
fn a_child_whose_vm_is_drained_ends_by_itself() {
    in_netns(|| {
        veth::veth("v0", "v1", 1, 30_000);
        let server = Controlled::start(&["--sandbox", "on"]);
        let socket = server.path("s");
        let body = format!("{{\"socket\": \"{}\", \"port\": \"packet:v0\"}}", socket.display());
        assert_eq!(server.ask("PUT", "/vms/boxed", &body).0, 201);
        let mut guest = Guest::start(connect(&socket));
        guest.ping(&mut Peer::new("v1"));
        assert_eq!(server.ask("POST", "/vms/boxed/drain", "").0, 202);
        drop(guest);
        wait_until("it is gone", || server.names().is_empty());
        assert!(!server.program.log().contains("its process ended"), "{}", server.program.log());
    });
}

#[test]
fn an_interface_goes_down_and_up_and_away_and_comes_back() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), "");
        let mut guest = guest(dir.path());
        guest.ping(&mut Peer::new("v1"));
        ip(&["link", "set", "v0", "down"]);
        program.wait_log("interface v0 is down");
        ip(&["link", "set", "v0", "up"]);
        // It may have been up before anyone looked: then the log says so for the first time.
        wait_until("it is up again", || {
            let log = program.log();
            log.rsplit_once("interface v0 is down")
                .is_some_and(|(_, then)| then.contains("interface v0 is up"))
        });
        let mut peer = Peer::new("v1");
        guest.wait_for_frames(&mut peer);
        guest.ping(&mut peer);
        let before = child(&program);
        ip(&["link", "del", "v0"]);
        program.wait_log("no interface v0");
        veth::veth("v0", "v1", 1, 30_000);
        // Other sockets, and so another child.
        program.wait_log("interface v0 is another one now");
        wait_until("another child is there", || children(&program).iter().any(|now| *now != before));
        let mut peer = Peer::new("v1");
        guest.wait_for_frames(&mut peer);
        guest.ping(&mut peer);
        assert!(guest.driver.transport().is_alive(), "it was never disconnected");
        // That is no error, and nothing that was counted is lost.
        let vm = stats(&program, 1)["vms"][0].clone();
        assert_eq!((&vm["last_error"], &vm["transmit"]["frames"]), (&Value::Null, &9.into()), "{vm}");
        assert!(!program.log().contains("its process ended"), "{}", program.log());
        program.stop();
    });
}

#[test]
fn the_guest_sees_the_link() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), ",link=follow");
        guest(dir.path()).ping(&mut Peer::new("v1"));
        let kept = guest(dir.path());
        ip(&["link", "set", "v0", "down"]);
        program.wait_log("the guest's link goes down");
        program.wait_log("can't carry frames (link=follow)");
        let vm = stats(&program, 1)["vms"][0].clone();
        assert_eq!((&vm["link"]["up"], &vm["link"]["disconnects"]), (&false.into(), &1.into()), "{vm}");
        drop(kept);
        // A child that starts meanwhile knows it.
        let dead = child(&program);
        kill(dead, libc::SIGKILL);
        wait_until("it says so", || program.log().matches("is down").count() > 2);
        ip(&["link", "set", "v0", "up"]);
        program.wait_log("the front end may connect");
        let (mut guest, mut peer) = (guest(dir.path()), Peer::new("v1"));
        guest.wait_for_frames(&mut peer);
        guest.ping(&mut peer);
        program.stop();
    });
}

#[test]
fn a_packet_socket_of_a_child_can_not_be_turned_to_another_interface() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        veth::veth("v8", "v9", 1, 1500);
        let program = start(dir.path(), "");
        let _guest = guest(dir.path());
        let pid = child(&program);
        let mut sockets = 0;
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd")).expect("/proc").flatten() {
            let number: u32 = entry.file_name().to_str().and_then(|n| n.parse().ok()).expect("a number");
            let Some(socket) = taken_from(pid, number) else { continue };
            sockets += 1;
            assert!(number >= 1000, "sendmsg(2) is allowed on descriptor {number}");
            // Whoever gets it can bind it, and gets nothing.
            let there = zerowire_testkit::net::interface("v8").expect("v8") as u32;
            if zerowire_sys::packet::bind(std::os::fd::AsFd::as_fd(&socket), there, true).is_ok() {
                Peer::new("v9").send(&frames::frame(1, 100));
                std::thread::sleep(std::time::Duration::from_millis(50));
                let mut buffer = [0; 2000];
                let got = zerowire_sys::packet::receive(std::os::fd::AsFd::as_fd(&socket), &mut buffer);
                assert!(got.is_err(), "{got:?}");
            }
            let passes = zerowire_sys::packet::filter_by_tag(std::os::fd::AsFd::as_fd(&socket), false);
            assert_eq!(passes.err().and_then(|e| e.raw_os_error()), Some(libc::EPERM));
        }
        assert_eq!(sockets, 4);
        program.stop();
    });
}

/// A packet socket that another process has; None if that descriptor is something else.
fn taken_from(pid: i32, number: u32) -> Option<std::os::fd::OwnedFd> {
    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).expect("the child");
    let fd = pidfd_getfd(&process, number as i32, PidfdGetfdFlags::empty()).ok()?;
    let domain = rustix::net::sockopt::socket_domain(&fd).ok()?;
    (domain == rustix::net::AddressFamily::PACKET).then_some(fd)
}

/// Where the child maps a packet ring that it may write to.
fn mapped_rings(pid: i32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("/proc");
    maps.lines().filter(|line| line.contains("rw-s") && line.contains("socket:")).count()
}

/// Whether a packet socket of this network namespace has a transmit ring.
fn kernel_has_ring() -> bool {
    let shown = std::process::Command::new("ss").args(["-0", "-e", "-a"]).output().expect("ss (iproute2)");
    String::from_utf8_lossy(&shown.stdout).contains("ring_tx(")
}

#[test]
fn frames_go_by_a_transmit_ring_as_long_as_a_guest_is_there() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), ",rings=on,receive=socket");
        for count in 1..=3 {
            let mut guest = guest(dir.path());
            guest.ping(&mut Peer::new("v1"));
            let vm = stats(&program, count)["vms"][0].clone();
            let path = vm["path"].as_str().unwrap_or_default();
            assert!(path.contains("frames out by a TPACKET_V3 ring of 256 slots"), "{vm}");
            assert_eq!(vm["transmit"]["zero_copied_bytes"], 0, "{vm}");
            assert!(vm["transmit"]["copied_bytes"]["outside"].as_u64() > Some(0), "{vm}");
            assert_eq!((mapped_rings(child(&program)), kernel_has_ring()), (1, true));
            drop(guest);
            wait_until("the ring is unmapped", || mapped_rings(child(&program)) == 0);
            wait_until("the kernel has its memory back", || !kernel_has_ring());
        }
        program.stop();
    });
}

/// An ifb takes lent pages, as a network card does.
#[test]
fn a_ring_is_the_default_where_the_interface_takes_lent_pages() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        ip(&["link", "add", "zwlent", "type", "ifb"]);
        ip(&["link", "set", "zwlent", "up"]);
        let socket = dir.path().join("s").display().to_string();
        let args = ["--json", "--sandbox", "on", "--socket", &socket, "--port", "packet:zwlent"];
        let program = Program::net(&args);
        program.wait_log("served by a confined process");
        let mut guest = guest(dir.path());
        guest.send(&frames::frame(1, 100));
        wait_until("it has a ring", || mapped_rings(child(&program)) == 2);
        let mut count = 0;
        wait_until("the path is described", || {
            count += 1;
            let path = stats(&program, count)["vms"][0]["path"].to_string();
            path.contains("frames out by a TPACKET_V3")
        });
        drop(guest);
        program.stop();
    });
}

/// Frames of the guest before are in the interface's queue, and the kernel keeps their ring.
#[test]
fn a_guest_does_without_a_ring_until_the_frames_of_the_one_before_are_out() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), ",rings=on,receive=socket");
        let queue = ["root", "tbf", "rate", "8bit", "burst", "2000", "limit", "100000"];
        tc(&[&["qdisc", "add", "dev", "v0"], &queue[..]].concat());
        let mut before = guest(dir.path());
        (0..4).for_each(|n| before.send(&frames::frame(n, 1400)));
        wait_until("it has a ring", || mapped_rings(child(&program)) == 1);
        drop(before);
        wait_until("it is unmapped", || mapped_rings(child(&program)) == 0);
        let mut behind = guest(dir.path());
        behind.send(&frames::frame(9, 100));
        program.wait_log("the packet ring from before is still in use");
        assert_eq!(mapped_rings(child(&program)), 0);
        let queue = ["root", "tbf", "rate", "1gbit", "burst", "20000", "limit", "100000"];
        tc(&[&["qdisc", "replace", "dev", "v0"], &queue[..]].concat());
        wait_until("it has a ring again", || {
            behind.send(&frames::frame(10, 100));
            mapped_rings(child(&program)) == 1
        });
        behind.ping(&mut Peer::new("v1"));
        program.stop();
    });
}

fn tc(arguments: &[&str]) {
    zerowire_testkit::net::run("tc", arguments);
}
