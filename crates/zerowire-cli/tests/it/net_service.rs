//! `zerowire net` as a service: handed-over sockets, signals, restarts under traffic, and processes
//! that may not do what they would like to.

use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use crate::support::processes::{child, children, mapped_kib, runs};
use crate::support::{
    Guest, HANDED_FD, PATIENCE, Peer, Program, Restrict, connect, frames, http, in_netns, interface, tap,
    wait_until,
};
use zerowire_guest::net::VirtioNetHdr;
use zerowire_guest::{VhostUser, VhostUserOptions};

/// Starts the program on a socket in `dir`, named like the tap.
fn start(dir: &Path, name: &str, more: &[&str], restrict: Restrict) -> Program {
    let socket = dir.join(name).display().to_string();
    let port = format!("tap:{name}");
    Program::restricted(&[&["--socket", &socket, "--port", &port, "--json"], more].concat(), restrict)
}

fn json(line: &str) -> serde_json::Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

#[test]
fn statistics_come_on_sigusr1_and_at_the_end() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), "zwstat", &[], Restrict::default());
        let mut guest = Guest::start(connect(&dir.path().join("zwstat")));
        let mut peer = Peer::new("zwstat");
        guest.ping(&mut peer);
        program.signal(libc::SIGUSR1);
        let stats = json(&program.wait_line(1));
        let vm = &stats["vms"][0];
        assert_eq!(
            (&vm["name"], &vm["connected"], &vm["connections"]),
            (&"vm0".into(), &true.into(), &1.into())
        );
        assert_eq!((&vm["transmit"]["frames"], &vm["receive"]["frames"]), (&3.into(), &3.into()));
        assert_eq!(vm["transmit"]["frames_by_queue"], serde_json::json!([3]));
        assert!(vm["features"].as_array().is_some_and(|f| f.contains(&"VERSION_1".into())), "{vm}");
        assert!(vm["path"].as_str().is_some_and(|p| p == "a system call a frame"), "{vm}");
        drop(guest);
        let (out, _) = program.stop();
        let last = json(out.lines().last().expect("a line"));
        assert_eq!(out.lines().count(), 2);
        let [bytes, zero, copied] =
            ["bytes", "zero_copied_bytes", "copied_bytes"].map(|k| &last["vms"][0]["transmit"][k]);
        assert_eq!(bytes.as_u64(), Some(3 * 12 + 60 + 1514 + 20_000));
        let sum: u64 =
            copied.as_object().expect("reasons").values().filter_map(serde_json::Value::as_u64).sum();
        assert_eq!(zero.as_u64().map(|z| z + sum), bytes.as_u64());
        assert!(!dir.path().join("zwstat").exists());
        wait_until("the tap that it made is gone", || interface("zwstat").is_none());
    });
}

/// Somebody read the statistics once, and is gone: guests are served on.
#[test]
fn statistics_that_nobody_reads_end_nothing() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let restrict = Restrict { unread: true, ..Restrict::default() };
        let mut program = start(dir.path(), "zwunread", &[], restrict);
        let mut guest = Guest::start(connect(&dir.path().join("zwunread")));
        let mut peer = Peer::new("zwunread");
        guest.ping(&mut peer);
        program.signal(libc::SIGUSR1);
        program.wait_log("statistics can't be written to standard output: Broken pipe");
        guest.ping(&mut peer);
        drop(guest);
        program.signal(libc::SIGTERM);
        assert_eq!(
            program.wait().code(),
            Some(1),
            "the last ones can't be written either\n{}",
            program.log()
        );
        assert!(!dir.path().join("zwunread").exists(), "all the same it is a clean end");
    });
}

#[test]
fn without_json_a_table_names_the_reasons() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let program = Program::net(&[
            "--socket",
            &socket.display().to_string(),
            "--port",
            "tap:zwtable",
            "--name",
            "web",
        ]);
        let mut guest = Guest::start(connect(&socket));
        guest.ping(&mut Peer::new("zwtable"));
        let (out, _) = program.stop();
        for word in [
            "web: tap:zwtable",
            "interface: zwtable, up",
            "guest to port",
            "port to guest",
            "small",
            "header",
            "none dropped",
            "CPU",
        ] {
            assert!(out.contains(word), "no '{word}' in\n{out}");
        }
        assert!(out.lines().all(|line| line.chars().count() <= 80), "{out}");
    });
}

/// The tap of a process that has ended may still be there: the next one finds it, and makes its
/// own.
#[test]
fn after_each_restart_at_once_the_guest_has_a_network() {
    for sandbox in ["off", "on"] {
        in_netns(move || {
            let dir = tempfile::tempdir().expect("a directory");
            for round in 0..20 {
                let mut program = start(dir.path(), "zwagain", &["--sandbox", sandbox], Restrict::default());
                let mut guest = Guest::start(connect(&dir.path().join("zwagain")));
                let mut peer = Peer::new("zwagain");
                guest.ping(&mut peer);
                // Rings run.
                let all = children(&program);
                if round % 2 == 0 {
                    program.kill();
                } else {
                    program.signal(libc::SIGTERM);
                    program.wait();
                }
                // Who connects before that would reach one of them.
                wait_until("its children have ended", || !all.iter().any(runs));
            }
        });
    }
}

#[test]
fn an_interface_that_is_down_is_told_when_a_front_end_connects() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        tap::make("zwdown", flags);
        let program = start(dir.path(), "zwdown", &[], Restrict::default());
        let guest = Guest::start(connect(&dir.path().join("zwdown")));
        program.wait_log("interface zwdown is down ('ip link set zwdown up')");
        program.signal(libc::SIGUSR1);
        let vm = &json(&program.wait_line(1))["vms"][0];
        assert_eq!((&vm["interface"], &vm["interface_state"]), (&"zwdown".into(), &"down".into()));
        drop(guest);
        tap::persistent("zwup", 0);
        let program = start(dir.path(), "zwup", &[], Restrict::default());
        let guest = Guest::start(connect(&dir.path().join("zwup")));
        program.signal(libc::SIGUSR1);
        assert_eq!(json(&program.wait_line(1))["vms"][0]["interface_state"], "up");
        drop(guest);
        let (_, log) = program.stop();
        assert!(!log.contains("WARN"), "{log}");
    });
}

#[test]
fn a_listening_socket_can_be_handed_over() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).expect("a socket");
        let restrict = Restrict { fd: Some(listener.as_raw_fd()), ..Restrict::default() };
        let program =
            Program::restricted(&["--fd", &HANDED_FD.to_string(), "--port", "tap:zwlisten"], restrict);
        drop(listener);
        for _ in 0..3 {
            let mut guest = Guest::start(connect(&path));
            guest.ping(&mut Peer::new("zwlisten"));
        }
        program.stop();
        assert!(path.exists(), "the socket is not the program's to remove");
    });
}

#[test]
fn with_a_connected_socket_the_program_ends_with_the_connection() {
    in_netns(|| {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let restrict = Restrict { fd: Some(theirs.as_raw_fd()), ..Restrict::default() };
        let mut program = Program::restricted(
            &["--fd", &HANDED_FD.to_string(), "--port", "tap:zwconn", "--json"],
            restrict,
        );
        drop(theirs);
        let mut guest =
            Guest::start(VhostUser::from_stream(ours, &VhostUserOptions::default()).expect("a handshake"));
        guest.ping(&mut Peer::new("zwconn"));
        drop(guest);
        assert!(program.wait().success(), "{}", program.log());
        assert_eq!(json(&program.out())["vms"][0]["transmit"]["frames"], 3);
    });
}

/// Proportional memory of a process without that of its guests, bytes (proc_pid_smaps(5)).
fn own_memory(pid: i32) -> u64 {
    mapped_kib(pid, &["Pss:"], |mapping| !mapping.contains("memfd:guest-memory")) << 10
}

/// Also a confined process has them marked, although it dumps no core.
#[test]
fn a_core_dump_has_no_guests_memory() {
    for sandbox in ["off", "on"] {
        in_netns(move || {
            let dir = tempfile::tempdir().expect("a directory");
            let program = start(dir.path(), "zwdump", &["--sandbox", sandbox], Restrict::default());
            let mut guest = Guest::start(connect(&dir.path().join("zwdump")));
            guest.ping(&mut Peer::new("zwdump"));
            let pid = if sandbox == "on" { child(&program) } else { program.pid() };
            let text = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("its mappings");
            let (mut ours, mut guests) = (false, 0);
            for line in text.lines() {
                match line.split_once(' ').expect("two words") {
                    ("VmFlags:", flags) if ours => {
                        guests += 1;
                        assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}\n{text}");
                    }
                    (range, _) if !range.ends_with(':') => ours = line.contains("memfd:"),
                    _ => {}
                }
            }
            assert!(guests > 0, "its memory is mapped");
            drop(guest);
            program.stop();
        });
    }
}

/// When the guests have come to rest, the processes take at most 20 MiB, and 2 MiB for each further
/// VM.
#[test]
fn idle_vms_take_little_memory() {
    in_netns(|| idle_vms_take_little("off"));
    in_netns(|| idle_vms_take_little("on"));
}

fn idle_vms_take_little(sandbox: &str) {
    const VMS: u64 = 6;
    let dir = tempfile::tempdir().expect("a directory");
    let names: Vec<_> = (0..VMS).map(|n| format!("zwidle{n}")).collect();
    let at = |name: &str| dir.path().join(name);
    let vm = |name: &String| format!("name={name},socket={},port=tap:{name}", at(name).display());
    let mut args = vec!["--sandbox".to_owned(), sandbox.to_owned()];
    args.extend(names.iter().flat_map(|name| ["--vm".to_owned(), vm(name)]));
    let program = Program::net(&args);
    let mut guests = Vec::new();
    for (n, name) in (0..).zip(&names) {
        let mut guest = Guest::start(connect(&at(name)));
        guest.ping(&mut Peer::new(name));
        guests.push(guest);
        let most = (20 << 20) + n * (2 << 20);
        let mut now = 0;
        wait_until("it takes as little as it may", || {
            now = own_memory(program.pid());
            now += children(&program).into_iter().map(own_memory).sum::<u64>();
            now <= most
        });
        println!("{now} bytes with {} VMs", n + 1);
    }
    program.stop();
}

#[test]
fn metadata_are_read_again_on_sighup() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("metadata.json");
        let write = |text: &str| std::fs::write(&file, text).expect("a metadata file");
        write(r#"{"latest":{"meta-data":{"local-hostname":"one"}}}"#);
        let more = ["--metadata", &file.display().to_string(), "--metadata-token", "optional"];
        let program = start(dir.path(), "zwhup", &more, Restrict::default());
        let mut guest = Guest::start(connect(&dir.path().join("zwhup")));
        let mut peer = Peer::new("zwhup");
        let path = "/latest/meta-data/local-hostname";
        assert_eq!(http::get(&mut guest, 2000, path), "one");

        write("{ broken");
        program.signal(libc::SIGHUP);
        program.wait_log("the old metadata stay");
        assert!(
            program.log().contains("metadata.json") && program.log().contains("line 1"),
            "{}",
            program.log()
        );
        assert_eq!(http::get(&mut guest, 2001, path), "one");

        write(r#"{"latest":{"meta-data":{"local-hostname":"two"}}}"#);
        program.signal(libc::SIGHUP);
        program.wait_log("vm0: metadata read again from");
        let mut port = 2002;
        wait_until("the new metadata are served", || {
            port += 1;
            http::get(&mut guest, port, path) == "two"
        });
        assert!(peer.drain().is_empty(), "nothing of it reaches the port");
        guest.ping(&mut peer);
        program.stop();
    });
}

/// Most frames of a batch, which may be on their way when the program is killed.
const IN_FLIGHT: u32 = 64;

#[test]
fn a_program_that_is_killed_and_started_again_goes_on_where_it_was() {
    for sandbox in ["off", "on"] {
        in_netns(move || {
            const NAME: &str = "zwkill";
            tap::persistent(NAME, 0);
            let dir = tempfile::tempdir().expect("a directory");
            let socket = dir.path().join(NAME);
            let mut program = start(dir.path(), NAME, &["--sandbox", sandbox], Restrict::default());
            let mut guest = Guest::start(connect(&socket));
            let mut peer = Peer::new(NAME);
            let (mut out, mut seen) = (0u32, 0u32);
            let (mut back, mut got) = (0u32, 0u32);
            let len = |n: u32| 18 + (n as usize * 37) % 6000;
            for round in 0..6u32 {
                // Frames both ways. Some are done and some under way when the program dies.
                for _ in 0..100 {
                    let frame = frames::frame(out, len(out));
                    assert!(
                        guest.pairs[0].tx.send(&VirtioNetHdr::default(), &frame).expect("a frame that fits")
                    );
                    out += 1;
                    if out % 3 == 0 {
                        guest.pairs[0].tx.publish().expect("published");
                        peer.send(&frames::frame(back, 18 + (back as usize * 13) % 1400));
                        back += 1;
                    }
                }
                guest.pairs[0].tx.publish().expect("published");
                let enough = seen + round * 16;
                let mut arrived = Vec::new();
                while (seen + arrived.len() as u32) < enough {
                    arrived.push(peer.expect());
                }
                let all = children(&program);
                program.kill();
                // Who connects before that would reach one of them.
                wait_until("its children have ended", || !all.iter().any(runs));
                program = start(dir.path(), NAME, &["--sandbox", sandbox], Restrict::default());
                guest.driver.reconnect(connect(&socket), &mut guest.pairs).unwrap_or_else(|e| panic!("{e}"));
                assert!(
                    guest.pairs[0].tx.drain(PATIENCE).expect("a sound ring"),
                    "all frames are given back"
                );
                // None is lost; those that were under way may come twice.
                arrived.extend(peer.drain());
                for frame in arrived {
                    let n = frames::number(&frame.bytes);
                    assert_eq!(frame.bytes, frames::frame(n, len(n)), "frame {n} is whole");
                    assert!(n <= seen, "frame {seen} is missing, {n} came");
                    assert!(seen - n <= IN_FLIGHT, "frame {n} came again behind {seen}");
                    seen = seen.max(n + 1);
                }
                assert_eq!(seen, out, "every frame came, round {round}");
                tap::wait_for_carrier(NAME);
                // Toward the guest: what came is whole, in order, and once.
                peer.send(&frames::frame(u32::MAX, 60));
                loop {
                    let frame = guest.expect();
                    let n = frames::number(&frame);
                    if n == u32::MAX {
                        break;
                    }
                    assert_eq!(frame, frames::frame(n, 18 + (n as usize * 13) % 1400), "frame {n} is whole");
                    assert!(n >= got, "frame {n} came again");
                    got = n + 1;
                }
            }
            assert!(got > 0, "some frames reached the guest");
            guest.ping(&mut peer);
            program.stop();
        });
    }
}
