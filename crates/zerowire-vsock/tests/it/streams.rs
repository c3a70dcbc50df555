//! Streams between a guest and host programs. Bytes arrive whole and in order, whatever buffers,
//! chains and credit there are, and the ledger says by which path.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::support::vsock::{Guest, Vm, VsockBackend, accept, pattern, read_exact, read_ok};
use crate::support::{PATIENCE, wait_until};
use zerowire_guest::features;
use zerowire_guest::vsock::{ConnId, ConnState, Layout, PayloadPool, SUPPORTED, StackOptions, VsockOptions};

const SIZES: [usize; 14] =
    [1, 2, 43, 44, 45, 1000, 4052, 4096, 4097, 16_384, 65_536, 65_537, 262_144, 1 << 20];

/// Sends each size there and back at the same time, so that both directions flow at once.
fn echo(guest: &mut Guest, conn: ConnId, stream: &mut UnixStream, sizes: &[usize]) {
    for (seed, &len) in sizes.iter().enumerate() {
        let (out, back) = (pattern(len, seed), pattern(len, seed + 1000));
        let mut writer = stream.try_clone().expect("a descriptor");
        let ((), (got, ())) = guest.both(
            |g| {
                // In pieces: the bytes that come in between are kept by the stack.
                g.send(conn, &out);
                assert!(g.recv(conn, len) == back, "host to guest, {len} bytes");
            },
            || {
                std::thread::scope(|s| {
                    let writing = s.spawn(|| writer.write_all(&back).expect("written"));
                    let got = read_exact(stream, len);
                    (got, writing.join().expect("written"))
                })
            },
        );
        assert!(got == out, "guest to host, {len} bytes");
    }
}

#[test]
fn bytes_arrive_both_ways_on_connections_of_both_makers() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let (out, mut stream) = backend.open("vm", &mut guest, 1234);
    echo(&mut guest, out, &mut stream, &SIZES);
    let (inward, mut other) = backend.dial_in("vm", &mut guest, 80);
    assert_eq!(guest.stack.peer(inward).expect("open").0, 2);
    echo(&mut guest, inward, &mut other, &SIZES);
    echo(&mut guest, out, &mut stream, &[5]);

    let total = 2 * SIZES.iter().sum::<usize>() as u64 + 5;
    wait_until("all counted", || backend.stats("vm").totals.transmit.bytes == total);
    let stats = backend.stats("vm").totals;
    assert_eq!(stats.receive.bytes, total);
    assert_eq!(stats.receive.zero_copied_bytes, total, "payload goes straight into the guest's buffers");
    assert_eq!((stats.connections_opened, stats.connections_open), (2, 2));
    assert_eq!(stats.transmit.dropped_total() + stats.receive.dropped_total(), 0);
    assert_eq!((stats.resets, stats.connections_refused, stats.ring_errors), (0, 0, 0));
}

#[test]
fn every_layout_of_chains_and_buffers() {
    let sizes = [1, 44, 4052, 4096, 10_000, 65_537, 200_000];
    let backend = VsockBackend::one();
    for layout in [Layout::Single, Layout::Split, Layout::Pieces(4096), Layout::Pieces(1000)] {
        for indirect in [false, true] {
            let options = VsockOptions { layout, indirect, ..VsockOptions::default() };
            let mut guest = backend.guest_with("vm", &options, StackOptions::default());
            let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
            echo(&mut guest, conn, &mut stream, &sizes);
        }
    }
    for (rx_descriptors, rx_buffer_len, event_idx, indirect) in [
        (3, 4096, false, false),
        (3, 4096, true, true),
        (7, 4096, true, false),
        (2, 45, true, false),
        (1, 100, true, false),
        (1, 70_000, false, false),
        (20, 200_000, true, false),
    ] {
        let wanted = if event_idx { SUPPORTED } else { SUPPORTED & !features::RING_EVENT_IDX };
        let options =
            VsockOptions { wanted, rx_descriptors, rx_buffer_len, indirect, ..VsockOptions::default() };
        let mut guest = backend.guest_with("vm", &options, StackOptions::default());
        let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
        let few = if rx_buffer_len < 1000 { &sizes[..5] } else { &sizes };
        echo(&mut guest, conn, &mut stream, few);
    }
    assert_eq!(backend.stats("vm").totals.ring_errors, 0);
}

#[test]
fn small_credit_on_either_side() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(4096)]);
    for buf_alloc in [2, 100, 4096, 256 << 10] {
        let stack = StackOptions { buf_alloc, ..StackOptions::default() };
        let mut guest = backend.guest_with("vm", &VsockOptions::default(), stack);
        let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
        assert_eq!(guest.stack.credit(conn), 4096);
        for len in [1, 99, 4095, 4096, 4097, if buf_alloc == 2 { 300 } else { 100_000 }] {
            let (out, back) = (pattern(len, 1), pattern(len, 2));
            let ((), got) = guest.both(|g| g.send(conn, &out), || read_exact(&mut stream, len));
            assert!(got == out, "guest to host, {len} bytes");
            let ((), ()) = guest.both(
                |g| assert!(g.recv(conn, len) == back, "host to guest, {len} bytes"),
                || stream.write_all(&back).expect("written"),
            );
        }
    }
}

#[test]
fn what_a_slow_host_program_does_not_take_waits_within_the_credit() {
    // A large credit is more than a socket keeps: only then bytes wait in the process, too.
    for (buffer, len) in [(64 << 10, 4 << 20), (256 << 10, 4 << 20), (16 << 20, 24 << 20)] {
        let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(buffer)]);
        let mut guest = backend.guest("vm");
        let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
        let (fast, mut fast_stream) = backend.open("vm", &mut guest, 1235);
        let bytes = pattern(len, 3);
        let mut sent = 0;
        let held = || backend.stats("vm").totals.transmit.copied_bytes.get("held").copied().unwrap_or(0);
        // Until nothing more is taken: the socket and the credit are used up. A socket keeps some
        // bytes that take no credit. A guest gets that credit in halves of its buffer.
        let (most, step) = ((buffer as usize).max(192 << 10), buffer as usize / 2);
        guest.until("no room", |s| {
            sent += s.send(conn, &bytes[sent..]).expect("open");
            sent + step >= most && s.credit(conn) == 0 && s.queues().tx.in_flight() == 0
        });
        assert!(sent <= most, "{sent} bytes were taken");
        assert!(held() <= u64::from(buffer), "{} bytes wait", held());
        assert_eq!(held() > 0, buffer == 16 << 20, "{} bytes wait", held());
        // Another connection goes on meanwhile.
        echo(&mut guest, fast, &mut fast_stream, &[1, 5000, 300_000]);
        assert!(sent < bytes.len() && guest.stack.credit(conn) == 0);
        let ((), got) = guest.both(
            |g| g.send(conn, &bytes[sent..]),
            || {
                let mut got = vec![0; bytes.len()];
                for part in got.chunks_mut(50_000) {
                    stream.read_exact(part).expect("as many bytes");
                }
                got
            },
        );
        assert!(got == bytes);
        let total = len + 305_001;
        wait_until("all counted", || backend.stats("vm").totals.transmit.bytes == total as u64);
    }
}

#[test]
fn a_guest_that_posts_its_buffers_late_gets_everything() {
    let backend = VsockBackend::one();
    for rx_limit in [0, 1, 3] {
        let options = VsockOptions { rx_limit: 8, ..VsockOptions::default() };
        let mut guest = backend.guest_with("vm", &options, StackOptions::default());
        let (conn, stream) = backend.open("vm", &mut guest, 1234);
        let bytes = pattern(600_000, 4);
        guest.stack.queues().rx.set_limit(rx_limit);
        let mut writer = stream.try_clone().expect("a descriptor");
        std::thread::scope(|s| {
            let writing = s.spawn(|| writer.write_all(&bytes).expect("written"));
            let mut got = Vec::new();
            for round in 0..100_000 {
                guest.stack.turn(Duration::from_micros(100)).expect("sound");
                guest.stack.recv(conn, &mut got).expect("open");
                if got.len() == bytes.len() {
                    break;
                }
                if round % 32 == 31 {
                    // Sometimes one more buffer, sometimes many.
                    let limit = if round % 3 == 0 { 1 } else { 64 };
                    guest.stack.queues().rx.set_limit(limit);
                    guest.stack.queues().rx.publish().expect("sound");
                    guest.stack.queues().rx.set_limit(rx_limit.max(1));
                }
            }
            assert!(got == bytes, "{} bytes", got.len());
            writing.join().expect("written");
        });
    }
}

#[test]
fn batches_take_few_system_calls_and_no_copy() {
    // A socket keeps more than this credit, the kernel's own needs included, in packets of 4 KiB
    // too: it refuses nothing.
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(64 << 10)]);
    let options = VsockOptions { queue_size: 256, ..VsockOptions::default() };
    let mut guest = backend.guest_with("vm", &options, StackOptions::default());
    let (conn, mut stream) = backend.open("vm", &mut guest, 1234);
    let pool = PayloadPool::new(&guest.memory, 1 << 20, None).expect("memory");
    let (expected, total) = (pool.to_vec(), 8usize << 20);
    let before = backend.stats("vm").totals;
    let ((), got) = guest.both(
        |g| {
            let before = g.stack.counters().payload_sent;
            g.until("all sent", |s| {
                let left = total - (s.counters().payload_sent - before) as usize;
                // A write that meets the end of the credit becomes two packets.
                left == 0 || s.send_from_pool(conn, &pool, 4096, left.div_ceil(4096)).is_err()
            });
        },
        || read_exact(&mut stream, total),
    );
    assert!(got.chunks(expected.len()).all(|c| c == expected));
    // What was sent last is counted a moment after it has come.
    let all = before.transmit.bytes + total as u64;
    wait_until("all counted", || backend.stats("vm").totals.transmit.bytes == all);
    let after = backend.stats("vm").totals;
    let packets = after.transmit.frames - before.transmit.frames;
    assert!(packets >= 2048, "{packets}");
    assert_eq!(after.transmit.zero_copied_bytes - before.transmit.zero_copied_bytes, total as u64);
    assert!(after.transmit.copied_bytes.is_empty(), "{:?}", after.transmit.copied_bytes);
    let calls = after.transmit.system_calls - before.transmit.system_calls;
    assert!(calls < packets, "{calls} system calls for {packets} packets");

    let before = after;
    let bytes = pattern(total, 9);
    let (got, ()) = guest.both(|g| g.recv(conn, total), || stream.write_all(&bytes).expect("written"));
    assert!(got == bytes);
    let after = backend.stats("vm").totals;
    let packets = after.receive.frames - before.receive.frames;
    let calls = after.receive.system_calls - before.receive.system_calls;
    assert_eq!(after.receive.zero_copied_bytes - before.receive.zero_copied_bytes, total as u64);
    assert!(
        packets >= (total / 4052) as u64 && calls < packets,
        "{calls} system calls for {packets} packets"
    );
}

#[test]
fn many_connections_at_once() {
    let backend = VsockBackend::one();
    let mut guest = backend.guest("vm");
    let listener = backend.listen("vm", 1234);
    guest.stack.listen(80, zerowire_guest::vsock::SocketType::Stream);
    let mut all = Vec::new();
    for n in 0..300 {
        if n % 2 == 0 {
            let conn = guest.connect(1234);
            all.push((conn, accept(&listener)));
        } else {
            let mut stream = backend.dial("vm", 80);
            let conn = guest.accept(80);
            guest.with_host(|| read_ok(&mut stream)).expect("accepted");
            all.push((conn, stream));
        }
    }
    // One is counted behind its answer.
    let open = || backend.stats("vm").totals.connections_open;
    wait_until("all are counted", || open() >= 300);
    assert_eq!(open(), 300);
    let out: Vec<_> = (0..300).map(|n| pattern(1000 + n, n)).collect();
    for (n, (conn, stream)) in all.iter_mut().enumerate() {
        guest.send(*conn, &out[n]);
        stream.write_all(&out[n]).expect("room");
    }
    for (n, (conn, stream)) in all.iter_mut().enumerate() {
        assert!(guest.recv(*conn, out[n].len()) == out[n]);
        assert!(read_exact(stream, out[n].len()) == out[n]);
    }
    for (n, (conn, stream)) in all.into_iter().enumerate() {
        if n % 3 == 0 {
            guest.stack.close(conn).expect("sound");
            guest.with_host(|| {
                let mut stream = stream;
                assert_eq!(stream.read_to_end(&mut Vec::new()).expect("the end"), 0);
            });
        } else {
            drop(stream);
            assert!(guest.recv_to_end(conn).is_empty());
            assert_eq!(guest.ended(conn), ConnState::Closed);
        }
    }
    guest.stack.flush(PATIENCE).expect("sound");
    wait_until("all closed", || backend.stats("vm").totals.connections_open == 0);
    assert_eq!(backend.stats("vm").totals.connections_opened, 300);
}
