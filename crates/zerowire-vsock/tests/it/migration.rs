//! Live migration of a vsock device. Each write to the guest's memory is noted in the dirty log,
//! and nothing else is. A guest that comes from elsewhere learns that its connections are gone.

use std::io::Write;
use std::time::{Duration, Instant};

use crate::support::dirty::{Migration, without_mark};
use crate::support::vsock::{Guest, Vm, VsockBackend, exchange, join, pattern, read_exact};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::misbehave::{RawDesc, RawQueue};
use zerowire_guest::vsock::{
    ConnState, HOST_CID, Layout, Op, PacketHeader, SUPPORTED, SocketType, StackOptions, VsockOptions,
};
use zerowire_guest::{DirtyLog, features as f};
use zerowire_vhost_user::LogRegion;

const SIZES: [usize; 8] = [1, 44, 4051, 4052, 4053, 65_536, 65_537, 300_000];

fn migrate(guest: &mut Guest) -> Migration {
    settle(guest);
    // A device that had no CPU meanwhile may have something left to write. It can't while it is
    // stopped.
    guest.driver.stop().expect("stopped");
    settle(guest);
    let queues = guest.stack.queues();
    let (rx, tx) = (queues.rx.ring().setup(), queues.tx.ring().setup());
    let buffers: Vec<_> = queues.rx.writable().map(|(at, len)| (at.0, len.into())).collect();
    let migration = Migration::start(guest.driver.transport(), &guest.memory, &[rx, tx], &buffers);
    guest.driver.resume(guest.stack.queues()).expect("resumed");
    migration
}

/// Stops the device and checks what it noted; then it goes on.
fn check(guest: &mut Guest, migration: &Migration, what: &str) {
    guest.driver.stop().expect("stopped");
    migration.check(&guest.memory, what);
    guest.driver.resume(guest.stack.queues()).expect("resumed");
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    without_mark(pattern(len, seed))
}

/// Nothing is on its way any more, and the guest has posted its buffers again.
fn settle(guest: &mut Guest) {
    let mut still = 0;
    guest.until("at rest", |stack| {
        still = if stack.turn(std::time::Duration::ZERO).expect("sound") == 0 { still + 1 } else { 0 };
        still > 20
    });
}

fn shapes() -> Vec<VsockOptions> {
    let shape = |layout, indirect, rx_buffer_len, rx_descriptors, without: u64| VsockOptions {
        layout,
        indirect,
        rx_buffer_len,
        rx_descriptors,
        wanted: SUPPORTED & !without,
        ..VsockOptions::default()
    };
    vec![
        shape(Layout::Split, false, 4096, 1, 0),
        shape(Layout::Single, true, 100, 3, 0),
        shape(Layout::Pieces(1000), false, 70_000, 7, 0),
        shape(Layout::Pieces(4096), true, 10_000, 2, f::RING_EVENT_IDX),
    ]
}

#[test]
fn streams_with_host_programs_are_noted() {
    let backend = VsockBackend::one();
    for options in shapes() {
        let mut guest = backend.guest_with("vm", &options, StackOptions::default());
        let (conn, mut host) = backend.open("vm", &mut guest, 1234);
        guest.ping(conn, &mut host);
        for round in 0..2 {
            let migration = migrate(&mut guest);
            for (seed, len) in SIZES.into_iter().enumerate() {
                let (out, back) = (bytes(len, seed), bytes(len, seed + 100));
                let (got, at_host) = guest.both(
                    |g| {
                        g.send(conn, &out);
                        g.recv(conn, len)
                    },
                    || {
                        let mut writer = host.try_clone().expect("a descriptor");
                        std::thread::scope(|s| {
                            s.spawn(|| writer.write_all(&back).expect("written"));
                            read_exact(&mut host, len)
                        })
                    },
                );
                assert!(got == back && at_host == out, "{len} bytes");
            }
            check(&mut guest, &migration, &format!("{options:?}, round {round}"));
            // The connection is the same before and after a pause.
            guest.ping(conn, &mut host);
        }
        // Connections that come and end while writes are noted.
        let migration = migrate(&mut guest);
        let (other, stream) = backend.dial_in("vm", &mut guest, 80);
        drop(stream);
        guest.ended(other);
        check(&mut guest, &migration, "control packets");
    }
}

#[test]
fn messages_are_noted() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3)]);
    for (options, buf_alloc) in shapes().into_iter().zip([256 << 10, 400_000, 1 << 20, 310_000]) {
        let stack = StackOptions { buf_alloc, ..StackOptions::default() };
        // With few buffers messages go through private memory.
        let options = VsockOptions { rx_limit: if buf_alloc == 310_000 { 2 } else { usize::MAX }, ..options };
        let mut guest = backend.guest_with("vm", &options, stack);
        let listener = backend.listen_messages("vm", 1234);
        let conn = guest.connect_to(HOST_CID, 1234, SocketType::SeqPacket);
        let host = listener.accept();
        std::fs::remove_file(backend.port_path("vm", 1234)).expect("removed");
        let migration = migrate(&mut guest);
        for (seed, len) in [1, 43, 4052, 4053, 65_536, 200_000].into_iter().enumerate() {
            let (out, back) = (bytes(len, seed), bytes(len, seed + 100));
            let (got, at_host) = guest.both(
                |g| {
                    g.send(conn, &out);
                    g.stack.recv_message(conn, PATIENCE).expect("sound").expect("a message")
                },
                || {
                    host.send(&back);
                    host.recv()
                },
            );
            assert!(got == back && at_host == out, "{len} bytes");
        }
        check(&mut guest, &migration, &format!("{options:?}"));
    }
}

/// As with a network device.
#[test]
fn logs_that_do_not_cover_the_memory_are_refused() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let regions = guest.memory.regions();
    let end = regions.iter().map(|r| r.end().0).max().expect("a region");
    let log = DirtyLog::new(end).expect("a log");
    let front = guest.driver.transport();
    for (size, mmap_offset, why) in [
        (log.len() - 1, 0, "guest memory ends at"),
        (0, 0, "empty"),
        (log.len(), 1 << 40, "its file, which has"),
        (log.len(), i64::MAX as u64 - log.len() + 1, "no range"),
    ] {
        front.set_log(log.file(), LogRegion { size, mmap_offset }).expect_err(why);
        let said = backend.stats("vm").totals.last_error.unwrap_or_default();
        assert!(
            said.starts_with("SET_LOG_BASE: ") && said.contains(why),
            "{size:#x} {mmap_offset:#x}: {said}"
        );
    }
    front.set_log(log.file(), LogRegion { size: log.len(), mmap_offset: 0 }).expect("it is large enough");
    front.log_all(true).expect("acknowledged");
    let (conn, mut host) = backend.open("vm", &mut guest, 1);
    guest.ping(conn, &mut host);
    assert!(!log.take().is_empty(), "what the device wrote is noted");
}

#[test]
fn what_guests_send_each_other_is_noted_in_both() {
    let backend = VsockBackend::start(&[Vm::new("a", 3), Vm::new("b", 4)]);
    for (options, rx_limit) in shapes().into_iter().zip([usize::MAX, 3, 1, 2]) {
        let mut a = backend.guest_with("a", &options, StackOptions::default());
        // With few buffers packets wait in private memory.
        let few = VsockOptions { rx_limit, ..VsockOptions::default() };
        let mut b = backend.guest_with("b", &few, StackOptions::default());
        let conns = join(&mut a, &mut b, 80, SocketType::Stream);
        let logs = [migrate(&mut a), migrate(&mut b)];
        for (seed, len) in SIZES.into_iter().enumerate() {
            let out = [bytes(len, seed), bytes(len, seed + 1000)];
            exchange(&mut a, &mut b, conns, [&out[0], &out[1]]);
        }
        check(&mut a, &logs[0], "the one guest");
        check(&mut b, &logs[1], "the other guest");
    }
}

/// A queue for events, with buffers of these lengths in bytes.
fn events(guest: &mut Guest, lens: &[u32]) -> RawQueue {
    let mut queue = RawQueue::start(&guest.memory, guest.driver.transport(), 2, 16).expect("a queue");
    for (i, len) in lens.iter().enumerate() {
        let buffer = queue.place(&vec![0xee; *len as usize]).expect("guest memory");
        queue.write_chain(i as u16, &[RawDesc::writable(&buffer)]);
        queue.offer(i as u16);
    }
    queue.kick().expect("a kick");
    queue
}

/// Another device behind the guest, as on another host, and the queue for events that `make` gives
/// it, once `is_seen` in a time. The device waits 1 s for a buffer, and then nothing comes: where
/// `make` took that long, another device has its turn.
fn anew(
    mut backend: VsockBackend,
    guest: &mut Guest,
    mut make: impl FnMut(&mut Guest) -> RawQueue,
    is_seen: impl Fn(&RawQueue, Duration) -> bool,
) -> (VsockBackend, RawQueue) {
    let begin = Instant::now();
    loop {
        backend = backend.restart(&[Vm::new("vm", 3)]);
        let round = Instant::now();
        guest.driver.reconnect(backend.connect("vm"), guest.stack.queues()).expect("connected");
        let queue = make(guest);
        let is_late = round.elapsed() >= Duration::from_secs(1);
        if is_seen(&queue, if is_late { Duration::from_secs(3) } else { PATIENCE }) {
            return (backend, queue);
        }
        assert!(is_late && begin.elapsed() < PATIENCE, "the event");
    }
}

fn comes(queue: &RawQueue, time: Duration) -> bool {
    queue.wait_used(1, time)
}

#[test]
fn a_driver_that_comes_from_elsewhere_is_told_that_its_connections_are_gone() {
    let vms = [Vm::new("vm", 3)];
    let mut backend = VsockBackend::start(&vms);
    let mut guest = backend.guest("vm");
    // A guest that begins here, and one that was paused, know their connections.
    let queue = events(&mut guest, &[8; 3]);
    let (conn, mut host) = backend.open("vm", &mut guest, 1234);
    guest.ping(conn, &mut host);
    guest.driver.stop().expect("stopped");
    guest.driver.resume(guest.stack.queues()).expect("resumed");
    guest.ping(conn, &mut host);
    assert_eq!(queue.ring().used_idx(), 0, "no event");
    for buffers_first in [true, false] {
        let make = |guest: &mut Guest| {
            if buffers_first {
                return events(guest, &[8; 3]);
            }
            let mut queue = events(guest, &[]);
            let buffer = queue.place(&[0xee; 8]).expect("guest memory");
            queue.write_chain(0, &[RawDesc::writable(&buffer)]);
            queue.offer(0);
            queue.kick().expect("a kick");
            queue
        };
        let queue;
        (backend, queue) = anew(backend, &mut guest, make, comes);
        assert_eq!(queue.ring().used_entry(0), (0, 4));
        let table = guest.memory.at(queue.ring().desc().guest_addr(), 8).expect("the table");
        let mut at = Vec::new();
        table.append_to(0, 8, &mut at);
        let at = zerowire_guest::GuestAddr(u64::from_le_bytes(at.try_into().expect("8 bytes")));
        let mut event = Vec::new();
        guest.memory.at(at, 8).expect("the buffer").append_to(0, 8, &mut event);
        assert_eq!(event, [0, 0, 0, 0, 0xee, 0xee, 0xee, 0xee], "VIRTIO_VSOCK_EVENT_TRANSPORT_RESET");
        guest.stack.reset_connections();
        let (conn, mut host) = backend.open("vm", &mut guest, 1234);
        guest.ping(conn, &mut host);
        assert_eq!(queue.ring().used_idx(), 1, "one event");
    }
}

/// A driver that takes the event ends the connections that it has by then. So none begins before it
/// has posted the buffer anew, in either direction; where it never does, after a second.
#[test]
fn connections_begin_behind_the_reset_of_the_old_ones() {
    let vms = [Vm::new("vm", 3)];
    let mut backend = VsockBackend::start(&vms);
    let mut guest = backend.guest("vm");
    let (conn, mut host) = backend.open("vm", &mut guest, 1234);
    guest.ping(conn, &mut host);
    // Another port, since what the device before has still sent is answered by RST.
    for (posts, port) in [(true, 80), (false, 81)] {
        let start = Instant::now();
        let make = |guest: &mut Guest| {
            guest.stack.reset_connections();
            events(guest, &[8; 3])
        };
        let mut queue;
        (backend, queue) = anew(backend, &mut guest, make, comes);
        guest.stack.listen(port, SocketType::Stream);
        let _listener = backend.listen("vm", 1234);
        let conn = guest.stack.connect(HOST_CID, 1234, SocketType::Stream).expect("asked");
        let mut program = backend.dial("vm", port);
        // Packets of no connection are answered meanwhile, and a packet that was due before the
        // second one is there by then.
        let sound = guest.stack.header(conn, Op::CreditUpdate).expect("a header");
        for answers in 1..=2 {
            let stray = PacketHeader { src_port: 7, ..sound };
            let before = guest.stack.counters().stray_resets;
            assert!(guest.stack.send_raw(&stray, &[]).expect("sent"));
            guest.until("an answer", |s| s.counters().stray_resets > before);
            let begun =
                guest.stack.state(conn) != ConnState::Connecting || guest.stack.accept(port).is_some();
            // A machine that is busy may have let the second pass.
            let waited = start.elapsed() >= Duration::from_secs(1);
            assert!(!begun || waited, "a connection has begun by answer {answers}");
            if begun {
                break;
            }
        }
        if posts {
            queue.offer(0);
            queue.kick().expect("a kick");
        }
        assert!(guest.stack.wait_connected(conn, PATIENCE).expect("answered"), "the guest's");
        let told = guest.with_host(|| crate::support::vsock::read_ok(&mut program));
        assert!(told.is_some(), "the host program's");
        assert_eq!(queue.ring().used_idx(), 1, "one event");
        std::fs::remove_file(backend.port_path("vm", 1234)).expect("removed");
    }
}

#[test]
fn an_event_is_noted_like_everything_else() {
    let vms = [Vm::new("vm", 3)];
    let backend = VsockBackend::start(&vms);
    let mut guest = backend.guest("vm");
    let (conn, mut host) = backend.open("vm", &mut guest, 1234);
    guest.ping(conn, &mut host);
    let mut under_way = None;
    let make = |guest: &mut Guest| {
        let mut queue = events(guest, &[]);
        let setup = queue.ring().setup(0);
        let buffer = queue.place(&[0xee; 8]).expect("guest memory");
        queue.write_chain(0, &[RawDesc::writable(&buffer)]);
        let buffers = [(buffer.guest_addr().0, 8)];
        under_way = Some(Migration::start(guest.driver.transport(), &guest.memory, &[setup], &buffers));
        queue.offer(0);
        queue.kick().expect("a kick");
        queue
    };
    let (_backend, _queue) = anew(backend, &mut guest, make, comes);
    for index in [2, 0, 1] {
        zerowire_guest::Transport::stop_queue(guest.driver.transport(), index).expect("stopped");
    }
    under_way.expect("begun").check(&guest.memory, "an event");
}

#[test]
fn event_buffers_that_break_the_rules_stop_that_queue_only() {
    let vms = [Vm::new("vm", 3)];
    let mut backend = VsockBackend::start(&vms);
    let mut guest = backend.guest("vm");
    let (conn, mut host) = backend.open("vm", &mut guest, 1234);
    guest.ping(conn, &mut host);
    for (len, writable, why) in [(3, true, "an event buffer of 3 bytes"), (8, false, "device-readable")] {
        let make = |guest: &mut Guest| {
            let mut queue = events(guest, &[]);
            let buffer = queue.place(&vec![0xee; len]).expect("guest memory");
            let desc = if writable { RawDesc::writable(&buffer) } else { RawDesc::readable(&buffer) };
            queue.write_chain(0, &[desc]);
            queue.offer(0);
            queue.kick().expect("a kick");
            queue
        };
        let fails = |queue: &RawQueue, time| queue.wait_error(time).expect("a poll");
        let queue;
        (backend, queue) = anew(backend, &mut guest, make, fails);
        wait_until("the error is counted", || backend.stats("vm").totals.ring_errors == 1);
        let said = backend.stats("vm").totals.last_error.unwrap_or_default();
        assert!(said.contains("queue 2") && said.contains(why), "{said}");
        assert_eq!(queue.ring().used_idx(), 0);
        guest.stack.reset_connections();
        let (conn, mut host) = backend.open("vm", &mut guest, 1234);
        guest.ping(conn, &mut host);
    }
}
