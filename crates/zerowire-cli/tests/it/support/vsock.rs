//! A guest with a vsock device.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use zerowire_guest::vsock::{
    ConnId, HOST_CID, SHUTDOWN_SEND, SocketType, StackOptions, VsockDriver, VsockOptions, VsockStack,
};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};

use super::{PATIENCE, connect, wait_until};

/// A guest and what its programs see.
pub struct Guest {
    pub stack: VsockStack,
    pub driver: VsockDriver<VhostUser>,
    pub memory: GuestMemory,
}

/// A connection of one guest to another one that listens on `port`: its two ends.
pub fn reach(from: &mut VsockStack, to: &mut VsockStack, cid: u64, port: u32) -> (ConnId, ConnId) {
    to.listen(port, SocketType::Stream);
    let conn = from.connect(cid, port, SocketType::Stream).expect("a free port");
    from.turn(Duration::ZERO).expect("a sound ring");
    let taken = to.accept_wait(port, PATIENCE).expect("a connection");
    assert!(from.wait_connected(conn, PATIENCE).expect("an answer"), "one thread serves both");
    (conn, taken)
}

/// Bytes of a guest's connection there and back.
pub fn ping(stack: &mut VsockStack, conn: ConnId, stream: &mut UnixStream) {
    stack.send_all(conn, b"there", PATIENCE).expect("sent");
    let mut got = [0; 5];
    stream.read_exact(&mut got).expect("the guest's bytes");
    stream.write_all(b"back!").expect("written");
    assert_eq!(stack.recv_exact(conn, 5, PATIENCE).expect("the program's bytes"), b"back!");
    assert_eq!(&got, b"there");
}

impl Guest {
    pub fn start(socket: &Path) -> Self {
        let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).expect("guest memory");
        let (driver, queues) = VsockDriver::start(connect(socket), &memory, &VsockOptions::default())
            .unwrap_or_else(|e| panic!("{e}"));
        Self { stack: VsockStack::new(queues, StackOptions::default()), driver, memory }
    }

    pub fn turn(&mut self) {
        self.stack.turn(Duration::from_millis(1)).expect("a sound ring");
    }

    /// Connects; None where the connection was refused.
    pub fn connect(&mut self, cid: u64, port: u32) -> Option<ConnId> {
        self.connect_as(cid, port, SocketType::Stream)
    }

    /// The same, for streams or messages.
    pub fn connect_as(&mut self, cid: u64, port: u32, kind: SocketType) -> Option<ConnId> {
        let conn = self.stack.connect(cid, port, kind).expect("a free port");
        self.stack.wait_connected(conn, PATIENCE).expect("an answer").then_some(conn)
    }

    /// A connection to a host program behind this end.
    pub fn open(&mut self, uds: &Path, port: u32) -> (ConnId, UnixStream) {
        let path = uds.with_file_name(format!("{}_{port}", uds.file_name().expect("a name").display()));
        let listener = UnixListener::bind(&path).expect("a socket");
        let conn = self.connect(HOST_CID, port).expect("a connection");
        std::fs::remove_file(path).expect("removed");
        let stream = listener.accept().expect("the guest's connection").0;
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        (conn, stream)
    }

    /// Bytes there and back.
    pub fn ping(&mut self, conn: ConnId, stream: &mut UnixStream) {
        ping(&mut self.stack, conn, stream);
    }

    /// Takes the connection that a host program, or another guest, makes to `port`.
    pub fn accept(&mut self, port: u32) -> ConnId {
        self.stack.accept_wait(port, PATIENCE).expect("a connection")
    }

    /// Sends `text`, ends the sending, and reads what comes back to its end.
    pub fn ask(&mut self, conn: ConnId, text: &[u8]) -> Vec<u8> {
        self.stack.send_all(conn, text, PATIENCE).expect("sent");
        self.stack.shutdown(conn, SHUTDOWN_SEND).expect("a half-close");
        self.stack.recv_to_end(conn, PATIENCE).expect("the reply")
    }

    /// Runs the guest until `thread` has ended, and returns its result.
    pub fn until<T>(&mut self, thread: JoinHandle<T>) -> T {
        wait_until("the host's program", || {
            self.turn();
            thread.is_finished()
        });
        thread.join().expect("its assertions hold")
    }
}
