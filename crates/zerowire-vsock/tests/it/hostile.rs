//! Guests that flood the device, or break its rings: memory is bounded, and others notice nothing.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::support::raw::{RawConn, RawGuest};
use crate::support::vsock::{Vm, VsockBackend, accept, read_exact, try_accept};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::ring::DESC_WRITE;
use zerowire_guest::vsock::{HOST_CID, Op, PacketHeader, RW_EOM, SocketType, StackOptions, VsockOptions};
use zerowire_guest::{GuestAddr, GuestMemory, Transport};
use zerowire_testkit::own_process;

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

/// What goes on beside a flood: a connection of the guest that floods, and one of another VM in its
/// group. Both have data under way all the time.
struct Neighbours {
    own: RawConn,
    own_host: UnixStream,
    other: RawGuest,
    others: RawConn,
    others_host: UnixStream,
}

impl Neighbours {
    /// The other VM.
    const VM: &str = "neighbour";
    const PORT: u32 = 99;

    fn start(backend: &VsockBackend, guest: &mut RawGuest) -> Self {
        let mut other = RawGuest::start(backend, Self::VM);
        let listeners = ["vm", Self::VM].map(|vm| backend.listen(vm, Self::PORT));
        let own = guest.open(HOST_CID, Self::PORT, SocketType::Stream);
        let others = other.open(HOST_CID, Self::PORT, SocketType::Stream);
        let [own_host, others_host] = listeners.map(|l| accept(&l));
        Self { own, own_host, other, others, others_host }
    }

    /// Something goes out on both.
    fn send(&mut self, guest: &mut RawGuest) {
        guest.send(&mut self.own, b"to the host", 0);
        self.other.send(&mut self.others, b"to the host", 0);
    }

    /// It arrives, and its answers come back. Other packets that the flooding guest gets are passed
    /// over.
    fn answer(&mut self, guest: &mut RawGuest) {
        for host in [&mut self.own_host, &mut self.others_host] {
            assert_eq!(read_exact(host, 11), b"to the host");
            host.write_all(b"to the guest").expect("room");
        }
        assert_eq!(guest.recv(&mut self.own, 12), b"to the guest");
        assert_eq!(self.other.recv(&mut self.others, 12), b"to the guest");
    }

    /// A batch of a flood: the device has read all of it when this returns.
    fn beside(&mut self, guest: &mut RawGuest, mut packet: impl FnMut(&mut RawGuest, u32)) {
        for n in 0..BATCH {
            if n == BATCH / 2 {
                self.send(guest);
            }
            packet(guest, n);
        }
        self.answer(guest);
        self.send(guest);
        self.answer(guest);
    }
}

/// Packets of a flood between two exchanges with its neighbours.
const BATCH: u32 = 64;

#[test]
fn floods_of_short_packets_are_bounded_and_hold_up_nobody() {
    own_process!();
    let backend = VsockBackend::start(&[Vm::new("vm", 3), Vm::new(Neighbours::VM, 4)]);
    let listener = backend.listen("vm", 1);
    let messages = backend.listen_messages("vm", 2);
    let mut guest = RawGuest::start(&backend, "vm");
    let mut neighbours = Neighbours::start(&backend, &mut guest);
    let mut flood = guest.open(HOST_CID, 1, SocketType::Stream);
    let mut flood_host = accept(&listener);
    let mut small = guest.open(HOST_CID, 2, SocketType::SeqPacket);
    let small_host = messages.accept();
    let before = resident();
    // Of no bytes: each is dropped and counted, and the connection goes on.
    for _ in 0..300 {
        neighbours.beside(&mut guest, |g, _| g.send(&mut flood, b"", 0));
    }
    let t = backend.stats("vm").totals;
    let dropped = u64::from(300 * BATCH);
    assert_eq!((t.transmit.dropped_frames["bad_packet"], t.transmit.dropped_total()), (dropped, dropped));
    // Of one byte: all of them arrive.
    for _ in 0..150 {
        neighbours.beside(&mut guest, |g, n| g.send(&mut flood, &[n as u8], 0));
    }
    let got = read_exact(&mut flood_host, 150 * BATCH as usize);
    assert!(got.iter().enumerate().all(|(n, b)| *b == (n % BATCH as usize) as u8));
    assert_eq!(backend.stats("vm").totals.transmit.dropped_total(), dropped);
    // Messages of one byte, and of none, for a program that reads late: both count against a bound.
    let mut sent = 0;
    while backend.stats("vm").totals.resets == 0 {
        neighbours.beside(&mut guest, |g, n| g.send(&mut small, &b"x"[..n as usize % 2], RW_EOM));
        sent += BATCH;
        assert!(sent < 1_000_000, "there is no bound");
    }
    guest.flush();
    assert!(resident() < before + ROOM, "{} MiB more", (resident() - before) >> 20);
    neighbours.send(&mut guest);
    neighbours.answer(&mut guest);
    assert_eq!(backend.stats(Neighbours::VM).totals.transmit.dropped_total(), 0);
    assert_eq!(backend.stats(Neighbours::VM).totals.connections_open, 1);
    drop(small_host);
}

/// They take no credit, and the note of each takes memory.
#[test]
fn messages_of_no_bytes_are_bounded() {
    own_process!();
    let vms = [Vm::new("vm", 3).buffer(4096), Vm::new("other", 4).buffer(4096), Vm::new(Neighbours::VM, 5)];
    let backend = VsockBackend::start(&vms);
    let messages = backend.listen_messages("vm", 2);
    let mut guest = RawGuest::start(&backend, "vm");
    let mut other = RawGuest::start(&backend, "other");
    let mut neighbours = Neighbours::start(&backend, &mut guest);
    let mut floods = vec![guest.open(HOST_CID, 2, SocketType::SeqPacket)];
    let _host = messages.accept();
    // A sibling that accepts and gives no credit.
    let request = guest.header(4, 7, SocketType::SeqPacket, Op::Request);
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
        let before = backend.stats("vm").totals.resets;
        let mut sent = 0;
        while backend.stats("vm").totals.resets == before {
            neighbours.beside(&mut guest, |g, _| g.send(flood, b"", RW_EOM));
            sent += BATCH;
            assert!(sent < 100_000, "{:?}", flood.header);
        }
        let dropped = backend.stats("vm").totals.transmit.dropped_frames;
        assert!(dropped["beyond_credit"] >= 1, "{dropped:?}");
    }
    assert_eq!(backend.stats("vm").totals.transmit.dropped_frames["beyond_credit"], 2);
}

/// The back end examines all of them.
#[test]
fn requests_by_the_hundred_thousand() {
    own_process!();
    assert_eq!(hundred_thousand_requests(0), 0);
}

/// It examines few of them.
#[test]
fn requests_by_the_hundred_thousand_beyond_a_rate() {
    own_process!();
    const RATE: u32 = 100;
    let start = Instant::now();
    let over = hundred_thousand_requests(RATE);
    let most = (f64::from(RATE) * (1.0 + start.elapsed().as_secs_f64())) as u64;
    assert!(over + most >= 100_000, "{over} beyond the rate, {most} within it at most");
}

/// Returns how many were beyond the rate.
fn hundred_thousand_requests(rate: u32) -> u64 {
    let backend =
        VsockBackend::start(&[Vm::new("vm", 3).most(1000).request_rate(rate), Vm::new(Neighbours::VM, 4)]);
    // A program that listens and never accepts.
    let listener = backend.listen("vm", 1);
    let mut guest = RawGuest::start(&backend, "vm");
    let mut neighbours = Neighbours::start(&backend, &mut guest);
    let before = resident();
    for (port, count) in [(9, 60_000), (1, 40_000)] {
        let refused = backend.stats("vm").totals.connections_refused;
        let mut sent = 0;
        // From ports that repeat after a while: an old connection of the same name gives way.
        while sent < count {
            neighbours.beside(&mut guest, |g, n| {
                let header = g.header(HOST_CID, port, SocketType::Stream, Op::Request);
                g.put(&PacketHeader { src_port: (sent + n) % 30_000, ..header }, &[]);
            });
            sent += BATCH;
        }
        guest.flush();
        let refused = backend.stats("vm").totals.connections_refused - refused;
        // Requests to a port without a program are all refused. The program's backlog takes some,
        // and some wait for it, unless the rate lets none through.
        let all = u64::from(sent);
        let least = if port == 9 { all } else { all / 2 };
        let most = if port == 9 || rate > 0 { all } else { all - 1 };
        assert!((least..=most).contains(&refused), "{refused}");
    }
    guest.discard();
    let stats = backend.stats("vm").totals;
    assert!(stats.connections_open <= 1000, "{}", stats.connections_open);
    assert_eq!((stats.ring_errors, stats.transmit.dropped_total()), (0, 0));
    assert!(resident() < before + ROOM, "{} MiB more", (resident() - before) >> 20);
    neighbours.send(&mut guest);
    neighbours.answer(&mut guest);
    let other = backend.stats(Neighbours::VM).totals;
    assert_eq!((other.connections_open, other.connections_refused, other.requests_over_rate), (1, 0, 0));
    // A new front end finds the device as new.
    drop(guest);
    wait_until("gone", || !backend.stats("vm").connected);
    while try_accept(&listener).is_some() {}
    let mut guest = backend.guest("vm");
    // Some time after the last of the flood, that is: the rate is the VM's.
    let mut conn = None;
    wait_until("a request is granted", || {
        let asked = guest.stack.connect(HOST_CID, 1, SocketType::Stream).expect("asked");
        let granted = guest.stack.wait_connected(asked, PATIENCE).unwrap_or_else(|e| panic!("{e}"));
        conn = granted.then_some(asked);
        granted
    });
    guest.ping(conn.expect("a connection"), &mut accept(&listener));
    assert_eq!(backend.stats("vm").totals.connections_open, 1);
    stats.requests_over_rate
}

#[test]
fn a_guest_that_posts_no_buffers_waits_alone() {
    own_process!();
    let backend = VsockBackend::start(&[Vm::new("vm", 3), Vm::new("other", 4)]);
    let listener = backend.listen("vm", 1);
    let mut other = backend.guest("other");
    let (conn, mut stream) = backend.open("other", &mut other, 1);
    let options = VsockOptions { rx_limit: 0, ..VsockOptions::default() };
    let mut guest = RawGuest::with(&backend, "vm", &options);
    let before = resident();
    // Packets of no connection, each of which deserves an answer; then requests to a program, and
    // to nobody.
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
    own_process!();
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
            // A packet for the guest, so that the device reads its buffers.
            let header = PacketHeader {
                src_cid: 3,
                dst_cid: 2,
                src_port: 1,
                dst_port: 99,
                op: 1,
                kind: 1,
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
