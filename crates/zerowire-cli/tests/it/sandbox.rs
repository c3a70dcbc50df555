//! `zerowire net --sandbox on`: what its children have and do not have, what becomes of a VM whose
//! child dies, and that the others see nothing of it. Run as root.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::control::Controlled;
use crate::support::processes::{child, children, kill, runs, status, wait_idle};
use crate::support::{
    Guest, HANDED_FD, Peer, Program, Restrict, connect, http, in_netns, interface, is_refused, median_within,
    wait_until,
};
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::{GuestAddr, GuestMemory, Transport, VhostUser, VhostUserOptions, features};
use zerowire_testkit::captures::{CaptureFile, read, read_file};

pub fn start(dir: &Path, names: &[&str], more: &[&str]) -> Program {
    let spec = |name: &&str| format!("name={name},socket={},port=tap:{name}", dir.join(name).display());
    let vms: Vec<_> = names.iter().flat_map(|name| ["--vm".to_owned(), spec(name)]).collect();
    let mut args: Vec<&str> = vec!["--json", "--sandbox", "on"];
    args.extend(vms.iter().map(String::as_str));
    args.extend(more);
    let program = Program::net(&args);
    for name in names {
        program.wait_log(&format!("{name}: served by a confined process"));
    }
    program
}

/// Statistics, asked for by a signal; `count` is how many times.
pub(crate) fn stats(program: &Program, count: usize) -> Value {
    program.signal(libc::SIGUSR1);
    let line = program.wait_line(count);
    serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

#[test]
fn a_child_has_what_is_open_for_it_and_nothing_else() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), &["zwbox"], &[]);
        let pid = child(&program);
        let mut guest = Guest::start(connect(&dir.path().join("zwbox")));
        guest.ping(&mut Peer::new("zwbox"));

        for (key, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("Uid", "65534"), ("Gid", "65534")] {
            assert_eq!(status(pid, key), wanted, "{key}");
        }
        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status(pid, set), "0000000000000000", "{set}");
        }
        let link = |of: &str, what: &str| std::fs::read_link(format!("/proc/{of}/ns/{what}")).expect("/proc");
        for namespace in ["mnt", "ipc", "net", "pid"] {
            let (own, others) = (link(&pid.to_string(), namespace), link("self", namespace));
            assert_ne!(own, others, "{namespace}");
        }
        let root = std::fs::read_dir(format!("/proc/{pid}/root")).expect("its root");
        assert_eq!(root.count(), 0, "the root is empty");
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("/proc");
        let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("/proc");
        assert_eq!(String::from_utf8_lossy(&environment), "", "it has no environment");
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a line");
        assert!(core.split_whitespace().filter(|word| *word == "0").count() == 2, "{core}");
        drop(guest);
        program.stop();
    });
}

/// A set of capabilities, which all threads of a program have.
fn capabilities(program: &Program, set: &str) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", program.pid())).expect("/proc");
    let of = |task: std::io::Result<std::fs::DirEntry>| {
        let task = task.expect("a thread").file_name().to_string_lossy().parse().expect("a number");
        assert_eq!(status(task, "NoNewPrivs"), "1");
        u64::from_str_radix(&status(task, set), 16).expect("a number")
    };
    let all: BTreeSet<_> = tasks.map(of).collect();
    assert_eq!(all.len(), 1, "{set}: {all:x?}");
    all.into_iter().next().unwrap_or_default()
}

/// Capabilities of capability.h.
const NET_RAW: u64 = 1 << 13;
const SYS_MODULE: u64 = 1 << 16;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;

#[test]
fn a_supervisor_keeps_what_its_ports_need() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let of = NET_RAW | SYS_MODULE | SYS_PTRACE | SYS_ADMIN;
        let socket = dir.path().join("control").display().to_string();
        // A socket that is called as a packet port is none.
        let named = dir.path().join("packet:");
        std::fs::create_dir(&named).expect("a folder");
        // A VM on a packet port may come.
        for (at, more, kept) in [
            (dir.path(), &[][..], SYS_ADMIN),
            (&named, &[], SYS_ADMIN),
            (dir.path(), &["--control", &socket], SYS_ADMIN | NET_RAW),
        ] {
            let program = start(at, &["zwkept"], more);
            for set in ["CapPrm", "CapEff", "CapBnd"] {
                assert_eq!(capabilities(&program, set) & of, kept, "{set}");
            }
            program.stop();
        }
    });
}

#[test]
fn a_child_holds_descriptors_of_its_own_vm_only() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), &["zwowna", "zwownb"], &[]);
        let _guest = Guest::start(connect(&dir.path().join("zwowna")));
        for pid in children(&program) {
            let kinds: BTreeSet<_> = std::fs::read_dir(format!("/proc/{pid}/fd"))
                .expect("/proc")
                .flatten()
                // Some are gone again.
                .filter_map(|entry| std::fs::read_link(entry.path()).ok())
                .map(|link| {
                    link.to_string_lossy().split([':', '(', ' ']).next().unwrap_or_default().to_owned()
                })
                .collect();
            let known = ["socket", "pipe", "anon_inode", "/dev/net/tun", "/dev/null", "/memfd"];
            assert!(kinds.iter().all(|kind| known.contains(&kind.as_str())), "{kinds:?}");
            let taps = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("/proc").flatten();
            let taps: BTreeSet<_> = taps
                .filter_map(|entry| std::fs::read_to_string(entry.path()).ok())
                .filter_map(|info| Some(info.lines().find_map(|l| l.strip_prefix("iff:"))?.trim().to_owned()))
                .collect();
            assert_eq!(taps.len(), 1, "one VM's tap: {taps:?}");
        }
        program.stop();
    });
}

#[test]
fn a_vm_whose_child_dies_is_served_again_and_the_others_see_nothing() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| -> PathBuf { dir.path().join(name) };
        let program = start(dir.path(), &["zwdead"], &[]);
        let dead = child(&program);
        // The tap stays, and so does what an administrator has set.
        let number = interface("zwdead");
        let mut guest = Guest::start(connect(&path("zwdead")));
        guest.ping(&mut Peer::new("zwdead"));
        let before = stats(&program, 1);
        assert_eq!(before["vms"][0]["transmit"]["frames"], 3, "{before}");
        for deaths in 1..=3 {
            let pid = child(&program);
            // The first process of a namespace takes no other signal.
            kill(pid, libc::SIGKILL);
            wait_until("another child is there", || children(&program).iter().any(|now| *now != pid));
            drop(guest);
            guest = Guest::start(connect(&path("zwdead")));
            guest.ping(&mut Peer::new("zwdead"));
            let vm = stats(&program, 1 + deaths)["vms"][0].clone();
            assert_eq!(vm["connections"], 1 + deaths, "{vm}");
            let error = vm["last_error"].as_str().unwrap_or_default();
            assert!(error.contains("its process ended: killed by"), "{vm}");
        }
        assert_ne!(child(&program), dead);
        assert!(interface("zwdead").is_some() && interface("zwdead") == number, "it is the same tap");
        program.wait_log("killed by signal 9");
        drop(guest);
        let (out, _) = program.stop();
        let last: Value = serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
        assert_eq!(last["vms"][0]["transmit"]["frames"], 12, "counted over all children: {last}");
        assert!(!path("zwdead").exists(), "the socket is gone");
        wait_until("the tap is gone", || interface("zwdead").is_none());
    });
}

#[test]
fn a_front_end_of_another_vm_stays_connected() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), &["zwvma", "zwvmb"], &[]);
        let mut guest = Guest::start(connect(&dir.path().join("zwvmb")));
        let mut peer = Peer::new("zwvmb");
        guest.ping(&mut peer);
        // The child of the VM without a front end has no guest memory.
        let serves = |pid: &i32| {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("/proc");
            maps.lines().any(|line| line.contains("memfd:") && line.contains(" rw-s "))
        };
        let idle: Vec<_> = children(&program).into_iter().filter(|pid| !serves(pid)).collect();
        assert_eq!(idle.len(), 1, "{}", program.log());
        kill(idle[0], libc::SIGKILL);
        program.wait_log("zwvma: its process ended");
        guest.ping(&mut peer);
        assert!(!program.log().contains("zwvmb: its process ended"), "{}", program.log());
        program.stop();
    });
}

#[test]
fn children_end_with_their_supervisor() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), &["zwenda", "zwendb"], &[]);
        let all = children(&program);
        assert_eq!(all.len(), 2);
        program.kill();
        wait_until("its children are gone", || !all.iter().any(runs));
    });
}

#[test]
fn metadata_reach_a_child_and_are_read_again() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("metadata.json");
        std::fs::write(&file, r#"{"latest": {"name": "old"}}"#).expect("written");
        let metadata = file.display().to_string();
        let more = ["--metadata", &metadata, "--metadata-token", "optional"];
        let program = start(dir.path(), &["zwmeta"], &more);
        let mut guest = Guest::start(connect(&dir.path().join("zwmeta")));
        let answer = http::get(&mut guest, 4001, "/latest/name");
        assert!(answer.ends_with("old"), "{answer}");
        std::fs::write(&file, r#"{"latest": {"name": "new"}}"#).expect("written");
        program.signal(libc::SIGHUP);
        program.wait_log(&format!("zwmeta: metadata read again from {metadata}"));
        wait_until("the guest sees them", || {
            static PORT: std::sync::atomic::AtomicU16 = std::sync::atomic::AtomicU16::new(4002);
            let port = PORT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            http::get(&mut guest, port, "/latest/name").ends_with("new")
        });
        // A child that follows has them as well. The file is not read for it.
        std::fs::write(&file, "no metadata").expect("written");
        kill(child(&program), libc::SIGKILL);
        program.wait_log("its process ended");
        drop(guest);
        let mut guest = Guest::start(connect(&dir.path().join("zwmeta")));
        let answer = http::get(&mut guest, 4001, "/latest/name");
        assert!(answer.ends_with("new"), "{answer}");
        program.stop();
    });
}

#[test]
fn vms_come_and_go_by_the_control_socket() {
    in_netns(|| {
        let server = Controlled::start(&["--sandbox", "on"]);
        assert_eq!(children(&server.program), Vec::<i32>::new());
        server.add("zwcome");
        let mut guest = Guest::start(connect(&server.path("zwcome")));
        guest.ping(&mut Peer::new("zwcome"));
        let shown = server.json("/vms/zwcome");
        assert_eq!((&shown["connected"], &shown["statistics"]["connections"]), (&true.into(), &1.into()));
        assert_eq!(server.ask("POST", "/vms/zwcome/drain", "").0, 202);
        assert_eq!(server.json("/vms/zwcome")["state"], "draining");
        assert!(is_refused(&server.path("zwcome")), "others are refused");
        // The next child has the front end, and no other one comes to it.
        let dies = child(&server.program);
        wait_idle(dies);
        kill(dies, libc::SIGKILL);
        server.program.wait_log("goes on with the session of a process before");
        assert!(is_refused(&server.path("zwcome")));
        guest.ping(&mut Peer::new("zwcome"));
        drop(guest);
        wait_until("it is gone", || server.names().is_empty());
        server.add("zwcome");
        assert_eq!(server.ask("DELETE", "/vms/zwcome", "").0, 204);
        assert!(interface("zwcome").is_none() && !server.path("zwcome").exists());
        assert_eq!(children(&server.program), Vec::<i32>::new());
        // What is refused leaves nothing.
        let body = format!("{{\"socket\": \"{}\", \"port\": \"packet:lo\"}}", server.path("x").display());
        let (status, text) = server.ask("PUT", "/vms/x", &body);
        assert!(status == 422 && text.contains("loopback"), "{status} {text}");
        assert!(server.names().is_empty() && !server.path("x").exists());
    });
}

/// Each with a tap and a process of its own.
#[test]
fn a_vm_is_added_by_the_control_socket_within_20_ms() {
    in_netns(|| {
        let server = Controlled::start(&["--sandbox", "on"]);
        median_within("a VM is added", Duration::from_millis(20), || {
            let names: Vec<_> = (0..32).map(|n| format!("zwadd{n}")).collect();
            let added = |name: &String| {
                let begin = Instant::now();
                server.add(name);
                begin.elapsed()
            };
            let took = names.iter().map(added).collect();
            assert_eq!(children(&server.program).len(), names.len());
            for name in &names {
                assert_eq!(server.ask("DELETE", &format!("/vms/{name}"), "").0, 204);
            }
            took
        });
        server.program.stop();
    });
}

/// A child that was stopped answers nothing.
#[test]
fn children_that_do_not_answer_cost_one_wait_for_all() {
    in_netns(|| {
        let names = ["zwmute", "zwmutb", "zwmutc", "zwmutd"];
        let server = Controlled::start(&["--sandbox", "on"]);
        names.iter().for_each(|name| server.add(name));
        let mut guest = Guest::start(connect(&server.path("zwmute")));
        guest.ping(&mut Peer::new("zwmute"));
        assert_eq!(server.json("/vms/zwmute")["statistics"]["transmit"]["frames"], 3);
        let all = children(&server.program);
        all.iter().for_each(|pid| kill(*pid, libc::SIGSTOP));
        let begin = Instant::now();
        let shown = server.json("/stats");
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
        // Each is as it was shown last.
        assert_eq!(shown["vms"].as_array().map(Vec::len), Some(4));
        assert_eq!(shown["vms"][0]["transmit"]["frames"], 3, "{shown}");
        let vms = server.json("/vms");
        let connected = vms["vms"].as_array().expect("a list").iter().map(|vm| vm["connected"] == true);
        assert_eq!(connected.collect::<Vec<_>>(), [true, false, false, false]);
        all.iter().for_each(|pid| kill(*pid, libc::SIGCONT));
        drop(guest);
        wait_until("it has left", || server.json("/vms/zwmute")["connected"] == false);
    });
}

/// Also those that the supervisor has about it, and those after its death.
#[test]
fn lines_about_a_child_have_its_vm() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = format!("name=zwspan,socket={},port=tap:zwspan", dir.path().join("s").display());
        let program = Program::net(&["--json", "--sandbox", "on", "--vm", &spec, "--log-format", "json"]);
        program.wait_log("served by a confined process");
        kill(child(&program), libc::SIGKILL);
        wait_until("another one", || program.log().matches("served by a confined process").count() == 2);
        let log = program.log();
        for line in log.lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
            assert_eq!(line["vm"], "zwspan", "{line}");
        }
        assert!(log.contains("its process ended") && log.contains("listening on"), "{log}");
        program.stop();
    });
}

#[test]
fn what_does_not_go_together_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (socket, file) = (path("s"), path("f"));
    let begin = ["--socket", &socket, "--port", "tap:zwnone"];
    let on = ["--sandbox", "on"];
    for (more, words) in [
        (&["--sandbox", "off", "--user", "1"][..], ["--user", "--sandbox off"]),
        (&[on[0], on[1], "--postcopy"], ["--postcopy", "--sandbox on"]),
    ] {
        let (code, _, log) = Program::run(&[&begin[..], more].concat());
        assert!(code == 2 && words.iter().all(|word| log.contains(word)), "{more:?}: {code} {log}");
        assert!(!Path::new(&socket).exists() && !Path::new(&file).exists());
    }
    // Without the sandbox it does.
    let off = ["--sandbox", "off", "--pcap", &file, "--postcopy", "--print-capabilities"];
    let (code, _, log) = Program::run(&[&begin[..], &off].concat());
    assert_eq!((code, log.as_str()), (0, ""));
}

/// Its frames are in one capture, as those of one interface.
#[test]
fn a_capture_goes_on_with_the_next_child() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("c.pcapng");
        let more = ["--pcap", &file.display().to_string(), "--pcap-snaplen", "100"];
        let program = start(dir.path(), &["zwfile"], &more);
        let sent = |capture: &CaptureFile| capture.packets.iter().filter(|p| p.direction == 2).count();
        for deaths in 1..=2 {
            let mut guest = Guest::start(connect(&dir.path().join("zwfile")));
            guest.ping(&mut Peer::new("zwfile"));
            wait_until("they are in the file", || {
                sent(&read(&std::fs::read(&file).expect("the file")).0) == 3 * deaths
            });
            kill(child(&program), libc::SIGKILL);
            wait_until("another one is there", || {
                program.log().matches("served by a confined process").count() == 1 + deaths
            });
        }
        program.stop();
        let capture = read_file(&file);
        assert_eq!((capture.interfaces.len(), sent(&capture)), (1, 6));
        assert!(capture.packets.iter().all(|p| p.bytes.len() <= 100));
        assert!(capture.packets.is_sorted_by_key(|p| p.time));
    });
}

#[test]
fn what_no_child_can_serve_is_refused_at_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s").display().to_string();
    let postcopy = ["--sandbox", "on", "--socket", &socket, "--port", "tap:zwnone", "--postcopy"];
    let (code, _, log) = Program::run(&postcopy);
    assert!(
        code == 2 && log.contains("--sandbox on with --postcopy") && log.contains("--sandbox off"),
        "{code} {log}"
    );
    let (code, _, log) = Program::run(&["--sandbox", "on", "--fd", "99", "--port", "tap:zwnone"]);
    assert!(code == 2 && log.contains("descriptor 99 is not a unix stream socket"), "{code} {log}");
}

/// Such as one that a service manager hands over.
#[test]
fn a_socket_that_listens_already_outlives_children() {
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("s");
        let socket = UnixListener::bind(&path).expect("a socket");
        let restrict = Restrict { fd: Some(socket.as_raw_fd()), ..Restrict::default() };
        let fd = HANDED_FD.to_string();
        let program =
            Program::restricted(&["--sandbox", "on", "--fd", &fd, "--port", "tap:zwhand"], restrict);
        drop(socket);
        for deaths in 0..2 {
            let mut guest = Guest::start(connect(&path));
            guest.ping(&mut Peer::new("zwhand"));
            if deaths == 0 {
                kill(child(&program), libc::SIGKILL);
                program.wait_log("another one takes its place");
            }
        }
        program.stop();
        assert!(path.exists(), "the file is not the program's to remove");
    });
}

/// It ends with the connection, also where its child dies: nobody can connect once more.
#[test]
fn a_connection_that_was_handed_over_is_the_only_one() {
    for dies in [false, true] {
        in_netns(move || {
            let (front, back) = UnixStream::pair().expect("a pair");
            let restrict = Restrict { fd: Some(back.as_raw_fd()), ..Restrict::default() };
            let fd = HANDED_FD.to_string();
            let args = ["--json", "--sandbox", "on", "--fd", &fd, "--port", "tap:zwonly"];
            let program = Program::restricted(&args, restrict);
            drop(back);
            let mut guest = Guest::start(
                VhostUser::from_stream(front, &VhostUserOptions::default()).expect("a handshake"),
            );
            guest.ping(&mut Peer::new("zwonly"));
            if dies {
                kill(child(&program), libc::SIGKILL);
            } else {
                drop(guest);
            }
            let (code, out, log) = program.result();
            let last: Value = serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
            let vm = &last["vms"][0];
            assert_eq!((code, &vm["connected"]), (0, &false.into()), "{log}");
            assert_eq!(log.contains("its only connection with it"), dies, "{log}");
            if !dies {
                assert_eq!(vm["transmit"]["frames"], 3, "the last statistics are not lost: {last}");
            }
        });
    }
}

/// It takes further system calls to go on without the memory.
#[test]
fn a_child_goes_on_when_its_front_end_truncates_the_memory() {
    const KEPT: u64 = 1 << 20;
    in_netns(|| {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), &["zwlost"], &[]);
        let mut front = connect(&dir.path().join("zwlost"));
        let memory = GuestMemory::new(&[(GuestAddr(0), 4 << 20)]).expect("guest memory");
        front.negotiate(features::VERSION_1).expect("features");
        front.share_memory(&memory).expect("shared memory");
        let mut transmit = RawQueue::start(&memory, &mut front, 1, 16).expect("a queue");
        transmit.write_chain(0, &[RawDesc { addr: 2 * KEPT, len: 72, flags: 0, next: 0 }]);
        rustix::fs::ftruncate(memory.regions()[0].file(), KEPT).expect("truncated");
        transmit.offer(0);
        transmit.kick().expect("a kick");
        program.wait_log("truncated");
        drop((transmit, front));
        let mut guest = Guest::start(connect(&dir.path().join("zwlost")));
        guest.ping(&mut Peer::new("zwlost"));
        assert!(!program.log().contains("its process ended"), "{}", program.log());
        program.stop();
    });
}
