//! A vsock guest that says what its test wants, and believes whatever the device says.

use std::time::Instant;

use zerowire_guest::vsock::{Op, PacketHeader, SocketType, VsockDriver, VsockOptions, VsockQueues};
use zerowire_guest::{GuestMemory, VhostUser};

use super::vsock::VsockBackend;
use super::{PATIENCE, guest_memory};

/// The guest.
pub struct RawGuest {
    // The queues go before the connection that they were set up by.
    pub queues: VsockQueues,
    _driver: VsockDriver<VhostUser>,
    _memory: GuestMemory,
    next_port: u32,
}

/// A connection as its guest keeps it.
#[derive(Clone, Copy, Debug)]
pub struct RawConn {
    /// The header of its packets.
    pub header: PacketHeader,
    /// Payload bytes sent.
    pub sent: u32,
}

impl RawGuest {
    /// With the default settings.
    pub fn start(backend: &VsockBackend, vm: &str) -> Self {
        Self::with(backend, vm, &VsockOptions::default())
    }

    /// With others.
    pub fn with(backend: &VsockBackend, vm: &str, options: &VsockOptions) -> Self {
        let memory = guest_memory();
        let (driver, queues) =
            VsockDriver::start(backend.connect(vm), &memory, options).unwrap_or_else(|e| panic!("{e}"));
        Self { queues, _driver: driver, _memory: memory, next_port: 1000 }
    }

    /// A header from a new port.
    pub fn header(&mut self, cid: u64, port: u32, kind: SocketType, op: Op) -> PacketHeader {
        self.next_port += 1;
        PacketHeader {
            src_cid: self.queues.cid,
            dst_cid: cid,
            src_port: self.next_port,
            dst_port: port,
            kind: kind as u16,
            op: op as u16,
            buf_alloc: 256 << 10,
            ..PacketHeader::default()
        }
    }

    /// Sends a packet as it is.
    pub fn put(&mut self, header: &PacketHeader, payload: &[u8]) {
        let tx = &mut self.queues.tx;
        let start = Instant::now();
        while !tx.send(header, payload).unwrap_or_else(|e| panic!("{e}")) {
            assert!(start.elapsed() < PATIENCE, "packets are not given back");
            tx.publish().unwrap_or_else(|e| panic!("{e}"));
            tx.wait(1, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
            tx.reap().unwrap_or_else(|e| panic!("{e}"));
        }
        tx.publish().unwrap_or_else(|e| panic!("{e}"));
    }

    /// Waits until the device has given back everything.
    pub fn flush(&mut self) {
        assert!(self.queues.tx.drain(PATIENCE).unwrap_or_else(|e| panic!("{e}")), "given back");
    }

    /// The next packet of the device, which must come.
    pub fn next(&mut self) -> (PacketHeader, Vec<u8>) {
        self.queues.rx.recv(PATIENCE).unwrap_or_else(|e| panic!("{e}")).expect("a packet")
    }

    /// The next packet that is of this operation; others are passed over.
    pub fn next_of(&mut self, op: Op) -> (PacketHeader, Vec<u8>) {
        loop {
            let packet = self.next();
            if packet.0.op() == Some(op) {
                return packet;
            }
        }
    }

    /// Takes what has come, and forgets it. Returns how many packets that were.
    pub fn discard(&mut self) -> usize {
        let mut count = 0;
        loop {
            let n = self.queues.rx.harvest(256, |_| {}).unwrap_or_else(|e| panic!("{e}"));
            self.queues.rx.publish().unwrap_or_else(|e| panic!("{e}"));
            if n == 0 {
                return count;
            }
            count += n;
        }
    }

    /// Asks for a connection, which must be accepted.
    pub fn open(&mut self, cid: u64, port: u32, kind: SocketType) -> RawConn {
        let header = self.header(cid, port, kind, Op::Request);
        self.put(&header, &[]);
        loop {
            let (answer, _) = self.next();
            if answer.dst_port == header.src_port {
                assert_eq!(answer.op(), Some(Op::Response));
                return RawConn { header: PacketHeader { op: Op::Rw as u16, ..header }, sent: 0 };
            }
        }
    }

    /// Sends payload, whatever the credit is.
    pub fn send(&mut self, conn: &mut RawConn, payload: &[u8], flags: u32) {
        let header = PacketHeader { len: payload.len() as u32, flags, ..conn.header };
        self.put(&header, payload);
        conn.sent = conn.sent.wrapping_add(payload.len() as u32);
    }

    /// Sends a packet without payload.
    pub fn say(&mut self, conn: &RawConn, op: Op, flags: u32) {
        self.put(&PacketHeader { op: op as u16, flags, len: 0, ..conn.header }, &[]);
    }

    /// Takes `len` bytes of payload on a connection, and passes over everything else.
    pub fn recv(&mut self, conn: &mut RawConn, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let (header, payload) = self.next();
            if header.op() == Some(Op::Rw) && header.dst_port == conn.header.src_port {
                conn.header.fwd_cnt = conn.header.fwd_cnt.wrapping_add(header.len);
                bytes.extend(payload);
            }
        }
        assert_eq!(bytes.len(), len);
        bytes
    }
}
