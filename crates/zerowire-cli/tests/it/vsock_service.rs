//! `zerowire vsock` as a service: host programs, several VMs from a file, handed-over sockets,
//! statistics, restarts.

use std::io::{BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use crate::support::modes::{CONFINED, Mode, PLAIN, in_both_modes};
use crate::support::processes::{child, children, runs, wait_idle};
use crate::support::vsock::{Guest, reach};
use crate::support::{HANDED_FD, PATIENCE, Program, Restrict, wait_until};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::Value;
use zerowire::recv::vsock;
use zerowire_guest::vsock::{ConnState, HOST_CID, SHUTDOWN_SEND, SocketType};
use zerowire_testkit::own_process;
use zerowire_testkit::process::become_ordinary;

in_both_modes! {
    statistics_count_every_byte_once
    host_programs_reach_the_guest_and_are_told_when_nobody_listens
    requests_beyond_the_rate_are_told_in_the_statistics_and_the_log
    mapped_connections_beyond_their_number_cost_nothing_and_one_line_in_the_log
    vms_of_a_file_reach_those_of_their_group
    a_listening_socket_can_be_handed_over
    a_socket_at_a_guests_port_can_not_be_handed_over
    a_program_that_is_killed_and_started_again_serves_again
}

/// Paths in a directory of the test's own.
struct Dir(tempfile::TempDir, Mode);

impl Dir {
    fn new(mode: Mode) -> Self {
        Self(tempfile::tempdir().expect("a directory"), mode)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Starts the program for one VM with CID 3, its sockets `s` and `u`.
    fn program(&self, more: &[&str]) -> Program {
        self.restricted(more, Restrict::default())
    }

    fn restricted(&self, more: &[&str], restrict: Restrict) -> Program {
        let (socket, uds) = (self.text("s"), self.text("u"));
        let args = [&["--socket", &socket, "--cid", "3", "--uds", &uds, "--json"], more, self.1].concat();
        Program::vsock(&args, restrict)
    }

    /// A host program that takes one connection on `port`, reads it to its end, and sends it back
    /// the other way round.
    fn reverser(&self, port: u32) -> JoinHandle<()> {
        let listener = UnixListener::bind(self.path(&format!("u_{port}"))).expect("a socket");
        spawn(move || {
            let (mut stream, _) = listener.accept().expect("the guest's connection");
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).expect("the guest's bytes");
            bytes.reverse();
            stream.write_all(&bytes).expect("the guest reads on");
        })
    }
}

/// A host program that connects to the guest's `port`; the line that it was answered, without the
/// newline.
fn dial(uds: PathBuf, port: u32) -> JoinHandle<(String, BufReader<UnixStream>)> {
    spawn(move || {
        let mut stream = UnixStream::connect(uds).expect("the program listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        writeln!(stream, "CONNECT {port}").expect("a line");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).expect("an answer or the end");
        (line.trim_end().to_owned(), reader)
    })
}

fn json(line: &str) -> Value {
    serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn statistics_count_every_byte_once(mode: Mode) {
    let dir = Dir::new(mode);
    let program = dir.program(&[]);
    let mut guest = Guest::start(&dir.path("s"));
    let sent = bytes(1_000_003);
    let host = dir.reverser(5000);
    let conn = guest.connect(HOST_CID, 5000).expect("a connection");
    let mut back = guest.ask(conn, &sent);
    back.reverse();
    assert!(back == sent, "the reply is what was sent, the other way round");
    guest.until(host);
    assert_eq!(guest.connect(HOST_CID, 5001), None, "nobody listens there");
    guest.stack.turn(Duration::ZERO).expect("a sound ring");

    program.signal(libc::SIGUSR1);
    let vm = &json(&program.wait_line(1))["vms"][0];
    assert_eq!((&vm["name"], &vm["cid"], &vm["connected"]), (&"vm0".into(), &3.into(), &true.into()));
    assert_eq!((&vm["connections_opened"], &vm["connections_refused"]), (&1.into(), &1.into()), "{vm}");
    assert_eq!(vm["stale_credit"], 0, "{vm}");
    for way in ["transmit", "receive"] {
        let count = |name: &str| vm[way][name].as_u64().unwrap_or_else(|| panic!("{name}: {vm}"));
        let reasons = vm[way]["copied_bytes"].as_object().expect("reasons");
        let copied: u64 = reasons.values().filter_map(Value::as_u64).sum();
        assert_eq!(count("bytes"), sent.len() as u64, "{way}: {vm}");
        assert_eq!(count("zero_copied_bytes") + copied, sent.len() as u64, "{way}: {vm}");
    }
    drop(guest);
    let (out, _) = program.stop();
    let last = json(out.lines().last().expect("a line"));
    assert_eq!(last["vms"][0]["connections_open"], 0, "{last}");
    assert_eq!(last["vms"][0]["last_error"], Value::Null, "{last}");
}

fn host_programs_reach_the_guest_and_are_told_when_nobody_listens(mode: Mode) {
    let dir = Dir::new(mode);
    let program = dir.program(&[]);
    let mut guest = Guest::start(&dir.path("s"));
    guest.stack.listen(700, SocketType::Stream);
    let host = dial(dir.path("u"), 700);
    let conn = guest.accept(700);
    let (line, mut reader) = guest.until(host);
    let port = line.strip_prefix("OK ").unwrap_or_else(|| panic!("answered '{line}'"));
    assert!(port.parse::<u32>().is_ok(), "a port number: '{line}'");
    reader.get_mut().write_all(b"question").expect("the guest reads");
    assert_eq!(guest.stack.recv_exact(conn, 8, PATIENCE).expect("the question"), b"question");
    guest.stack.send_all(conn, b"answer", PATIENCE).expect("sent");
    guest.stack.close(conn).expect("closed");
    let host = spawn(move || {
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("the answer and the end");
        text
    });
    assert_eq!(guest.until(host), "answer");

    let refused = dial(dir.path("u"), 701);
    assert_eq!(guest.until(refused).0, "", "closed without an answer");
    for garbage in ["HELLO\n", "CONNECT\n", "CONNECT x\n", "CONNECT 4294967296\n", &"C".repeat(100)] {
        let mut stream = UnixStream::connect(dir.path("u")).expect("the program listens");
        // A reset after the first bytes is an answer, too.
        let _ = stream.write_all(garbage.as_bytes());
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut answer = Vec::new();
        if let Err(e) = stream.read_to_end(&mut answer) {
            assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "{garbage:?}");
        }
        assert!(answer.is_empty(), "{garbage:?}");
    }
    drop(guest);
    let (out, _) = program.stop();
    assert_eq!(json(&out)["vms"][0]["bad_handshakes"], 5, "{out}");
}

fn requests_beyond_the_rate_are_told_in_the_statistics_and_the_log(mode: Mode) {
    let dir = Dir::new(mode);
    let program = dir.program(&["--request-rate", "1"]);
    let mut guest = Guest::start(&dir.path("s"));
    let asked = 100;
    for _ in 0..asked {
        // Nobody listens: each request gets an answer, whether or not it is beyond the rate.
        assert_eq!(guest.connect(HOST_CID, 700), None);
    }
    program.wait_log("for more than 1 connections a second");
    drop(guest);
    let (out, log) = program.stop();
    let vm = &json(&out)["vms"][0];
    assert_eq!((&vm["connections_refused"], &vm["connections_opened"]), (&asked.into(), &0.into()), "{out}");
    assert!((1..=asked).contains(&vm["requests_over_rate"].as_i64().expect("a number")), "{out}");
    assert_eq!(log.matches("--request-rate").count(), 1, "{log}");
}

/// Descriptors of a process, and its mappings of windows.
fn taken(pid: i32) -> (usize, usize) {
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the process").count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("the process");
    (open, maps.lines().filter(|l| l.contains("memfd:zerowire-")).count())
}

fn mapped_connections_beyond_their_number_cost_nothing_and_one_line_in_the_log(mode: Mode) {
    const PORT: u32 = 700;
    let dir = Dir::new(mode);
    let program = dir.program(&["--map-connections", "2"]);
    program.wait_log("8192 connections, 2 of them mapped");
    let mut guest = Guest::start(&dir.path("s"));
    guest.stack.listen(PORT, SocketType::Stream);
    let connect = || {
        let path = dir.path("u.map");
        spawn(move || vsock::connect(&path, PORT, &vsock::MappedOptions::default()))
    };
    let pid = match mode {
        CONFINED => {
            program.wait_log("served by a confined process");
            child(&program)
        }
        _ => program.pid(),
    };
    // A confined process sends copies of what it has to the supervisor, which keeps the session.
    wait_idle(pid);
    let idle = taken(pid);
    let open: Vec<_> = (0..2)
        .map(|_| {
            let connected = connect();
            let conn = guest.accept(PORT);
            (conn, guest.until(connected).unwrap_or_else(|e| panic!("{e}")))
        })
        .collect();
    let full = (idle.0 + 2 * 3, idle.1 + 2 * 2);
    wait_until("three descriptors and two mappings each", || taken(pid) == full);
    for _ in 0..5 {
        let refused = guest.until(connect()).map(drop).expect_err("they are two");
        assert!(refused.to_string().contains("2 of 2 mapped connections (--map-connections)"), "{refused}");
    }
    wait_until("no more than these", || taken(pid) == full);
    program.signal(libc::SIGUSR1);
    let vm = &json(&program.wait_line(1))["vms"][0];
    let count = |name: &str| vm[name].as_u64().unwrap_or_else(|| panic!("{name}: {vm}"));
    assert_eq!(["mapped_connections", "mapped_windows", "mapped_refused"].map(count), [2, 8, 5]);
    assert!(count("mapped_bytes") > 2 * (2 << 20), "{vm}");
    drop(open);
    wait_until("all is given back", || {
        guest.turn();
        taken(pid) == idle
    });
    drop(guest);
    let (out, log) = program.stop();
    assert_eq!(json(out.lines().last().expect("a line"))["vms"][0]["mapped_connections"], 0, "{out}");
    assert_eq!(log.matches("a mapped connection is refused").count(), 1, "{log}");
}

/// 200 descriptors of this user are under way in sockets until this is dropped.
fn crowd() -> UnixStream {
    let (to, unread) = UnixStream::pair().expect("sockets");
    let fds = [to.as_fd(); 50];
    for _ in 0..4 {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(50))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&to, &[IoSlice::new(&[0])], &mut control, SendFlags::empty()).expect("room");
    }
    unread
}

/// All processes of a user together have as many under way as one may have open.
#[test]
fn mapped_connections_that_wait_for_descriptors_of_others_are_in_the_log() {
    own_process!();
    become_ordinary(60_000 + std::process::id() % 5000, 0);
    let few = Restrict { descriptors: Some((128, 128)), ..Restrict::default() };
    let options = vsock::MappedOptions::default;
    let dir = Dir::new(PLAIN);
    let program = dir.restricted(&[], few);
    program.wait_log("8192 connections");
    let mut guest = Guest::start(&dir.path("s"));
    guest.stack.listen(700, SocketType::Stream);
    let unread = crowd();
    let path = dir.path("u.map");
    let connected = spawn(move || vsock::connect(&path, 700, &options()).map(drop));
    let refused = guest.until(connected).expect_err("too many are under way");
    assert!(refused.to_string().contains("connect again"), "{refused}");
    program.wait_log("a mapped connection is refused: too many descriptors of this user");
    drop((unread, guest));
    program.stop();

    let dir = Dir::new(PLAIN);
    let program = dir.restricted(&[], few);
    program.wait_log("8192 connections");
    let mut guest = Guest::start(&dir.path("s"));
    let listener = vsock::MappedListener::bind(&dir.path("u.map"), 5000, &options()).expect("it may");
    let unread = crowd();
    let conn = guest.stack.connect(HOST_CID, 5000, SocketType::Stream).expect("a free port");
    wait_until("the log says it", || {
        guest.turn();
        program.log().contains("a mapped connection waits, and is tried again: too many descriptors")
    });
    drop(unread);
    let accepted = spawn(move || listener.accept().map(drop));
    guest.until(accepted).expect("the guest's connection");
    assert!(guest.stack.wait_connected(conn, PATIENCE).expect("an answer"));
    drop(guest);
    let (_, log) = program.stop();
    assert_eq!(log.matches("a mapped connection").count(), 1, "{log}");
}

fn vms_of_a_file_reach_those_of_their_group(mode: Mode) {
    let dir = Dir::new(mode);
    let vm = |name: &str, cid: u32, groups: &str| {
        let at = |suffix: &str| dir.text(&format!("{name}.{suffix}"));
        format!(
            "[[vm]]\nname = '{name}'\n[vm.net]\nsocket = '/nowhere/{name}'\nport = 'tap:unused'\n\
             [vm.vsock]\nsocket = '{}'\ncid = {cid}\nuds = '{}'\ngroups = {groups}\n",
            at("s"),
            at("u")
        )
    };
    let file = dir.path("vms.toml");
    let text = [vm("a", 3, "['x']"), vm("b", 4, "['x', 'y']"), vm("c", 5, "['y']")].concat();
    std::fs::write(&file, text + "[[vm]]\nname = 'd'\n").expect("a file");
    let program = Program::vsock(
        &[&["--config", &file.display().to_string(), "--json"], mode].concat(),
        Restrict::default(),
    );
    let mut a = Guest::start(&dir.path("a.s"));
    let mut b = Guest::start(&dir.path("b.s"));
    let c = Guest::start(&dir.path("c.s"));
    let (to_b, from_a) = reach(&mut a.stack, &mut b.stack, 4, 9);
    a.stack.send_all(to_b, b"from a", PATIENCE).expect("sent");
    assert_eq!(b.stack.recv_exact(from_a, 6, PATIENCE).expect("a's bytes"), b"from a");
    assert_eq!(a.connect(5, 9), None, "c is a stranger to a");
    drop((a, b, c));
    let (out, _) = program.stop();
    let stats = json(&out);
    let names: Vec<_> =
        stats["vms"].as_array().expect("VMs").iter().filter_map(|vm| vm["name"].as_str()).collect();
    assert_eq!(names, ["a", "b", "c"], "a VM without [vm.vsock] is skipped");
    assert_eq!(stats["vms"][0]["transmit"]["copied_bytes"]["sibling"], 6, "{out}");
}

fn a_listening_socket_can_be_handed_over(mode: Mode) {
    let dir = Dir::new(mode);
    let listener = UnixListener::bind(dir.path("s")).expect("a socket");
    let restrict = Restrict { fd: Some(listener.as_raw_fd()), ..Restrict::default() };
    let args = ["--fd", &HANDED_FD.to_string(), "--cid", "3", "--uds", &dir.text("u")];
    let program = Program::vsock(&[&args, mode].concat(), restrict);
    drop(listener);
    for port in 5000..5003 {
        let mut guest = Guest::start(&dir.path("s"));
        let host = dir.reverser(port);
        let conn = guest.connect(HOST_CID, port).expect("a connection");
        assert_eq!(guest.ask(conn, b"abc"), b"cba");
        guest.until(host);
    }
    program.stop();
    assert!(dir.path("s").exists(), "the socket is not the program's to remove");
    assert!(!dir.path("u").exists(), "this one is");
}

fn a_socket_at_a_guests_port_can_not_be_handed_over(mode: Mode) {
    let dir = Dir::new(mode);
    let listener = UnixListener::bind(dir.path("u_7")).expect("a socket");
    let restrict = Restrict { fd: Some(listener.as_raw_fd()), ..Restrict::default() };
    let args = ["--fd", &HANDED_FD.to_string(), "--cid", "3", "--uds", &dir.text("u")];
    let (code, _, log) = Program::vsock(&[&args, mode].concat(), restrict).result();
    assert!(code == 2 && log.contains("VM vm0's guest to port 7"), "{code} {log}");
    assert!(!dir.path("u").exists(), "nothing is left");
}

fn a_program_that_is_killed_and_started_again_serves_again(mode: Mode) {
    let dir = Dir::new(mode);
    let mut program = dir.program(&[]);
    let mut guest = Guest::start(&dir.path("s"));
    for port in 5000..5003 {
        let host = dir.reverser(port);
        let conn = guest.connect(HOST_CID, port).expect("a connection");
        assert_eq!(guest.ask(conn, b"abc"), b"cba");
        guest.until(host);

        // One is open, and its host program sees it close when the program dies.
        let path = dir.path(&format!("u_{}", port + 100));
        let listener = UnixListener::bind(path).expect("a socket");
        let open = guest.connect(HOST_CID, port + 100).expect("a connection");
        let (mut stream, _) = listener.accept().expect("the guest's connection");
        assert_eq!(guest.stack.state(open), ConnState::Established);
        let served = children(&program);
        program.kill();
        // They end with it, and leave its sockets then.
        wait_until("its children are gone", || !served.iter().any(runs));
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        assert_eq!(stream.read_to_end(&mut Vec::new()).expect("the end"), 0);
        program = dir.program(&[]);
        guest = Guest::start(&dir.path("s"));
    }
    drop(guest);
    program.stop();
    assert!(!dir.path("s").exists() && !dir.path("u").exists() && !dir.path("u.seqpacket").exists());
}

/// Runs `program` in a thread of the user `uid`. A system call that the C library doesn't make
/// changes one thread only.
fn by_user<T: Send + 'static>(
    uid: libc::uid_t,
    program: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    spawn(move || {
        // SAFETY: the call takes numbers only.
        let failed = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
        assert_eq!(failed, 0, "this test becomes another user: run it as root");
        program()
    })
}

/// `--map-allow`: those users, and no others beside root, may map their receive buffers.
fn users_that_are_named_may_map_and_no_others(mode: Mode) {
    const NAMED: [libc::uid_t; 2] = [65_534, 65_531];
    const OTHER: libc::uid_t = 65_533;
    const PORT: u32 = 5000;
    let dir = Dir::new(mode);
    let program = dir.program(&["--map-allow", "65534", "--map-allow", "65531"]);
    let mut guest = Guest::start(&dir.path("s"));
    let path = dir.path("u.map");
    // As far as the file system is concerned anybody may connect.
    for (path, mode) in [(dir.0.path(), 0o755), (path.as_path(), 0o666)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("this test's own");
    }
    let connect = |uid| {
        let path = path.clone();
        by_user(uid, move || vsock::connect(&path, PORT, &vsock::MappedOptions::stream()))
    };
    let refused = guest.until(connect(OTHER)).map(drop).expect_err("this user was not named");
    assert!(matches!(refused, vsock::Error::NotPermitted { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("--map-allow {OTHER}")), "{refused}");
    guest.stack.listen(PORT, SocketType::Stream);
    for uid in NAMED.into_iter().chain([0]) {
        let connected = connect(uid);
        let conn = guest.accept(PORT);
        let mut mapped = guest.until(connected).unwrap_or_else(|e| panic!("user {uid}: {e}"));
        guest.stack.send_all(conn, b"for those who may", PATIENCE).expect("sent");
        guest.stack.shutdown(conn, SHUTDOWN_SEND).expect("a half-close");
        let reader = spawn(move || {
            let mut text = String::new();
            mapped.read_to_string(&mut text).map(|_| text)
        });
        assert_eq!(guest.until(reader).expect("read"), "for those who may");
    }
    let (out, _) = program.stop();
    let stats = json(out.lines().last().expect("statistics"));
    assert_eq!(stats["vms"][0]["bad_handshakes"], 1, "{stats}");
}

#[test]
fn users_that_are_named_may_map() {
    own_process!();
    users_that_are_named_may_map_and_no_others(PLAIN);
}

#[test]
fn users_that_are_named_may_map_in_a_confined_process() {
    own_process!();
    users_that_are_named_may_map_and_no_others(CONFINED);
}
