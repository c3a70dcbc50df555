//! C programs and the real daemon. A guest without a VM sends through the vsock device; the example
//! receives in windows, and every byte is compared. And each call is made, and fails.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use crate::support::compile;
use zerowire_guest::vsock::{
    ConnId, HOST_CID, SHUTDOWN_RCV, SHUTDOWN_SEND, SocketType, StackOptions, VsockDriver, VsockOptions,
    VsockStack,
};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
use zerowire_testkit::PATIENCE;
use zerowire_testkit::net::lab::pattern;
use zerowire_vhost::serve::Endpoint;
use zerowire_vsock::mapped::MapPolicy;
use zerowire_vsock::{VsockConfig, VsockServer};

const PORT: u32 = 5000;

/// The device with a guest on it, and a folder for everything. Fields are dropped in this order.
struct Lab {
    stack: VsockStack,
    _driver: VsockDriver<VhostUser>,
    server: VsockServer,
    dir: tempfile::TempDir,
}

impl Lab {
    fn new(share_guest_memory: bool) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let socket = dir.path().join("vm.vhost");
        let config = VsockConfig::new("vm", Endpoint::Path(socket.clone()), 3, dir.path().join("vm"))
            .groups(vec!["default".to_owned()])
            .map(MapPolicy::default().share_guest_memory(share_guest_memory));
        let server = VsockServer::start(vec![config]).unwrap_or_else(|e| panic!("{e}"));
        let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).unwrap_or_else(|e| panic!("{e}"));
        let front_end = VhostUser::connect(socket, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
        let (driver, queues) = VsockDriver::start(front_end, &memory, &VsockOptions::default())
            .unwrap_or_else(|e| panic!("{e}"));
        Self { stack: VsockStack::new(queues, StackOptions::default()), _driver: driver, server, dir }
    }

    fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Compiles the example and starts it with these options.
    fn start(&self, shared: bool, options: &[&str]) -> Program {
        let program = compile("examples/c/recv_vsock.c", shared);
        let copy = self.folder().join("copy");
        let child = Command::new(program)
            .args(options)
            .arg("-o")
            .arg(&copy)
            .arg(self.folder().join("vm.map"))
            .arg(PORT.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        Program { child: Some(child), copy }
    }

    /// The guest's connection to a program that listens, as soon as it does.
    fn connect(&mut self, kind: SocketType) -> ConnId {
        let begin = Instant::now();
        loop {
            let conn = self.stack.connect(HOST_CID, PORT, kind).expect("asked");
            if self.stack.wait_connected(conn, PATIENCE).unwrap_or_else(|e| panic!("{e}")) {
                return conn;
            }
            assert!(begin.elapsed() < PATIENCE, "the program does not listen");
        }
    }

    /// Ends the guest's data, and waits for what the program says when it has it all.
    fn finish(&mut self, conn: ConnId) {
        self.stack.shutdown(conn, SHUTDOWN_SEND).expect("shut down");
        let answer = self.stack.recv_to_end(conn, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(answer, b"done\n");
    }

    /// Bytes from the guest: all, those that nobody copied, and those copied to windows.
    fn ledger(&self) -> (u64, u64, u64) {
        let stats = self.server.stats();
        let sent = &stats.vms[0].totals.transmit;
        let windows = sent.copied_bytes.get("window").copied().unwrap_or(0);
        (sent.bytes, sent.zero_copied_bytes, windows)
    }
}

/// The example as it runs.
struct Program {
    child: Option<Child>,
    copy: PathBuf,
}

impl Program {
    /// Waits for its end.
    fn output(&mut self) -> Output {
        self.child.take().expect("asked once").wait_with_output().expect("ended")
    }

    /// Waits for its good end; returns the lines it printed, and the bytes it received.
    fn finish(mut self) -> (Vec<String>, Vec<u8>) {
        let out = self.output();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.is_empty(), "{}: {said}", out.status);
        let lines = String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect();
        (lines, std::fs::read(&self.copy).expect("a copy"))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // One that has ended gives an error here, which is as good.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|b| u64::from(*b)).sum()
}

/// The guest listens and sends a stream of several times the ring's length; returns what the
/// program printed.
fn stream(lab: &mut Lab, shared: bool, options: &[&str]) -> Vec<String> {
    lab.stack.listen(PORT, SocketType::Stream);
    let program = lab.start(shared, options);
    let conn = lab.stack.accept_wait(PORT, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
    let sent = pattern(1, (8 << 20) + 4321);
    lab.stack.send_all(conn, &sent, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
    lab.finish(conn);
    let (lines, received) = program.finish();
    assert!(received == sent, "{} bytes came of {}, or others", received.len(), sent.len());
    let (bytes, sum) = (sent.len(), sum(&sent));
    assert!(lines[0].starts_with(&format!("{bytes} bytes, ")), "{lines:?}");
    assert!(lines[0].ends_with(&format!(" sum {sum}")), "{lines:?}");
    assert_eq!(lab.ledger().0, bytes as u64);
    lines
}

#[test]
fn a_stream_arrives_with_the_static_library() {
    let mut lab = Lab::new(false);
    stream(&mut lab, false, &[]);
    let (_, zero_copied, windows) = lab.ledger();
    assert_eq!(zero_copied, 0, "windows are copied to");
    assert!(windows > 0);
}

#[test]
fn messages_arrive_at_a_listener_with_the_shared_library() {
    let mut lab = Lab::new(false);
    let program = lab.start(true, &["-q", "-z", "-l"]);
    let conn = lab.connect(SocketType::SeqPacket);
    let messages: Vec<_> =
        [1, 56, 4096, 8200, 250_000, 7].into_iter().zip(2..).map(|(len, seed)| pattern(seed, len)).collect();
    for message in &messages {
        lab.stack.send_all(conn, message, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
    }
    lab.finish(conn);
    let (lines, received) = program.finish();
    let sent = messages.concat();
    assert!(received == sent, "{} bytes came of {}, or others", received.len(), sent.len());
    assert!(lines[0].starts_with(&format!("{} bytes, ", sent.len())), "{lines:?}");
    assert!(lines[0].contains(", 6 messages, "), "{lines:?}");
}

/// What the program found in the guest's memory is what the daemon left there.
fn direct(shared: bool) {
    let mut lab = Lab::new(true);
    let lines = stream(&mut lab, shared, &["-d"]);
    let (_, zero_copied, _) = lab.ledger();
    assert!(zero_copied > 0, "nothing stayed in the guest's memory");
    assert_eq!(lines[1], format!("{zero_copied} bytes in the guest's memory"));
}

#[test]
fn direct_windows_leave_the_payload_in_the_guests_memory_with_the_static_library() {
    direct(false);
}

#[test]
fn direct_windows_leave_the_payload_in_the_guests_memory_with_the_shared_library() {
    direct(true);
}

#[test]
fn direct_windows_are_refused_without_the_daemons_consent() {
    let lab = Lab::new(false);
    let out = lab.start(true, &["-d"]).output();
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1));
    assert!(text.contains("--share-guest-memory") && text.contains("(error 1)"), "{text}");
}

/// What tests/c/vsock_calls.c asks the guest for, a letter at a time; returns at its end.
fn obey(lab: &mut Lab, conn: ConnId) {
    loop {
        let asked = lab.stack.recv_exact(conn, 1, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
        let mut send = |conn, bytes: &[u8]| {
            lab.stack.send_all(conn, bytes, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
        };
        match asked[0] {
            b't' => send(conn, b"0123456789"),
            // Three windows of the program's.
            b'l' => send(conn, &[7; 3 * 4 * 4096]),
            b'c' => {
                let other = lab.stack.connect(HOST_CID, 6000, SocketType::Stream).expect("asked");
                assert!(lab.stack.wait_connected(other, PATIENCE).unwrap_or_else(|e| panic!("{e}")));
                lab.stack.send_all(other, b"hello", PATIENCE).unwrap_or_else(|e| panic!("{e}"));
            }
            b'e' => {
                lab.stack.shutdown(conn, SHUTDOWN_SEND).expect("shut down");
                let rest = lab.stack.recv_to_end(conn, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
                assert!(rest.is_empty(), "{rest:?}");
                return assert_eq!(lab.stack.peer_shutdown(conn), SHUTDOWN_RCV | SHUTDOWN_SEND);
            }
            other => panic!("asked for {other}"),
        }
    }
}

#[test]
fn each_call_and_how_it_fails() {
    let mut lab = Lab::new(false);
    let program = compile("tests/c/vsock_calls.c", true);
    lab.stack.listen(PORT, SocketType::Stream);
    lab.stack.listen(PORT + 1, SocketType::SeqPacket);
    let mut child = Command::new(program)
        .arg(lab.folder().join("vm.map"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let said = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut program = Program { child: Some(child), copy: PathBuf::new() };
    match lab.stack.accept_wait(PORT, PATIENCE) {
        Ok(conn) => obey(&mut lab, conn),
        Err(e) => panic!("{e}: {}", String::from_utf8_lossy(&program.output().stderr)),
    }
    let connected = lab.stack.accept_wait(PORT + 1, PATIENCE);
    assert_eq!(said.lines().next().and_then(Result::ok).as_deref(), Some("connected"));
    connected.unwrap_or_else(|e| panic!("{e}"));
    drop(lab);
    let out = program.output();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
