//! A guest with a vsock device.

use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use zerowire_guest::vsock::{
    ConnId, SHUTDOWN_SEND, SocketType, StackOptions, VsockDriver, VsockOptions, VsockStack,
};
use zerowire_guest::{GuestAddr, GuestMemory, VhostUser};

use super::{PATIENCE, connect, wait_until};

/// A guest and what its programs see.
pub struct Guest {
    pub stack: VsockStack,
    _driver: VsockDriver<VhostUser>,
}

impl Guest {
    pub fn start(socket: &Path) -> Self {
        let memory = GuestMemory::new(&[(GuestAddr(0), 32 << 20)]).expect("guest memory");
        let (driver, queues) = VsockDriver::start(connect(socket), &memory, &VsockOptions::default())
            .unwrap_or_else(|e| panic!("{e}"));
        Self { stack: VsockStack::new(queues, StackOptions::default()), _driver: driver }
    }

    /// Connects; None where the connection was refused.
    pub fn connect(&mut self, cid: u64, port: u32) -> Option<ConnId> {
        let conn = self.stack.connect(cid, port, SocketType::Stream).expect("a free port");
        self.stack.wait_connected(conn, PATIENCE).expect("an answer").then_some(conn)
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
            self.stack.turn(Duration::from_millis(1)).expect("a sound ring");
            thread.is_finished()
        });
        thread.join().expect("its assertions hold")
    }
}
