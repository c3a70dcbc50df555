//! `zerowire net --sandbox on` with AF_XDP ports: frames, an interface that changes, children that
//! die, and memory that may be pinned. Run as root.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use zerowire_guest::net::{FrameShape, Layout, NetDriver, NetOptions};
use zerowire_guest::{GuestAddr, GuestMemory};
use zerowire_sys::netlink::LinkInfo;
use zerowire_testkit::captures::read_file;
use zerowire_testkit::net::{ip, veth};

use crate::sandbox::stats;
use crate::support::control::Controlled;
use crate::support::processes::{child, children, kill, wait_idle};
use crate::support::{Guest, Peer, Program, connect, frames, in_netns, wait_until};

/// Bytes of a guest's memory: a test may have no right to raise the limit of locked memory, which
/// is 8 MiB.
const RAM: usize = 4 << 20;
/// Bytes that a VM needs beside that with one queue pair.
const BESIDE: u64 = (128 << 10) + 2048 * 256 + 512 * 4096;
const NEED_BYTES: u64 = RAM as u64 + BESIDE;

/// A user whom no other test has: the kernel counts locked memory by user.
fn user() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    (70_000 + (std::process::id() % 10_000) * 100 + NEXT.fetch_add(1, Ordering::Relaxed)).to_string()
}

/// A VM on an AF_XDP port `v0`, whose other end is `v1`.
fn start(dir: &Path, options: &str, more: &[&str]) -> Program {
    veth::veth("v0", "v1", if options.contains("queues=2") { 2 } else { 1 }, 1500);
    let socket = dir.join("s").display().to_string();
    let port = format!("xdp:v0{options}");
    let user = user();
    let args = [
        "--json",
        "--sandbox",
        "on",
        "--user",
        &user,
        "--name",
        "boxed",
        "--socket",
        &socket,
        "--port",
        &port,
    ];
    let program = Program::net(&[&args, more].concat());
    program.wait_log("boxed: served by a confined process");
    program
}

fn try_guest(socket: &Path, queue_pairs: u16, ram: usize) -> Result<Guest, String> {
    let memory = GuestMemory::new(&[(GuestAddr(0), ram)]).expect("guest memory");
    let tx = FrameShape { layout: Layout::Split, indirect: false, capacity: 2000 };
    let options = NetOptions { queue_pairs, queue_size: 64, tx, tx_slots: 32, ..NetOptions::default() };
    let started = NetDriver::start(connect(socket), &memory, &options);
    let (driver, pairs) = started.map_err(|e| e.to_string())?;
    Ok(Guest { driver, pairs })
}

fn guest_at(socket: &Path) -> Guest {
    try_guest(socket, 1, RAM).unwrap_or_else(|e| panic!("{e}"))
}

fn guest(dir: &Path) -> Guest {
    guest_at(&dir.join("s"))
}

/// Frames of all lengths that the interface takes, each way, as soon as some pass.
fn ping(guest: &mut Guest, peer: &mut Peer) {
    warm_up(guest, peer);
    for (n, len) in [(1, 60), (2, 900), (3, 1514)] {
        let out = frames::frame(n, len);
        guest.send(&out);
        assert_eq!(peer.expect().bytes, out, "guest to host");
        let back = frames::frame(n + 100, len);
        peer.send(&back);
        assert_eq!(guest.expect_numbered(), back, "host to guest");
    }
}

/// Waits until frames come: the socket is bound some time after the guest's rings run.
fn warm_up(guest: &mut Guest, peer: &mut Peer) {
    guest.wait_for_frames(peer);
    let mut n = 9;
    wait_until("the last of the frames goes", || {
        n += 1;
        let last = frames::frame(n, 100);
        guest.send(&last);
        std::iter::from_fn(|| peer.recv(Duration::from_millis(50))).any(|f| f.bytes == last)
    });
}

fn path(program: &Program, count: usize) -> String {
    stats(program, count)["vms"][0]["path"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn frames_pass_both_ways_for_one_guest_behind_the_other() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), "", &[]);
        for count in 1..=3 {
            let mut guest = guest(dir.path());
            let mut peer = Peer::new("v1");
            ping(&mut guest, &mut peer);
            assert_eq!(veth::promiscuity("v0"), 1);
            let vm = stats(&program, count)["vms"][0].clone();
            assert!(vm["path"].as_str().is_some_and(|path| path.contains("AF_XDP, interface v0")), "{vm}");
            assert_eq!((&vm["interface_state"], &vm["interface"]), (&"up".into(), &"v0".into()), "{vm}");
            assert!(vm["transmit"]["frames"].as_u64() >= Some(4 * count as u64), "{vm}");
            drop(guest);
            wait_until("the interface is as it was", || veth::promiscuity("v0") == 0);
        }
        assert!(!program.log().contains("its process ended"), "{}", program.log());
        program.stop();
        assert!(LinkInfo::find("v0").expect("the interface").xdp.is_none(), "the program is gone");
    });
}

/// The child lets go of what its supervisor has left.
#[test]
fn an_orderly_end_is_no_trouble() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), "", &[]);
        let mut guest = guest(dir.path());
        ping(&mut guest, &mut Peer::new("v1"));
        let before = program.log().len();
        let (_, log) = program.stop();
        let log = &log[before..];
        assert!(!log.contains("WARN ") && !log.contains("ERROR "), "{log}");
    });
}

#[test]
fn frames_pass_on_two_queues() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), ",queues=2", &[]);
        let mut guest = try_guest(&dir.path().join("s"), 2, RAM / 2).unwrap_or_else(|e| panic!("{e}"));
        let mut peer = Peer::new("v1");
        for pair in [0, 1, 0, 1] {
            guest.pairs.swap(0, pair);
            let out = frames::frame(7, 700);
            guest.send(&out);
            assert_eq!(peer.expect().bytes, out, "queue {pair}");
            guest.pairs.swap(0, pair);
        }
        // The kernel decides by the sender's processor which queue a frame comes on.
        peer.send(&frames::frame(8, 100));
        wait_until("the frame comes", || {
            let mut pairs = guest.pairs.iter_mut();
            pairs.any(|p| p.rx.recv(Duration::from_millis(20)).expect("a sound ring").is_some())
        });
        let by_queue = stats(&program, 1)["vms"][0]["transmit"]["frames_by_queue"].clone();
        assert_eq!(by_queue, serde_json::json!([2, 2]));
        program.stop();
    });
}

#[test]
fn only_frames_for_its_address_are_the_guests() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), ",match=mac:02:00:00:00:00:09,promisc=off", &[]);
        let mut guest = guest(dir.path());
        let peer = Peer::new("v1");
        let to = |address: [u8; 6], n| {
            let mut frame = frames::frame(n, 200);
            frame[..6].copy_from_slice(&address);
            peer.send(&frame);
            frame
        };
        wait_until("frames come", || {
            to([2, 0, 0, 0, 0, 9], 1);
            guest.pairs[0].rx.recv(Duration::from_millis(50)).expect("a sound ring").is_some()
        });
        to([2, 0, 0, 0, 0, 8], 3);
        let own = to([2, 0, 0, 0, 0, 9], 2);
        let mut come = || guest.expect_numbered();
        let behind = std::iter::repeat_with(&mut come).find(|frame| frames::number(frame) != 1);
        assert_eq!(behind, Some(own));
        assert_eq!(veth::promiscuity("v0"), 0);
        program.stop();
    });
}

#[test]
fn frames_of_a_child_are_captured_and_announced() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("c.pcapng").display().to_string();
        let program = start(dir.path(), "", &["--pcap", &file]);
        let mut guest = guest(dir.path());
        let mut peer = Peer::new("v1");
        ping(&mut guest, &mut peer);
        guest.driver.transport().send_rarp([2, 0, 0, 0, 0, 9]).expect("sent");
        while peer.expect().bytes[6..14] != [2, 0, 0, 0, 0, 9, 0x80, 0x35] {}
        drop(guest);
        program.stop();
        let capture = read_file(Path::new(&file));
        assert!(capture.packets.iter().filter(|p| p.direction == 2).count() >= 4);
    });
}

#[test]
fn a_child_that_dies_is_replaced_and_the_front_end_stays() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let memlock = NEED_BYTES.to_string();
        // The dead one's claim is given back: there is room for one.
        let program = start(dir.path(), "", &["--memlock", &memlock]);
        let mut guest = guest(dir.path());
        let mut peer = Peer::new("v1");
        ping(&mut guest, &mut peer);
        for n in 0..3 {
            let dead = child(&program);
            wait_idle(dead);
            for frame in 0..64 {
                peer.send(&frames::frame(200 + frame, 300));
            }
            kill(dead, libc::SIGKILL);
            wait_until("another child is there", || children(&program).iter().any(|now| *now != dead));
            ping(&mut guest, &mut peer);
            assert!(guest.driver.transport().is_alive(), "death {n}: it was never disconnected");
            assert_eq!(veth::promiscuity("v0"), 1, "{}", program.log());
            std::thread::sleep(Duration::from_millis(1100));
        }
        drop(guest);
        wait_until("the interface is as it was", || veth::promiscuity("v0") == 0);
        ping(&mut self::guest(dir.path()), &mut Peer::new("v1"));
        program.stop();
    });
}

#[test]
fn an_interface_changes_and_goes_and_comes_back() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), "", &[]);
        let mut guest = guest(dir.path());
        ping(&mut guest, &mut Peer::new("v1"));
        let before = child(&program);
        ip(&["link", "set", "v0", "mtu", "3000"]);
        program.wait_log("interface v0 has MTU 3000 now");
        warm_up(&mut guest, &mut Peer::new("v1"));
        ip(&["link", "set", "v0", "mtu", "1400"]);
        program.wait_log("MTU 1400 now");
        ip(&["link", "set", "v0", "mtu", "1500"]);
        ip(&["link", "set", "v0", "down"]);
        ip(&["link", "set", "v0", "up"]);
        ping(&mut guest, &mut Peer::new("v1"));
        ip(&["link", "del", "v0"]);
        program.wait_log("interface v0 is gone");
        veth::veth_for_who_waits("v0", "v1", 1, 1500);
        ping(&mut guest, &mut Peer::new("v1"));
        assert_eq!(child(&program), before, "it needs no other child");
        assert!(guest.driver.transport().is_alive(), "it was never disconnected");
        program.stop();
    });
}

#[test]
fn the_guest_sees_the_link() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), ",link=follow", &[]);
        ping(&mut guest(dir.path()), &mut Peer::new("v1"));
        let kept = guest(dir.path());
        ip(&["link", "set", "v0", "down"]);
        program.wait_log("the guest's link goes down");
        program.wait_log("can't carry frames (link=follow)");
        drop(kept);
        ip(&["link", "set", "v0", "up"]);
        program.wait_log("the front end may connect");
        ping(&mut guest(dir.path()), &mut Peer::new("v1"));
        program.stop();
    });
}

#[test]
fn what_may_be_pinned_is_a_budget_over_all_children() {
    in_netns(|| {
        veth::veth("v0", "v1", 2, 1500);
        let dir = tempfile::tempdir().expect("a directory");
        let vm = |name: &str, queue| {
            let socket = dir.path().join(name).display().to_string();
            format!("name={name},socket={socket},port=xdp:v0,queue={queue}")
        };
        let (a, b) = (vm("a", 0), vm("b", 1));
        let memlock = (NEED_BYTES + 4096).to_string();
        let program = Program::net(&[
            "--sandbox",
            "on",
            "--user",
            &user(),
            "--vm",
            &a,
            "--vm",
            &b,
            "--memlock",
            &memlock,
        ]);
        program.wait_log("b: served by a confined process");
        let mut first = guest_at(&dir.path().join("a"));
        let mut peer = Peer::new("v1");
        first.send(&frames::frame(1, 700));
        assert_eq!(peer.expect().bytes, frames::frame(1, 700));
        let refused = try_guest(&dir.path().join("b"), 1, RAM).err();
        assert!(refused.is_some_and(|e| e.contains("SET_VRING_KICK")));
        program.wait_log(&format!("raise it to {}", 2 * NEED_BYTES));
        // With its front end goes what it has.
        drop(first);
        program.wait_log("a: connection ended");
        let mut second = guest_at(&dir.path().join("b"));
        second.send(&frames::frame(3, 700));
        assert_eq!(peer.expect().bytes, frames::frame(3, 700));
        program.stop();
    });
}

/// What its worker says waits as the other lines of such a front end do.
#[test]
fn a_front_end_that_comes_again_and_again_for_its_memory_fills_no_log() {
    const TIMES: usize = 12;
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), "", &["--memlock", &(NEED_BYTES / 2).to_string()]);
        for _ in 0..TIMES {
            let refused = try_guest(&dir.path().join("s"), 1, RAM).err();
            assert!(refused.is_some_and(|e| e.contains("SET_VRING_KICK")));
        }
        let (_, log) = program.stop();
        let count = |words: &str| log.lines().filter(|line| line.contains(words)).count();
        let ended = count("boxed: connection ended");
        assert!((3..TIMES).contains(&ended), "{log}");
        for words in ["boxed: v0: copy mode, since", " WARN boxed: "] {
            assert!((3..=ended).contains(&count(words)), "{words}: {log}");
        }
    });
}

#[test]
fn a_part_or_none_of_the_memory_is_pinned() {
    in_netns(|| {
        for (options, memlock, words) in [
            (",pin=partial", NEED_BYTES - (2 << 20), "2 of 4 MiB of the guest's memory are pinned"),
            (",pin=off", BESIDE, "0 of 4 MiB of the guest's memory are pinned"),
        ] {
            let dir = tempfile::tempdir().expect("a directory");
            let program = start(dir.path(), options, &["--memlock", &memlock.to_string()]);
            let mut guest = guest(dir.path());
            ping(&mut guest, &mut Peer::new("v1"));
            let path = path(&program, 1);
            assert!(path.contains(words), "{path}");
            program.stop();
            ip(&["link", "del", "v0"]);
        }
    });
}

#[test]
fn a_vm_is_added_drained_and_removed_while_others_run() {
    in_netns(|| {
        veth::veth("v0", "v1", 2, 1500);
        let program = Controlled::start(&["--sandbox", "on", "--user", &user()]);
        let add = |queue: u32| {
            let (name, port) = (format!("q{queue}"), format!("xdp:v0,queue={queue},pin=off"));
            let body = serde_json::json!({"socket": program.path(&name), "port": port}).to_string();
            let (code, answer) = program.ask("PUT", &format!("/vms/{name}"), &body);
            assert_eq!(code, 201, "{answer}");
        };
        add(0);
        add(1);
        let mut first = guest_at(&program.path("q0"));
        let mut peer = Peer::new("v1");
        first.send(&frames::frame(1, 700));
        assert_eq!(peer.expect().bytes, frames::frame(1, 700));
        for _ in 0..2 {
            let second = guest_at(&program.path("q1"));
            let (code, answer) = program.ask("POST", "/vms/q1/drain", "");
            assert!(code < 300, "{code} {answer}");
            drop(second);
            wait_until("it is gone", || program.names() == ["q0"]);
            add(1);
        }
        let (code, answer) = program.ask("DELETE", "/vms/q1", "");
        assert!(code < 300, "{code} {answer}");
        first.send(&frames::frame(2, 700));
        assert_eq!(peer.expect().bytes, frames::frame(2, 700));
    });
}
