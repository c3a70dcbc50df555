//! Hostile guests and front ends against `--sandbox on`. Each harms its own VM at most: another VM
//! goes on, and no child ends, since its list of system calls has all that it takes to refuse them.
//! Run as root.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use serde_json::Value;
use zerowire_guest::misbehave::{Malformed, RawDesc, RawQueue, RingAttack, bad_headers, bad_packets};
use zerowire_guest::net::VirtioNetHdr;
use zerowire_guest::vsock::{ConnId, HOST_CID, Op, PacketHeader, SUPPORTED, SocketType};
use zerowire_guest::{GuestAddr, GuestMemory, Transport, VhostUser, features as f};

use crate::sandbox::{start, stats};
use crate::support::processes::children;
use crate::support::{
    Guest, PATIENCE, Peer, Program, Restrict, connect, frames, in_netns, vsock, wait_until,
};
use zerowire_testkit::not_run;
use zerowire_testkit::random::Random;

/// Entries of attacked rings: a vsock header of one byte a descriptor fits.
const SIZE: u16 = 64;

/// What a guest without offloads takes.
const PLAIN: u64 = f::VERSION_1 | f::RING_INDIRECT_DESC | f::RING_EVENT_IDX | f::NET_MRG_RXBUF;

fn pids(program: &Program) -> BTreeSet<i32> {
    children(program).into_iter().collect()
}

/// A front end that has come as far as to start queues.
fn front_end(socket: &Path, features: u64) -> (VhostUser, GuestMemory) {
    let memory =
        GuestMemory::new(&[(GuestAddr(0), 4 << 20), (GuestAddr(1 << 32), 1 << 20)]).expect("guest memory");
    let mut front = connect(socket);
    front.negotiate(features).expect("features");
    front.share_memory(&memory).expect("shared memory");
    (front, memory)
}

/// Sends a message that no back end should take: an answer comes, or the connection ends.
fn send_malformed(front: &mut VhostUser, message: &Malformed) {
    let connection = front.connection();
    // The back end may have ended the connection before all of it was written.
    let _ = message.send(connection);
    if !message.cut {
        let _ = connection.recv();
    }
}

/// The device has given a chain back, or says that the ring is broken.
fn is_answered(queue: &RawQueue) -> bool {
    queue.ring().used_idx() != 0 || queue.wait_error(Duration::from_millis(1)).expect("a poll")
}

/// Two VMs of `--sandbox on`. A test is at the socket of the first one, with the host's end of its
/// tap. The guest of the second one works all the while.
struct TwoVms {
    names: [&'static str; 2],
    dir: tempfile::TempDir,
    program: Program,
    /// The processes that serve the VMs.
    children: BTreeSet<i32>,
    good: Guest,
    good_peer: Peer,
}

impl TwoVms {
    fn start(names: [&'static str; 2]) -> (Self, PathBuf, Peer) {
        let dir = tempfile::tempdir().expect("a directory");
        let program = start(dir.path(), &names, &[]);
        let children = pids(&program);
        let good = Guest::start(connect(&dir.path().join(names[1])));
        let (socket, peer, good_peer) = (dir.path().join(names[0]), Peer::new(names[0]), Peer::new(names[1]));
        let mut vms = Self { names, dir, program, children, good, good_peer };
        vms.ping();
        (vms, socket, peer)
    }

    /// Frames each way: the second VM's guest still works.
    fn ping(&mut self) {
        self.good.ping(&mut self.good_peer);
    }

    /// No child has ended, the second VM's guest was never disturbed, and the first VM takes a
    /// guest again.
    fn finish(mut self) {
        self.ping();
        assert_eq!(pids(&self.program), self.children, "a child has ended: {}", self.program.log());
        let last = &stats(&self.program, 1)["vms"][1];
        for (key, wanted) in [("ring_errors", 0), ("connection_errors", 0), ("connections", 1)] {
            assert_eq!(last[key], wanted, "{last}");
        }
        Guest::start(connect(&self.dir.path().join(self.names[0]))).ping(&mut Peer::new(self.names[0]));
        self.program.stop();
    }
}

#[test]
fn attacks_on_rings() {
    in_netns(|| {
        let (mut vms, socket, mut peer) = TwoVms::start(["zwhrga", "zwhrgb"]);
        for attack in RingAttack::ALL {
            let (mut front, memory) = front_end(&socket, PLAIN);
            let mut transmit = RawQueue::start(&memory, &mut front, 1, SIZE).expect("a queue");
            attack.apply(&mut transmit, &frames::frame(2, 70)).expect("applied");
            wait_until("transmit is answered", || is_answered(&transmit));
            let mut receive = RawQueue::start(&memory, &mut front, 0, SIZE).expect("a queue");
            attack.apply_to_receive(&mut receive, 70).expect("applied");
            peer.send(&frames::frame(3, 1000));
            front.barrier().unwrap_or_else(|e| panic!("{attack:?}: {e}"));
            vms.ping();
        }
        let _ = peer.drain();
        vms.finish();
    });
}

/// Chains and indices that change again and again while both rings run.
#[test]
fn rings_of_random_bytes() {
    in_netns(|| {
        let (mut vms, socket, mut peer) = TwoVms::start(["zwhrna", "zwhrnb"]);
        let mut random = Random::new(88_172_645_463_325_252);
        for round in 0..50 {
            let (mut front, memory) = front_end(&socket, PLAIN);
            let mut queues = [0, 1].map(|n| RawQueue::start(&memory, &mut front, n, SIZE).expect("a queue"));
            for n in 0..200 {
                let bits = random.bits();
                let queue = &mut queues[n % 2];
                let addr = if bits.is_multiple_of(8) { bits } else { (bits >> 8) % (5 << 20) };
                let (len, flags, next) = (bits as u32 % 70_000, (bits >> 32) as u16 % 8, (bits >> 48) as u16);
                queue.write_desc(n as u16 % SIZE, RawDesc { addr, len, flags, next: next % (SIZE + 2) });
                queue.offer((bits >> 24) as u16 % SIZE);
                queue.kick().expect("a kick");
                if n % 20 == 0 {
                    peer.send(&frames::frame(n as u32, 200));
                }
            }
            front.barrier().expect("the connection goes on");
            if round % 10 == 0 {
                vms.ping();
            }
        }
        let _ = peer.drain();
        vms.finish();
    });
}

#[test]
fn malformed_messages() {
    in_netns(|| {
        let (mut vms, socket, _peer) = TwoVms::start(["zwhmsa", "zwhmsb"]);
        for (n, message) in zerowire_guest::misbehave::malformed_messages(2).iter().enumerate() {
            send_malformed(&mut front_end(&socket, PLAIN).0, message);
            if n % 20 == 0 {
                vms.ping();
            }
        }
        vms.finish();
    });
}

#[test]
fn wrong_offload_fields() {
    in_netns(|| {
        let (vms, socket, mut peer) = TwoVms::start(["zwhofa", "zwhofb"]);
        let mut guest = Guest::start(connect(&socket));
        let bad = frames::tcp_frame(1, 8000);
        for (what, header) in bad_headers(bad.len() as u16) {
            let tx = &mut guest.pairs[0].tx;
            assert!(tx.send(&header, &bad).expect("a frame that fits"));
            assert!(tx.send(&VirtioNetHdr::default(), &frames::frame(2, 90)).expect("a frame that fits"));
            assert!(tx.drain(PATIENCE).expect("a sound ring"), "{what}");
            assert_eq!(peer.expect().bytes, frames::frame(2, 90), "{what}");
        }
        drop(guest);
        vms.finish();
    });
}

/// A file that was truncated, far more memory than there is, and a table without the rings.
#[test]
fn hostile_memory() {
    const KEPT: u64 = 1 << 20;
    in_netns(|| {
        let (mut vms, socket, mut peer) = TwoVms::start(["zwhmea", "zwhmeb"]);
        let (mut front, memory) = front_end(&socket, PLAIN);
        let mut queue = RawQueue::start(&memory, &mut front, 1, SIZE).expect("a queue");
        rustix::fs::ftruncate(memory.regions()[0].file(), KEPT).expect("truncated");
        for n in 0..SIZE {
            let addr = 2 * KEPT + u64::from(n) * 8192;
            queue.write_chain(n, &[RawDesc { addr, len: 72, flags: 0, next: 0 }]);
            queue.offer(n);
        }
        queue.kick().expect("a kick");
        wait_until("all come back", || queue.ring().used_idx() == SIZE);
        let _ = peer.drain();
        vms.ping();
        drop((queue, front));

        let (mut front, memory) = front_end(&socket, PLAIN);
        let mut queue = RawQueue::start(&memory, &mut front, 1, SIZE).expect("a queue");
        let huge = GuestMemory::new(&[(GuestAddr(0), 1 << 40)]).expect("a sparse file");
        for round in 1..=20 {
            front.share_memory(&huge).expect("a table");
            queue.kick().expect("a kick");
            front.share_memory(&memory).expect("a table");
            queue.write_chain(0, &[RawDesc { addr: KEPT, len: 72, flags: 0, next: 0 }]);
            queue.offer(0);
            queue.kick().expect("a kick");
            assert!(queue.wait_used(round, PATIENCE), "the ring is there again");
        }
        drop((queue, front));
        vms.finish();
    });
}

/// More pages are lost than a process may have mappings (vm.max_map_count), were each to be
/// replaced alone.
#[test]
fn more_lost_pages_than_there_may_be_mappings() {
    const ENTRIES: u16 = 256;
    const KEPT: u64 = 1 << 20;
    const PAGE: u64 = 4096;
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("the limit");
    let limit: u64 = limit.trim().parse().expect("a number");
    if limit > 200_000 {
        return not_run(&format!(
            "more lost pages than mappings: vm.max_map_count is {limit}; 65530 is usual"
        ));
    }
    in_netns(move || {
        let (vms, socket, mut peer) = TwoVms::start(["zwhloa", "zwhlob"]);
        // Every second page makes two mappings more.
        let len = KEPT + (limit / 2 + 4 * u64::from(ENTRIES)) * 2 * PAGE;
        let memory = GuestMemory::new(&[(GuestAddr(0), len as usize)]).expect("guest memory");
        let mut front = connect(&socket);
        front.negotiate(PLAIN).expect("features");
        front.share_memory(&memory).expect("shared memory");
        let mut queue = RawQueue::start(&memory, &mut front, 1, ENTRIES).expect("a queue");
        rustix::fs::ftruncate(memory.regions()[0].file(), KEPT).expect("truncated");
        let mut lost = (KEPT..len).step_by(2 * PAGE as usize).peekable();
        let mut used = 0u16;
        while lost.peek().is_some() {
            for (n, addr) in (0..ENTRIES).zip(&mut lost) {
                queue.write_desc(n, RawDesc { addr, len: 72, flags: 0, next: 0 });
                queue.offer(n);
                used = used.wrapping_add(1);
            }
            queue.kick().expect("a kick");
            assert!(queue.wait_used(used, PATIENCE), "chains come back");
            let _ = peer.drain();
        }
        drop((queue, front));
        vms.finish();
    });
}

/// Writing to them waits for a reader that never comes.
#[test]
fn full_eventfds() {
    const SET_VRING_CALL: u32 = 13;
    const SET_VRING_ERR: u32 = 14;
    in_netns(|| {
        let (vms, socket, _peer) = TwoVms::start(["zwhfda", "zwhfdb"]);
        let (mut front, memory) = front_end(&socket, PLAIN & !f::RING_EVENT_IDX);
        let mut queue = RawQueue::start(&memory, &mut front, 1, SIZE).expect("a queue");
        let full = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
        rustix::io::write(&full, &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        for request in [SET_VRING_CALL, SET_VRING_ERR] {
            let message = Malformed::new("a full eventfd", request, &1_u64.to_ne_bytes(), &[]);
            front.connection().send_raw(&message.bytes, &[full.as_fd()]).expect("sent");
            front.connection().recv().expect("an answer");
        }
        let frame = queue.place(&[0; 72]).expect("guest memory");
        queue.write_chain(0, &[RawDesc::readable(&frame)]);
        queue.offer(0);
        queue.kick().expect("a kick");
        assert!(queue.wait_used(1, PATIENCE), "the chain comes back");
        RingAttack::LoopOfOne.apply(&mut queue, &[0; 60]).expect("applied");
        front.stop_queue(1).expect("the queue's thread answers");
        drop((queue, front));
        vms.finish();
    });
}

/// A guest of a VM in another group than the hostile one, with a connection to the host.
struct Neighbour {
    dir: tempfile::TempDir,
    program: Program,
    before: BTreeSet<i32>,
    guest: vsock::Guest,
    conn: ConnId,
    stream: UnixStream,
}

impl Neighbour {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = |name: &str, cid: u32| {
            let path = dir.path().join(name).display().to_string();
            format!("name={name},cid={cid},socket={path}.s,uds={path}.u,groups={name}")
        };
        let (a, b) = (spec("a", 3), spec("b", 4));
        let args = ["--sandbox", "on", "--json", "--vm", &a, "--vm", &b];
        let program = Program::vsock(&args, Restrict::default());
        for name in ["a", "b"] {
            program.wait_log(&format!("{name}: served by a confined process"));
        }
        let before = pids(&program);
        let listener = UnixListener::bind(dir.path().join("b.u_1")).expect("a socket");
        let mut guest = vsock::Guest::start(&dir.path().join("b.s"));
        let conn = guest.connect(HOST_CID, 1).expect("a connection");
        let (stream, _) = listener.accept().expect("the guest's connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut all = Self { dir, program, before, guest, conn, stream };
        all.check();
        all
    }

    /// A few bytes each way.
    fn check(&mut self) {
        self.guest.stack.send_all(self.conn, b"from the guest", PATIENCE).expect("sent");
        let mut bytes = [0; 14];
        self.stream.read_exact(&mut bytes).expect("the guest's bytes");
        self.stream.write_all(b"from the host").expect("room");
        assert_eq!(
            self.guest.stack.recv_exact(self.conn, 13, PATIENCE).expect("the host's"),
            b"from the host"
        );
    }

    fn finish(mut self) {
        self.check();
        assert_eq!(pids(&self.program), self.before, "a child has ended: {}", self.program.log());
        drop(self.guest);
        let (out, _) = self.program.stop();
        let last: Value = serde_json::from_str(out.lines().last().expect("a line")).expect("JSON");
        let vm = &last["vms"][1];
        assert_eq!((&vm["ring_errors"], &vm["connections"]), (&0.into(), &1.into()), "{vm}");
    }
}

#[test]
fn vsock_attacks_on_rings() {
    let mut neighbour = Neighbour::start();
    let socket = neighbour.dir.path().join("a.s");
    let sound = PacketHeader {
        src_cid: 3,
        dst_cid: 2,
        src_port: 1,
        dst_port: 99,
        op: 1,
        kind: 1,
        ..Default::default()
    };
    for attack in RingAttack::ALL {
        let (mut front, memory) = front_end(&socket, SUPPORTED);
        let mut transmit = RawQueue::start(&memory, &mut front, 1, SIZE).expect("a queue");
        attack.apply_with_header(&mut transmit, &sound.to_bytes(), &[1; 70]).expect("applied");
        wait_until("transmit is answered", || is_answered(&transmit));
        // Its answer needs a buffer.
        front.stop_queue(1).expect("stopped");
        let mut receive = RawQueue::start(&memory, &mut front, 0, SIZE).expect("a queue");
        attack.apply_to_receive(&mut receive, 70).expect("applied");
        let mut transmit = RawQueue::start(&memory, &mut front, 1, SIZE).expect("a queue");
        let packet = transmit.place(&sound.to_bytes()).expect("guest memory");
        transmit.write_chain(0, &[RawDesc::readable(&packet)]);
        transmit.offer(0);
        transmit.kick().expect("a kick");
        front.barrier().unwrap_or_else(|e| panic!("{attack:?}: {e}"));
        neighbour.check();
    }
    neighbour.finish();
}

#[test]
fn vsock_malformed_messages() {
    let mut neighbour = Neighbour::start();
    let socket = neighbour.dir.path().join("a.s");
    for (n, message) in zerowire_guest::misbehave::malformed_messages(3).iter().enumerate() {
        send_malformed(&mut front_end(&socket, SUPPORTED).0, message);
        if n % 20 == 0 {
            neighbour.check();
        }
    }
    neighbour.finish();
}

#[test]
fn vsock_wrong_headers() {
    let mut neighbour = Neighbour::start();
    let socket = neighbour.dir.path().join("a.s");
    let listener = UnixListener::bind(neighbour.dir.path().join("a.u_1")).expect("a socket");
    for n in 0.. {
        let mut guest = vsock::Guest::start(&socket);
        let conn = guest.connect(HOST_CID, 1).expect("a connection");
        let _stream = listener.accept().expect("the guest's connection");
        let sound = guest.stack.header(conn, Op::Rw).expect("a header");
        let Some(bad) = bad_packets(&sound).nth(n) else { break };
        guest.stack.send_raw(&bad.header, &vec![0; bad.payload_len]).expect("room");
        // The driver may not like the answer.
        let _ = guest.stack.turn(Duration::from_millis(1));
        neighbour.check();
    }
    neighbour.finish();
}

/// The lost pages read as zeros, which are no packet.
#[test]
fn vsock_truncated_memory() {
    const KEPT: u64 = 1 << 20;
    let neighbour = Neighbour::start();
    let (mut front, memory) = front_end(&neighbour.dir.path().join("a.s"), SUPPORTED);
    let mut queue = RawQueue::start(&memory, &mut front, 1, SIZE).expect("a queue");
    rustix::fs::ftruncate(memory.regions()[0].file(), KEPT).expect("truncated");
    for n in 0..SIZE {
        queue.write_chain(n, &[RawDesc { addr: 2 * KEPT + u64::from(n) * 8192, len: 44, flags: 0, next: 0 }]);
        queue.offer(n);
    }
    queue.kick().expect("a kick");
    wait_until("all come back", || queue.ring().used_idx() == SIZE);
    neighbour.finish();
}

/// Requests to nobody, and host programs that say half a line.
#[test]
fn vsock_floods() {
    let mut neighbour = Neighbour::start();
    let mut guest = vsock::Guest::start(&neighbour.dir.path().join("a.s"));
    let mut silent = Vec::new();
    for round in 0..40 {
        for port in 0..50 {
            let port = 1000 + 50 * round + port;
            let _ = guest.stack.connect(HOST_CID, port, SocketType::Stream);
        }
        let _ = guest.stack.turn(Duration::from_millis(1));
        for _ in 0..5 {
            let mut program = UnixStream::connect(neighbour.dir.path().join("a.u")).expect("it listens");
            let _ = program.write_all(b"CONNECT 50");
            silent.push(program);
        }
        neighbour.check();
    }
    neighbour.finish();
}
