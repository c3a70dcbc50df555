//! The vsock server in this process, guests on it, and host programs on its unix sockets.

mod siblings;
mod vm;

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType as HostType};
use zerowire_capture::Capture;
use zerowire_guest::vsock::{
    ConnId, HOST_CID, SocketType, StackOptions, VsockDriver, VsockOptions, VsockStack,
};
use zerowire_guest::{GuestMemory, VhostUser};
use zerowire_vsock::{HostKeeper, HostSockets, OwnSockets, VsockConfig, VsockServer, VsockVmStats};

pub use siblings::{exchange, join, try_join};
pub use vm::Vm;
use vm::{config, handed};

use super::{PATIENCE, guest_memory, wait_until};

/// How long a guest that has nothing to do sleeps before its test looks again at what it waits for.
const NAP: Duration = Duration::from_micros(300);

/// A server in this process with its sockets in a directory of its own.
pub struct VsockBackend {
    /// The server, which goes before the directory of its sockets.
    pub server: VsockServer,
    dir: tempfile::TempDir,
    /// Those that were handed over, whose files they remove.
    sockets: Vec<HostSockets>,
}

impl VsockBackend {
    /// With these VMs.
    pub fn start(vms: &[Vm]) -> Self {
        Self::captured(vms, None)
    }

    /// The same, with the packets of all VMs in a capture.
    pub fn captured(vms: &[Vm], capture: Option<Arc<Capture>>) -> Self {
        Self::start_in(tempfile::tempdir().expect("a directory for sockets"), vms, capture)
    }

    fn start_in(dir: tempfile::TempDir, vms: &[Vm], capture: Option<Arc<Capture>>) -> Self {
        let configs = Self::configs(&dir, vms).collect();
        let server = VsockServer::start_captured(configs, capture, OwnSockets::default())
            .unwrap_or_else(|e| panic!("{e}"));
        Self { server, dir, sockets: Vec::new() }
    }

    /// Without VMs.
    pub fn empty() -> Self {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        Self { server: VsockServer::empty_captured(None, OwnSockets::default()), dir, sockets: Vec::new() }
    }

    /// The configuration of a VM that may be added.
    pub fn config(&self, vm: &Vm) -> VsockConfig {
        config(self.dir.path(), vm)
    }

    /// Adds a VM.
    pub fn add(&self, vm: &Vm) {
        self.server.add(self.config(vm)).unwrap_or_else(|e| panic!("{e}"));
    }

    /// With these VMs, whose sockets are handed over to the server. It asks `keeper` for
    /// connections.
    pub fn handed(vms: &[Vm], keeper: &Arc<dyn HostKeeper>) -> Self {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        let handed = Self::configs(&dir, vms).enumerate().map(|(number, config)| handed(config, number));
        let (vms, sockets) = handed.unzip();
        let server = VsockServer::start_handed(vms, keeper).unwrap_or_else(|e| panic!("{e}"));
        Self { server, dir, sockets }
    }

    /// Adds a VM whose sockets are handed over under this number.
    pub fn add_handed(&mut self, vm: &Vm, number: usize, keeper: &Arc<dyn HostKeeper>) {
        let ((config, vm), own) = handed(self.config(vm), number);
        self.sockets.push(own);
        self.server.add_handed(config, vm, keeper).unwrap_or_else(|e| panic!("{e}"));
    }

    fn configs<'a>(dir: &'a tempfile::TempDir, vms: &'a [Vm]) -> impl Iterator<Item = VsockConfig> + use<'a> {
        vms.iter().map(|vm| config(dir.path(), vm))
    }

    /// Stops this server and starts another one at the same paths.
    pub fn restart(self, vms: &[Vm]) -> Self {
        let Self { server, dir, .. } = self;
        drop(server);
        Self::start_in(dir, vms, None)
    }

    /// One VM, "vm", with CID 3.
    pub fn one() -> Self {
        Self::start(&[Vm::new("vm", 3)])
    }

    /// Where a VM's front end connects.
    pub fn vhost_path(&self, vm: &str) -> PathBuf {
        self.dir.path().join(format!("{vm}.vhost"))
    }

    /// Connects as a front end.
    pub fn connect(&self, vm: &str) -> VhostUser {
        VhostUser::connect(self.vhost_path(vm), PATIENCE).unwrap_or_else(|e| panic!("{e}"))
    }

    /// A guest with the default settings.
    pub fn guest(&self, vm: &str) -> Guest {
        self.guest_with(vm, &VsockOptions::default(), StackOptions::default())
    }

    /// A guest.
    pub fn guest_with(&self, vm: &str, options: &VsockOptions, stack: StackOptions) -> Guest {
        let memory = guest_memory();
        let (driver, queues) =
            VsockDriver::start(self.connect(vm), &memory, options).unwrap_or_else(|e| panic!("{e}"));
        Guest { stack: VsockStack::new(queues, stack), driver, memory }
    }

    /// What a VM's device did so far.
    pub fn stats(&self, vm: &str) -> VsockVmStats {
        let stats = self.server.stats();
        stats.vms.into_iter().find(|v| v.name == vm).expect("a VM of that name").vm
    }

    /// Where the host meets the guest.
    pub fn uds(&self, vm: &str) -> PathBuf {
        self.dir.path().join(vm)
    }

    /// Where a host program serves a port for a guest.
    pub fn port_path(&self, vm: &str, port: u32) -> PathBuf {
        self.dir.path().join(format!("{vm}_{port}"))
    }

    /// A host program's listening stream socket.
    pub fn listen(&self, vm: &str, port: u32) -> UnixListener {
        UnixListener::bind(self.port_path(vm, port)).expect("a listening socket")
    }

    /// A host program's listening message socket.
    pub fn listen_messages(&self, vm: &str, port: u32) -> MessageListener {
        MessageListener::bind(&self.port_path(vm, port))
    }

    /// A connection from the guest to a host program.
    pub fn open(&self, vm: &str, guest: &mut Guest, port: u32) -> (ConnId, UnixStream) {
        let path = self.port_path(vm, port);
        let listener = UnixListener::bind(&path).expect("a listening socket");
        let conn = guest.connect(port);
        let stream = accept(&listener);
        std::fs::remove_file(path).expect("removed");
        (conn, stream)
    }

    /// A host program's stream socket that has asked for a connection to the guest.
    pub fn dial(&self, vm: &str, port: u32) -> UnixStream {
        let mut stream = UnixStream::connect(self.uds(vm)).expect("the device listens");
        patient(&stream);
        // One that is turned away at once finds its socket closed: reading tells.
        let _ = stream.write_all(format!("CONNECT {port}\n").as_bytes());
        stream
    }

    /// A connection from a host program to the guest.
    pub fn dial_in(&self, vm: &str, guest: &mut Guest, port: u32) -> (ConnId, UnixStream) {
        guest.stack.listen(port, SocketType::Stream);
        let mut stream = self.dial(vm, port);
        let conn = guest.accept(port);
        guest.with_host(|| assert!(read_ok(&mut stream).is_some(), "the host is told"));
        (conn, stream)
    }
}

/// A guest with its sockets.
pub struct Guest {
    /// Its sockets. The queues go before the connection that they were set up by.
    pub stack: VsockStack,
    /// The driver.
    pub driver: VsockDriver<VhostUser>,
    /// Its memory.
    pub memory: GuestMemory,
}

impl Guest {
    /// Asks for a stream to the host.
    pub fn connect(&mut self, port: u32) -> ConnId {
        self.connect_to(HOST_CID, port, SocketType::Stream)
    }

    /// Connects to anybody, who must accept.
    pub fn connect_to(&mut self, cid: u64, port: u32, kind: SocketType) -> ConnId {
        let conn = self.stack.connect(cid, port, kind).expect("asked");
        assert!(self.stack.wait_connected(conn, PATIENCE).unwrap_or_else(|e| panic!("{e}")), "accepted");
        conn
    }

    /// The next connection at a port.
    pub fn accept(&mut self, port: u32) -> ConnId {
        self.stack.accept_wait(port, PATIENCE).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Sends everything; of a message connection as one message.
    pub fn send(&mut self, conn: ConnId, bytes: &[u8]) {
        self.stack.send_all(conn, bytes, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
    }

    /// Receives exactly `len` bytes.
    pub fn recv(&mut self, conn: ConnId, len: usize) -> Vec<u8> {
        let bytes = self.stack.recv_exact(conn, len, PATIENCE);
        bytes.unwrap_or_else(|e| panic!("{e}: {:?}", self.stack.counters()))
    }

    /// Receives up to the end of the stream.
    pub fn recv_to_end(&mut self, conn: ConnId) -> Vec<u8> {
        self.stack.recv_to_end(conn, PATIENCE).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Makes turns until `done`.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut VsockStack) -> bool) {
        let start = Instant::now();
        while !done(&mut self.stack) {
            assert!(start.elapsed() < PATIENCE, "still not: {what}");
            self.stack.turn(NAP).unwrap_or_else(|e| panic!("{e}"));
        }
        self.is_sound();
    }

    /// Makes turns while a host program does its part.
    pub fn with_host<R: Send>(&mut self, host: impl FnOnce() -> R + Send) -> R {
        self.both(|_| {}, host).1
    }

    /// Does the guest's part while a host program does its own; then makes turns until that is
    /// done, too.
    pub fn both<A, B: Send>(
        &mut self,
        guest: impl FnOnce(&mut Self) -> A,
        host: impl FnOnce() -> B + Send,
    ) -> (A, B) {
        std::thread::scope(|scope| {
            let host = scope.spawn(host);
            let a = guest(self);
            while !host.is_finished() {
                self.stack.turn(NAP).unwrap_or_else(|e| panic!("{e}"));
            }
            self.is_sound();
            (a, host.join().unwrap_or_else(|e| std::panic::resume_unwind(e)))
        })
    }

    /// No peer broke a rule: the device is one, and answers for the others.
    fn is_sound(&self) {
        assert_eq!(self.stack.last_fault(), None);
    }

    /// A bit of data each way, to see that a connection works.
    pub fn ping(&mut self, conn: ConnId, stream: &mut UnixStream) {
        let (out, back) = (pattern(300, 1), pattern(500, 2));
        let out_len = out.len();
        self.send(conn, &out);
        let got = self.with_host(|| {
            let got = read_exact(stream, out_len);
            stream.write_all(&back).expect("written");
            got
        });
        assert!(got == out, "guest to host");
        assert!(self.recv(conn, back.len()) == back, "host to guest");
    }

    /// The connection ends; returns how.
    pub fn ended(&mut self, conn: ConnId) -> zerowire_guest::vsock::ConnState {
        self.stack.wait_closed(conn, PATIENCE).unwrap_or_else(|e| panic!("{e}"))
    }
}

/// Makes turns of several guests until `done`.
pub fn together<const N: usize>(
    mut guests: [&mut Guest; N],
    what: &str,
    mut done: impl FnMut(&mut [&mut Guest; N]) -> bool,
) {
    let start = Instant::now();
    while !done(&mut guests) {
        let seen = guests.each_ref().map(|g| g.stack.counters());
        assert!(start.elapsed() < PATIENCE, "still not: {what}: {seen:?}");
        let mut moved = 0;
        for g in &mut guests {
            moved += g.stack.turn(Duration::ZERO).unwrap_or_else(|e| panic!("{e}"));
        }
        if moved == 0 {
            guests[0].stack.turn(NAP).unwrap_or_else(|e| panic!("{e}"));
        }
    }
    guests.iter().for_each(|g| g.is_sound());
}

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    zerowire_testkit::net::lab::pattern(seed as u32 + 1, len)
}

/// Bounds every read and write of a host program.
pub fn patient(stream: &UnixStream) {
    stream.set_nonblocking(false).expect("blocking");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
}

/// The next connection, which must come.
pub fn accept(listener: &UnixListener) -> UnixStream {
    listener.set_nonblocking(true).expect("non-blocking");
    let mut stream = None;
    wait_until("a connection from the guest", || {
        stream = listener.accept().ok();
        stream.is_some()
    });
    let (stream, _) = stream.expect("a connection");
    patient(&stream);
    stream
}

/// Whether a connection waits.
pub fn try_accept(listener: &UnixListener) -> Option<UnixStream> {
    listener.set_nonblocking(true).expect("non-blocking");
    listener.accept().ok().map(|(stream, _)| {
        patient(&stream);
        stream
    })
}

/// Reads exactly `len` bytes.
pub fn read_exact(stream: &mut UnixStream, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes).expect("as many bytes");
    bytes
}

/// Reads up to the end.
pub fn read_to_end(stream: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the end");
    bytes
}

/// Reads "OK port\n", and not a byte more; None where the connection is refused.
pub fn read_ok(stream: &mut UnixStream) -> Option<u32> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        match stream.read(&mut byte) {
            Ok(0) => break,
            Ok(_) if byte[0] == b'\n' => break,
            Ok(_) => line.push(byte[0]),
            // What was written before is not read by the device any more.
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => break,
            Err(e) => panic!("{e}"),
        }
    }
    let text = String::from_utf8(line).expect("text");
    if text.is_empty() {
        return None;
    }
    Some(text.strip_prefix("OK ").and_then(|p| p.parse().ok()).unwrap_or_else(|| panic!("{text:?}")))
}

/// A host program's message socket.
pub struct Messages(pub OwnedFd);

impl Messages {
    /// Connected to a path.
    pub fn connect(path: &Path) -> Self {
        let socket = message_socket();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("a path"))
            .expect("the device listens");
        Self::over(socket)
    }

    fn over(socket: OwnedFd) -> Self {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, which, Some(PATIENCE)).expect("a timeout");
        }
        let _ = rustix::net::sockopt::set_socket_send_buffer_size(&socket, 1 << 20);
        Self(socket)
    }

    /// Sends a message.
    pub fn send(&self, bytes: &[u8]) {
        let sent = rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL).expect("sent");
        assert_eq!(sent, bytes.len());
    }

    /// The next message; empty at the end.
    pub fn recv(&self) -> Vec<u8> {
        let mut bytes = vec![0; 2 << 20];
        let (n, whole) = rustix::net::recv(&self.0, &mut bytes[..], RecvFlags::TRUNC).expect("a message");
        assert_eq!(n, whole);
        bytes.truncate(n);
        bytes
    }

    /// A message to the guest's port, and its answer.
    pub fn handshake(&self, port: u32) {
        self.send(format!("CONNECT {port}\n").as_bytes());
        let ok = String::from_utf8(self.recv()).expect("text");
        assert!(ok.starts_with("OK ") && ok.ends_with('\n'), "{ok:?}");
    }
}

/// A host program's listening message socket.
pub struct MessageListener(OwnedFd);

impl MessageListener {
    fn bind(path: &Path) -> Self {
        let socket = message_socket();
        rustix::net::bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("a free path");
        rustix::net::listen(&socket, 64).expect("listening");
        Self(socket)
    }

    /// The next connection.
    pub fn accept(&self) -> Messages {
        Messages::over(rustix::net::accept(&self.0).expect("a connection"))
    }
}

fn message_socket() -> OwnedFd {
    rustix::net::socket_with(AddressFamily::UNIX, HostType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .expect("a socket")
}
