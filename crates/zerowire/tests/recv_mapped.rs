//! `TCP_ZEROCOPY_RECEIVE`: pages that can be mapped are mapped, the rest is copied, every byte arrives, and the ledger says
//! which was which.

mod streams;

use std::io::{self, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;
use streams::{LONG, Reader, pattern, receiver, tcp_pair, write_stream};
use zerowire::recv::{Arrival, Backend, Lease, What};

/// So long that a segment carries a whole page (12 bytes of it are options).
const SEGMENT: libc::c_int = 4108;
const PAGE: usize = 4096;

fn set(socket: impl AsFd, level: i32, name: i32, value: libc::c_int) {
    // SAFETY: the value is valid for reads, and its length is given.
    let result =
        unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, (&raw const value).cast(), 4) };
    assert_eq!(result, 0, "{}", io::Error::last_os_error());
}

/// A pair whose segments carry a page each.
fn page_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set(&listener, libc::IPPROTO_TCP, libc::TCP_MAXSEG, SEGMENT);
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (a, listener.accept().unwrap().0)
}

/// Reads the notifications, which nobody needs here.
fn forget_notifications(socket: &TcpStream) {
    let mut control = [0u8; 256];
    loop {
        // SAFETY: all zeros is a valid message header.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = control.len() as _;
        // SAFETY: the header and the control buffer live across the call.
        let got = unsafe {
            libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT)
        };
        if got < 0 {
            return;
        }
    }
}

/// Writes a stream from lent pages (`MSG_ZEROCOPY`), which never change.
fn write_lent(to: TcpStream, seed: usize, len: usize) {
    set(&to, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1);
    let bytes = pattern(seed, 0, len);
    let mut pages = vec![0u8; len + PAGE];
    let from = pages.as_ptr().align_offset(PAGE);
    pages[from..from + len].copy_from_slice(&bytes);
    let mut at = 0;
    while at < len {
        let n = (256 * PAGE).min(len - at);
        // SAFETY: the range lies in `pages`, which stays as it is until the socket has been closed below.
        let sent =
            unsafe { libc::send(to.as_raw_fd(), pages[from + at..].as_ptr().cast(), n, libc::MSG_ZEROCOPY) };
        if let Ok(sent) = usize::try_from(sent) {
            at += sent;
        } else {
            let e = io::Error::last_os_error();
            assert_eq!(e.raw_os_error(), Some(libc::ENOBUFS), "{e}");
        }
        forget_notifications(&to);
    }
    // A receiver that has gone with leases out has reset the connection.
    if let Err(e) = to.shutdown(std::net::Shutdown::Write) {
        assert_eq!(e.kind(), io::ErrorKind::NotConnected, "{e}");
    }
    // The other side has all of it when it closes.
    let _ = (&to).read(&mut [0]);
    drop(to);
}

#[test]
fn whole_pages_are_mapped() {
    for len in [PAGE, 100 * PAGE, 2000 * PAGE + 77] {
        let (a, b) = page_pair();
        let mut r = receiver(Backend::TcpMapped, |o| (o.buffers, o.share) = (64, Some(64)));
        let mut reader = Reader::default();
        let id = r.add(b.into()).unwrap();
        reader.expect(id, 1);
        let writer = std::thread::spawn(move || write_lent(a, 1, len));
        reader.until(&mut r, Reader::all_ended);
        assert_eq!(reader.bytes(), len);
        let ledger = r.counters().snapshot();
        let (mapped, copied) = (ledger.zero_copied_bytes, ledger.copied_bytes.get("kernel").copied());
        assert_eq!(mapped + copied.unwrap_or(0), len as u64);
        assert!(mapped as usize >= len / PAGE * PAGE * 9 / 10, "{mapped} of {len} bytes were mapped");
        drop(r);
        writer.join().unwrap();
    }
}

/// Usual segments on this machine lie anywhere in larger pages.
#[test]
fn what_cannot_be_mapped_is_copied_and_counted() {
    let (mut a, b) = tcp_pair();
    let mut r = receiver(Backend::TcpMapped, |_| {});
    let mut reader = Reader::default();
    reader.expect(r.add(b.into()).unwrap(), 2);
    let writer = std::thread::spawn(move || write_stream(&mut a, 2, 5 << 20, 100_001));
    reader.until(&mut r, Reader::all_ended);
    writer.join().unwrap();
    let ledger = r.counters().snapshot();
    let copied = ledger.copied_bytes.get("kernel").copied().unwrap_or(0);
    assert_eq!(copied + ledger.zero_copied_bytes, 5 << 20);
    assert!(copied > 4 << 20, "only {copied} bytes were copied");
    assert_eq!(r.events().system_calls, ledger.system_calls);
}

fn data(batch: &mut Vec<Arrival>) -> Vec<Lease> {
    batch.drain(..).filter_map(|a| if let What::Data(l) = a.what { Some(l) } else { None }).collect()
}

/// Mapped leases are held until nothing more comes; then they go back, and so on: the bytes stay as they were meanwhile.
#[test]
fn mapped_leases_stay_as_they_are_while_they_are_held() {
    const LEN: usize = 600 * PAGE;
    let (a, b) = page_pair();
    let mut r = receiver(Backend::TcpMapped, |o| {
        (o.buffer_bytes, o.buffers, o.share) = (4 * PAGE, 16, Some(16));
    });
    r.add(b.into()).unwrap();
    let writer = std::thread::spawn(move || write_lent(a, 3, LEN));
    let (mut batch, mut kept, mut at) = (Vec::new(), Vec::new(), 0);
    while at < LEN {
        let count = r.recv(&mut batch, Some(Duration::from_millis(20))).unwrap();
        kept.extend(data(&mut batch));
        assert!(kept.len() <= 16);
        if count == 0 {
            for lease in kept.drain(..) {
                assert!(*lease == pattern(3, at, lease.len())[..], "after {at}");
                at += lease.len();
            }
        }
    }
    drop(r);
    writer.join().unwrap();
}

/// A connection that goes while its pages are lent: the socket is let go of with the last lease, the bytes stay till then.
#[test]
fn a_connection_goes_while_its_pages_are_lent() {
    for remove in [true, false] {
        let (a, b) = page_pair();
        let mut r = receiver(Backend::TcpMapped, |o| (o.buffers, o.share) = (16, Some(16)));
        let id = r.add(b.into()).unwrap();
        let writer = std::thread::spawn(move || write_lent(a, 4, 20 * PAGE));
        let (mut batch, mut kept, mut got) = (Vec::new(), Vec::new(), 0);
        while got < 20 * PAGE {
            assert_ne!(r.recv(&mut batch, Some(LONG)).unwrap(), 0);
            kept.extend(data(&mut batch));
            got = kept.iter().map(|l| l.len()).sum();
        }
        assert!(r.counters().snapshot().zero_copied_bytes > 0, "nothing was mapped");
        let mut other = match remove {
            true => {
                drop(r.remove(id).unwrap());
                // The windows serve another connection.
                let (mut c, d) = tcp_pair();
                let id = r.add(d.into()).unwrap();
                write_stream(&mut c, 5, 100_000, 100_000);
                drop(c);
                let mut reader = Reader::default();
                reader.expect(id, 5);
                reader.until(&mut r, Reader::all_ended);
                Some(r)
            }
            false => {
                drop(r);
                None
            }
        };
        let all: Vec<u8> = kept.iter().flat_map(|l| l.iter().copied()).collect();
        assert!(all == pattern(4, 0, 20 * PAGE));
        drop(kept);
        if let Some(r) = &mut other {
            r.recv(&mut batch, Some(Duration::ZERO)).unwrap();
        }
        // It waits for the other side to close.
        writer.join().unwrap();
    }
}

/// A lease of mapped pages keeps the socket open; the last one closes it, also while the receiver waits for others without an
/// end.
#[test]
fn a_lease_that_comes_back_late_closes_the_socket_at_once() {
    let ((a, b), (mut c, d)) = (page_pair(), tcp_pair());
    let mut r = receiver(Backend::TcpMapped, |o| o.buffer_bytes = 16 * PAGE);
    let id = r.add(b.into()).unwrap();
    r.add(d.into()).unwrap();
    let (told, closed) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        write_lent(a, 3, 64 * PAGE);
        // The other side has closed.
        let _ = told.send(());
    });
    let (mut batch, mut held) = (Vec::new(), Vec::new());
    while r.counters().zero_copied_bytes.get() == 0 || held.is_empty() {
        assert!(r.recv(&mut batch, Some(LONG)).unwrap() > 0);
        held.extend(batch.drain(..).filter(|a| matches!(a.what, What::Data(_))));
    }
    drop(r.remove(id).unwrap());
    let holder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        let is_open = closed.try_recv().is_err();
        drop(held);
        let is_closed = closed.recv_timeout(Duration::from_secs(10)).is_ok();
        std::io::Write::write_all(&mut c, b"go on").unwrap();
        (is_open, is_closed)
    });
    assert_eq!(r.recv(&mut batch, None).unwrap(), 1);
    assert!(matches!(&batch[0].what, What::Data(l) if l[..] == *b"go on"), "{batch:?}");
    assert_eq!(holder.join().unwrap(), (true, true));
    writer.join().unwrap();
}

/// Slots that a connection's pages were lent under serve others, whose bytes are copied: those leases keep no socket open.
#[test]
fn other_connections_leases_keep_no_socket_open() {
    const BUFFERS: usize = 8;
    const PAGES: usize = 4;
    let (a, b) = page_pair();
    let mut r = receiver(Backend::TcpMapped, |o| {
        (o.buffer_bytes, o.buffers, o.share) = (PAGE, BUFFERS, Some(BUFFERS));
    });
    let id = r.add(b.into()).unwrap();
    let (told, closed) = std::sync::mpsc::channel();
    let writer = std::thread::spawn(move || {
        write_lent(a, 6, PAGES * PAGE);
        // The other side has closed.
        let _ = told.send(());
    });
    let (mut batch, mut held, mut got) = (Vec::new(), Vec::new(), 0);
    while got < PAGES * PAGE {
        assert_ne!(r.recv(&mut batch, Some(LONG)).unwrap(), 0);
        held.extend(data(&mut batch));
        got = held.iter().map(|l| l.len()).sum();
    }
    let mapped = r.counters().snapshot().zero_copied_bytes as usize;
    assert!(mapped >= 2 * PAGE, "only {mapped} bytes were mapped");
    drop(held);
    // Now each buffer is lent to a connection whose socket can't be mapped.
    let (mut c, d) = std::os::unix::net::UnixStream::pair().unwrap();
    let other = r.add(d.into()).unwrap();
    io::Write::write_all(&mut c, &pattern(7, 0, BUFFERS * PAGE)).unwrap();
    let mut held = Vec::new();
    while held.len() < BUFFERS {
        assert_ne!(r.recv(&mut batch, Some(LONG)).unwrap(), 0);
        for arrival in batch.drain(..).filter(|a| a.connection == other) {
            let What::Data(lease) = arrival.what else { panic!("{arrival:?}") };
            held.push(lease);
        }
    }
    drop(r.remove(id).unwrap());
    assert!(closed.recv_timeout(LONG).is_ok(), "the socket of a connection that is gone is still open");
    writer.join().unwrap();
    let all: Vec<u8> = held.iter().flat_map(|l| l.iter().copied()).collect();
    assert!(all == pattern(7, 0, BUFFERS * PAGE));
}
