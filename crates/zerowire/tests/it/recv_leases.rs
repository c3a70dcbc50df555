//! Leases: held long, given back elsewhere, outliving their receiver; areas that run empty.

use crate::support::streams::{ALL, LONG, Reader, pattern, receiver, stuff, tcp_pair, write_stream};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use zerowire::recv::{Arrival, Lease, What};

fn leases(batch: Vec<Arrival>) -> Vec<Lease> {
    batch.into_iter().filter_map(|a| if let What::Data(l) = a.what { Some(l) } else { None }).collect()
}

/// One connection's leases are kept. It gets its share, and what was posted when that was full. The
/// other one receives all of its stream meanwhile. Then the first goes on where it stopped.
#[test]
fn a_slow_consumer_is_bounded_and_others_are_unaffected() {
    const BUFFERS: usize = 64;
    for backend in ALL {
        let mut r = receiver(backend.clone(), |o| {
            (o.buffer_bytes, o.buffers, o.share, o.depth) = (4096, BUFFERS, Some(16), Some(16));
        });
        let (mut slow, near) = tcp_pair();
        let (mut quick, near2) = tcp_pair();
        let mut reader = Reader::default();
        let (slow_id, quick_id) = (r.add(near.into()).unwrap(), r.add(near2.into()).unwrap());
        reader.expect(slow_id, 1);
        reader.expect(quick_id, 2);
        let sent = stuff(&mut slow, 1);
        assert!(sent > BUFFERS * 4096, "the stream is longer than the area");
        let writer = std::thread::spawn(move || write_stream(&mut quick, 2, 5 << 20, 30_000));
        let (mut kept, end) = (Vec::new(), Instant::now() + LONG);
        while !reader.seen[&quick_id].ended {
            assert!(Instant::now() < end, "the quick one hangs: {:?}", r.events());
            reader.batch.clear();
            r.recv(&mut reader.batch, Some(Duration::from_millis(100))).unwrap();
            reader.check(0);
            kept.extend(reader.batch.extract_if(.., |a| a.connection == slow_id));
        }
        assert_eq!(reader.seen[&quick_id].bytes, 5 << 20);
        assert!((16..=32).contains(&kept.len()), "{} buffers held: share 16 and depth 16", kept.len());
        assert!(r.events().paused >= 1);
        writer.join().unwrap();
        drop(slow);
        drop(kept);
        reader.until(&mut r, Reader::all_ended);
        assert_eq!(reader.seen[&slow_id].bytes, sent, "{backend:?}");
    }
}

/// Everything is held until nothing more comes, then given back, again and again.
#[test]
fn an_empty_area_recovers_without_losing_a_byte() {
    for backend in ALL {
        let mut r = receiver(backend, |o| {
            (o.buffer_bytes, o.buffers, o.share, o.depth) = (4096, 8, Some(8), Some(8));
        });
        let mut reader = Reader::default();
        let mut writers = Vec::new();
        for seed in 0..3 {
            let (mut a, b) = tcp_pair();
            reader.expect(r.add(b.into()).unwrap(), seed);
            writers.push(std::thread::spawn(move || write_stream(&mut a, seed, 500_000, 9_999)));
        }
        let end = Instant::now() + LONG;
        while !reader.all_ended() {
            assert!(Instant::now() < end, "hangs: {:?}", r.events());
            let from = reader.batch.len();
            let count = r.recv(&mut reader.batch, Some(Duration::from_millis(3))).unwrap();
            reader.check(from);
            if count == 0 {
                reader.batch.clear();
            }
            assert!(reader.batch.iter().filter(|a| matches!(a.what, What::Data(_))).count() <= 8);
        }
        writers.into_iter().for_each(|w| w.join().unwrap());
        assert_eq!(reader.bytes(), 1_500_000);
        let e = r.events();
        assert!(e.out_of_buffers + e.paused > 0, "the area never ran empty: {e:?}");
    }
}

/// The receiver sleeps for want of buffers without a timeout; a lease that another thread drops
/// wakes it.
#[test]
fn a_lease_dropped_elsewhere_wakes_the_receiver() {
    for backend in ALL {
        for share in [1, 2] {
            let mut r = receiver(backend.clone(), |o| {
                (o.buffer_bytes, o.buffers, o.share, o.depth) = (64, 2, Some(share), Some(1));
            });
            let (mut a, b) = tcp_pair();
            let mut reader = Reader::default();
            let id = r.add(b.into()).unwrap();
            reader.expect(id, 4);
            let writer = std::thread::spawn(move || write_stream(&mut a, 4, 64 * 200, 64 * 200));
            let (send, held) = mpsc::channel::<Lease>();
            let holder = std::thread::spawn(move || {
                for lease in held {
                    std::thread::sleep(Duration::from_micros(200));
                    drop(lease);
                }
            });
            while !reader.seen[&id].ended {
                // Forever: a lost wake-up hangs the test.
                r.recv(&mut reader.batch, None).unwrap();
                reader.check(0);
                for lease in leases(std::mem::take(&mut reader.batch)) {
                    send.send(lease).unwrap();
                }
            }
            drop(send);
            holder.join().unwrap();
            writer.join().unwrap();
            assert_eq!(reader.bytes(), 64 * 200);
        }
    }
}

/// Many threads give back at once, and all buffers come back: the stream is many times the area.
#[test]
fn leases_cross_threads() {
    for backend in ALL {
        let mut r = receiver(backend, |o| (o.buffer_bytes, o.buffers) = (4096, 64));
        let (mut a, b) = tcp_pair();
        let id = r.add(b.into()).unwrap();
        let writer = std::thread::spawn(move || write_stream(&mut a, 8, 20 << 20, 60_000));
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let (send, work) = mpsc::channel::<(usize, Lease)>();
                let thread = std::thread::spawn(move || {
                    for (at, lease) in work {
                        assert!(*lease == pattern(8, at, lease.len()), "at {at}");
                    }
                });
                (send, thread)
            })
            .collect();
        let (mut batch, mut at, mut turn, mut ended) = (Vec::new(), 0, 0, false);
        while !ended {
            assert_ne!(r.recv(&mut batch, Some(LONG)).unwrap(), 0, "hangs: {:?}", r.events());
            for arrival in batch.drain(..) {
                assert_eq!(arrival.connection, id);
                match arrival.what {
                    What::Data(lease) => {
                        let len = lease.len();
                        workers[turn % 3].0.send((at, lease)).unwrap();
                        (at, turn) = (at + len, turn + 1);
                    }
                    What::End => ended = true,
                    other => panic!("{other:?}"),
                }
            }
        }
        writer.join().unwrap();
        for (send, thread) in workers {
            drop(send);
            thread.join().unwrap();
        }
        assert_eq!(at, 20 << 20);
        r.recv(&mut batch, Some(Duration::ZERO)).unwrap();
        assert_eq!(r.events().refills, turn as u64, "each lease came back once");
    }
}

/// The bytes stay as they are after the receiver and its sockets are gone, while the peer still
/// writes.
#[test]
fn leases_outlive_the_receiver() {
    for backend in ALL {
        let mut r = receiver(backend, |o| (o.buffer_bytes, o.buffers) = (4096, 32));
        let (mut a, b) = tcp_pair();
        r.add(b.into()).unwrap();
        stuff(&mut a, 3);
        let mut batch = Vec::new();
        while batch.len() < 8 {
            assert_ne!(r.recv(&mut batch, Some(LONG)).unwrap(), 0);
        }
        drop(r);
        let _ = a.write(&[0xff; 100_000]);
        let kept = leases(batch);
        std::thread::spawn(move || {
            let all: Vec<u8> = kept.iter().flat_map(|l| l.iter().copied()).collect();
            assert!(all == pattern(3, 0, all.len()));
        })
        .join()
        .unwrap();
        // The socket was closed with the receiver: unread bytes make that a reset.
        a.set_nonblocking(false).unwrap();
        a.set_read_timeout(Some(LONG)).unwrap();
        let e = a.read(&mut [0]).map(|n| assert_eq!(n, 0)).err().and_then(|e| e.raw_os_error());
        assert!(matches!(e, None | Some(libc::ECONNRESET | libc::EPIPE)), "{e:?}");
    }
}

/// A program that holds leases fills its share and the sockets' buffers, and then the sender's
/// write blocks: the TCP window is closed. It goes on when the leases are given back.
#[test]
fn a_sender_blocks_while_leases_are_held() {
    const MUCH: usize = 64 << 20;
    for backend in ALL {
        let mut r = receiver(backend.clone(), |o| (o.buffer_bytes, o.buffers, o.share) = (4096, 32, Some(8)));
        let (mut a, b) = tcp_pair();
        let mut reader = Reader::default();
        reader.expect(r.add(b.into()).unwrap(), 6);
        let written = Arc::new(AtomicUsize::new(0));
        let writer = std::thread::spawn({
            let written = Arc::clone(&written);
            move || {
                while written.load(Relaxed) < MUCH {
                    let piece = pattern(6, written.load(Relaxed), 50_000.min(MUCH - written.load(Relaxed)));
                    a.write_all(&piece).unwrap();
                    written.fetch_add(piece.len(), Relaxed);
                }
            }
        });
        // Held until nothing more comes, and the sender stands still.
        let (mut before, end) = (usize::MAX, Instant::now() + LONG);
        loop {
            assert!(Instant::now() < end, "{backend:?}: the sender doesn't stop at {before}");
            let from = reader.batch.len();
            let count = r.recv(&mut reader.batch, Some(Duration::from_millis(300))).unwrap();
            reader.check(from);
            let now = written.load(Relaxed);
            if count == 0 && now == before && r.events().paused > 0 && reader.bytes() < now {
                break;
            }
            before = now;
        }
        assert!(before < MUCH && !writer.is_finished(), "{backend:?}: {before} bytes were written");
        assert!(r.events().paused > 0 && reader.bytes() < before, "{backend:?}: {:?}", r.events());
        let held = reader.bytes();
        reader.batch.clear();
        reader.until(&mut r, Reader::all_ended);
        writer.join().unwrap();
        assert_eq!(reader.bytes(), MUCH, "{backend:?}, after {held} were held");
    }
}

/// A place that is used again doesn't inherit what the connection before it still holds.
#[test]
fn a_new_connection_starts_with_its_whole_share() {
    for backend in ALL {
        let mut r = receiver(backend, |o| {
            (o.buffer_bytes, o.buffers, o.share, o.depth) = (64, 32, Some(4), Some(4));
        });
        let (mut a, b) = tcp_pair();
        let old = r.add(b.into()).unwrap();
        a.write_all(&pattern(1, 0, 1000)).unwrap();
        let mut kept = Vec::new();
        while r.recv(&mut kept, Some(Duration::from_millis(50))).unwrap() > 0 {}
        assert!(kept.len() >= 4);
        r.remove(old).unwrap();
        r.recv(&mut kept, Some(Duration::ZERO)).unwrap();
        let (mut c, d) = tcp_pair();
        let new = r.add(d.into()).unwrap();
        assert_ne!(old, new);
        write_stream(&mut c, 2, 5000, 5000);
        drop(c);
        let mut reader = Reader::default();
        reader.expect(new, 2);
        reader.until(&mut r, Reader::all_ended);
        assert_eq!(reader.bytes(), 5000);
        assert!(kept.iter().all(|x| x.connection == old));
    }
}
