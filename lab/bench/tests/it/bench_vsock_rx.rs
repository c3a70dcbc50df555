//! `zerowire-bench vsock-rx` as server and client on the host, with a guest without a VM on the
//! other side of `zerowire vsock`. The table is tested in vsock_rx.rs, a real guest in lab/vm.

use std::io::Read;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use zerowire_guest::vsock::{
    HOST_CID, SHUTDOWN_SEND, SocketType, StackOptions, StreamSum, VsockDriver, VsockOptions, VsockStack,
};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};
use zerowire_testkit::{PATIENCE, wait_until};

use crate::support::program;

/// The port without `-p`.
const PORT: u32 = 1234;
const MEGABYTE: usize = 1 << 20;

/// The device, a guest on it, and the folder of its sockets. Dropped in this order.
struct Lab {
    stack: VsockStack,
    _driver: VsockDriver<VhostUser>,
    _program: Killed,
    dir: tempfile::TempDir,
}

/// A process that is killed on drop.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let (socket, uds) = (dir.path().join("s"), dir.path().join("u"));
        let [s, u] = [&socket, &uds].map(|p| p.to_str().expect("text"));
        let args = ["vsock", "--socket", s, "--cid", "3", "--uds", u, "--share-guest-memory"];
        let program = Command::new(program()).args(args).stdin(Stdio::null()).spawn();
        let program = Killed(program.expect("the program starts"));
        let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).expect("guest memory");
        let front_end = VhostUser::connect(&socket, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
        let (driver, queues) = VsockDriver::start(front_end, &memory, &VsockOptions::default())
            .unwrap_or_else(|e| panic!("{e}"));
        Self {
            stack: VsockStack::new(queues, StackOptions::default()),
            _driver: driver,
            _program: program,
            dir,
        }
    }

    fn folder(&self) -> &Path {
        self.dir.path()
    }

    /// Starts the benchmark with these arguments, and `--uds` and `--check`.
    fn start(&self, args: &[&str]) -> std::thread::JoinHandle<Output> {
        let mut command = bench(args);
        command.arg("--check").arg("--uds").arg(self.folder().join("u"));
        std::thread::spawn(move || command.output().expect("the program starts"))
    }

    /// Makes turns until the benchmark has ended well; what it printed.
    fn end(&mut self, bench: std::thread::JoinHandle<Output>) -> String {
        wait_until("the benchmark ends", || {
            self.stack.turn(Duration::from_millis(1)).expect("a sound ring");
            bench.is_finished()
        });
        let out = bench.join().expect("its output");
        assert!(out.status.success(), "{}: {}", out.status, String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).expect("text")
    }
}

fn bench(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zerowire-bench"));
    command.arg("vsock-rx").args(args);
    command
}

fn sum(bytes: &[u8]) -> String {
    let mut sum = StreamSum::default();
    sum.update(bytes);
    format!("{:016x}", sum.value())
}

/// Each mode, with all options of a client: the guest's bytes are summed up, the figures are there.
#[test]
fn a_client_receives_in_each_mode() {
    let mut lab = Lab::new();
    lab.stack.listen(PORT, SocketType::Stream);
    let sent: Vec<u8> = (0..2 * MEGABYTE).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for (letter, mode) in [("n", "copy"), ("y", "mapped"), ("u", "polling"), ("d", "direct")] {
        // A copying client has the credit that the device gives.
        let credit: &[&str] = if letter == "n" { &[] } else { &["-v", "131072"] };
        let args = ["-c", "3", "-b", "16", "-r", "4096", "-z", letter, "--json", "-"];
        let client = lab.start(&[&args, credit].concat());
        let conn = lab.stack.accept_wait(PORT, PATIENCE).unwrap_or_else(|e| panic!("{mode}: {e}"));
        lab.stack.send_all(conn, &sent, PATIENCE).unwrap_or_else(|e| panic!("{mode}: {e}"));
        lab.stack.shutdown(conn, SHUTDOWN_SEND).expect("the end");
        let said = lab.end(client);
        let said: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{said}: {e}"));
        assert_eq!((&said["mode"], &said["bytes"]), (&mode.into(), &sent.len().into()), "{said}");
        assert_eq!((&said["sum"], &said["len"]), (&sum(&sent).into(), &65_536.into()), "{said}");
        for figure in ["loop_seconds", "dequeue_ns"] {
            assert!(said[figure].as_f64().is_some_and(|f| f > 0.0), "{figure}: {said}");
        }
        assert!(said["dequeues"].as_u64().is_some_and(|n| n > 0), "{said}");
        assert_eq!(said["windows"].as_u64().is_some_and(|n| n > 0), mode != "copy", "{said}");
        assert_eq!(said["direct_bytes"].as_u64().is_some_and(|n| n > 0), mode == "direct", "{said}");
    }
}

#[test]
fn a_server_sends_and_says_what_it_took() {
    let mut lab = Lab::new();
    let server = lab.start(&["-s", "-m", "2", "-b", "64"]);
    // It may not listen yet.
    let mut conn = None;
    wait_until("the server listens", || {
        assert!(!server.is_finished(), "the server ended");
        let asked = lab.stack.connect(HOST_CID, PORT, SocketType::Stream).expect("asked");
        conn = lab.stack.wait_connected(asked, PATIENCE).expect("an answer").then_some(asked);
        conn.is_some()
    });
    let conn = conn.expect("a connection");
    let got = lab.stack.recv_to_end(conn, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(got.len(), 2 * MEGABYTE);
    // It stays until the other side has all of it, and closes.
    lab.stack.shutdown(conn, SHUTDOWN_SEND).expect("the end");
    let said = lab.end(server);
    for words in ["sent: 2097152 bytes\n", "send loop: ", "CPU time: ", &format!("sum: {}\n", sum(&got))] {
        assert!(said.contains(words), "no {words:?} in {said}");
    }
}

/// A server on the host, which needs no device until it is connected to.
#[test]
fn a_server_keeps_its_socket_from_a_second_one_and_leaves_none_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    let (uds, path) = (dir.path().join("u"), dir.path().join(format!("u_{PORT}")));
    // The socket of one that was killed is replaced.
    drop(UnixListener::bind(&path).expect("a socket"));
    let start = || {
        // It leaves a signal ignored that is ignored when it starts, as in a shell's background.
        let mut command = Command::new("env");
        command.arg("--default-signal=TERM").arg(env!("CARGO_BIN_EXE_zerowire-bench"));
        command.args(["vsock-rx", "-s", "-m", "1", "--uds"]).arg(&uds);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    let first = Killed(start());
    let listens = || zerowire_testkit::process::is_listening("self", &path).expect("/proc");
    wait_until("the server listens", listens);
    let second = start().wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(second.status.code() == Some(1) && said.contains("another program listens there"), "{said}");
    let mut client = UnixStream::connect(&path).expect("the first one listens");
    let mut got = Vec::new();
    client.read_to_end(&mut got).expect("its bytes");
    assert_eq!(got.len(), MEGABYTE);
    drop((client, first));

    let mut third = Killed(start());
    wait_until("the server listens", listens);
    // SAFETY: the call takes numbers, and the child was not waited for.
    assert_eq!(unsafe { libc::kill(third.0.id() as libc::pid_t, libc::SIGTERM) }, 0);
    assert_eq!(third.0.wait().expect("its status").signal(), Some(libc::SIGTERM));
    assert!(!path.exists());
}

#[test]
fn what_is_wrong_is_named() {
    for (args, status, words) in [
        (&[][..], 2, &["--cid", "--server", "--table"][..]),
        (&["-s", "-c", "3"], 2, &["cannot be used with"]),
        (&["-c", "3", "-z", "x", "--uds", "/none"], 2, &["'x'", "n, y, u, d"]),
        (&["-c", "3", "-z", "y", "-b", "5000", "--uds", "/none"], 2, &["5000"]),
        (&["-c", "3", "-z", "n", "-v", "4096", "--uds", "/none"], 2, &["-v 4096", "--buffer"]),
        (&["-c", "3", "-b", "2", "-r", "9000", "--uds", "/none"], 2, &["-r 9000", "8192"]),
        (&["-c", "3", "-z", "y", "--uds", "/none"], 1, &["/none.map", "zerowire vsock"]),
        (&["-c", "3", "-z", "y", "--windows", "65", "--uds", "/none"], 2, &["--windows 65", "2 to 64"]),
        (&["-s", "-b", "0", "--uds", "/none"], 2, &["-b 0"]),
        (&["-s", "-m", "17592186044416", "--uds", "/none"], 2, &["-m 17592186044415", "67108864"]),
        // What belongs to one role is not silently left out of another one.
        (&["--table", "-b", "16"], 2, &["--table", "--pages"]),
        (&["--table", "-z", "y"], 2, &["--table", "--mode"]),
        (&["--table", "-r", "4096"], 2, &["--table", "--rcvlowat"]),
        (&["--table", "--check"], 2, &["--table", "--check"]),
        (&["-c", "3", "--rounds", "3", "--uds", "/none"], 2, &["--cid", "--rounds"]),
        (&["-s", "--svg", "/none", "--uds", "/none"], 2, &["--server", "--svg"]),
        // Before the measurement, which takes long.
        (&["--table", "--windows", "1"], 2, &["--windows 1", "2 to 64"]),
        (&["--table", "--modes", "d", "--direction", "rx"], 2, &["--modes d", "take y"]),
        (&["--table", "--json", "/none/report"], 1, &["can't write /none/report"]),
        (&["--table", "--json", "/"], 1, &["can't write /"]),
        (&["--table", "--svg", "/dev/null/charts"], 1, &["/dev/null/charts"]),
    ] {
        let out = bench(args).output().expect("the program starts");
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(status), "{args:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{args:?}: no {word:?} in {said}");
        }
    }
}
