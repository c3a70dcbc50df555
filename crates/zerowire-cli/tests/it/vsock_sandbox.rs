//! `zerowire vsock --sandbox on`: what its children have, who reaches whom, and that a group sees
//! nothing of another one's end. `vsock_service.rs` runs with it as well. Run as root.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType as HostType};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use serde_json::Value;
use zerowire::recv::vsock;
use zerowire_guest::vsock::{ConnId, ConnState, HOST_CID, SocketType};

use crate::support::processes::{child_of, children, kill, runs, status};
use crate::support::vsock::{Guest, reach};
use crate::support::{HANDED_FD, PATIENCE, Program, Restrict, wait_until};

/// VMs with their groups: each of them `(name, groups)`.
pub struct Scene {
    dir: tempfile::TempDir,
    pub program: Program,
}

impl Scene {
    pub fn start(vms: &[(&str, &str)], more: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: String| dir.path().join(name).display().to_string();
        let specs = vms.iter().zip(3..).map(|((name, groups), cid)| {
            let (socket, uds) = (path(format!("{name}.s")), path(format!("{name}.u")));
            format!("name={name},cid={cid},socket={socket},uds={uds},groups={groups}")
        });
        let specs: Vec<_> = specs.flat_map(|spec| ["--vm".to_owned(), spec]).collect();
        let mut args = vec!["--sandbox", "on", "--json"];
        args.extend(specs.iter().map(String::as_str));
        args.extend(more);
        let program = Program::vsock(&args, Restrict::default());
        for (name, _) in vms {
            program.wait_log(&format!("{name}: served by a confined process"));
        }
        Self { dir, program }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn guest(&self, vm: &str) -> Guest {
        Guest::start(&self.path(&format!("{vm}.s")))
    }

    pub fn listen(&self, vm: &str, port: u32) -> UnixListener {
        UnixListener::bind(self.path(&format!("{vm}.u_{port}"))).expect("a socket")
    }

    /// A connection of the guest to a host program.
    fn open(&self, vm: &str, guest: &mut Guest, port: u32) -> (ConnId, UnixStream) {
        guest.open(&self.path(&format!("{vm}.u")), port)
    }

    pub fn stats(&self, count: usize) -> Value {
        self.program.signal(libc::SIGUSR1);
        let line = self.program.wait_line(count);
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"))
    }

    /// The child that serves a VM.
    pub fn child_of(&self, vm: &str) -> i32 {
        child_of(&self.program, vm)
    }
}

#[test]
fn a_group_has_a_child_of_its_own_which_has_sockets_and_nothing_else() {
    let scene = Scene::start(&[("a", "x"), ("b", "x+y"), ("c", "y"), ("d", "z")], &[]);
    assert_eq!(children(&scene.program).len(), 2, "{}", scene.program.log());
    assert_eq!(scene.child_of("a"), scene.child_of("c"));
    assert_ne!(scene.child_of("a"), scene.child_of("d"));
    let mut guest = scene.guest("d");
    let (conn, mut stream) = scene.open("d", &mut guest, 5000);
    guest.ping(conn, &mut stream);
    let pid = scene.child_of("d");
    for (key, wanted) in [("NoNewPrivs", "1"), ("Seccomp", "2"), ("Uid", "65534"), ("Gid", "65534")] {
        assert_eq!(status(pid, key), wanted, "{key}");
    }
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status(pid, set), "0000000000000000", "{set}");
    }
    assert_eq!(std::fs::read_dir(format!("/proc/{pid}/root")).expect("its root").count(), 0);
    let kinds: BTreeSet<_> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("/proc")
        .flatten()
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .map(|link| link.to_string_lossy().split([':', '(', ' ']).next().unwrap_or_default().to_owned())
        .collect();
    let known = ["socket", "pipe", "anon_inode", "/dev/null", "/memfd"];
    assert!(kinds.iter().all(|kind| known.contains(&kind.as_str())), "{kinds:?}");
    drop(guest);
    scene.program.stop();
}

/// The kernel counts its threads in a user namespace, into which all users are mapped.
#[test]
fn a_child_has_a_bound_of_threads_and_tells_users_apart() {
    let scene = Scene::start(&[("a", "x"), ("b", "x")], &[]);
    let child = scene.child_of("a");
    let limits = std::fs::read_to_string(format!("/proc/{child}/limits")).expect("/proc");
    let threads = limits.lines().find_map(|line| line.strip_prefix("Max processes")).expect("a limit");
    assert_eq!(threads.split_whitespace().take(2).collect::<Vec<_>>(), ["1088", "1088"]);
    let users = |pid: i32| std::fs::read_link(format!("/proc/{pid}/ns/user")).expect("/proc");
    assert_ne!(users(child), users(scene.program.pid()));
    let path = scene.path("a.u.map");
    let allow = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode));
    allow(path.parent().expect("a folder"), 0o755).expect("the folder is this test's");
    allow(&path, 0o666).expect("the socket is this test's");
    // The user is that of the thread alone.
    let by_another = std::thread::spawn(move || {
        let user = Uid::from_raw(60_001);
        set_thread_res_uid(user, user, user).expect("another user");
        vsock::connect(&path, 5000, &vsock::MappedOptions::default()).map(drop)
    });
    let refused = by_another.join().expect("no panic");
    let text = refused.expect_err("this user was not named").to_string();
    assert!(text.contains("user 60001 may not"), "{text}");
}

#[test]
fn messages_go_both_ways() {
    let scene = Scene::start(&[("a", "x")], &[]);
    let mut guest = scene.guest("a");
    let flags = SocketFlags::CLOEXEC;
    let socket = || rustix::net::socket_with(AddressFamily::UNIX, HostType::SEQPACKET, flags, None);
    let listener = socket().expect("a socket");
    let address = SocketAddrUnix::new(scene.path("a.u_5000")).expect("a path");
    rustix::net::bind(&listener, &address).expect("a free path");
    rustix::net::listen(&listener, 8).expect("it listens");
    let conn = guest.connect_as(HOST_CID, 5000, SocketType::SeqPacket).expect("a connection");
    let program: OwnedFd = rustix::net::accept(&listener).expect("the guest's connection");
    guest.stack.send_all(conn, b"one", PATIENCE).expect("sent");
    guest.stack.send_all(conn, b"another", PATIENCE).expect("sent");
    let mut bytes = [0; 64];
    for wanted in [&b"one"[..], b"another"] {
        assert_eq!(rustix::io::read(&program, &mut bytes).expect("a message"), wanted.len());
        assert_eq!(&bytes[..wanted.len()], wanted);
    }
    rustix::io::write(&program, b"back").expect("room");
    assert_eq!(guest.stack.recv_exact(conn, 4, PATIENCE).expect("the message"), b"back");
    // A program that takes streams takes no messages.
    let _streams = scene.listen("a", 5001);
    assert_eq!(guest.connect_as(HOST_CID, 5001, SocketType::SeqPacket), None);
    // One that the host's program connects.
    guest.stack.listen(700, SocketType::SeqPacket);
    let program = socket().expect("a socket");
    let address = SocketAddrUnix::new(scene.path("a.u.seqpacket")).expect("a path");
    rustix::net::connect(&program, &address).expect("the child listens");
    rustix::io::write(&program, b"CONNECT 700\n").expect("room");
    let conn = guest.stack.accept_wait(700, PATIENCE).expect("a connection");
    guest.stack.send_all(conn, b"hello", PATIENCE).expect("sent");
    let ok = rustix::io::read(&program, &mut bytes).expect("the answer");
    assert!(bytes[..ok].starts_with(b"OK "));
    let len = rustix::io::read(&program, &mut bytes).expect("the message");
    assert_eq!(&bytes[..len], b"hello");
    drop(guest);
    scene.program.stop();
}

#[test]
fn a_program_maps_its_receive_buffers() {
    const LEN: usize = 3 << 20;
    let scene = Scene::start(&[("a", "x")], &[]);
    let mut guest = scene.guest("a");
    let path = scene.path("a.u.map");
    let payload: Vec<_> = (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect();
    // The guest connects to a program that listens, and a program connects to the guest.
    let options = vsock::MappedOptions::stream();
    let mut listener = Some(vsock::MappedListener::bind(&path, 5000, &options).expect("it may"));
    guest.stack.listen(700, SocketType::Stream);
    for port in [5000, 700] {
        let (path, wanted) = (path.clone(), payload.clone());
        let listener = listener.take();
        let reader = std::thread::spawn(move || {
            let mut mapped = match listener {
                Some(listener) => listener.accept().expect("the guest's connection"),
                None => vsock::connect(&path, port, &vsock::MappedOptions::stream()).expect("a connection"),
            };
            let mut bytes = Vec::new();
            mapped.read_to_end(&mut bytes).expect("the guest's bytes");
            assert!(bytes == wanted);
        });
        let conn = match port {
            5000 => guest.connect(HOST_CID, port).expect("a connection"),
            _ => guest.stack.accept_wait(port, PATIENCE).expect("a connection"),
        };
        guest.stack.send_all(conn, &payload, PATIENCE).expect("sent");
        guest.stack.close(conn).expect("closed");
        wait_until("the program has read it all", || {
            guest.turn();
            reader.is_finished()
        });
        reader.join().expect("its assertions hold");
    }
    let vm = &scene.stats(1)["vms"][0];
    assert_eq!(vm["transmit"]["copied_bytes"]["window"], 2 * LEN, "{vm}");
    drop(guest);
    scene.program.stop();
}

#[test]
fn guests_of_a_group_reach_each_other_and_no_others() {
    let scene = Scene::start(&[("a", "x"), ("b", "x"), ("c", "y")], &[]);
    let (mut a, mut b, mut c) = (scene.guest("a"), scene.guest("b"), scene.guest("c"));
    let (to_b, from_a) = reach(&mut a.stack, &mut b.stack, 4, 9);
    c.stack.listen(9, SocketType::Stream);
    a.stack.send_all(to_b, b"from a", PATIENCE).expect("sent");
    assert_eq!(b.stack.recv_exact(from_a, 6, PATIENCE).expect("a's bytes"), b"from a");
    assert_eq!(a.connect(5, 9), None);
    drop((a, b, c));
    let (out, _) = scene.program.stop();
    let last: Value = serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
    assert_eq!(last["vms"][0]["transmit"]["copied_bytes"]["sibling"], 6, "{last}");
}

/// Programs behind one VM's end are not another one's.
#[test]
fn a_guest_reaches_its_own_programs_only() {
    let scene = Scene::start(&[("a", "x"), ("b", "x")], &[]);
    let (mut a, mut b) = (scene.guest("a"), scene.guest("b"));
    let listener = scene.listen("b", 5000);
    assert_eq!(a.connect(HOST_CID, 5000), None, "that is b's");
    let conn = b.connect(HOST_CID, 5000).expect("a connection");
    let (mut stream, _) = listener.accept().expect("b's connection");
    b.ping(conn, &mut stream);
    // A socket of the supervisor is no program's, by whatever name.
    std::os::unix::fs::symlink(scene.path("b.u"), scene.path("a.u_6000")).expect("a link");
    std::os::unix::fs::symlink(scene.path("b.s"), scene.path("a.u_6001")).expect("a link");
    for port in [6000, 6001] {
        assert_eq!(a.connect(HOST_CID, port), None, "{port}");
    }
    drop((a, b));
    scene.program.stop();
}

#[test]
fn a_child_that_dies_is_replaced_and_another_group_sees_nothing() {
    let scene = Scene::start(&[("a", "x"), ("b", "y")], &[]);
    let mut b = scene.guest("b");
    let (in_b, mut with_b) = scene.open("b", &mut b, 5000);
    b.ping(in_b, &mut with_b);
    for deaths in 1..=3 {
        let mut a = scene.guest("a");
        let (conn, mut stream) = scene.open("a", &mut a, 5000 + deaths);
        a.ping(conn, &mut stream);
        assert_eq!(scene.stats(2 * deaths as usize - 1)["vms"][0]["connections_open"], 1);
        let pid = scene.child_of("a");
        // The first process of a namespace takes no other signal.
        kill(pid, libc::SIGKILL);
        assert_eq!(stream.read_to_end(&mut Vec::new()).expect("the end"), 0, "its connection has ended");
        drop(a);
        let mut a = scene.guest("a");
        let (conn, mut stream) = scene.open("a", &mut a, 6000 + deaths);
        a.ping(conn, &mut stream);
        b.ping(in_b, &mut with_b);
        let stats = scene.stats(2 * deaths as usize);
        let vm = &stats["vms"][0];
        assert_eq!(vm["connections_open"], 1, "{vm}");
        assert_eq!(vm["transmit"]["bytes"], u64::from(deaths) * 2 * 5, "counted over all children: {vm}");
        assert!(vm["last_error"].as_str().is_some_and(|e| e.contains("killed by signal 9")), "{vm}");
        assert_eq!(stats["vms"][1]["last_error"], Value::Null);
    }
    assert_eq!(b.stack.state(in_b), ConnState::Established);
    scene.program.wait_log("a: its process ended: killed by signal 9");
    let log = scene.program.log();
    assert!(!log.contains("b: its process"), "{log}");
    drop(b);
    let Scene { dir, program } = scene;
    program.stop();
    assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").flatten().filter(is_own).count(), 0);
}

/// Whether a file is a socket of the program.
fn is_own(entry: &std::fs::DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy().into_owned();
    [".s", ".u", ".u.seqpacket", ".u.map"].iter().any(|end| name.ends_with(end))
}

#[test]
fn a_program_whose_backlog_is_full_is_tried_again() {
    let scene = Scene::start(&[("a", "x")], &[]);
    let mut guest = scene.guest("a");
    let listener = scene.listen("a", 5000);
    rustix::net::listen(&listener, 0).expect("a short backlog");
    let conns: Vec<_> = (0..20)
        .map(|_| guest.stack.connect(HOST_CID, 5000, SocketType::Stream).expect("a free port"))
        .collect();
    // The guest's other connections go on meanwhile.
    let (other, mut stream) = scene.open("a", &mut guest, 5001);
    guest.ping(other, &mut stream);
    let mut taken = Vec::new();
    listener.set_nonblocking(true).expect("it does not wait");
    wait_until("all are accepted", || {
        guest.turn();
        taken.extend(listener.accept());
        taken.len() == conns.len()
    });
    for conn in conns {
        assert!(guest.stack.wait_connected(conn, PATIENCE).expect("an answer"));
    }
    drop(guest);
    scene.program.stop();
}

/// More than one message has.
#[test]
fn statistics_of_many_vms_come_from_one_child() {
    let names: Vec<_> = (0..40).map(|n| format!("vm{n}")).collect();
    let vms: Vec<_> = names.iter().map(|name| (name.as_str(), "x")).collect();
    let scene = Scene::start(&vms, &[]);
    let mut guest = scene.guest("vm39");
    let (conn, mut stream) = scene.open("vm39", &mut guest, 5000);
    guest.ping(conn, &mut stream);
    assert_eq!(children(&scene.program).len(), 1);
    let stats = scene.stats(1);
    let all = stats["vms"].as_array().expect("VMs");
    assert!(all.iter().zip(&names).all(|(vm, name)| vm["name"] == **name), "{stats}");
    assert_eq!((&all[39]["connected"], &all[39]["transmit"]["bytes"]), (&true.into(), &5.into()));
    assert_eq!(all[38]["connected"], false);
    drop(guest);
    scene.program.stop();
}

#[test]
fn children_end_with_their_supervisor() {
    let scene = Scene::start(&[("a", "x"), ("b", "y")], &[]);
    let all = children(&scene.program);
    assert_eq!(all.len(), 2);
    scene.program.kill();
    wait_until("its children are gone", || !all.iter().any(runs));
}

#[test]
fn what_no_child_can_do_is_refused_at_the_start() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (socket, uds) = (path("s"), path("u"));
    let one = ["--cid", "3", "--uds", &uds, "--sandbox", "on"];
    let (connected, _other) = UnixStream::pair().expect("a pair");
    let fd = HANDED_FD.to_string();
    for (args, word) in [
        (["--socket", &socket, "--share-guest-memory"].as_slice(), "--share-guest-memory"),
        (&["--fd", &fd], "which is connected"),
    ] {
        let restrict = Restrict { fd: Some(connected.as_raw_fd()), ..Restrict::default() };
        let (code, _, log) = Program::vsock(&[&one[..], args].concat(), restrict).result();
        assert!(code == 2 && log.contains("--sandbox on with") && log.contains(word), "{code} {log}");
    }
    let args = ["--cid", "3", "--uds", &uds, "--socket", &socket, "--user", "nobody", "--sandbox", "off"];
    let (code, _, log) = Program::vsock(&args, Restrict::default()).result();
    assert!(code == 2 && log.contains("--user") && log.contains("--sandbox off"), "{code} {log}");
    assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 0, "nothing is left");
}
