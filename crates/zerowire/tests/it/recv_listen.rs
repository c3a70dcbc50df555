//! Listening sockets of a receiver: connections are accepted, added and told; accepting stops and
//! goes on with the limit.

use crate::support::streams::{self, ALL, LONG, Reader, receiver, write_stream};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use zerowire::recv::{ConnectionId, ListenerId, RecvBackend, RecvError, What};
use zerowire_testkit::own_process;

/// Receives until `done`. New connections get the seeds 0, 1, 2 ... in the order of their coming.
fn accept_until(
    r: &mut zerowire::recv::Receiver,
    reader: &mut Reader,
    from: ListenerId,
    mut done: impl FnMut(&Reader) -> bool,
) -> Vec<ConnectionId> {
    let (mut new, end) = (Vec::new(), Instant::now() + LONG);
    while !done(reader) {
        assert!(Instant::now() < end, "hangs: {:?}", r.events());
        reader.batch.clear();
        r.recv(&mut reader.batch, Some(Duration::from_millis(200))).unwrap();
        for arrival in reader.batch.extract_if(.., |a| matches!(a.what, What::Accepted(_))) {
            let What::Accepted(listener) = arrival.what else { continue };
            assert_eq!(listener, from);
            assert!(!reader.seen.contains_key(&arrival.connection), "told once, and first");
            let seed = reader.seen.len();
            reader.seen.insert(arrival.connection, streams::Seen { seed, ..Default::default() });
            new.push(arrival.connection);
        }
        reader.check(0);
    }
    reader.batch.clear();
    new
}

#[test]
fn connections_are_accepted_and_their_bytes_arrive() {
    for backend in ALL {
        // With little room connections are accepted one by one, with much all at once.
        for max_connections in [100, 65536] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let mut r = receiver(backend.clone(), |o| o.max_connections = max_connections);
            let id = r.listen(listener.into()).unwrap();
            let mut reader = Reader::default();
            assert_eq!(r.recv(&mut reader.batch, Some(Duration::ZERO)).unwrap(), 0);
            let mut writers = Vec::new();
            // One after the other, so that the order of their coming is known.
            for seed in 0..50 {
                let mut a = TcpStream::connect(address).unwrap();
                accept_until(&mut r, &mut reader, id, |x| x.seen.len() > seed);
                writers.push(std::thread::spawn(move || write_stream(&mut a, seed, 100_000 + seed, 7000)));
            }
            accept_until(&mut r, &mut reader, id, |x| x.all_ended());
            writers.into_iter().for_each(|w| w.join().unwrap());
            assert!(reader.seen.values().all(|s| s.bytes == 100_000 + s.seed));
            assert_eq!((r.events().accepted, r.events().accept_pauses), (50, 0), "{backend:?}");
        }
    }
}

/// Beyond the limit connections wait in the backlog; each one that is removed makes room for the
/// next.
#[test]
fn the_limit_stops_accepting_and_a_removal_lets_it_go_on() {
    for backend in ALL {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut r = receiver(backend, |o| o.max_connections = 3);
        let id = r.listen(listener.into()).unwrap();
        let far: Vec<_> = (0..10).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut reader = Reader::default();
        let mut open = accept_until(&mut r, &mut reader, id, |x| x.seen.len() == 3);
        for left in (0..7).rev() {
            assert_eq!(r.recv(&mut reader.batch, Some(Duration::from_millis(5))).unwrap(), 0);
            assert_eq!((r.connections(), r.events().accept_pauses), (3, 7 - left));
            let gone = open.remove(0);
            drop(r.remove(gone).unwrap());
            reader.seen.remove(&gone);
            open.extend(accept_until(&mut r, &mut reader, id, |x| x.seen.len() == 3));
        }
        assert_eq!(r.events().accepted, 10);
        drop(far);
        accept_until(&mut r, &mut reader, id, |x| x.all_ended());
    }
}

/// The socket comes back with the connections that nobody accepted. Plain receive has made it
/// non-blocking.
#[test]
fn a_listening_socket_is_given_back() {
    for backend in ALL {
        let is_plain = backend == RecvBackend::Plain;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut r = receiver(backend, |o| o.max_connections = 1);
        let id = r.listen(listener.into()).unwrap();
        let first = TcpStream::connect(address).unwrap();
        let mut reader = Reader::default();
        accept_until(&mut r, &mut reader, id, |x| x.seen.len() == 1);
        let second = TcpStream::connect(address).unwrap();
        assert_eq!(r.recv(&mut reader.batch, Some(Duration::from_millis(5))).unwrap(), 0);
        let listener = TcpListener::from(r.unlisten(id).unwrap());
        assert!(matches!(r.unlisten(id), Err(RecvError::UnknownListener(x)) if x == id));
        let flags = rustix::fs::fcntl_getfl(&listener).unwrap();
        assert_eq!(flags.contains(rustix::fs::OFlags::NONBLOCK), is_plain);
        // The second one is there, or its handshake is about to end.
        zerowire_testkit::wait_until("it can be accepted", || {
            let mut fds = [rustix::event::PollFd::new(&listener, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap()
                == 1
        });
        let (near, from) = listener.accept().unwrap();
        assert_eq!(from, second.local_addr().unwrap());
        drop(near);
        // The first one is unaffected, and a new listener has another name.
        drop(first);
        accept_until(&mut r, &mut reader, id, |x| x.all_ended());
        assert_ne!(r.listen(listener.into()).unwrap(), id);
    }
}

/// Two receivers accept from one socket by descriptors of their own, as processes do that forked.
/// When one ends, the other goes on, and waits no longer than it was asked to.
#[test]
fn receivers_share_a_listening_socket_and_one_ends() {
    for backend in ALL {
        for takes_back in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let mut ends = receiver(backend.clone(), |_| {});
            let id = ends.listen(listener.try_clone().unwrap().into()).unwrap();
            let (told, accepted) = channel();
            let (backend, both) = (backend.clone(), Arc::new(Barrier::new(2)));
            let goes_on = std::thread::spawn({
                let both = both.clone();
                move || {
                    let mut r = receiver(backend, |_| {});
                    r.listen(listener.into()).unwrap();
                    both.wait();
                    both.wait();
                    let mut batch = Vec::new();
                    for _ in 0..2 {
                        let end = Instant::now() + LONG;
                        while batch.is_empty() && Instant::now() < end {
                            r.recv(&mut batch, Some(Duration::from_millis(20))).unwrap();
                        }
                        told.send(batch.drain(..).len()).unwrap();
                    }
                    assert_eq!(r.recv(&mut batch, Some(Duration::from_millis(20))).unwrap(), 0);
                }
            });
            both.wait();
            if takes_back {
                ends.unlisten(id).unwrap();
            }
            drop(ends);
            both.wait();
            let far = [(); 2].map(|()| {
                let far = TcpStream::connect(address).unwrap();
                assert_eq!(accepted.recv_timeout(LONG), Ok(1));
                far
            });
            goes_on.join().unwrap();
            drop(far);
        }
    }
}

#[test]
fn several_listeners_and_added_connections_beside_them() {
    for backend in ALL {
        let mut r = receiver(backend, |_| {});
        let (mut a, b) = streams::tcp_pair();
        let added = r.add(b.into()).unwrap();
        let all: Vec<_> = (0..5)
            .map(|_| {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap();
                (r.listen(listener.into()).unwrap(), address)
            })
            .collect();
        let far: Vec<_> = all.iter().map(|(_, address)| TcpStream::connect(address).unwrap()).collect();
        let mut batch = Vec::new();
        while batch.len() < 5 {
            assert_ne!(r.recv(&mut batch, Some(LONG)).unwrap(), 0);
        }
        for (id, _) in &all {
            let told = batch.iter().filter(|x| matches!(&x.what, What::Accepted(l) if l == id));
            assert_eq!(told.count(), 1);
        }
        let mut reader = Reader::default();
        reader.expect(added, 1);
        batch.iter().for_each(|x| reader.expect(x.connection, 1));
        write_stream(&mut a, 1, 70_000, 70_000);
        drop((a, far));
        reader.until(&mut r, Reader::all_ended);
        assert_eq!(reader.bytes(), 70_000);
    }
}

/// A socket that is shut down fails once; connections are unaffected.
#[test]
fn a_listener_that_fails_is_told() {
    for backend in ALL {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = listener.try_clone().unwrap();
        let mut r = receiver(backend, |_| {});
        let id = r.listen(listener.into()).unwrap();
        let mut a = TcpStream::connect(address).unwrap();
        let mut reader = Reader::default();
        accept_until(&mut r, &mut reader, id, |x| x.seen.len() == 1);
        rustix::net::shutdown(&other, rustix::net::Shutdown::Both).unwrap();
        let e = loop {
            match r.recv(&mut reader.batch, Some(LONG)) {
                Ok(n) => assert_ne!(n, 0, "nothing is told"),
                Err(e) => break e,
            }
        };
        assert!(matches!(&e, RecvError::Accept { listener, .. } if *listener == id), "{e}");
        assert_eq!(e.errno(), Some(libc::EINVAL));
        write_stream(&mut a, 0, 1000, 1000);
        drop(a);
        reader.until(&mut r, Reader::all_ended);
        assert_eq!(reader.bytes(), 1000);
        r.unlisten(id).unwrap();
    }
}

#[test]
fn what_does_not_listen_is_refused() {
    for backend in ALL {
        let mut r = receiver(backend, |_| {});
        let (mut a, b) = streams::tcp_pair();
        let refused = r.listen(b.into()).unwrap_err();
        assert!(matches!(refused.error, RecvError::NotListening), "{refused}");
        // It comes back, and is as good as before.
        let mut reader = Reader::default();
        reader.expect(r.add(refused.socket).unwrap(), 2);
        write_stream(&mut a, 2, 5000, 5000);
        drop(a);
        reader.until(&mut r, Reader::all_ended);
        assert_eq!(reader.bytes(), 5000);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(r.listen(file.into()).unwrap_err().into(), RecvError::NotListening));
    }
}

/// Sockets that were accepted and not told are closed with the receiver.
#[test]
fn a_receiver_is_dropped_while_it_accepts() {
    own_process!();
    for backend in ALL {
        for (turns, max_connections) in [(0, 65536), (1, 65536), (2, 65536), (1, 2), (2, 2)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let mut r = receiver(backend.clone(), |o| o.max_connections = max_connections);
            r.listen(listener.into()).unwrap();
            let mut batch = Vec::new();
            r.recv(&mut batch, Some(Duration::ZERO)).unwrap();
            let far: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
            for _ in 0..turns {
                r.recv(&mut batch, Some(Duration::from_millis(50))).unwrap();
            }
            drop((r, batch));
            for mut a in far {
                a.set_read_timeout(Some(LONG)).unwrap();
                let e = a.read(&mut [0]).map(|n| assert_eq!(n, 0)).err().and_then(|e| e.raw_os_error());
                assert!(matches!(e, None | Some(libc::ECONNRESET)), "{e:?}");
            }
            TcpStream::connect(address).expect_err("the listening socket is closed");
        }
    }
}
