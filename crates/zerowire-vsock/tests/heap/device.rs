//! Two guests on a device without its thread, and what they know of their connections.

use std::collections::HashMap;

use zerowire_vsock::packet::{HEADER_LEN, HOST_CID, Header, Kind, Op, SEQ_EOM};
use zerowire_vsock::testing::{Guest, Harness, Layout};
use zerowire_vsock::{RX_QUEUE, TX_QUEUE, VsockLimits};

use super::heap;

/// The guests' CIDs.
pub const CIDS: [u64; 2] = [3, 4];

/// The buffer that a guest says it has for a connection, bytes.
pub const ALLOC: u32 = 256 << 10;

/// Header and payload in descriptors of their own, as Linux sends them.
const SPLIT: Layout = Layout(1);

/// Payload of a chain at most.
pub const CHAIN: usize = 0x4000 - HEADER_LEN;

/// A guest's end of a connection.
#[derive(Clone, Debug)]
pub struct Conn {
    pub peer_cid: u64,
    pub port: u32,
    pub peer_port: u32,
    pub kind: Kind,
    pub open: bool,
    pub sent: u32,
    pub received: u32,
    pub messages: u32,
    told: u32,
    alloc: u32,
    forwarded: u32,
}

impl Conn {
    pub fn credit(&self) -> usize {
        self.alloc.saturating_sub(self.sent.wrapping_sub(self.forwarded)) as usize
    }
}

/// Bytes of what flows either way on any connection.
pub fn bytes(from: u32, len: usize) -> Vec<u8> {
    zerowire_vsock::testing::bytes(from, len as u32)
}

/// The device and its guests.
pub struct Device {
    pub harness: Harness,
    guests: [Guest; 2],
    /// Of each guest: its connections by its own port and the other one's.
    pub conns: [HashMap<(u32, u32), Conn>; 2],
    /// Connections that were reset.
    pub resets: usize,
    /// Whether a guest posts receive buffers, and of how many bytes.
    pub posts: [Option<usize>; 2],
    next_port: u32,
    /// The host's sockets are `dir/CID`.
    pub dir: tempfile::TempDir,
}

impl Device {
    /// With guests that have posted all they can.
    pub fn new(limits: VsockLimits) -> Self {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        let mut harness = heap::counted(|| Harness::new(dir.path(), &CIDS, limits)).expect("a device");
        let guests = [(); 2].map(|()| Guest::new().expect("memory"));
        for (vm, guest) in guests.iter().enumerate() {
            harness.set_memory(vm, guest.memory());
            harness.start(vm, guest).expect("rings");
        }
        let conns = [HashMap::new(), HashMap::new()];
        let mut device =
            Self { harness, guests, conns, resets: 0, posts: [Some(4096); 2], next_port: 10_000, dir };
        device.rest();
        device
    }

    /// Where a host program serves a port for the first guest.
    pub fn port_path(&self, port: u32) -> std::path::PathBuf {
        self.dir.path().join(format!("{}_{port}", CIDS[0]))
    }

    /// One look of the device, then the guests take what came.
    pub fn turn(&mut self) -> bool {
        let more = heap::counted(|| self.harness.turn_unchecked());
        self.take(0) | self.take(1) | more
    }

    /// Turns until nothing moves any more.
    pub fn rest(&mut self) {
        // The device looks again a few times before it would sleep.
        let mut still = 0;
        for _ in 0..1_000_000 {
            still = if self.turn() { 0 } else { still + 1 };
            if still == 3 {
                return;
            }
        }
        panic!("the device finds something to do for ever");
    }

    /// A connection of a guest that the other side accepts; its key.
    pub fn connect(&mut self, vm: usize, peer_cid: u64, peer_port: u32, kind: Kind) -> (u32, u32) {
        self.next_port += 1;
        let port = self.next_port;
        let conn = Conn {
            peer_cid,
            port,
            peer_port,
            kind,
            open: false,
            sent: 0,
            received: 0,
            messages: 0,
            told: 0,
            alloc: 0,
            forwarded: 0,
        };
        let key = (port, peer_port);
        self.conns[vm].insert(key, conn);
        self.control(vm, key, Op::Request);
        self.rest();
        assert!(self.conns[vm][&key].open || peer_cid == HOST_CID);
        key
    }

    /// Sends the next bytes of the pattern. False where no chain is free.
    pub fn send(&mut self, vm: usize, key: (u32, u32), len: usize, flags: u32) -> bool {
        let sent = self.conns[vm][&key].sent;
        let mut packet = Header { flags, ..self.header(vm, key, Op::Rw, len) }.to_bytes().to_vec();
        packet.extend(bytes(sent, len));
        let done = self.guests[vm].send(&packet, 0, SPLIT);
        if done && let Some(c) = self.conns[vm].get_mut(&key) {
            assert!(c.credit() >= len, "{len} bytes for a credit of {}", c.credit());
            c.sent = c.sent.wrapping_add(len as u32);
            c.told = c.received;
        }
        done
    }

    /// Sends `total` bytes, as far as credit allows, in packets of `len` each. Returns how many
    /// went.
    pub fn send_all(&mut self, vm: usize, key: (u32, u32), total: usize, len: usize) -> usize {
        let mut left = total;
        while left > 0 {
            let n = left.min(len).min(self.conns[vm][&key].credit());
            if n == 0 {
                self.rest();
                if self.conns[vm][&key].credit() == 0 {
                    break;
                }
            } else if self.send(vm, key, n, 0) {
                left -= n;
            } else {
                self.turn();
            }
        }
        self.rest();
        total - left
    }

    /// Makes `count` turns.
    pub fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    fn header(&self, vm: usize, key: (u32, u32), op: Op, len: usize) -> Header {
        let c = &self.conns[vm][&key];
        Header {
            src_cid: CIDS[vm],
            dst_cid: c.peer_cid,
            src_port: c.port,
            dst_port: c.peer_port,
            len: len as u32,
            kind: c.kind as u16,
            op: op as u16,
            buf_alloc: ALLOC,
            fwd_cnt: c.received,
            ..Header::default()
        }
    }

    fn control(&mut self, vm: usize, key: (u32, u32), op: Op) {
        let packet = self.header(vm, key, op, 0).to_bytes();
        for _ in 0..1000 {
            if self.guests[vm].send(&packet, 0, Layout(0)) {
                return;
            }
            heap::counted(|| self.harness.turn_unchecked());
            self.guests[vm].reap(TX_QUEUE, |_| {});
        }
        panic!("the device takes no packet");
    }

    /// Takes what came, and posts buffers again. Returns whether anything came.
    fn take(&mut self, vm: usize) -> bool {
        self.guests[vm].reap(TX_QUEUE, |_| {});
        let mut packets = Vec::new();
        self.guests[vm].reap(RX_QUEUE, |p| packets.push(p));
        for p in &packets {
            let (head, payload) = p.split_first_chunk::<HEADER_LEN>().expect("a header");
            self.packet(vm, &Header::from_bytes(head), payload);
        }
        if let Some(len) = self.posts[vm] {
            while self.guests[vm].post(len, Layout(0)) {}
        }
        !packets.is_empty()
    }

    fn packet(&mut self, vm: usize, h: &Header, payload: &[u8]) {
        let key = (h.dst_port, h.src_port);
        let op = Op::new(h.op).expect("an operation");
        if op == Op::Request {
            let conn = Conn {
                peer_cid: h.src_cid,
                port: h.dst_port,
                peer_port: h.src_port,
                kind: Kind::new(h.kind).expect("a type"),
                open: true,
                sent: 0,
                received: 0,
                messages: 0,
                told: 0,
                alloc: h.buf_alloc,
                forwarded: h.fwd_cnt,
            };
            self.conns[vm].insert(key, conn);
            return self.control(vm, key, Op::Response);
        }
        if op == Op::Rst {
            self.resets += usize::from(self.conns[vm].remove(&key).is_some());
            return;
        }
        let c = self.conns[vm].get_mut(&key).unwrap_or_else(|| panic!("no connection: {h:?}"));
        (c.alloc, c.forwarded) = (h.buf_alloc, h.fwd_cnt);
        match op {
            Op::Response => c.open = true,
            Op::Rw => {
                assert!(payload == bytes(c.received, payload.len()), "a byte changed on its way");
                c.received = c.received.wrapping_add(h.len);
                c.messages += h.flags & SEQ_EOM;
                assert!(c.received.wrapping_sub(c.told) <= ALLOC, "beyond the credit");
            }
            Op::CreditUpdate | Op::CreditRequest => {}
            _ => panic!("an end: {h:?}"),
        }
        if c.received.wrapping_sub(c.told) > ALLOC / 2 || op == Op::CreditRequest {
            c.told = c.received;
            self.control(vm, key, Op::CreditUpdate);
        }
    }
}
