//! What is particular to `epoll_wait` and `recvmsg`.

use crate::support::streams::{LONG, receiver, tcp_pair};
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;
use zerowire::recv::{Arrival, RecvBackend, What};
use zerowire_testkit::own_process;

/// A socket that keeps errors on its queue reports them as long as they are there, also to who
/// can't read them by receiving.
#[test]
fn an_error_queue_that_nobody_reads_costs_no_time() {
    own_process!();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let here = socket.local_addr().unwrap();
    let there = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let on: libc::c_int = 1;
    // SAFETY: the value is valid for reads, and its length is given.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_RECVERR, (&raw const on).cast(), 4)
    };
    assert_eq!(result, 0);
    socket.connect(there).unwrap();
    let sender = socket.try_clone().unwrap();
    let mut r = receiver(RecvBackend::Plain, |_| {});
    let id = r.add(socket.into()).unwrap();
    sender.send(b"to nobody").unwrap();
    let mut batch = Vec::new();
    assert_eq!(r.recv(&mut batch, Some(LONG)).unwrap(), 1);
    let refused = |e: &std::io::Error| e.raw_os_error() == Some(libc::ECONNREFUSED);
    assert!(matches!(&batch[0].what, What::Failed(e) if refused(e)), "{batch:?}");
    batch.clear();

    let before = r.events().system_calls;
    assert_eq!(r.recv(&mut batch, Some(Duration::from_millis(300))).unwrap(), 0);
    let calls = r.events().system_calls - before;
    assert!(calls < 20, "{calls} system calls while nothing came");

    // Data is seen all the same.
    let peer = UdpSocket::bind(there).unwrap();
    for text in [&b"one"[..], b"two"] {
        peer.send_to(text, here).unwrap();
        assert_eq!(r.recv(&mut batch, Some(LONG)).unwrap(), 1);
        let arrival = batch.pop().unwrap();
        assert!(matches!(&arrival.what, What::Data(lease) if lease[..] == *text), "{arrival:?}");
        assert_eq!(arrival.connection, id);
    }
}

/// Every buffer is lent and a connection waits for one. New connections are accepted all the same,
/// and `recv` waits as long as its caller says.
#[test]
fn connections_are_accepted_while_no_buffer_is_free() {
    let mut r = receiver(RecvBackend::Plain, |o| (o.buffers, o.buffer_bytes, o.share) = (2, 4096, Some(2)));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    r.listen(listener.into()).unwrap();
    let ((mut a, b), (mut c, d)) = (tcp_pair(), tcp_pair());
    let (first, second) = (r.add(b.into()).unwrap(), r.add(d.into()).unwrap());
    a.write_all(&[1; 8192]).unwrap();
    let (mut held, mut batch) = (Vec::new(), Vec::new());
    while held.iter().map(|l: &zerowire::recv::Lease| l.len()).sum::<usize>() < 8192 {
        assert!(r.recv(&mut batch, Some(LONG)).unwrap() > 0);
        for Arrival { connection, what } in batch.drain(..) {
            let What::Data(lease) = what else { panic!("{what:?}") };
            assert_eq!(connection, first);
            held.push(lease);
        }
    }
    c.write_all(b"waits").unwrap();
    assert_eq!(r.recv(&mut batch, Some(Duration::from_millis(50))).unwrap(), 0);
    let connecting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        TcpStream::connect(address).unwrap()
    });
    assert_eq!(r.recv(&mut batch, Some(LONG)).unwrap(), 1);
    assert!(matches!(batch[0].what, What::Accepted(_)), "{batch:?}");
    let _open = connecting.join().unwrap();
    batch.clear();
    held.clear();
    assert_eq!(r.recv(&mut batch, Some(LONG)).unwrap(), 1);
    assert!(matches!(&batch[0].what, What::Data(l) if l[..] == *b"waits") && batch[0].connection == second);
}
