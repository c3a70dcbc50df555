//! What receiving costs, counted: system calls, allocations, and what a short completion queue
//! does.

#[allow(dead_code, unused_imports, reason = "the other tests use all of it")]
#[path = "it/support/streams.rs"]
mod streams;

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::Duration;
use streams::{ALL, LONG, Reader, pattern, receiver, tcp_pair, write_stream};
use zerowire::recv::{Arrival, Receiver, RecvBackend, What};
use zerowire_testkit::alloc::Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A pair whose receiving end takes a lot before it is read.
fn deep_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 4 << 20).unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    a.set_nonblocking(true).unwrap();
    (a, listener.accept().unwrap().0)
}

/// Writes what the sockets take, so that the sender is ahead of the receiver: saturation, without a
/// clock.
fn stuff(far: &mut [TcpStream], data: &[u8]) -> usize {
    let mut sum = 0;
    for a in far {
        for _ in 0..40 {
            match a.write(data) {
                Ok(n) => sum += n,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
    sum
}

/// Takes all that is there, giving each batch back at once; returns the bytes.
fn empty(r: &mut Receiver, batch: &mut Vec<Arrival>, want: usize) -> usize {
    let mut got = 0;
    while got < want {
        assert_ne!(r.recv(batch, Some(LONG)).unwrap(), 0);
        for arrival in batch.drain(..) {
            let What::Data(lease) = arrival.what else { panic!("{arrival:?}") };
            got += lease.len();
        }
    }
    got
}

#[test]
fn at_saturation_a_system_call_moves_256_kibibytes() {
    for backend in ALL {
        for connections in [1, 16, 64] {
            let mut r = receiver(backend.clone(), |_| {});
            let (mut far, mut batch) = (Vec::new(), Vec::new());
            for _ in 0..connections {
                let (a, b) = deep_pair();
                r.add(b.into()).unwrap();
                far.push(a);
            }
            let data = vec![7; 64 << 10];
            // Sockets grow into it, and the receiver finds its depth.
            for _ in 0..3 {
                let sent = stuff(&mut far, &data);
                empty(&mut r, &mut batch, sent);
            }
            let (before, mut bytes) = (r.events(), 0);
            for _ in 0..8 {
                let sent = stuff(&mut far, &data);
                bytes += empty(&mut r, &mut batch, sent);
            }
            let calls = r.events().system_calls - before.system_calls;
            let each = bytes as u64 / calls;
            assert!(each >= 256 << 10, "{backend:?}, {connections} connections: {each} bytes a system call");
            println!("{backend:?}, {connections} connections: {each} bytes a system call; {:?}", r.events());
        }
    }
}

#[test]
fn nothing_is_allocated_once_it_is_under_way() {
    for backend in ALL {
        let mut r = receiver(backend.clone(), |_| {});
        let (mut far, mut batch) = (Vec::new(), Vec::with_capacity(4096));
        for _ in 0..8 {
            let (a, b) = deep_pair();
            r.add(b.into()).unwrap();
            far.push(a);
        }
        let data = vec![7; 30_000];
        let mut round = || {
            let sent = stuff(&mut far, &data);
            empty(&mut r, &mut batch, sent);
        };
        (0..5).for_each(|_| round());
        let before = Counting::of_thread();
        (0..20).for_each(|_| round());
        assert_eq!(Counting::of_thread() - before, 0, "{backend:?}");
    }
}

/// Waiting for more saves wake-ups of bulk transfers. It stops while a connection of messages is
/// open.
#[test]
fn messages_beside_bulk_data_are_not_kept_waiting() {
    for backend in ALL {
        let mut r = receiver(backend.clone(), |_| {});
        let (a, b) = deep_pair();
        let (mut chat, c) = tcp_pair();
        r.add(b.into()).unwrap();
        let chat_id = r.add(c.into()).unwrap();
        // Less than the receiver takes at a time, so that it looks for more afterwards.
        let (mut bulk, mut batch, data) = (a, Vec::new(), vec![7; 300 << 10]);
        let mut gathered_with_bulk = |r: &mut Receiver, batch: &mut Vec<Arrival>| {
            let before = r.events().gathered;
            for _ in 0..10 {
                let sent = bulk.write(&data).unwrap();
                empty(r, batch, sent);
            }
            r.events().gathered - before
        };
        assert_ne!(
            gathered_with_bulk(&mut r, &mut batch),
            0,
            "{backend:?}: an open connection is no message"
        );

        chat.write_all(b"hello").unwrap();
        assert_eq!(empty(&mut r, &mut batch, 5), 5);
        // What the last bulk data began is over.
        let _ = gathered_with_bulk(&mut r, &mut batch);
        assert_eq!(gathered_with_bulk(&mut r, &mut batch), 0, "{backend:?}: a message was kept waiting");

        drop(chat);
        while batch.is_empty() {
            assert_ne!(r.recv(&mut batch, Some(LONG)).unwrap(), 0);
        }
        assert!(matches!(batch[0], Arrival { connection, what: What::End } if connection == chat_id));
        batch.clear();
        assert_ne!(gathered_with_bulk(&mut r, &mut batch), 0, "{backend:?}: the messages are over");
    }
}

/// Two completions fit; the kernel keeps the rest. Every byte arrives, and the overflow is counted.
#[test]
fn a_short_completion_queue_overflows_and_loses_nothing() {
    let mut r = receiver(RecvBackend::Multishot, |o| {
        (o.completions, o.buffer_bytes, o.buffers, o.depth) = (2, 256, 512, Some(256));
    });
    let (mut reader, mut writers) = (Reader::default(), Vec::new());
    for seed in 0..64 {
        let (mut a, b) = tcp_pair();
        reader.expect(r.add(b.into()).unwrap(), seed);
        writers.push(std::thread::spawn(move || write_stream(&mut a, seed, 100_000, 9_000)));
    }
    reader.until(&mut r, Reader::all_ended);
    writers.into_iter().for_each(|w| w.join().unwrap());
    assert_eq!(reader.bytes(), 6_400_000);
    assert!(r.events().overflows > 0, "{:?}", r.events());
}

/// The same with datagrams, whose completions come one by one: all that the sockets hold arrives
/// once and in order.
#[test]
fn datagrams_survive_an_overflow() {
    let mut r = receiver(RecvBackend::Multishot, |o| {
        (o.completions, o.buffer_bytes, o.buffers, o.depth) = (2, 1024, 512, Some(512));
    });
    let (a, b) = std::os::unix::net::UnixDatagram::pair().unwrap();
    r.add(b.into()).unwrap();
    let writer = std::thread::spawn(move || {
        for i in 0..2000usize {
            a.send(&pattern(i, 0, 200 + i % 300)).unwrap();
        }
    });
    let (mut batch, mut next) = (Vec::new(), 0usize);
    while next < 2000 {
        assert_ne!(r.recv(&mut batch, Some(LONG)).unwrap(), 0, "after {next}: {:?}", r.events());
        for arrival in batch.drain(..) {
            let What::Data(lease) = arrival.what else { panic!("{arrival:?}") };
            assert_eq!(lease.len(), 200 + next % 300, "datagram {next}");
            assert!(*lease == pattern(next, 0, lease.len()), "datagram {next}");
            next += 1;
        }
    }
    writer.join().unwrap();
    assert_eq!(r.recv(&mut batch, Some(Duration::ZERO)).unwrap(), 0);
}
