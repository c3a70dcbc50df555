//! What arrives is what was given: sizes, segments, modes, over TCP, UDP and unix sockets; and what
//! the ledger says.

use crate::support::sockets::{area, lease, pattern, sender, set_int, socket_options, tcp_pair, udp_pair};
use std::io::{Read, Write};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::Arc;
use std::time::Duration;
use zerowire::area::{Area, MappedFile};
use zerowire::send::{Notifications, Payload, Segment, SendError, SendMode};

const LONG: Duration = Duration::from_secs(20);
const MODES: [SendMode; 3] = [SendMode::Copy, SendMode::ZeroCopy, SendMode::Auto];
const SIZES: [usize; 15] =
    [1, 2, 10, 100, 255, 256, 1000, 4096, 4097, 10_000, 30_000, 65_000, 100_000, 262_144, 1 << 20];

/// `bytes` in `n` segments of nearly the same length, of all kinds of memory in turn.
fn pieces(bytes: &[u8], n: usize, area: &Area) -> Payload {
    let each = bytes.len().div_ceil(n).max(1);
    bytes
        .chunks(each)
        .enumerate()
        .map(|(i, c)| match i % 5 {
            0 => Segment::Vec(c.to_vec()),
            1 => Segment::Bytes(bytes::Bytes::copy_from_slice(c)),
            2 => Segment::Shared(Arc::from(c)),
            3 if c.len() <= area.buffer_bytes() => lease(area, c),
            4 if c.len() <= area.buffer_bytes() => {
                let mut l = area.lease().unwrap();
                l[..c.len()].copy_from_slice(c);
                Segment::Frozen(l.freeze(), 0..c.len())
            }
            _ => Segment::Vec(c.to_vec()),
        })
        .collect()
}

#[test]
fn tcp_carries_all_sizes_and_segments() {
    for mode in MODES {
        let area = area(1024, 65_536);
        let (a, mut b) = tcp_pair();
        let mut s = sender(a, socket_options(mode));
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            b.read_to_end(&mut got).unwrap();
            got
        });
        let mut want = Vec::new();
        let mut n = 0;
        for (i, size) in SIZES.into_iter().enumerate() {
            let bytes = pattern(i, size);
            want.extend_from_slice(&bytes);
            s.send(bytes).unwrap();
            n += 1;
        }
        for segments in 1..=64 {
            let bytes = pattern(segments, 8000 + segments);
            want.extend_from_slice(&bytes);
            s.send(pieces(&bytes, segments, &area)).unwrap();
            n += 1;
        }
        s.wait_all(LONG).unwrap();
        assert_eq!(area.free(), area.buffers(), "{mode:?}: buffers are back");
        let mut told = 0;
        while let Some(c) = s.next_completion() {
            told += c.tickets();
        }
        assert_eq!(told, n);
        let t = s.counters().snapshot();
        assert_eq!((t.frames, t.bytes), (n as u64, want.len() as u64), "{mode:?} {t:?}");
        match mode {
            SendMode::Copy => assert_eq!(t.copied_bytes["asked"], want.len() as u64),
            // A receiver on this machine: the kernel copies all of it, and says so.
            SendMode::ZeroCopy => assert_eq!(t.copied_bytes["kernel"], want.len() as u64, "{t:?}"),
            SendMode::Auto => assert_eq!(t.zero_copied_bytes, 0, "{t:?}"),
        }
        drop(s);
        assert!(reader.join().unwrap() == want, "{mode:?}: other bytes arrived");
    }
}

#[test]
fn udp_carries_all_sizes_and_segments() {
    for mode in MODES {
        let area = area(1024, 65_536);
        let (a, b) = udp_pair();
        b.set_read_timeout(Some(LONG)).unwrap();
        let mut s = sender(a, socket_options(mode));
        let mut got = vec![0; 70_000];
        let mut check = |s: &mut zerowire::send::Sender, p: Payload, want: &[u8]| {
            s.send(p).unwrap();
            let n = b.recv(&mut got).unwrap();
            assert!(got[..n] == *want, "{mode:?}: {n} other bytes arrived for {}", want.len());
        };
        let sizes = [0, 1, 10, 100, 1000, 1472, 4096, 10_000, 30_000, 65_000, 65_507];
        for (i, size) in sizes.into_iter().enumerate() {
            let bytes = pattern(i, size);
            check(&mut s, bytes.clone().into(), &bytes);
        }
        let mut scattered = 0;
        for segments in 1..=64 {
            let bytes = pattern(segments, 9000 + segments);
            let p = pieces(&bytes, segments, &area);
            // More pieces than a lent datagram may have: gathered.
            scattered += u64::from(p.segments().len() > 17) * bytes.len() as u64;
            check(&mut s, p, &bytes);
        }
        s.wait_all(LONG).unwrap();
        let t = s.counters().snapshot();
        if mode == SendMode::ZeroCopy {
            // A few with 17 pieces and fewer may lie across more pages than that.
            assert!(t.copied_bytes["scattered"] >= scattered, "{t:?}");
            assert!(t.copied_bytes["scattered"] < t.bytes, "{t:?}");
            assert_eq!(t.copied_total(), t.bytes, "{t:?}");
        }
        assert_eq!(area.free(), area.buffers());
    }
}

#[test]
fn many_datagrams_go_in_few_calls() {
    for mode in MODES {
        let (a, b) = udp_pair();
        b.set_read_timeout(Some(LONG)).unwrap();
        // A lent datagram is charged whole pages there; 40 that cross a page's end are more than
        // the usual buffer.
        set_int(&b, libc::SO_RCVBUF, 1 << 20);
        let mut s = sender(a, socket_options(mode));
        let mut all: Vec<Payload> = (0..40usize).map(|i| pattern(i, 400 + i).into()).collect();
        let first = s.next_ticket();
        assert_eq!(s.send_many(&mut all).unwrap(), 40);
        assert!(all.is_empty());
        assert_eq!(s.next_ticket().since(first), 40);
        let mut got = [0; 2000];
        for i in 0..40 {
            let n = b.recv(&mut got).unwrap();
            assert!(got[..n] == pattern(i, 400 + i), "datagram {i}");
        }
        s.wait_all(LONG).unwrap();
        let t = s.counters().snapshot();
        assert_eq!(t.frames, 40);
        // Auto changes its way every few sends while it measures.
        let most = if mode == SendMode::Auto { 10 } else { 2 };
        assert!(t.system_calls <= most, "{mode:?}: {} calls", t.system_calls);
    }
}

#[test]
fn segmentation_cuts_a_payload_into_datagrams() {
    for mode in [SendMode::Copy, SendMode::ZeroCopy] {
        let (a, b) = udp_pair();
        b.set_read_timeout(Some(LONG)).unwrap();
        let mut s = sender(a, socket_options(mode).segment_bytes(Some(1400)));
        let bytes = pattern(3, 1400 * 20 + 7);
        s.send(bytes.clone()).unwrap();
        let mut got = [0; 2000];
        for want in bytes.chunks(1400) {
            let n = b.recv(&mut got).unwrap();
            assert!(got[..n] == *want, "{mode:?}");
        }
        s.wait_all(LONG).unwrap();
    }
    let (a, _b) = tcp_pair();
    let e = zerowire::send::Sender::new(a.into(), socket_options(SendMode::Copy).segment_bytes(Some(1400)));
    assert!(matches!(e.unwrap_err().error, zerowire::send::SendError::Segments(1400)));
}

#[test]
fn files_are_sent_and_truncated_files_do_not_kill() {
    let mut t = tempfile::NamedTempFile::new().unwrap();
    let bytes = pattern(5, 300_000);
    t.write_all(&bytes).unwrap();
    let file = MappedFile::open(t.path()).unwrap();
    for mode in MODES {
        let (a, mut b) = tcp_pair();
        let mut s = sender(a, socket_options(mode));
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            b.read_to_end(&mut got).unwrap();
            got
        });
        s.send(file.slice(1..250_001).unwrap()).unwrap();
        s.wait_all(LONG).unwrap();
        drop(s);
        assert!(reader.join().unwrap() == bytes[1..250_001], "{mode:?}");
    }
    t.as_file().set_len(4096).unwrap();
    for mode in [SendMode::Copy, SendMode::ZeroCopy] {
        let (a, _b) = udp_pair();
        let mut s = sender(a, socket_options(mode));
        let e = s.send(file.slice(100_000..110_000).unwrap()).unwrap_err();
        assert_eq!(e.errno(), Some(libc::EFAULT), "{e}");
        // Gathered: read with pread, which finds the end.
        let many: Payload = (0..20).map(|_| Segment::File(file.slice(100_000..100_100).unwrap())).collect();
        assert!(s.send(many).is_err());
        s.send(vec![1, 2, 3]).unwrap();
        s.wait_all(LONG).unwrap();
    }
}

#[test]
fn unix_sockets_copy_and_say_why() {
    let (a, mut b) = UnixStream::pair().unwrap();
    let mut s = sender(a, socket_options(SendMode::ZeroCopy));
    s.send(pattern(1, 5000)).unwrap();
    let mut got = [0; 5000];
    b.read_exact(&mut got).unwrap();
    assert!(got[..] == pattern(1, 5000));
    assert_eq!(s.counters().snapshot().copied_bytes["unsupported"], 5000);
    assert!(s.path().contains("unix"), "{}", s.path());
    let (a, b) = UnixDatagram::pair().unwrap();
    let mut s = sender(a, socket_options(SendMode::Auto));
    // sendmsg takes 1024 pieces: more are gathered.
    let many: Payload = (0..1500).map(|i| Segment::Vec(vec![i as u8])).collect();
    s.send(many).unwrap();
    let mut got = [0; 2000];
    assert_eq!(b.recv(&mut got).unwrap(), 1500);
    assert_eq!(s.counters().snapshot().copied_bytes["scattered"], 1500);
    assert_eq!(s.outstanding(), 0);
    rustix::net::sockopt::set_socket_send_buffer_size(s.as_fd(), 8192).unwrap();
    let e = s.send(vec![0; 50_000]).unwrap_err();
    assert!(matches!(e, SendError::TooLong { len: 50_000 }), "{e}");
    assert!(e.to_string().contains("a unix socket: less than SO_SNDBUF"), "{e}");
}

#[test]
fn synchronous_notifications_leave_nothing_lent() {
    let (a, b) = udp_pair();
    let mut s = sender(a, socket_options(SendMode::ZeroCopy).notifications(Notifications::EachOne));
    let mut got = vec![0; 70_000];
    for i in 0..50 {
        let t = s.send(pattern(i, 30_000)).unwrap();
        assert_eq!(s.outstanding(), 0);
        assert_eq!(s.next_completion().map(|c| (c.first, c.last, c.copied)), Some((t, t, true)));
        b.recv(&mut got).unwrap();
    }
}

#[test]
fn payloads_come_back_by_on_done() {
    let (a, b) = udp_pair();
    let mut s = sender(a, socket_options(SendMode::ZeroCopy));
    let back = Arc::new(std::sync::Mutex::new(Vec::new()));
    let to = back.clone();
    s.on_done(move |t, p, copied| to.lock().unwrap().push((t.number(), p.len(), copied)));
    let mut got = vec![0; 70_000];
    for len in [10, 20_000] {
        s.send(vec![7; len]).unwrap();
        b.recv(&mut got).unwrap();
    }
    s.wait_all(LONG).unwrap();
    assert_eq!(*back.lock().unwrap(), [(0, 10, true), (1, 20_000, true)]);
}
