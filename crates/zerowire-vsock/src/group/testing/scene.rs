//! A byte string as what a hostile guest and its host programs do.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType};

use super::super::{RX_QUEUE, TX_QUEUE};
use super::Harness;
use super::guest::{BASE, Guest, Layout};
use super::honest::Honest;
use crate::VsockLimits;
use crate::packet::{HEADER_LEN, Header, Kind, Op};

const HOSTILE: usize = 0;
const HOSTILE_CID: u64 = 3;
const HONEST: usize = 1;
const HONEST_CID: u64 = 4;
/// Host programs of the hostile guest serve these ports.
const STREAM_PORT: u32 = 1;
const MESSAGE_PORT: u32 = 2;
/// How much time passes at once, milliseconds: less and more than each patience of the device.
const PASSES_MS: [u64; 8] = [0, 1, 6, 1000, 5000, 8001, 10_001, 30_001];
/// Sockets of host programs at once.
const MAX_SOCKETS: usize = 24;

const LIMITS: VsockLimits = VsockLimits {
    buffer_bytes: 16 << 10,
    max_connections: 12,
    peer_connections: None,
    sibling_connections: None,
    request_rate: 10_000,
};

/// Reads the script; behind its end there are zeroes.
pub(super) struct Script<'a>(pub &'a [u8]);

impl Script<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((b, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *b
    }

    pub fn word(&mut self) -> usize {
        usize::from(self.byte()) | usize::from(self.byte()) << 8
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
}

/// What the hostile guest knows of a connection.
#[derive(Clone, Copy)]
struct Known {
    src_cid: u64,
    src_port: u32,
    dst_port: u32,
    kind: u16,
}

/// All that takes part.
pub struct Scene {
    harness: Harness,
    hostile: Guest,
    honest: Honest,
    dir: PathBuf,
    listeners: Vec<OwnedFd>,
    sockets: Vec<OwnedFd>,
    known: Vec<Known>,
    received: HashMap<(u64, u32, u32), u32>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Plays a script, with sockets in a new directory below `dir`. Panics where the device does what
/// it must not.
pub fn play(dir: &Path, script: &[u8]) {
    let mut scene = Scene::new(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut script = Script(script);
    while !script.0.is_empty() {
        scene.act(&mut script);
    }
    scene.end();
}

fn socket(kind: SocketType) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).ok()
}

fn listen(path: &Path, kind: SocketType) -> std::io::Result<OwnedFd> {
    let s = rustix::net::socket_with(
        AddressFamily::UNIX,
        kind,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    rustix::net::bind(&s, &SocketAddrUnix::new(path)?)?;
    // A short backlog: connections wait for an accept now and then.
    rustix::net::listen(&s, 1)?;
    Ok(s)
}

impl Scene {
    /// Both guests have started.
    pub fn new(dir: &Path) -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let dir = dir.join(NEXT.fetch_add(1, Ordering::Relaxed).to_string());
        std::fs::create_dir(&dir)?;
        let mut harness = Harness::new(&dir, &[HOSTILE_CID, HONEST_CID], LIMITS)?;
        let honest = Honest::start(&mut harness, HONEST, HONEST_CID, &dir)?;
        let hostile = Guest::new()?;
        harness.set_memory(HOSTILE, hostile.memory());
        harness.start(HOSTILE, &hostile).map_err(std::io::Error::other)?;
        let listeners = vec![
            listen(&dir.join(format!("{HOSTILE_CID}_{STREAM_PORT}")), SocketType::STREAM)?,
            listen(&dir.join(format!("{HOSTILE_CID}_{MESSAGE_PORT}")), SocketType::SEQPACKET)?,
        ];
        let (sockets, known, received) = Default::default();
        Ok(Self { harness, hostile, honest, dir, listeners, sockets, known, received })
    }

    fn act(&mut self, s: &mut Script<'_>) {
        match s.byte() % 16 {
            0..=3 => self.transmit(s),
            4 => {
                let (n, len, layout) = (s.byte() % 8, s.word() % 9000, Layout(s.byte()));
                for _ in 0..=n {
                    self.hostile.post(len.max(HEADER_LEN), layout);
                }
            }
            5 => self.accept(s),
            6 => self.connect(s),
            7 => self.write(s),
            8 => self.read(s),
            9 => self.close(s),
            10 => self.anything(s),
            11 => self.begin_anew(s),
            what @ (12 | 13) => {
                let choice = s.byte();
                if what == 13 {
                    let ms = PASSES_MS[usize::from(choice >> 3) % PASSES_MS.len()];
                    self.harness.pass(Duration::from_millis(ms));
                }
                for _ in 0..=choice % 8 {
                    self.harness.turn();
                }
                self.reap();
            }
            14 => {
                self.harness.rest();
                self.reap();
            }
            _ => self.honest.step(s.word() as u32 % 5000, s.word() as u32 % 5000),
        }
    }

    fn reap(&mut self) {
        self.hostile.reap(TX_QUEUE, |_| {});
        let (known, received) = (&mut self.known, &mut self.received);
        self.hostile.reap(RX_QUEUE, |p| {
            let Some(head) = p.first_chunk::<HEADER_LEN>() else { return };
            let h = Header::from_bytes(head);
            assert_eq!(h.dst_cid, HOSTILE_CID, "another one's packet: {h:?}");
            assert!(p.len() == HEADER_LEN + h.len as usize, "{} bytes: {h:?}", p.len());
            let op = Op::new(h.op).unwrap_or_else(|| panic!("{h:?}"));
            let key = (h.src_cid, h.src_port, h.dst_port);
            match op {
                Op::Rw => *received.entry(key).or_default() += h.len,
                Op::Request | Op::Response => {
                    received.insert(key, 0);
                    known.retain(|k| (k.src_cid, k.src_port, k.dst_port) != key);
                    known.push(Known {
                        src_cid: h.src_cid,
                        src_port: h.src_port,
                        dst_port: h.dst_port,
                        kind: h.kind,
                    });
                    if known.len() > 8 {
                        known.remove(0);
                    }
                }
                Op::Rst => known.retain(|k| (k.src_cid, k.src_port, k.dst_port) != key),
                _ => {}
            }
        });
    }

    /// A packet: of a connection that is known, or of any.
    fn transmit(&mut self, s: &mut Script<'_>) {
        let shape = s.byte();
        let mut h = Header { src_cid: HOSTILE_CID, buf_alloc: 64 << 10, ..Header::default() };
        let pick = usize::from(s.byte());
        if shape & 1 != 0 && !self.known.is_empty() {
            let k = self.known[pick % self.known.len()];
            (h.dst_cid, h.dst_port, h.src_port, h.kind) = (k.src_cid, k.src_port, k.dst_port, k.kind);
            h.op = s.of(&[5, 5, 5, 2, 3, 4, 6, 7]);
            h.fwd_cnt = self.received.get(&(k.src_cid, k.src_port, k.dst_port)).copied().unwrap_or(0);
        } else {
            h.dst_cid = if pick & 1 == 0 { 2 } else { HONEST_CID };
            h.kind = 1 + u16::from(pick & 2 != 0);
            h.src_port = 10 + (pick as u32 >> 2 & 7);
            h.dst_port = if pick & 32 == 0 { u32::from(h.kind) } else { pick as u32 >> 6 };
            h.op = s.of(&[1, 1, 1, 5, 2, 3, 4, 6]);
        }
        let is_rw = h.op == Op::Rw as u16;
        let len = if is_rw { s.word() % 6000 } else { 0 };
        h.len = len as u32;
        h.flags = match h.op {
            4 => u32::from(s.byte() & 3),
            5 if h.kind == Kind::SeqPacket as u16 => u32::from(s.byte() & 3),
            _ => 0,
        };
        let mut extra = 0;
        if shape & 2 != 0 {
            match s.byte() % 12 {
                0 => h.src_cid = u64::from(s.byte()),
                1 => h.dst_cid = s.of(&[0, 1, 2, 3, 4, 9, u64::MAX]),
                2 => h.kind = u16::from(s.byte() & 3),
                3 => h.op = u16::from(s.byte() & 15),
                4 => h.flags = 1 << (s.byte() & 31),
                5 => h.len = s.of(&[0, 1, len as u32 + 1, u32::MAX, 1 << 31]),
                6 => h.buf_alloc = s.of(&[0, 1, 100, 8192, u32::MAX]),
                7 => {
                    h.fwd_cnt =
                        h.fwd_cnt.wrapping_add(s.of(&[1, 100, 1 << 30, 1 << 31, u32::MAX, u32::MAX - 500]))
                }
                8 => extra = s.word(),
                9 => h.src_port = s.of(&[0, u32::MAX, 10]),
                10 => h.dst_port = s.of(&[0, u32::MAX, 1]),
                _ => (h.len, h.op) = (len as u32, 5),
            }
        }
        let mut packet = h.to_bytes().to_vec();
        packet.resize(HEADER_LEN + len, shape);
        if shape & 4 != 0 && shape & 8 != 0 {
            packet.truncate(usize::from(s.byte()));
        }
        self.hostile.send(&packet, extra, Layout(shape >> 4));
    }

    fn accept(&mut self, s: &mut Script<'_>) {
        let l = &self.listeners[usize::from(s.byte() & 1)];
        if let Ok(socket) = rustix::net::accept_with(l, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            self.keep(socket);
        }
    }

    fn keep(&mut self, socket: OwnedFd) {
        if self.sockets.len() == MAX_SOCKETS {
            self.sockets.remove(0);
        }
        self.sockets.push(socket);
    }

    fn connect(&mut self, s: &mut Script<'_>) {
        let choice = s.byte();
        let (kind, end) =
            if choice & 1 == 0 { (SocketType::STREAM, "") } else { (SocketType::SEQPACKET, ".seqpacket") };
        let path = self.dir.join(format!("{HOSTILE_CID}{end}"));
        let Some(socket) = socket(kind) else { return };
        let Ok(address) = SocketAddrUnix::new(path) else { return };
        if rustix::net::connect(&socket, &address).is_err() {
            return;
        }
        let line = match choice >> 1 & 7 {
            0 => "CONNECT ".to_owned(),
            1 => "GET / HTTP/1.1\n".to_owned(),
            2 => "CONNECT 99999999999\n".to_owned(),
            3 => "x".repeat(40),
            4 => String::new(),
            n => format!("CONNECT {}\n{}", 10 + (n & 1), if n == 7 { "early" } else { "" }),
        };
        let _ = rustix::net::send(&socket, line.as_bytes(), SendFlags::NOSIGNAL);
        self.keep(socket);
    }

    fn write(&mut self, s: &mut Script<'_>) {
        let (pick, len) = (usize::from(s.byte()), s.word());
        if let Some(socket) = self.sockets.get(pick % MAX_SOCKETS) {
            let _ = rustix::net::send(socket, &vec![7; len], SendFlags::NOSIGNAL);
        }
    }

    fn read(&mut self, s: &mut Script<'_>) {
        let pick = usize::from(s.byte());
        if let Some(socket) = self.sockets.get(pick % MAX_SOCKETS) {
            let mut buffer = vec![0; s.word()];
            let _ = rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT);
        }
    }

    fn close(&mut self, s: &mut Script<'_>) {
        let choice = usize::from(s.byte());
        let pick = choice >> 2;
        if pick >= self.sockets.len() {
            return;
        }
        let how = match choice & 3 {
            0 => Shutdown::Read,
            1 => Shutdown::Write,
            _ => {
                self.sockets.remove(pick);
                return;
            }
        };
        let _ = rustix::net::shutdown(&self.sockets[pick], how);
    }

    /// Descriptors of any kind, and indexes that jump.
    fn anything(&mut self, s: &mut Script<'_>) {
        let choice = s.byte();
        let queue = u16::from(choice & 1);
        if choice & 2 != 0 {
            let (_, avail, _) = self.hostile.ring(queue);
            return self.hostile.set_avail(queue, avail.wrapping_add(200));
        }
        // Not where the rings are: what the device writes there is the guest's own affair.
        let addr =
            s.of(&[0, BASE - 1, BASE + 0xa_0000, BASE + 0x5_1fff, BASE + 0xf_fffe, u64::MAX - 3, 1 << 63]);
        let len = s.of(&[0, 1, 43, 44, 45, 16, 24, 0x8000, u32::MAX]);
        let flags = u16::from(s.byte() & 7);
        let head = s.of(&[0, 0, 0, 64, 0xffff]);
        self.hostile.lend_anything(queue, head, addr, len, flags, s.word() as u16 & 0x7f);
    }

    /// The guest's driver begins anew, or its front end leaves and comes back.
    fn begin_anew(&mut self, s: &mut Script<'_>) {
        if s.byte() & 1 != 0 {
            self.harness.leave(HOSTILE);
            self.harness.set_memory(HOSTILE, self.hostile.memory());
        } else {
            self.harness.stop(HOSTILE, RX_QUEUE);
            self.harness.stop(HOSTILE, TX_QUEUE);
        }
        self.hostile.reset(RX_QUEUE);
        self.hostile.reset(TX_QUEUE);
        self.harness.start(HOSTILE, &self.hostile).unwrap_or_else(|e| panic!("{e}"));
        self.known.clear();
        self.received.clear();
    }

    fn end(&mut self) {
        self.harness.rest();
        self.reap();
        if self.harness.is_sound(HOSTILE, TX_QUEUE) && !self.harness.is_held_up(HOSTILE) {
            assert_eq!(self.hostile.lent(TX_QUEUE), 0, "transmit chains that did not come back");
        }
        self.honest.finish(&mut self.harness);
        self.harness.leave(HOSTILE);
        // What it sent before may still wait for its host programs; now they go as well.
        self.sockets.clear();
        self.listeners.clear();
        self.harness.rest();
        assert_eq!((self.harness.connections(HOSTILE), self.harness.held_bytes(HOSTILE)), (0, 0));
        self.honest.finish(&mut self.harness);
    }
}
