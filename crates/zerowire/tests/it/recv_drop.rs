//! Receivers dropped at every point. The descriptors of the process are counted.

use crate::support::streams::{ALL, LONG, receiver, stuff, tcp_pair};
use std::io::Read;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use zerowire::recv::{Arrival, ConnectionId, Lease, Receiver, What};
use zerowire_testkit::own_process;

/// What goes on beside the receiver when it is dropped.
type Beside = Option<JoinHandle<()>>;
type Point = fn(&mut Receiver, &mut Vec<Arrival>) -> Beside;

const POINTS: [(&str, Point); 10] = [
    ("before the first turn", |_, _| None),
    ("armed", |r, out| {
        r.recv(out, Some(Duration::ZERO)).unwrap();
        None
    }),
    ("after one batch", |r, out| {
        r.recv(out, Some(LONG)).unwrap();
        None
    }),
    ("leases dropped", |r, out| {
        r.recv(out, Some(LONG)).unwrap();
        out.clear();
        None
    }),
    ("everything held", |r, out| {
        while r.recv(out, Some(Duration::from_millis(20))).unwrap() > 0 {}
        None
    }),
    ("in the middle", |r, out| {
        for _ in 0..40 {
            r.recv(out, Some(LONG)).unwrap();
            out.clear();
        }
        None
    }),
    // What had been taken from the sockets waits for a recv that doesn't come.
    ("after a removal, with a backlog", |r, out| {
        let id = first(r, out);
        drop(r.remove(id).unwrap());
        None
    }),
    ("after a limit, with a backlog", |r, out| {
        let id = first(r, out);
        r.limit(id, Some(100_000)).unwrap();
        None
    }),
    ("after a removal, with everything held", |r, out| {
        while r.recv(out, Some(Duration::from_millis(20))).unwrap() > 0 {}
        let id = out[0].connection;
        drop(r.remove(id).unwrap());
        None
    }),
    ("while another thread drops leases", |r, out| {
        while r.recv(out, Some(Duration::from_millis(20))).unwrap() > 0 {}
        let kept = leases(std::mem::take(out));
        let (begin, begun) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            begin.send(()).unwrap();
            kept.into_iter().for_each(drop);
        });
        begun.recv().unwrap();
        Some(thread)
    }),
];

fn leases(batch: Vec<Arrival>) -> Vec<Lease> {
    batch.into_iter().filter_map(|a| if let What::Data(l) = a.what { Some(l) } else { None }).collect()
}

/// The connection that something came of first.
fn first(r: &mut Receiver, out: &mut Vec<Arrival>) -> ConnectionId {
    r.recv(out, Some(LONG)).unwrap();
    out[0].connection
}

/// Descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Drops a receiver before the first turn, in the middle of a multishot, with completions unread,
/// or while paused. Or with the area empty, with arrivals in the backlog, while leases come back.
/// No descriptor stays open, whatever was going on.
#[test]
fn a_receiver_may_be_dropped_at_every_point() {
    own_process!();
    for backend in ALL {
        // What the first receiver of a process opens for good.
        drop(receiver(backend.clone(), |_| ()));
        for (name, point) in POINTS {
            let before = descriptors();
            let mut r = receiver(backend.clone(), |o| {
                (o.buffer_bytes, o.buffers, o.completions) = (4096, 16, 4);
            });
            let mut far = Vec::new();
            for seed in 0..4 {
                let (mut a, b) = tcp_pair();
                r.add(b.into()).unwrap();
                stuff(&mut a, seed);
                far.push(a);
            }
            assert!(descriptors() >= before + 8, "the sockets are counted");
            let mut batch = Vec::new();
            let beside = point(&mut r, &mut batch);
            drop(r);
            for a in &mut far {
                // Closed on the other side: reading ends, it doesn't hang.
                a.set_read_timeout(Some(LONG)).unwrap();
                let e = a.read(&mut [0]).map(|n| assert_eq!(n, 0, "{name}")).err();
                let errno = e.and_then(|e| e.raw_os_error());
                assert!(matches!(errno, None | Some(libc::ECONNRESET)), "{backend:?}, {name}: {errno:?}");
            }
            // What is held is sound.
            assert!(leases(batch).iter().all(|l| **l == *l.to_vec()));
            if let Some(thread) = beside {
                thread.join().unwrap();
            }
            drop(far);
            assert_eq!(descriptors(), before, "{backend:?}, {name}: a descriptor stayed open");
        }
    }
}
