//! A guest that keeps to the rules, beside one that does not: a connection to a host program, bytes
//! both ways, every one checked. It also answers what the other guest sends it, and sees that no
//! credit is exceeded.

use std::collections::{HashMap, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use super::super::{RX_QUEUE, TX_QUEUE};
use super::Harness;
use super::guest::{Guest, Layout};
use crate::packet::{HEADER_LEN, HOST_CID, Header, Kind, Op};

/// The buffer that it says it has, bytes.
const ALLOC: u32 = 8192;
const PORT: u32 = 100;
const HOST_PORT: u32 = 5;

/// What is due before a connection counts as stalled, looks at it.
const PATIENCE: usize = 20_000;

#[derive(Default)]
struct Incoming {
    received: u32,
    told: u32,
}

/// The guest and its host program.
pub(super) struct Honest {
    vm: usize,
    cid: u64,
    guest: Guest,
    out: VecDeque<Vec<u8>>,
    host: UnixStream,
    main: Incoming,
    sent: u32,
    peer_alloc: u32,
    peer_forwarded: u32,
    host_sent: u32,
    host_received: u32,
    open: bool,
    /// Connections of the other guest: by its port and the own one.
    others: HashMap<(u32, u32), Incoming>,
}

/// What flows, again and again from byte 0 on. Its length divides 2^32, where counts of bytes wrap.
static PERIOD: [u8; 1 << 16] = {
    let (mut period, mut i) = ([0; 1 << 16], 0);
    while i < period.len() {
        period[i] = ((i * 31) ^ (i >> 8)) as u8;
        i += 1;
    }
    period
};

/// `len` bytes of what flows, from byte `from` on.
pub fn bytes(from: u32, len: u32) -> Vec<u8> {
    let len = len as usize;
    let (mut bytes, mut at) = (Vec::with_capacity(len), from as usize % PERIOD.len());
    while bytes.len() < len {
        let end = PERIOD.len().min(at + len - bytes.len());
        bytes.extend_from_slice(&PERIOD[at..end]);
        at = end % PERIOD.len();
    }
    bytes
}

impl Honest {
    /// Starts its driver and opens its connection.
    pub(super) fn start(h: &mut Harness, vm: usize, cid: u64, dir: &Path) -> std::io::Result<Self> {
        let listener = UnixListener::bind(dir.join(format!("{cid}_{HOST_PORT}")))?;
        let mut guest = Guest::new()?;
        h.set_memory(vm, guest.memory());
        h.start(vm, &guest).map_err(std::io::Error::other)?;
        while guest.post(4096, Layout(0)) {}
        let request = Header {
            src_cid: cid,
            dst_cid: HOST_CID,
            src_port: PORT,
            dst_port: HOST_PORT,
            kind: Kind::Stream as u16,
            op: Op::Request as u16,
            buf_alloc: ALLOC,
            ..Header::default()
        };
        guest.send(&request.to_bytes(), 0, Layout(0));
        h.rest();
        let (host, _) = listener.accept()?;
        host.set_nonblocking(true)?;
        let mut honest = Self {
            vm,
            cid,
            guest,
            out: VecDeque::new(),
            host,
            main: Incoming::default(),
            sent: 0,
            peer_alloc: 0,
            peer_forwarded: 0,
            host_sent: 0,
            host_received: 0,
            open: false,
            others: HashMap::new(),
        };
        honest.receive();
        assert!(honest.open, "the first connection opens");
        Ok(honest)
    }

    fn header(&self, op: Op, len: u32) -> Header {
        Header {
            src_cid: self.cid,
            dst_cid: HOST_CID,
            src_port: PORT,
            dst_port: HOST_PORT,
            len,
            kind: Kind::Stream as u16,
            op: op as u16,
            buf_alloc: ALLOC,
            fwd_cnt: self.main.received,
            ..Header::default()
        }
    }

    /// Sends up to `n` bytes, has the host program send up to `m`, and takes what came.
    pub(super) fn step(&mut self, n: u32, m: u32) {
        self.receive();
        let n = n.min(self.peer_alloc.saturating_sub(self.sent.wrapping_sub(self.peer_forwarded))).min(4096);
        if n > 0 && self.out.len() < 8 {
            let mut packet = self.header(Op::Rw, n).to_bytes().to_vec();
            self.main.told = self.main.received;
            packet.extend(bytes(self.sent, n));
            self.out.push_back(packet);
            self.sent = self.sent.wrapping_add(n);
        }
        if self.main.received.wrapping_sub(self.main.told) > ALLOC / 2 {
            self.main.told = self.main.received;
            self.out.push_back(self.header(Op::CreditUpdate, 0).to_bytes().to_vec());
        }
        while let Some(packet) = self.out.front() {
            if !self.guest.send(packet, 0, Layout(self.sent as u8)) {
                break;
            }
            self.out.pop_front();
        }
        match self.host.write(&bytes(self.host_sent, m)) {
            Ok(n) => self.host_sent = self.host_sent.wrapping_add(n as u32),
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}"),
        }
        let mut buffer = [0; 8192];
        match self.host.read(&mut buffer) {
            Ok(n) => {
                assert!(n > 0, "the host program sees an end");
                assert!(buffer[..n] == bytes(self.host_received, n as u32), "a byte toward the host changed");
                self.host_received = self.host_received.wrapping_add(n as u32);
            }
            Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}"),
        }
    }

    /// Takes packets, and posts their buffers again.
    fn receive(&mut self) {
        self.guest.reap(TX_QUEUE, |_| {});
        let mut packets = Vec::new();
        self.guest.reap(RX_QUEUE, |p| packets.push(p));
        for p in packets {
            self.packet(&p);
        }
        while self.guest.post(4096, Layout(self.host_sent as u8)) {}
    }

    fn packet(&mut self, p: &[u8]) {
        let Some((head, payload)) = p.split_first_chunk::<HEADER_LEN>() else { panic!("a short packet") };
        let h = Header::from_bytes(head);
        assert_eq!((h.dst_cid, h.len as usize), (self.cid, payload.len()), "{h:?}");
        if h.src_cid == HOST_CID {
            return self.own(&h, payload);
        }
        assert_eq!(h.src_cid, 3, "{h:?}");
        let key = (h.src_port, h.dst_port);
        let reply = match Op::new(h.op) {
            Some(Op::Request) if h.dst_port.is_multiple_of(2) => {
                self.others.insert(key, Incoming::default());
                Op::Response
            }
            Some(Op::Request) => Op::Rst,
            Some(Op::Rst) => {
                self.others.remove(&key);
                return;
            }
            Some(Op::Rw) => {
                let Some(c) = self.others.get_mut(&key) else { panic!("payload of no connection: {h:?}") };
                c.received = c.received.wrapping_add(h.len);
                let waits = c.received.wrapping_sub(c.told);
                assert!(waits <= ALLOC, "{waits} bytes came for a credit of {ALLOC}");
                if waits <= ALLOC / 2 {
                    return;
                }
                Op::CreditUpdate
            }
            Some(Op::CreditRequest) => Op::CreditUpdate,
            Some(Op::Shutdown) if h.flags == 3 => {
                self.others.remove(&key);
                Op::Rst
            }
            _ => return,
        };
        let told = self.others.get_mut(&key).map_or(0, |c| {
            c.told = c.received;
            c.told
        });
        let answer = Header {
            src_cid: self.cid,
            dst_cid: h.src_cid,
            src_port: h.dst_port,
            dst_port: h.src_port,
            kind: h.kind,
            op: reply as u16,
            buf_alloc: ALLOC,
            fwd_cnt: told,
            ..Header::default()
        };
        self.out.push_back(answer.to_bytes().to_vec());
    }

    /// A packet of the connection to the host.
    fn own(&mut self, h: &Header, payload: &[u8]) {
        assert_eq!((h.src_port, h.dst_port), (HOST_PORT, PORT), "{h:?}");
        (self.peer_alloc, self.peer_forwarded) = (h.buf_alloc, h.fwd_cnt);
        assert!(h.fwd_cnt <= self.sent, "more left the device's buffer than was sent");
        match Op::new(h.op) {
            Some(Op::Response) => self.open = true,
            Some(Op::Rw) => {
                assert!(payload == bytes(self.main.received, h.len), "a byte toward the guest changed");
                self.main.received = self.main.received.wrapping_add(h.len);
                let waits = self.main.received.wrapping_sub(self.main.told);
                assert!(waits <= ALLOC, "{waits} bytes came for a credit of {ALLOC}");
            }
            Some(Op::CreditUpdate) => {}
            Some(Op::CreditRequest) => {
                self.main.told = self.main.received;
                self.out.push_back(self.header(Op::CreditUpdate, 0).to_bytes().to_vec());
            }
            _ => panic!("the connection was ended: {h:?}"),
        }
    }

    /// Moves some more bytes both ways and waits until all have arrived.
    pub(super) fn finish(&mut self, h: &mut Harness) {
        for _ in 0..4 {
            self.step(3000, 3000);
            h.rest();
        }
        for _ in 0..PATIENCE {
            self.step(0, 0);
            h.rest();
            if self.host_received == self.sent && self.main.received == self.host_sent {
                return;
            }
        }
        panic!(
            "VM {}: of {} bytes {} reached the host, of {} bytes {} the guest",
            self.vm, self.sent, self.host_received, self.host_sent, self.main.received
        );
    }
}
