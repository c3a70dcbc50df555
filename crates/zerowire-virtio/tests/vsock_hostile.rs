//! Hostile guests and host programs: each bad packet gets the answer of virtio 1.3 §5.10 or is dropped and counted, and
//! others notice nothing.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use common::raw::{RawConn, RawGuest};
use common::vsock::{Vm, VsockBackend, accept, read_exact, try_accept};
use common::{PATIENCE, wait_until};
use zerowire_guest::misbehave::{RawDesc, RawQueue, bad_packets};
use zerowire_guest::ring::DESC_WRITE;
use zerowire_guest::vsock::{HOST_CID, Op, PacketHeader, RW_EOM, SocketType, StackOptions, VsockOptions};
use zerowire_guest::{GuestAddr, GuestMemory, Transport};

/// Resident memory of this process, bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: usize = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number of pages");
    pages * 4096
}

/// More than a flood may leave behind, less than it would without bounds.
const ROOM: usize = 32 << 20;

/// A bit of data each way on a connection of a raw guest.
fn ping(guest: &mut RawGuest, conn: &mut RawConn, stream: &mut UnixStream) {
    guest.send(conn, b"to the host", 0);
    assert_eq!(read_exact(stream, 11), b"to the host");
    stream.write_all(b"to the guest").expect("room");
    assert_eq!(guest.recv(conn, 12), b"to the guest");
}

#[test]
fn each_bad_packet_costs_its_own_connection_at_most() {
    for kind in [SocketType::Stream, SocketType::Seqpacket] {
        let backend = VsockBackend::start(&[Vm::new("vm", 3), Vm::new("other", 4)]);
        let streams = backend.listen("vm", 1);
        let mut guest = RawGuest::start(&backend, "vm");
        let mut sound = guest.open(HOST_CID, 1, SocketType::Stream);
        let mut sound_host = accept(&streams);
        let mut victim = 0;
        let mut next = 0;
        loop {
            victim += 1;
            // A port of its own: a connection that is begun anew stays in the backlog.
            let port = 10 + victim;
            let (conn, stream, message) = match kind {
                SocketType::Stream => {
                    let listener = backend.listen("vm", port);
                    (guest.open(HOST_CID, port, kind), Some(accept(&listener)), None)
                }
                SocketType::Seqpacket => {
                    let listener = backend.listen_messages("vm", port);
                    (guest.open(HOST_CID, port, kind), None, Some(listener.accept()))
                }
            };
            let Some(bad) = bad_packets(&conn.header).nth(next) else { break };
            next += 1;
            let before = backend.stats("vm").totals;
            guest.put(&bad.header, &vec![7; bad.payload_len]);
            guest.flush();
            ping(&mut guest, &mut sound, &mut sound_host);
            let after = backend.stats("vm").totals;
            let dropped = after.transmit.dropped_total() - before.transmit.dropped_total();
            assert!(dropped <= 1, "{}: {dropped} dropped", bad.name);
            if !bad.on_connection {
                // The connection of the same ports is as it was.
                let mut conn = conn;
                match (stream, message) {
                    (Some(mut stream), _) => ping(&mut guest, &mut conn, &mut stream),
                    (_, Some(host)) => {
                        guest.send(&mut conn, b"message", RW_EOM);
                        assert_eq!(host.recv(), b"message", "{}", bad.name);
                    }
                    _ => {}
                }
                guest.say(&conn, Op::Rst, 0);
            } else {
                guest.say(&conn, Op::Rst, 0);
                // What the guest did is over; the host program sees an end.
                if let Some(mut stream) = stream {
                    let mut got = Vec::new();
                    let _ = stream.read_to_end(&mut got);
                    assert!(got.len() <= bad.payload_len, "{}", bad.name);
                }
            }
            guest.flush();
            wait_until(bad.name, || backend.stats("vm").totals.connections_open == 1);
        }
        assert!(next >= 40 && victim as usize == next + 1);
        assert_eq!(backend.stats("vm").totals.ring_errors, 0);
        assert_eq!(backend.stats("other").totals.transmit.frames, 0);
        ping(&mut guest, &mut sound, &mut sound_host);
    }
}

/// Which answer each kind of mistake gets.
#[test]
fn mistakes_are_answered_by_reset() {
    let backend = VsockBackend::one();
    let listener = backend.listen("vm", 1);
    let mut guest = RawGuest::start(&backend, "vm");
    let rw = |conn: &RawConn| PacketHeader { len: 10, ..conn.header };
    type Spoil = fn(PacketHeader) -> PacketHeader;
    let cases: [(&str, Spoil, &str); 7] = [
        ("len", |h| PacketHeader { len: 11, ..h }, "bad_packet"),
        ("op", |h| PacketHeader { op: 9, ..h }, "bad_packet"),
        ("type", |h| PacketHeader { socket_type: 7, ..h }, "bad_packet"),
        ("the other type", |h| PacketHeader { socket_type: 2, ..h }, "bad_packet"),
        ("flags", |h| PacketHeader { flags: 1, ..h }, "bad_packet"),
        ("credit", |h| PacketHeader { fwd_cnt: 1, ..h }, "beyond_credit"),
        ("no connection", |h| PacketHeader { src_port: 5, ..h }, "no_connection"),
    ];
    for (name, spoil, reason) in cases {
        let conn = guest.open(HOST_CID, 1, SocketType::Stream);
        let mut stream = accept(&listener);
        let count = || {
            let dropped = backend.stats("vm").totals.transmit.dropped_frames;
            dropped.get(reason).copied().unwrap_or(0)
        };
        let before = count();
        let bad = spoil(rw(&conn));
        guest.put(&bad, &[0; 10]);
        let (rst, _) = guest.next_of(Op::Rst);
        assert_eq!((rst.src_cid, rst.dst_cid), (2, 3), "{name}");
        assert_eq!((rst.src_port, rst.dst_port), (bad.dst_port, bad.src_port), "{name}");
        assert_eq!(count(), before + 1, "{name}");
        if bad.src_port == conn.header.src_port {
            assert_eq!(stream.read_to_end(&mut Vec::new()).expect("the end"), 0, "{name}");
        }
    }
    // Credit: one byte more than was given. The program reads nothing, so that all of it counts.
    let mut conn = guest.open(HOST_CID, 1, SocketType::Stream);
    let _stream = accept(&listener);
    let before = backend.stats("vm").totals.transmit.bytes;
    for _ in 0..32 {
        guest.send(&mut conn, &[1; 65_536], 0);
    }
    assert_eq!(guest.next_of(Op::Rst).0.dst_port, conn.header.src_port);
    assert!(backend.stats("vm").totals.transmit.bytes - before < 32 * 65_536);
    assert_eq!(backend.stats("vm").totals.transmit.dropped_frames["beyond_credit"], 2);
}

#[test]
fn floods_of_short_packets_are_bounded_and_hold_up_nobody() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3), Vm::new("other", 4)]);
    let listener = backend.listen("vm", 1);
    let messages = backend.listen_messages("vm", 2);
    let mut other = backend.guest("other");
    let (other_conn, mut other_host) = backend.open("other", &mut other, 1);
    let mut guest = RawGuest::start(&backend, "vm");
    let mut sound = guest.open(HOST_CID, 1, SocketType::Stream);
    let mut sound_host = accept(&listener);
    let mut flood = guest.open(HOST_CID, 1, SocketType::Stream);
    let mut flood_host = accept(&listener);
    let mut small = guest.open(HOST_CID, 2, SocketType::Seqpacket);
    let small_host = messages.accept();
    let before = resident();
    for _ in 0..20_000 {
        guest.send(&mut flood, b"", 0);
    }
    for n in 0..10_000u32 {
        guest.send(&mut flood, &[n as u8], 0);
    }
    ping(&mut guest, &mut sound, &mut sound_host);
    assert!(read_exact(&mut flood_host, 10_000).iter().enumerate().all(|(n, b)| *b == n as u8));
    // Messages of one byte, and of none, for a program that reads late: both count against a bound.
    let mut reset = false;
    for n in 0..300_000 {
        guest.send(&mut small, if n % 2 == 0 { b"x" } else { b"" }, RW_EOM);
        if n % 64 == 63 {
            guest.queues.rx.harvest(64, |p| reset |= p.header.op() == Some(Op::Rst)).expect("sound");
            guest.queues.rx.publish().expect("sound");
        }
        if reset {
            break;
        }
    }
    guest.flush();
    assert!(resident() < before + ROOM, "{} MiB more", (resident() - before) >> 20);
    ping(&mut guest, &mut sound, &mut sound_host);
    other.ping(other_conn, &mut other_host);
    drop(small_host);
}

/// They take no credit, and the note of each takes memory.
#[test]
fn messages_of_no_bytes_are_bounded() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(4096), Vm::new("other", 4)]);
    let messages = backend.listen_messages("vm", 2);
    let mut guest = RawGuest::start(&backend, "vm");
    let mut other = RawGuest::start(&backend, "other");
    let mut floods = vec![guest.open(HOST_CID, 2, SocketType::Seqpacket)];
    let _host = messages.accept();
    // A sibling that accepts and gives no credit.
    let request = guest.header(4, 7, SocketType::Seqpacket, Op::Request);
    guest.put(&request, &[]);
    let (asked, _) = other.next_of(Op::Request);
    let answer = PacketHeader {
        src_cid: asked.dst_cid,
        dst_cid: asked.src_cid,
        src_port: asked.dst_port,
        dst_port: asked.src_port,
        op: Op::Response as u16,
        buf_alloc: 0,
        ..asked
    };
    other.put(&answer, &[]);
    guest.next_of(Op::Response);
    floods.push(RawConn { header: PacketHeader { op: Op::Rw as u16, ..request }, sent: 0 });
    // One byte that waits for credit holds up what comes behind it.
    guest.send(&mut floods[1], b"x", RW_EOM);
    for flood in &mut floods {
        let mut reset = false;
        for n in 0..100_000 {
            guest.send(flood, b"", RW_EOM);
            if n % 64 == 63 {
                guest.queues.rx.harvest(64, |p| reset |= p.header.op() == Some(Op::Rst)).expect("sound");
                guest.queues.rx.publish().expect("sound");
            }
            if reset {
                break;
            }
        }
        assert!(reset, "{:?}", flood.header);
    }
}

#[test]
fn requests_by_the_hundred_thousand() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).most(1000)]);
    // A program that listens and never accepts.
    let listener = backend.listen("vm", 1);
    let mut guest = RawGuest::start(&backend, "vm");
    let before = resident();
    for (port, count) in [(9, 60_000), (1, 40_000)] {
        let mut answers = [0u32; 2];
        let mut sent = 0;
        // From ports that repeat after a while: an old connection of the same name gives way.
        while sent < count {
            for n in 0..64 {
                let header = guest.header(HOST_CID, port, SocketType::Stream, Op::Request);
                guest.put(&PacketHeader { src_port: (sent + n) % 30_000, ..header }, &[]);
            }
            sent += 64;
            guest
                .queues
                .rx
                .harvest(256, |p| answers[usize::from(p.header.op() == Some(Op::Rst))] += 1)
                .expect("sound");
            guest.queues.rx.publish().expect("sound");
        }
        guest.flush();
        assert!(answers[1] > 0);
    }
    guest.discard();
    let stats = backend.stats("vm").totals;
    assert!(stats.connections_open <= 1000, "{}", stats.connections_open);
    assert!(stats.connections_refused > 60_000);
    assert!(resident() < before + ROOM, "{} MiB more", (resident() - before) >> 20);
    // A new front end finds the device as new.
    drop(guest);
    wait_until("gone", || !backend.stats("vm").connected);
    while try_accept(&listener).is_some() {}
    let mut guest = backend.guest("vm");
    let conn = guest.connect(1);
    guest.ping(conn, &mut accept(&listener));
    assert_eq!(backend.stats("vm").totals.connections_open, 1);
}

#[test]
fn a_guest_that_posts_no_buffers_waits_alone() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3), Vm::new("other", 4)]);
    let listener = backend.listen("vm", 1);
    let mut other = backend.guest("other");
    let (conn, mut stream) = backend.open("other", &mut other, 1);
    let options = VsockOptions { rx_limit: 0, ..VsockOptions::default() };
    let mut guest = RawGuest::with(&backend, "vm", &options);
    let before = resident();
    // Packets of no connection, each of which deserves an answer; then requests to a program, and to nobody.
    let mut refused_room = false;
    for n in 0..50_000u32 {
        let op = [Op::Rw, Op::Shutdown, Op::Request, Op::CreditRequest][n as usize % 4];
        let header = guest.header(HOST_CID, if n % 8 == 2 { 1 } else { 9 }, SocketType::Stream, op);
        if !guest.queues.tx.send(&header, &[]).expect("sound") {
            guest.queues.tx.publish().expect("sound");
            if !guest.queues.tx.wait(1, Duration::from_millis(20)).expect("sound") {
                // Its answers fill what is kept of them: it has to take some first.
                refused_room = true;
                break;
            }
            guest.queues.tx.reap().expect("sound");
        }
    }
    assert!(refused_room, "packets are taken without an end");
    other.ping(conn, &mut stream);
    for _ in 0..300 {
        // Host programs that want to reach it.
        drop(backend.dial("vm", 80));
    }
    other.ping(conn, &mut stream);
    assert!(resident() < before + ROOM, "{} MiB more", (resident() - before) >> 20);
    // It takes its answers at last.
    guest.queues.rx.set_limit(usize::MAX);
    guest.queues.rx.publish().expect("sound");
    wait_until("all answers", || {
        guest.discard();
        guest.queues.tx.publish().expect("sound");
        guest.queues.tx.reap().expect("sound");
        guest.queues.tx.in_flight() == 0
    });
    while try_accept(&listener).is_some() {}
    let mut conn = guest.open(HOST_CID, 1, SocketType::Stream);
    ping(&mut guest, &mut conn, &mut accept(&listener));
}

#[test]
fn broken_rings_stop_and_others_go_on() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3), Vm::new("other", 4)]);
    let mut other = backend.guest("other");
    let (conn, mut stream) = backend.open("other", &mut other, 1);
    let long = |flags| {
        move |q: &mut RawQueue, addr| {
            q.write_chain(0, &[RawDesc { addr, len: 100, flags, next: 0 }]);
            q.offer(0);
        }
    };
    type Attack = Box<dyn Fn(&mut RawQueue, u64)>;
    let attacks: [(u16, Attack, &str); 6] = [
        (1, Box::new(long(DESC_WRITE)), "device-writable"),
        (
            1,
            Box::new(|q, _| {
                q.write_chain(0, &[RawDesc { addr: 1 << 60, len: 100, flags: 0, next: 0 }]);
                q.offer(0);
            }),
            "not in the guest's memory",
        ),
        (1, Box::new(|q, _| q.set_avail_idx(1000)), "more than the queue size"),
        (
            1,
            Box::new(|q, addr| {
                q.write_desc(0, RawDesc { addr, len: 100, flags: 1, next: 0 });
                q.offer(0);
            }),
            "loops",
        ),
        (1, Box::new(|q, _| q.offer(99)), "outside a table"),
        (0, Box::new(long(0)), "device-readable"),
    ];
    for (n, (queue, attack, word)) in attacks.into_iter().enumerate() {
        let memory = GuestMemory::new(&[(GuestAddr(0), 4 << 20)]).expect("memory");
        let mut transport = backend.connect("vm");
        transport.negotiate(zerowire_guest::vsock::SUPPORTED).expect("features");
        transport.share_memory(&memory).expect("shared");
        let mut queues = [0, 1].map(|q| RawQueue::start(&memory, &mut transport, q, 16).expect("a queue"));
        let q = &mut queues[usize::from(queue)];
        let buffer = q.place(&[0; 4096]).expect("memory");
        attack(q, buffer.guest_addr().0);
        q.kick().expect("a kick");
        if queue == 0 {
            // Something for the guest, so that its buffers are looked at.
            let header = PacketHeader {
                src_cid: 3,
                dst_cid: 2,
                src_port: 1,
                dst_port: 99,
                op: 1,
                socket_type: 1,
                ..PacketHeader::default()
            };
            let packet = queues[1].place(&header.to_bytes()).expect("memory");
            queues[1].write_chain(0, &[RawDesc::readable(&packet)]);
            queues[1].offer(0);
            queues[1].kick().expect("a kick");
        }
        assert!(queues[usize::from(queue)].wait_error(PATIENCE).expect("a poll"), "{word}");
        wait_until("the error is counted", || backend.stats("vm").totals.ring_errors == n as u64 + 1);
        let error = backend.stats("vm").totals.last_error.expect("an error");
        assert!(error.contains(word), "{error}");
        transport.barrier().expect("the connection goes on");
        other.ping(conn, &mut stream);
        drop(transport);
        wait_until("gone", || !backend.stats("vm").connected);
    }
    // A chain too short for a header is dropped alone, whatever its descriptors.
    let mut guest = backend.guest_with("vm", &VsockOptions::default(), StackOptions::default());
    let (conn, mut stream) = backend.open("vm", &mut guest, 1);
    guest.ping(conn, &mut stream);
}
