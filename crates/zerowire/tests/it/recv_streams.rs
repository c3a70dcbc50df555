//! Byte-exact streams through each way to receive that needs no privileges.

use crate::support::streams::{ALL, LONG, Reader, pattern, receiver, tcp_pair, write_stream};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;
use zerowire::recv::{ConnectionId, Receiver, RecvBackend, RecvError, What};
use zerowire_testkit::refuse::refuse;

#[test]
fn streams_of_every_length_arrive_byte_for_byte() {
    for backend in ALL {
        let mut r = receiver(backend, |_| {});
        let mut reader = Reader::default();
        let lengths =
            [0, 1, 2, 63, 64, 65, 4095, 65535, 65536, 65537, 131072, 1 << 20, (1 << 20) + 1, 3 << 20];
        let mut total = 0;
        for (seed, len) in lengths.into_iter().enumerate() {
            let (mut a, b) = tcp_pair();
            let id = r.add(b.into()).unwrap();
            reader.expect(id, seed);
            let writer = std::thread::spawn(move || write_stream(&mut a, seed, len, 70_001));
            reader.until(&mut r, Reader::all_ended);
            writer.join().unwrap();
            assert_eq!(reader.seen[&id].bytes, len);
            total += len as u64;
        }
        let t = r.counters().snapshot();
        assert_eq!((t.bytes, t.copied_bytes.get("kernel"), t.zero_copied_bytes), (total, Some(&total), 0));
        assert!(t.system_calls > 0 && t.system_calls == r.events().system_calls);
    }
}

#[test]
fn a_hundred_mebibytes() {
    for backend in ALL {
        let (mut a, b) = tcp_pair();
        let mut r = receiver(backend, |_| {});
        let mut reader = Reader::default();
        reader.expect(r.add(b.into()).unwrap(), 7);
        let writer = std::thread::spawn(move || write_stream(&mut a, 7, 100 << 20, 1 << 20));
        reader.until(&mut r, Reader::all_ended);
        writer.join().unwrap();
        assert_eq!(reader.bytes(), 100 << 20);
    }
}

/// The bytes of a long stream repeat, so that they can be made and compared quickly. A shift or a
/// gap shows, unless it is a multiple of this; the length says the rest.
const PERIOD: usize = 1_000_003;

#[test]
fn a_gibibyte() {
    const LEN: usize = 1 << 30;
    let mut table = pattern(11, 0, PERIOD + (256 << 10));
    table.copy_within(0..256 << 10, PERIOD);
    let table: std::sync::Arc<[u8]> = table.into();
    for backend in ALL {
        let (mut a, b) = tcp_pair();
        let mut r = receiver(backend, |_| {});
        r.add(b.into()).unwrap();
        let source = std::sync::Arc::clone(&table);
        let writer = std::thread::spawn(move || {
            let mut at = 0;
            while at < LEN {
                let n = (256 << 10).min(LEN - at);
                a.write_all(&source[at % PERIOD..][..n]).unwrap();
                at += n;
            }
        });
        let (mut batch, mut at, mut ended) = (Vec::new(), 0, false);
        while !ended {
            assert_ne!(r.recv(&mut batch, Some(LONG)).unwrap(), 0, "after {at}");
            for arrival in batch.drain(..) {
                match arrival.what {
                    What::Data(lease) => {
                        assert!(*lease == table[at % PERIOD..][..lease.len()], "after {at}");
                        at += lease.len();
                    }
                    What::End => ended = true,
                    other => panic!("{other:?}"),
                }
            }
        }
        writer.join().unwrap();
        assert_eq!(at, LEN);
        assert_eq!(r.counters().snapshot().bytes, LEN as u64);
    }
}

/// Small buffers: bundles of many, shortened entries, and an area that is used up all the time.
#[test]
fn small_buffers_and_odd_writes() {
    for backend in ALL {
        for (buffer_bytes, buffers, step) in [(64, 2, 1000), (64, 7, 100), (4096, 5, 9001), (192, 1000, 333)]
        {
            let (mut a, b) = tcp_pair();
            let mut r = receiver(backend.clone(), |o| {
                (o.buffer_bytes, o.buffers, o.depth, o.share) =
                    (buffer_bytes, buffers, Some(buffers), Some(buffers));
            });
            let mut reader = Reader::default();
            reader.expect(r.add(b.into()).unwrap(), 9);
            let writer = std::thread::spawn(move || write_stream(&mut a, 9, 300_000, step));
            reader.until(&mut r, Reader::all_ended);
            writer.join().unwrap();
            assert_eq!(reader.bytes(), 300_000, "{backend:?} {buffer_bytes}×{buffers}");
        }
    }
}

#[test]
fn a_thousand_connections_at_once() {
    for backend in ALL {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut r = receiver(backend, |o| o.buffers = 128);
        let (mut reader, mut far) = (Reader::default(), Vec::new());
        for seed in 0..1000 {
            far.push(std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            reader.expect(r.add(listener.accept().unwrap().0.into()).unwrap(), seed);
        }
        let writer = std::thread::spawn(move || {
            for (seed, mut a) in far.into_iter().enumerate() {
                write_stream(&mut a, seed, 20_000 + seed, 7_777);
            }
        });
        reader.until(&mut r, Reader::all_ended);
        writer.join().unwrap();
        for seen in reader.seen.values() {
            assert_eq!(seen.bytes, 20_000 + seen.seed);
        }
        assert_eq!(r.connections(), 1000);
    }
}

/// After the end of the one direction the other one still works, and the socket comes back usable.
#[test]
fn half_closed_connections_can_still_be_answered() {
    for backend in ALL {
        let (mut a, b) = tcp_pair();
        let mut r = receiver(backend, |_| {});
        let mut reader = Reader::default();
        let id = r.add(b.into()).unwrap();
        reader.expect(id, 1);
        write_stream(&mut a, 1, 5000, 5000);
        a.shutdown(Shutdown::Write).unwrap();
        reader.until(&mut r, Reader::all_ended);
        assert_eq!(reader.turn(&mut r, Duration::from_millis(20)), 0, "the end is told once");
        let socket = r.socket(id).expect("the socket is kept").try_clone_to_owned().unwrap();
        std::net::TcpStream::from(socket).write_all(b"answer").unwrap();
        drop(r.remove(id).unwrap());
        let mut got = String::new();
        a.read_to_string(&mut got).unwrap();
        assert_eq!(got, "answer");
        assert!(matches!(r.remove(id), Err(RecvError::Unknown(_))) && r.socket(id).is_none());
    }
}

#[test]
fn a_reset_is_told_and_the_others_go_on() {
    for backend in ALL {
        let (a, b) = tcp_pair();
        let (mut c, d) = tcp_pair();
        let mut r = receiver(backend, |_| {});
        let mut reader = Reader::default();
        let (bad, good) = (r.add(b.into()).unwrap(), r.add(d.into()).unwrap());
        reader.expect(bad, 1);
        reader.expect(good, 2);
        reader.turn(&mut r, Duration::ZERO);
        rustix::net::sockopt::set_socket_linger(&a, Some(Duration::ZERO)).unwrap();
        drop(a);
        reader.until(&mut r, |x| x.seen[&bad].failed.is_some());
        assert_eq!(reader.seen[&bad].failed, Some(libc::ECONNRESET));
        write_stream(&mut c, 2, 100_000, 3000);
        drop(c);
        reader.until(&mut r, |x| x.seen[&good].ended);
        assert_eq!(reader.seen[&good].bytes, 100_000);
    }
}

/// What was taken is given, the rest is still in the socket: together all of it.
#[test]
fn removing_in_the_middle_loses_nothing() {
    for backend in ALL {
        for cut in [0, 1, 40_000, 300_000] {
            let (mut a, b) = tcp_pair();
            let mut r = receiver(backend.clone(), |o| (o.buffer_bytes, o.buffers) = (4096, 16));
            let mut reader = Reader::default();
            let id = r.add(b.into()).unwrap();
            reader.expect(id, 3);
            let writer = std::thread::spawn(move || write_stream(&mut a, 3, 600_000, 10_000));
            reader.until(&mut r, |x| x.seen[&id].bytes >= cut);
            let mut socket = std::net::TcpStream::from(r.remove(id).unwrap());
            while reader.turn(&mut r, Duration::ZERO) > 0 {}
            let before = reader.seen[&id].bytes;
            let mut rest = Vec::new();
            socket.read_to_end(&mut rest).unwrap();
            writer.join().unwrap();
            assert_eq!(before + rest.len(), 600_000, "{backend:?} {cut}");
            assert!(rest == pattern(3, before, rest.len()));
        }
    }
}

#[test]
fn a_limit_takes_not_a_byte_more() {
    for backend in ALL {
        let (mut a, b) = tcp_pair();
        let mut r = receiver(backend, |o| (o.buffer_bytes, o.buffers) = (4096, 64));
        let mut reader = Reader::default();
        let id = r.add(b.into()).unwrap();
        reader.expect(id, 5);
        write_stream(&mut a, 5, 200_000, 200_000);
        let mut sum = 0;
        for limit in [0, 1, 9, 4095, 4096, 4097, 50_000] {
            r.limit(id, Some(limit)).unwrap();
            sum += limit as usize;
            reader.until(&mut r, |x| x.seen[&id].bytes >= sum);
            assert_eq!(reader.turn(&mut r, Duration::from_millis(10)), 0);
            assert_eq!(reader.seen[&id].bytes, sum);
        }
        // The rest is in the socket for another reader.
        let mut socket = std::net::TcpStream::from(r.remove(id).unwrap());
        let mut next = [0; 1000];
        socket.read_exact(&mut next).unwrap();
        assert!(next[..] == pattern(5, sum, 1000));
        // And with the limit taken off, the receiver goes on.
        let again = r.add(OwnedFd::from(socket)).unwrap();
        reader.seen.remove(&id);
        reader.expect(again, 5);
        reader.seen.get_mut(&again).unwrap().bytes = sum + 1000;
        r.limit(again, Some(10)).unwrap();
        r.limit(again, None).unwrap();
        drop(a);
        reader.until(&mut r, Reader::all_ended);
        assert_eq!(reader.bytes(), 200_000);
    }
}

/// A limit that is set while a receive is under way holds as soon as the call returns.
#[test]
fn a_limit_in_the_middle() {
    for backend in ALL {
        let (mut a, b) = tcp_pair();
        let mut r = receiver(backend, |_| {});
        let mut reader = Reader::default();
        let id = r.add(b.into()).unwrap();
        reader.expect(id, 6);
        write_stream(&mut a, 6, 100_000, 100_000);
        reader.until(&mut r, |x| x.seen[&id].bytes == 100_000);
        r.limit(id, Some(77)).unwrap();
        a.write_all(&pattern(6, 100_000, 5000)).unwrap();
        reader.until(&mut r, |x| x.seen[&id].bytes >= 100_077);
        assert_eq!(reader.turn(&mut r, Duration::from_millis(10)), 0);
        assert_eq!(reader.bytes(), 100_077);
    }
}

#[test]
fn datagrams_keep_their_boundaries() {
    for backend in ALL {
        let a = UdpSocket::bind("127.0.0.1:0").unwrap();
        let b = UdpSocket::bind("127.0.0.1:0").unwrap();
        a.connect(b.local_addr().unwrap()).unwrap();
        let mut r = receiver(backend, |_| {});
        r.add(b.into()).unwrap();
        let lengths = [0, 1, 0, 1400, 60_000, 0, 9];
        for (seed, len) in lengths.into_iter().enumerate() {
            a.send(&pattern(seed, 0, len)).unwrap();
        }
        let mut batch = Vec::new();
        while batch.len() < lengths.len() {
            assert_ne!(r.recv(&mut batch, Some(LONG)).unwrap(), 0, "{batch:?}");
        }
        for (seed, (arrival, len)) in batch.iter().zip(lengths).enumerate() {
            let What::Data(lease) = &arrival.what else { panic!("{arrival:?}") };
            assert!(**lease == pattern(seed, 0, len)[..], "datagram {seed}");
        }
    }
}

#[test]
fn what_is_no_socket_is_refused() {
    for backend in ALL {
        let mut r = receiver(backend, |o| o.max_connections = 1);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(matches!(r.add(file.into()).unwrap_err().error, RecvError::NotASocket(_)));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let refused = r.add(listener.into()).unwrap_err();
        assert_eq!(refused.error.errno(), Some(libc::EINVAL), "{refused}");
        // It comes back, and still listens.
        let listener = TcpListener::from(refused.socket);
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.accept().unwrap();
        assert_eq!(r.recv(&mut Vec::new(), Some(Duration::ZERO)).unwrap(), 0);
    }
}

/// A connection beyond the limit comes back, and is as good as before.
#[test]
fn what_is_not_taken_comes_back() {
    for backend in ALL {
        let mut r = receiver(backend, |o| o.max_connections = 1);
        let (_a, b) = tcp_pair();
        let (mut c, d) = tcp_pair();
        let first = r.add(b.into()).unwrap();
        let refused = r.add(d.into()).unwrap_err();
        assert!(matches!(refused.error, RecvError::TooManyConnections(1)));
        drop(r.remove(first).unwrap());
        let mut reader = Reader::default();
        reader.expect(r.add(refused.socket).unwrap(), 7);
        write_stream(&mut c, 7, 10_000, 10_000);
        drop(c);
        reader.until(&mut r, Reader::all_ended);
        assert_eq!(reader.bytes(), 10_000);
    }
}

/// For who has no use for a socket that is refused.
fn add_or_close(r: &mut Receiver, socket: OwnedFd) -> Result<ConnectionId, RecvError> {
    Ok(r.add(socket)?)
}

/// The system refuses to watch a socket: it comes back, and nothing is left in the receiver.
#[test]
fn what_the_system_refuses_comes_back() {
    let done = std::thread::spawn(|| {
        let mut r = receiver(RecvBackend::Plain, |_| {});
        refuse(libc::SYS_epoll_ctl, libc::EPERM);
        let (mut a, b) = tcp_pair();
        let refused = r.add(b.into()).unwrap_err();
        assert_eq!((refused.error.errno(), r.connections()), (Some(libc::EPERM), 0));
        let mut b = TcpStream::from(refused.socket);
        a.write_all(b"still open").unwrap();
        let mut got = [0; 10];
        b.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still open");
        assert_eq!(add_or_close(&mut r, b.into()).unwrap_err().errno(), Some(libc::EPERM));
        assert_eq!(a.read(&mut got).unwrap(), 0, "it was closed");
    });
    done.join().unwrap();
}

#[test]
fn options_are_checked() {
    use zerowire::recv::RecvOptions;
    let new = |o: RecvOptions| Receiver::new(o).map(|_| ());
    for backend in ALL {
        let o = RecvOptions::default().backend(backend);
        assert!(matches!(new(o.clone().buffer_bytes(100)), Err(RecvError::BufferBytes(100))));
        assert!(matches!(new(o.clone().buffers(1)), Err(RecvError::Buffers(1))));
        assert!(matches!(new(o.buffers(40_000)), Err(RecvError::Buffers(40_000))));
    }
    let (_, b) = tcp_pair();
    let mut r = receiver(RecvBackend::Plain, |_| {});
    let id = r.add(b.into()).unwrap();
    assert!(r.limit(id, None).is_ok());
}

/// An empty message of a unix socket is one, also where the end has come behind those after it.
#[test]
fn an_empty_message_is_not_the_end() {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    for backend in ALL {
        for closes_first in [false, true] {
            let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
            let (a, b) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
            let mut r = receiver(backend.clone(), |_| {});
            let write = || {
                for message in [&b"one"[..], b"", b"", b"two"] {
                    send(&a, message, SendFlags::empty()).unwrap();
                }
                rustix::net::shutdown(&a, rustix::net::Shutdown::Write).unwrap();
            };
            if closes_first {
                write();
            }
            r.add(b).unwrap();
            if !closes_first {
                write();
            }
            let (mut batch, mut got) = (Vec::new(), Vec::new());
            while !got.contains(&None) {
                assert!(r.recv(&mut batch, Some(LONG)).unwrap() > 0, "{backend:?}: {got:?}");
                got.extend(batch.drain(..).map(|arrival| match arrival.what {
                    What::Data(lease) => Some(lease.to_vec()),
                    What::End => None,
                    other => panic!("{backend:?}: {other:?}"),
                }));
            }
            let want = [&b"one"[..], b"", b"", b"two"].map(|message| Some(message.to_vec()));
            assert_eq!(got, [&want[..], &[None]].concat(), "{backend:?}, closed first: {closes_first}");
        }
    }
}
