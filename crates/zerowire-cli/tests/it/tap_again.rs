//! `zerowire net` on a tap that somebody deletes or renames, with and without confined processes.
//! Run as root.

use std::path::Path;

use zerowire_testkit::net::ip;

use crate::sandbox::stats;
use crate::support::processes::{child, children, kill};
use crate::support::{Guest, Peer, Program, connect, in_netns, interface, tap, wait_until};

const QUEUES: usize = 2;

fn start(dir: &Path, sandbox: &str) -> Program {
    let socket = dir.join("s").display().to_string();
    let port = format!("tap:zwback,queues={QUEUES}");
    let args = ["--json", "--sandbox", sandbox, "--name", "boxed", "--socket", &socket, "--port", &port];
    let program = Program::net(&args);
    wait_until("it listens", || dir.join("s").exists());
    program
}

fn make() {
    tap::persistent("zwback", libc::IFF_MULTI_QUEUE);
}

/// Deletes the tap. The log and the statistics say so.
fn delete(program: &Program) {
    let lines = |text: &str| program.log().matches(text).count();
    let before = lines("tap 'zwback' is gone");
    ip(&["link", "del", "zwback"]);
    wait_until("the log says so", || lines("tap 'zwback' is gone") > before);
    wait_until("the statistics say so", || {
        let vm = stats(program, program.out().lines().count() + 1)["vms"][0].clone();
        let error = vm["last_error"].as_str().unwrap_or_default();
        vm["interface_state"] == "gone" && error.contains("tap 'zwback' is gone")
    });
}

fn pings(guest: &mut Guest) {
    let mut peer = Peer::new("zwback");
    guest.wait_for_frames(&mut peer);
    guest.ping(&mut peer);
}

fn guest(dir: &Path) -> Guest {
    Guest::start(connect(&dir.join("s")))
}

#[test]
fn a_tap_that_is_deleted_and_made_again_carries_frames_again() {
    for sandbox in ["on", "off"] {
        in_netns(move || {
            let dir = tempfile::tempdir().expect("a directory");
            make();
            let program = start(dir.path(), sandbox);
            let mut guest = guest(dir.path());
            pings(&mut guest);
            let served_by = children(&program);
            delete(&program);
            guest.send(&[0; 60]);
            make();
            pings(&mut guest);
            program.wait_log("tap 'zwback' is there again: frames pass");
            delete(&program);
            tap::make("zwback", libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_MULTI_QUEUE);
            program.wait_log("tap 'zwback' is there again, and down: frames are dropped until 'ip link set");
            ip(&["link", "set", "zwback", "up"]);
            pings(&mut guest);
            assert!(guest.driver.transport().is_alive(), "it was never disconnected");
            assert_eq!(children(&program), served_by, "by the same process");
            program.stop();
        });
    }
}

#[test]
fn a_child_that_starts_while_the_tap_is_gone_waits_for_it() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        make();
        let program = start(dir.path(), "on");
        let mut guest = guest(dir.path());
        pings(&mut guest);
        delete(&program);
        let dead = child(&program);
        kill(dead, libc::SIGKILL);
        wait_until("another child is there", || children(&program).iter().any(|now| *now != dead));
        wait_until("it says so, too", || program.log().matches("tap 'zwback' is gone").count() == 2);
        make();
        pings(&mut guest);
        assert!(guest.driver.transport().is_alive(), "it was never disconnected");
        program.stop();
    });
}

#[test]
fn a_tap_of_the_program_is_made_anew_when_a_front_end_connects() {
    for sandbox in ["on", "off"] {
        in_netns(move || {
            let dir = tempfile::tempdir().expect("a directory");
            let program = start(dir.path(), sandbox);
            let mut before = guest(dir.path());
            before.driver.transport().set_mtu(2000).expect("taken");
            pings(&mut before);
            delete(&program);
            before.driver.transport().set_mtu(3000).expect("taken");
            drop(before);
            assert_eq!(interface("zwback"), None, "nobody was there to use it");
            pings(&mut guest(dir.path()));
            let socket = zerowire_sys::netdevice::socket().expect("a socket");
            assert_eq!(zerowire_sys::netdevice::mtu(socket, "zwback").ok(), Some(3000));
            assert!(!program.log().contains("its process ended"), "{}", program.log());
            program.stop();
            assert_eq!(interface("zwback"), None, "it goes with the program");
        });
    }
}

#[test]
fn a_tap_that_is_renamed_is_served_by_its_new_name() {
    for sandbox in ["on", "off"] {
        in_netns(move || {
            let dir = tempfile::tempdir().expect("a directory");
            let program = start(dir.path(), sandbox);
            let mut before = guest(dir.path());
            pings(&mut before);
            ip(&["link", "set", "zwback", "down"]);
            ip(&["link", "set", "zwback", "name", "zwnew"]);
            ip(&["link", "set", "zwnew", "up"]);
            let vm = stats(&program, program.out().lines().count() + 1)["vms"][0].clone();
            assert_eq!((&vm["interface"], &vm["interface_state"]), (&"zwnew".into(), &"up".into()), "{vm}");
            drop(before);
            let mut guest = guest(dir.path());
            guest.driver.transport().set_mtu(3000).expect("taken");
            let mut peer = Peer::new("zwnew");
            guest.wait_for_frames(&mut peer);
            guest.ping(&mut peer);
            let (_, log) = program.stop();
            assert!(!log.contains("frames go nowhere") && !log.contains("its process ended"), "{log}");
        });
    }
}
