//! What a hostile guest, or a hostile program of the host, does to a vsock back end; and what
//! attackers are compared with.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType as Type};
use serde::Serialize;
use zerowire_guest::misbehave::{Answer, bad_packets};
use zerowire_guest::ring::BufferPiece;
use zerowire_guest::vsock::{ConnId, HOST_CID, Op, PacketHeader, SocketType};

use super::case::{QUEUE_SIZE, SocketKind, WRITE_LEN};
use super::guest::VsockGuest;
use super::host;
use crate::amount::amount;
use crate::backend::BackendProcess;
use crate::words::by_words;

/// Packets that an attacker sends before anything else gets its turn. They fill a part of the
/// queue, so the honest connection of the same guest finds room in it.
const STEP: usize = QUEUE_SIZE as usize / 4;
/// Host programs in a step.
const PROGRAMS: usize = 4;
/// Connections of an attacker that has many.
const CONNECTIONS: usize = STEP;
/// Requests that go before anything counts. They are more than a back end examines when they come
/// at once (10 000 by default). So what is measured is what a flood that goes on leaves to others.
const MANY_REQUESTS: usize = 30_000;
/// Half lines that are kept open: more than the back end waits for.
const HALF_LINES: usize = 200;
/// How long the control keeps the driver's CPU: about as long as a step of packets.
const SPIN: Duration = Duration::from_micros(5);

/// The port of the attacker's own connections.
const OWN_PORT: u32 = 6000;
/// A port on which nobody listens.
const NO_PORT: u32 = 6001;
/// A port whose program takes connections.
const OPEN_PORT: u32 = 6002;
/// A port whose program takes none.
const FULL_PORT: u32 = 6003;
/// The CID of no VM.
const NO_GUEST: u64 = 99;
/// The guest's ports of requests begin here.
const FIRST_PORT: u32 = 20_000;

/// What is done to the back end, controls first; each with its name in tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Attack {
    /// A control: the driver's CPU is as busy, and nothing is sent.
    #[value(name = "control: spins, sends nothing")]
    Spin,
    /// A control: a connection as honest as the measured one, as fast as it can be.
    #[value(name = "control: a stream as honest")]
    Stream,
    /// A control: packets without payload that are as they should be.
    #[value(name = "control: sound credit updates")]
    CreditUpdates,
    /// RW without payload.
    #[value(name = "zero-length packets")]
    ZeroLength,
    /// RW of one byte, many on one connection before the next one's turn.
    #[value(name = "1-byte packets")]
    OneByte,
    /// RW of one byte, each on another connection.
    #[value(name = "1-byte packets, 32 connections")]
    OneByteEach,
    /// RW on no connection.
    #[value(name = "data on no connection")]
    Stray,
    /// Every header field wrong in turn.
    #[value(name = "wrong header fields")]
    WrongFields,
    /// Connection requests to a port on which nobody listens.
    #[value(name = "requests, refused")]
    Refused,
    /// Connection requests that a program takes; the guest resets each.
    #[value(name = "requests, granted and reset")]
    Granted,
    /// Connection requests to a program that takes none.
    #[value(name = "requests, backlog full")]
    Waiting,
    /// Connection requests to a guest that is not there.
    #[value(name = "requests, no such guest")]
    Elsewhere,
    /// Host programs that say something else than CONNECT, and close.
    #[value(name = "host: garbage and close")]
    Garbage,
    /// Host programs that say half a line, and stay.
    #[value(name = "host: half lines")]
    HalfLines,
}

impl Attack {
    /// Whether it requests connections. The back end examines a limited number of requests a
    /// second.
    pub fn asks(self) -> bool {
        matches!(self, Self::Refused | Self::Granted | Self::Waiting | Self::Elsewhere)
    }
}

by_words!(Attack);

/// An attack that is ready.
pub struct Weapon {
    attack: Attack,
    conns: Vec<ConnId>,
    /// The host's ends of them.
    streams: Vec<UnixStream>,
    /// Whom the requests are for.
    listener: Option<UnixListener>,
    /// Packets to send in turn, and how many bytes of payload each has.
    packets: Vec<(PacketHeader, usize)>,
    host_end: PathBuf,
    half_lines: VecDeque<OwnedFd>,
    next: usize,
}

impl Weapon {
    /// Prepares `attack` of `guest`, the first VM of `backend`.
    pub fn new(attack: Attack, guest: &mut VsockGuest, backend: &BackendProcess) -> Result<Self> {
        let port = |port: u32| host::port_path(&backend.host_end(0), port);
        let listener = host::listen(&port(OWN_PORT), SocketKind::Stream)?;
        let count = match attack {
            Attack::OneByte | Attack::OneByteEach => CONNECTIONS,
            _ => 1,
        };
        let (mut conns, mut streams) = (Vec::new(), Vec::new());
        for _ in 0..count {
            conns.push(guest.open(HOST_CID, OWN_PORT, SocketType::Stream)?);
            let (stream, _) = listener.accept().context("the attacker's own connection")?;
            stream.set_nonblocking(true)?;
            streams.push(stream);
        }
        let listener = match attack {
            Attack::Granted => Some(host::listen(&port(OPEN_PORT), SocketKind::Stream)?),
            Attack::Waiting => Some(full(&port(FULL_PORT))?),
            _ => None,
        };
        if let Some(listener) = &listener {
            listener.set_nonblocking(true)?;
        }
        let packets = packets(attack, guest, conns[0])?;
        let host_end = backend.host_end(0);
        let half_lines = VecDeque::new();
        Ok(Self { attack, conns, streams, listener, packets, host_end, half_lines, next: 0 })
    }

    /// The stream that a program of the host must read, if there is one.
    pub fn to_read(&self) -> Option<&UnixStream> {
        (self.attack == Attack::Stream).then(|| &self.streams[0])
    }

    /// The socket at which a program of the host must accept, if there is one.
    pub fn to_accept(&self) -> Option<&UnixListener> {
        self.listener.as_ref().filter(|_| self.attack == Attack::Granted)
    }

    /// How many packets go before anything counts.
    pub fn prelude(&self) -> usize {
        if self.attack.asks() { amount(MANY_REQUESTS) } else { 0 }
    }

    /// Whether it sends nothing.
    pub fn is_silent(&self) -> bool {
        self.attack == Attack::Spin
    }

    /// Sends some. Returns how many packets, or programs, that were; the device sees them at the
    /// guest's next turn.
    pub fn step(&mut self, guest: &mut VsockGuest) -> Result<usize> {
        match self.attack {
            Attack::Spin => {
                let begin = Instant::now();
                while begin.elapsed() < SPIN {
                    std::hint::spin_loop();
                }
                Ok(0)
            }
            Attack::Stream => Ok(guest.push(self.conns[0], WRITE_LEN, usize::MAX, STEP)?.div_ceil(WRITE_LEN)),
            Attack::OneByte => {
                self.next = (self.next + 1) % self.conns.len();
                guest.push(self.conns[self.next], 1, STEP, STEP)
            }
            Attack::OneByteEach => {
                let mut count = 0;
                for conn in &self.conns {
                    count += guest.push(*conn, 1, 1, 1)?;
                }
                Ok(count)
            }
            Attack::Garbage | Attack::HalfLines => Ok(self.dial_all()),
            _ => self.send(guest),
        }
    }

    fn send(&mut self, guest: &mut VsockGuest) -> Result<usize> {
        let at = guest.pool()?.memory().guest_addr();
        let asks = self.attack.asks();
        let tx = &mut guest.stack().queues().tx;
        let mut sent = 0;
        while sent < STEP {
            let (mut header, len) = self.packets[self.next % self.packets.len()];
            if asks {
                // Each is another connection.
                header.src_port = FIRST_PORT + self.next as u32 % (1 << 30);
            }
            let payload = BufferPiece { addr: at, len: len as u32, writable: false };
            if !tx.submit(&header, (len > 0).then_some(payload)) {
                break;
            }
            self.next += 1;
            sent += 1;
        }
        Ok(sent)
    }

    /// Programs that connect; what is refused for now comes with the next step.
    fn dial_all(&mut self) -> usize {
        let words: &[u8] = if self.attack == Attack::Garbage { b"HELLO 5000\n" } else { b"CONNECT 50" };
        let dialed = (0..PROGRAMS).map_while(|_| dial(&self.host_end, words).ok());
        let sockets: Vec<OwnedFd> = dialed.collect();
        let count = sockets.len();
        if self.attack == Attack::HalfLines {
            self.half_lines.extend(sockets);
            let surplus = self.half_lines.len().saturating_sub(HALF_LINES);
            self.half_lines.drain(..surplus);
        }
        count
    }
}

/// What is sent in turn.
fn packets(attack: Attack, guest: &mut VsockGuest, conn: ConnId) -> Result<Vec<(PacketHeader, usize)>> {
    const PAYLOAD: u32 = 100;
    let sound = guest.stack().header(conn, Op::Rw)?;
    let asks = PacketHeader { op: Op::Request as u16, fwd_cnt: 0, ..sound };
    Ok(match attack {
        Attack::CreditUpdates => vec![(guest.stack().header(conn, Op::CreditUpdate)?, 0)],
        Attack::ZeroLength => vec![(sound, 0)],
        Attack::Stray => {
            vec![(PacketHeader { src_port: !sound.src_port, len: PAYLOAD, ..sound }, PAYLOAD as usize)]
        }
        Attack::Refused => vec![(PacketHeader { dst_port: NO_PORT, ..asks }, 0)],
        Attack::Granted => vec![(PacketHeader { dst_port: OPEN_PORT, ..asks }, 0)],
        Attack::Waiting => vec![(PacketHeader { dst_port: FULL_PORT, ..asks }, 0)],
        Attack::Elsewhere => vec![(PacketHeader { dst_cid: NO_GUEST, ..asks }, 0)],
        Attack::WrongFields => {
            // The guest's own driver takes answers of sound addresses and types only.
            let answerable = |h: &PacketHeader| h.dst_cid == HOST_CID && SocketType::new(h.kind).is_some();
            bad_packets(&sound)
                .filter(|p| !p.on_connection && (p.answer == Answer::Nothing || answerable(&p.header)))
                .map(|p| (p.header, p.payload_len))
                .collect()
        }
        _ => Vec::new(),
    })
}

/// Listens with the shortest backlog, which is filled.
fn full(path: &Path) -> Result<UnixListener> {
    let _ = std::fs::remove_file(path);
    let fd = open()?;
    rustix::net::bind(&fd, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&fd, 0)?;
    Ok(fd.into())
}

/// A program that connects and says `words`. Never waits.
fn dial(host_end: &Path, words: &[u8]) -> Result<OwnedFd> {
    let fd = open()?;
    rustix::net::connect(&fd, &SocketAddrUnix::new(host_end)?)?;
    rustix::net::send(&fd, words, SendFlags::NOSIGNAL)?;
    Ok(fd)
}

fn open() -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, Type::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attacks_have_names_of_their_own() {
        let all = Attack::value_variants();
        for (at, attack) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.to_string() != attack.to_string()), "{attack:?}");
        }
    }

    #[test]
    fn a_full_backlog_takes_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let _listener = full(&path).unwrap();
        let first = dial(&path, b"x").unwrap();
        assert!(dial(&path, b"x").is_err());
        drop(first);
    }
}
