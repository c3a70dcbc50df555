//! How the device answers bad packets of a guest (virtio 1.3 §5.10), what counts them, and what
//! happens to their connection.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::support::harness::{one_guest, received};
use crate::support::raw::{RawConn, RawGuest};
use crate::support::vsock::{MessageListener, Messages, Vm, VsockBackend, accept, read_exact, read_ok};
use crate::support::wait_until;
use zerowire_guest::misbehave::{Answer, BadPacket, Fault, bad_packets};
use zerowire_guest::vsock::{HOST_CID, Op, PacketHeader, RW_EOM, SocketType};
use zerowire_vsock::packet::Header;
use zerowire_vsock::testing::Layout;
use zerowire_vsock::{TX_QUEUE, VsockLimits};

/// The host program of a connection.
enum Program {
    Stream(UnixListener, UnixStream),
    Messages(MessageListener, Messages),
}

impl Program {
    /// Serves a port of its own: the guest connects there.
    fn serve(backend: &VsockBackend, guest: &mut RawGuest, port: u32, kind: SocketType) -> (RawConn, Self) {
        match kind {
            SocketType::Stream => {
                let listener = backend.listen("vm", port);
                let conn = guest.open(HOST_CID, port, kind);
                let stream = accept(&listener);
                (conn, Self::Stream(listener, stream))
            }
            SocketType::SeqPacket => {
                let listener = backend.listen_messages("vm", port);
                let conn = guest.open(HOST_CID, port, kind);
                let messages = listener.accept();
                (conn, Self::Messages(listener, messages))
            }
        }
    }

    /// The connection is over, and nothing came before.
    fn sees_the_end(&mut self, name: &str) {
        match self {
            Self::Stream(_, stream) => {
                let mut got = Vec::new();
                stream.read_to_end(&mut got).unwrap_or_else(|e| panic!("{name}: {e}"));
                assert_eq!(got, b"", "{name}");
            }
            Self::Messages(_, messages) => assert_eq!(messages.recv(), b"", "{name}"),
        }
    }

    /// Takes the connection that took the place of the old one.
    fn accept_again(&mut self) {
        match self {
            Self::Stream(listener, stream) => *stream = accept(listener),
            Self::Messages(listener, messages) => *messages = listener.accept(),
        }
    }

    /// The connection goes on: `before` arrived and nothing else, and data goes both ways.
    fn goes_on(&mut self, guest: &mut RawGuest, conn: &mut RawConn, before: &[u8], name: &str) {
        let flags = if matches!(self, Self::Stream(..)) { 0 } else { RW_EOM };
        guest.send(conn, b"to the host", flags);
        // Of messages what came before is the beginning of this one.
        let expected = [before, b"to the host"].concat();
        match self {
            Self::Stream(_, stream) => {
                assert_eq!(read_exact(stream, expected.len()), expected, "{name}");
                stream.write_all(b"to the guest").expect("room");
            }
            Self::Messages(_, messages) => {
                assert_eq!(messages.recv(), expected, "{name}");
                messages.send(b"to the guest");
            }
        }
        assert_eq!(guest.recv(conn, 12), b"to the guest", "{name}");
    }
}

/// All that the device says up to the answer to a question on `marker`, a connection without
/// payload. Credit of other connections is left out. The device sends it by itself after 1 ms
/// without events, so a slow test gets it between two packets.
fn said(guest: &mut RawGuest, marker: &RawConn) -> Vec<PacketHeader> {
    guest.say(marker, Op::CreditRequest, 0);
    let mut all = Vec::new();
    loop {
        let (h, _) = guest.next();
        if h.dst_port == marker.header.src_port && h.src_port == marker.header.dst_port {
            assert_eq!(h.op(), Some(Op::CreditUpdate));
            return all;
        }
        if h.op() != Some(Op::CreditUpdate) {
            all.push(h);
        }
    }
}

/// What a VM's device has counted of bad packets.
#[derive(Debug, PartialEq)]
struct Counts {
    dropped: BTreeMap<&'static str, u64>,
    resets: u64,
    refused: u64,
    stale_credit: u64,
}

fn counts(backend: &VsockBackend) -> Counts {
    let t = backend.stats("vm").totals;
    Counts {
        dropped: t.transmit.dropped_frames,
        resets: t.resets,
        refused: t.connections_refused,
        stale_credit: t.stale_credit,
    }
}

impl Counts {
    /// With what a packet adds.
    fn with(mut self, bad: &BadPacket) -> Self {
        let reason = match bad.fault {
            Fault::None => None,
            Fault::Malformed => Some("bad_packet"),
            Fault::OutOfPlace => Some("no_connection"),
            Fault::Credit => Some("beyond_credit"),
            Fault::StaleCredit => {
                self.stale_credit += 1;
                None
            }
            Fault::Refused => {
                self.refused += 1;
                return self;
            }
        };
        if let Some(reason) = reason {
            *self.dropped.entry(reason).or_default() += 1;
        }
        self.resets += u64::from(bad.answer == Answer::Reset);
        self
    }
}

/// The answer to a packet goes back to where it claims to come from.
fn assert_answer(bad: &BadPacket, conn: &RawConn, got: &[PacketHeader]) {
    let op = match bad.answer {
        Answer::Nothing => return assert_eq!(got, [], "{}", bad.name),
        Answer::Reset => Op::Rst,
        Answer::Response => Op::Response,
    };
    let [answer] = got else { panic!("{}: one answer: {got:?}", bad.name) };
    let h = &bad.header;
    assert_eq!(answer.op(), Some(op), "{}", bad.name);
    assert_eq!((answer.src_cid, answer.dst_cid), (h.dst_cid, h.src_cid), "{}", bad.name);
    assert_eq!((answer.src_port, answer.dst_port), (h.dst_port, h.src_port), "{}", bad.name);
    assert_eq!((answer.len, answer.flags), (0, 0), "{}", bad.name);
    let kind = if bad.on_connection { conn.header.kind } else { h.kind };
    assert_eq!(answer.kind, kind, "{}", bad.name);
}

#[test]
fn each_bad_packet_gets_its_answer_and_costs_its_own_connection_at_most() {
    for kind in [SocketType::Stream, SocketType::SeqPacket] {
        let backend = VsockBackend::start(&[Vm::new("vm", 3), Vm::new("other", 4)]);
        let mut other = RawGuest::start(&backend, "other");
        let mut guest = RawGuest::start(&backend, "vm");
        let (mut sound, mut sound_program) = Program::serve(&backend, &mut guest, 1, SocketType::Stream);
        let (marker, _quiet) = Program::serve(&backend, &mut guest, 2, SocketType::Stream);
        let mut next = 0;
        loop {
            // A port of its own each time: a connection that is begun anew stays in the backlog.
            let (mut conn, mut program) = Program::serve(&backend, &mut guest, 10 + next, kind);
            let Some(bad) = bad_packets(&conn.header).nth(next as usize) else { break };
            next += 1;
            let name = bad.name;
            let expected = counts(&backend).with(&bad);
            guest.put(&bad.header, &vec![7; bad.payload_len]);
            let got = said(&mut guest, &marker);
            assert_answer(&bad, &conn, &got);
            assert_eq!(counts(&backend), expected, "{name}");
            sound_program.goes_on(&mut guest, &mut sound, b"", name);
            if bad.ends_connection() {
                program.sees_the_end(name);
                if bad.answer == Answer::Response {
                    program.accept_again();
                    program.goes_on(&mut guest, &mut conn, b"", name);
                }
            } else {
                program.goes_on(&mut guest, &mut conn, &vec![7; bad.delivered()], name);
            }
            // What is over already says nothing to that: nothing answers a reset.
            guest.say(&conn, Op::Rst, 0);
            assert_eq!(said(&mut guest, &marker), [], "{name}");
            wait_until(name, || backend.stats("vm").totals.connections_open == 2);
        }
        assert!(next >= 50, "{next}");
        assert_eq!(backend.stats("vm").totals.ring_errors, 0);
        assert_eq!(backend.stats("other").totals.control_packets, 0);
        assert_eq!(other.discard(), 0, "nothing of it reached another guest");
    }
}

/// The port of one known connection with that of another is a connection that nobody knows.
#[test]
fn ports_of_two_connections_do_not_make_a_third() {
    for kind in [SocketType::Stream, SocketType::SeqPacket] {
        let backend = VsockBackend::one();
        let mut guest = RawGuest::start(&backend, "vm");
        let (mut one, mut one_program) = Program::serve(&backend, &mut guest, 1, kind);
        let (mut two, mut two_program) = Program::serve(&backend, &mut guest, 2, kind);
        let (marker, _quiet) = Program::serve(&backend, &mut guest, 3, kind);
        for op in [Op::Rw, Op::Shutdown, Op::CreditUpdate, Op::CreditRequest, Op::Response, Op::Rst] {
            let len = if op == Op::Rw { 10 } else { 0 };
            let mixed = PacketHeader { op: op as u16, len, dst_port: 2, ..one.header };
            let before = counts(&backend);
            guest.put(&mixed, &vec![7; len as usize]);
            let got = said(&mut guest, &marker);
            let bad = BadPacket {
                name: "ports of two connections",
                header: mixed,
                payload_len: len as usize,
                on_connection: false,
                answer: if op == Op::Rst { Answer::Nothing } else { Answer::Reset },
                fault: if op == Op::Rst { Fault::None } else { Fault::OutOfPlace },
            };
            assert_answer(&bad, &one, &got);
            assert_eq!(counts(&backend), before.with(&bad), "{op:?}");
            one_program.goes_on(&mut guest, &mut one, b"", "one");
            two_program.goes_on(&mut guest, &mut two, b"", "two");
        }
        assert_eq!(backend.stats("vm").totals.connections_open, 3);
    }
}

/// A guest that refuses what a host program asks for, by a reset that breaks a rule: it has refused
/// all the same.
#[test]
fn a_malformed_reset_refuses_an_offer_and_is_not_answered() {
    let backend = VsockBackend::one();
    let mut guest = RawGuest::start(&backend, "vm");
    let (sound, _program) = Program::serve(&backend, &mut guest, 1, SocketType::Stream);
    type Spoil = fn(PacketHeader) -> PacketHeader;
    let resets: [Spoil; 3] = [
        |h| PacketHeader { flags: 1, ..h },
        |h| PacketHeader { fwd_cnt: 1, ..h },
        |h| PacketHeader { kind: SocketType::SeqPacket as u16, ..h },
    ];
    for (n, spoil) in (1..).zip(resets) {
        let mut program = backend.dial("vm", 80);
        let (asked, _) = guest.next_of(Op::Request);
        let answer = PacketHeader {
            src_cid: asked.dst_cid,
            dst_cid: asked.src_cid,
            src_port: asked.dst_port,
            dst_port: asked.src_port,
            kind: asked.kind,
            op: Op::Rst as u16,
            ..PacketHeader::default()
        };
        guest.put(&spoil(answer), &[]);
        assert_eq!(said(&mut guest, &sound), []);
        assert_eq!(read_ok(&mut program), None);
        let t = backend.stats("vm").totals;
        assert_eq!((t.connections_refused, t.resets, t.connections_opened), (n, 0, 1));
    }
}

/// A program that reads nothing, and a guest that sends on beyond what it was given.
#[test]
fn payload_beyond_the_credit_is_answered_by_a_reset() {
    for kind in [SocketType::Stream, SocketType::SeqPacket] {
        let backend = VsockBackend::one();
        let mut guest = RawGuest::start(&backend, "vm");
        let (sound, _sound_program) = Program::serve(&backend, &mut guest, 1, SocketType::Stream);
        let (mut conn, _program) = Program::serve(&backend, &mut guest, 2, kind);
        let before = backend.stats("vm").totals.transmit.bytes;
        // Of messages no end comes: all of it waits for that.
        for _ in 0..32 {
            guest.send(&mut conn, &[1; 65_536], 0);
        }
        let of_conn = |h: &PacketHeader| h.dst_port == conn.header.src_port;
        let got = said(&mut guest, &sound);
        assert!(got.iter().all(of_conn), "{got:?}");
        // What comes behind the first byte too many is of a connection that is over: late, or of no
        // connection any more.
        assert!(got.iter().any(|h| h.op() == Some(Op::Rst)), "{got:?}");
        let t = backend.stats("vm").totals;
        assert_eq!(t.transmit.dropped_frames["beyond_credit"], 1);
        assert!(t.transmit.bytes - before < 32 * 65_536);
    }
}

/// Credit that goes backwards, in count, with whatever buffer: the newest is what holds, both ways.
#[test]
fn credit_that_goes_backwards_gives_and_takes_nothing_and_is_counted() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
    let mut program = UnixStream::connect(dir.path().join("3")).expect("the device listens");
    program.write_all(b"CONNECT 9\n").expect("room");
    harness.rest();
    let [(asked, _)] = received(&mut guest)[..] else { panic!("one packet: the request") };
    // What comes once the guest has said this, and nothing else.
    let mut after = |says: Option<(Op, u32, u32)>| -> u32 {
        if let Some((op, buf_alloc, fwd_cnt)) = says {
            let len = u32::from(op == Op::Rw);
            let h = Header {
                src_cid: 3,
                dst_cid: 2,
                src_port: asked.dst_port,
                dst_port: asked.src_port,
                len,
                kind: asked.kind,
                op: op as u16,
                flags: 0,
                buf_alloc,
                fwd_cnt,
            };
            let bytes = [&h.to_bytes()[..], &b"x"[..len as usize]].concat();
            assert!(guest.send(&bytes, 0, Layout(0)), "room");
        }
        harness.rest();
        guest.reap(TX_QUEUE, |_| {});
        let payload = received(&mut guest).into_iter().filter(|(h, _)| h.op == Op::Rw as u16);
        payload.map(|(h, _)| h.len).sum()
    };
    assert_eq!(after(Some((Op::Response, 4096, 0))), 0);
    program.write_all(&[7; 10_000]).expect("room");
    assert_eq!(after(None), 4096, "all its buffer");
    assert_eq!(after(Some((Op::CreditUpdate, 4096, 3000))), 3000);
    let half = 3000u32.wrapping_add(1 << 31);
    let back = [
        (Op::CreditUpdate, 4096, 2999),
        (Op::CreditUpdate, 1 << 20, 0),
        (Op::CreditRequest, u32::MAX, u32::MAX),
        (Op::Rw, u32::MAX, half),
        (Op::Shutdown, 1 << 20, 1000),
    ];
    for says in back {
        assert_eq!(after(Some(says)), 0, "{says:?}");
    }
    assert_eq!(after(Some((Op::CreditUpdate, 4096, 5000))), 2000);
    assert_eq!(after(Some((Op::CreditUpdate, 8192, 5000))), 904, "the rest");
    // A buffer that came with an older count is older, too.
    assert_eq!(after(Some((Op::CreditUpdate, 0, 4999))), 0);
    program.write_all(&[7; 5000]).expect("room");
    assert_eq!(after(None), 8192 - 5000);
    let t = harness.totals(0);
    assert_eq!((t.stale_credit, t.resets, t.transmit.dropped_total()), (back.len() as u64 + 1, 0, 0));
    let mut line = [0; 64];
    let n = program.read(&mut line).expect("the answer");
    assert!(
        line[..n].starts_with(b"OK ") && line[..n].ends_with(b"\nx"),
        "what came with stale credit arrived"
    );
}
