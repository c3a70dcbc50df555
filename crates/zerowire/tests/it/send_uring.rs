//! What arrives over io_uring is what was given: sizes, segments, registered memory or not; and
//! what the ledger says.

use crate::support::sockets::{self, area, datagram, lease, pattern, tcp_pair, udp_pair};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zerowire::area::{Area, MappedFile};
use zerowire::send::{
    Notifications, Payload, Segment, SendBackend, SendError, SendMode, SendOptions, Sender,
};
use zerowire_testkit::own_process;

const LONG: Duration = Duration::from_secs(20);
const MODES: [SendMode; 3] = [SendMode::Copy, SendMode::ZeroCopy, SendMode::Auto];

fn options(mode: SendMode) -> SendOptions {
    SendOptions::default().mode(mode).backend(SendBackend::Uring)
}

fn open(socket: impl Into<OwnedFd>, mode: SendMode, areas: &[Area]) -> Sender {
    Sender::with_areas(socket.into(), options(mode), areas).expect("io_uring is needed for this test")
}

/// `bytes` in `count` segments: leases of `area`, or owned memory, or both in turn.
fn pieces(bytes: &[u8], count: usize, area: &Area, memory: Memory) -> Payload {
    let each = bytes.len().div_ceil(count).max(1);
    let cut = bytes.chunks(each).enumerate();
    cut.map(|(i, c)| match memory {
        Memory::Area => lease(area, c),
        Memory::Owned => Segment::Vec(c.to_vec()),
        Memory::Mixed if i % 2 == 0 => lease(area, c),
        Memory::Mixed => Segment::Vec(c.to_vec()),
    })
    .collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Area,
    Owned,
    Mixed,
}

const MEMORY: [Memory; 3] = [Memory::Area, Memory::Owned, Memory::Mixed];

fn reader(mut socket: TcpStream) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut got = Vec::new();
        socket.read_to_end(&mut got).unwrap();
        got
    })
}

#[test]
fn tcp_carries_all_sizes_and_segments() {
    for (mode, memory) in MODES.into_iter().flat_map(|m| MEMORY.map(|k| (m, k))) {
        let area = area(80, 1 << 20);
        let (a, b) = tcp_pair();
        let mut s = open(a, mode, std::slice::from_ref(&area));
        assert!(s.path().contains("io_uring"), "{}", s.path());
        assert!(s.path().contains(&format!("{} bytes registered", area.len())), "{}", s.path());
        let reader = reader(b);
        let mut want = Vec::new();
        let mut count = 0;
        let mut send = |s: &mut Sender, bytes: Vec<u8>, segments| {
            s.send(pieces(&bytes, segments, &area, memory)).unwrap();
            want.extend_from_slice(&bytes);
            count += 1;
            // Buffers of the area are few.
            if area.free() < 70 {
                s.wait_all(LONG).unwrap();
            }
        };
        for size in [1, 2, 10, 100, 255, 1000, 4096, 4097, 10_000, 30_000, 65_000, 262_144, 1 << 20] {
            send(&mut s, pattern(size, size), 1);
        }
        for segments in 1..=64 {
            send(&mut s, pattern(segments, 8000 + segments), segments);
        }
        s.wait_all(LONG).unwrap();
        assert_eq!(area.free(), area.buffers(), "{mode:?}, {memory:?}: all buffers are back");
        let t = s.counters().snapshot();
        assert_eq!((t.frames, t.bytes), (count, want.len() as u64), "{t:?}");
        match mode {
            SendMode::Copy => assert_eq!(t.copied_bytes["asked"], want.len() as u64),
            // A receiver on this machine: the kernel copies, and says so.
            SendMode::ZeroCopy => assert_eq!(t.copied_bytes["kernel"], want.len() as u64, "{t:?}"),
            SendMode::Auto => assert_eq!(t.zero_copied_bytes, 0, "{t:?}"),
        }
        drop(s);
        assert!(reader.join().unwrap() == want, "{mode:?}, {memory:?}: other bytes arrived");
    }
}

#[test]
fn udp_carries_all_sizes_and_segments() {
    for (mode, memory) in MODES.into_iter().flat_map(|m| MEMORY.map(|k| (m, k))) {
        let area = area(80, 1 << 20);
        let (a, b) = udp_pair();
        b.set_read_timeout(Some(LONG)).unwrap();
        let mut s = open(a, mode, std::slice::from_ref(&area));
        let mut got = vec![0; 70_000];
        let mut check = |s: &mut Sender, p: Payload, want: &[u8]| {
            s.send(p).unwrap();
            let n = datagram(&b, &mut got);
            assert!(got[..n] == *want, "{mode:?}, {memory:?}: {n} other bytes arrived for {}", want.len());
        };
        for size in [0, 1, 10, 100, 1000, 1472, 4096, 10_000, 30_000, 65_000, 65_507] {
            let bytes = pattern(size, size);
            check(&mut s, pieces(&bytes, 1, &area, memory), &bytes);
        }
        for segments in 1..=64 {
            let bytes = pattern(segments, 9000 + segments);
            check(&mut s, pieces(&bytes, segments, &area, memory), &bytes);
            s.wait_all(LONG).unwrap();
        }
        assert_eq!(area.free(), area.buffers(), "{mode:?}, {memory:?}");
        let t = s.counters().snapshot();
        assert_eq!(t.copied_total(), t.bytes, "{t:?}");
        if mode == SendMode::ZeroCopy {
            assert!(t.copied_bytes["scattered"] >= (18..=64).map(|n| 9000 + n).sum::<u64>(), "{t:?}");
        }
        let e = s.send(vec![1; 65_508]).unwrap_err();
        assert!(matches!(e, SendError::TooLong { len: 65_508 }), "{e}");
        assert_eq!(s.outstanding(), 0, "a payload that was refused is not lent");
    }
}

#[test]
fn batches_cost_few_calls_and_keep_their_order() {
    for (mode, memory) in MODES.into_iter().flat_map(|m| MEMORY.map(|k| (m, k))) {
        let area = area(400, 2000);
        let (a, b) = udp_pair();
        sockets::set_int(&b, libc::SO_RCVBUF, 4 << 20);
        sockets::set_int(&a, libc::SO_SNDBUF, 4 << 20);
        b.set_read_timeout(Some(LONG)).unwrap();
        let mut s = open(a, mode, std::slice::from_ref(&area));
        let mut all: Vec<Payload> =
            (0..100).map(|i| pieces(&pattern(i, 400 + i), 1 + i % 3, &area, memory)).collect();
        assert_eq!(s.send_many(&mut all).unwrap(), 100);
        let mut got = [0; 2000];
        for i in 0..100 {
            let n = datagram(&b, &mut got);
            assert!(got[..n] == pattern(i, 400 + i), "{mode:?}, {memory:?}: datagram {i}");
        }
        s.wait_all(LONG).unwrap();
        assert_eq!(area.free(), area.buffers());
        let calls = s.counters().snapshot().system_calls;
        // Auto changes its way every few sends while it measures.
        let most = if mode == SendMode::Auto { 100 } else { 8 };
        assert!(calls <= most, "{mode:?}, {memory:?}: {calls} calls");
    }
}

#[test]
fn segmentation_cuts_a_payload_into_datagrams() {
    for mode in [SendMode::Copy, SendMode::ZeroCopy] {
        for memory in MEMORY {
            let area = area(80, 1 << 20);
            let (a, b) = udp_pair();
            b.set_read_timeout(Some(LONG)).unwrap();
            let options = options(mode).segment_bytes(Some(1400));
            let mut s = Sender::with_areas(a.into(), options, std::slice::from_ref(&area)).unwrap();
            let bytes = pattern(3, 1400 * 20 + 7);
            s.send(pieces(&bytes, 3, &area, memory)).unwrap();
            let mut got = [0; 2000];
            for want in bytes.chunks(1400) {
                let n = datagram(&b, &mut got);
                assert!(got[..n] == *want, "{mode:?}, {memory:?}");
            }
            s.wait_all(LONG).unwrap();
        }
    }
}

#[test]
fn partial_sends_go_on_where_they_ended() {
    for memory in MEMORY {
        let area = area(80, 1 << 20);
        let (a, b) = tcp_pair();
        sockets::set_int(&a, libc::SO_SNDBUF, 20_000);
        sockets::set_int(&b, libc::SO_RCVBUF, 20_000);
        let mut s = open(a, SendMode::ZeroCopy, std::slice::from_ref(&area));
        let bytes = pattern(9, 3 << 20);
        // Far more than both buffers hold: it goes in many parts, and in pieces that end anywhere.
        let payload = pieces(&bytes, 7, &area, memory);
        let reader = reader(b);
        let ticket = s.send(payload).unwrap();
        s.wait(ticket, LONG).unwrap();
        drop(s);
        assert!(reader.join().unwrap() == bytes, "{memory:?}: other bytes arrived");
        assert_eq!(area.free(), area.buffers());
    }
}

#[test]
fn a_stalled_receiver_bounds_what_is_lent() {
    let area = area(80, 1 << 20);
    let (a, mut b) = tcp_pair();
    let options = options(SendMode::ZeroCopy)
        .max_lent(8)
        .max_lent_bytes(1 << 20)
        .timeout(Some(Duration::from_millis(300)));
    let mut s = Sender::with_areas(a.into(), options, std::slice::from_ref(&area)).unwrap();
    let mut sent = 0;
    let error = loop {
        match s.send(pattern(sent, 200_000)) {
            Ok(_) => sent += 1,
            Err(e) => break e,
        }
        assert!(s.outstanding() <= 8 && s.outstanding_bytes() <= 1 << 20);
        assert!(sent < 10_000, "a receiver that reads nothing took all");
    };
    assert!(matches!(error, SendError::TimedOut { .. }), "{error}");
    // It goes on when the receiver does.
    let mut want = Vec::new();
    (0..sent).for_each(|i| want.extend(pattern(i, 200_000)));
    let reading = std::thread::spawn(move || {
        let mut got = Vec::new();
        b.read_to_end(&mut got).unwrap();
        got
    });
    s.wait_all(LONG).unwrap();
    drop(s);
    assert!(reading.join().unwrap() == want);
}

#[test]
fn a_peer_that_resets_gives_everything_back() {
    for mode in MODES {
        let area = area(80, 1 << 20);
        let (a, b) = tcp_pair();
        let mut s = open(a, mode, std::slice::from_ref(&area));
        let mut sent = 0;
        while sent < 60 && s.try_send(lease(&area, &pattern(sent, 1 << 16))).is_ok() {
            sent += 1;
        }
        assert!(sent > 0, "{mode:?}");
        // Unread bytes at close: the kernel answers with a reset.
        drop(b);
        let end = std::time::Instant::now() + LONG;
        let error = loop {
            match s.send(vec![1; 100]) {
                Ok(_) => assert!(std::time::Instant::now() < end, "{mode:?}: the reset was never told"),
                Err(e) => break e,
            }
        };
        assert!(matches!(error, SendError::Disconnected(_)), "{mode:?}: {error}");
        let _ = s.wait_all(LONG);
        assert_eq!((s.outstanding(), area.free()), (0, area.buffers()), "{mode:?}: all memory is back");
    }
}

#[test]
fn synchronous_notifications_leave_nothing_lent() {
    let area = area(80, 1 << 20);
    let (a, b) = udp_pair();
    let each_one = options(SendMode::ZeroCopy).notifications(Notifications::EachOne);
    let mut s = Sender::with_areas(a.into(), each_one.clone(), std::slice::from_ref(&area)).unwrap();
    let mut got = vec![0; 70_000];
    for i in 0..50 {
        let t = s.send(Payload::from(lease(&area, &pattern(i, 30_000)))).unwrap();
        assert_eq!((s.outstanding(), area.free()), (0, area.buffers()), "{i}");
        assert_eq!(s.next_completion().map(|c| (c.first, c.last, c.copied)), Some((t, t, true)));
        let n = datagram(&b, &mut got);
        assert!(got[..n] == pattern(i, 30_000), "{i}");
    }
    // On a stream as well, where a payload may go in parts.
    let (a, b) = tcp_pair();
    let mut s = Sender::with_areas(a.into(), each_one, std::slice::from_ref(&area)).unwrap();
    let reader = reader(b);
    for i in 0..10 {
        s.send(Payload::from(lease(&area, &pattern(i, 1 << 20)))).unwrap();
        assert_eq!((s.outstanding(), area.free()), (0, area.buffers()), "{i}");
    }
    assert_eq!(s.counters().snapshot().copied_bytes["kernel"], 10 << 20);
    drop(s);
    assert!(reader.join().unwrap() == (0..10).flat_map(|i| pattern(i, 1 << 20)).collect::<Vec<_>>());
}

#[test]
fn nobody_at_the_address_is_told_and_nothing_is_lost() {
    own_process!();
    let a = UdpSocket::bind("127.0.0.1:0").unwrap();
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    a.connect(gone).unwrap();
    let mut s = open(a, SendMode::ZeroCopy, &[]);
    let mut refused = 0;
    for i in 0..20 {
        match s.send(pattern(i, 1000)) {
            Ok(_) => {}
            Err(SendError::NoListener) => refused += 1,
            Err(e) => panic!("{e}"),
        }
    }
    assert!(refused > 0);
    s.wait_all(LONG).unwrap();
    assert_eq!(s.outstanding(), 0);
}

/// Each ICMP answer makes one of the next sends fail, in the middle of a batch. What was taken is
/// the first part all the same, and tickets belong to their payloads.
#[test]
fn batches_to_nobody_are_taken_from_the_front() {
    own_process!();
    for mode in [SendMode::Copy, SendMode::ZeroCopy] {
        let a = UdpSocket::bind("127.0.0.1:0").unwrap();
        let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        a.connect(gone).unwrap();
        let mut s = open(a, mode, &[]);
        let back = Arc::new(Mutex::new(Vec::new()));
        let list = back.clone();
        s.on_done(move |ticket, payload, _| {
            let first = payload.segments()[0].bytes().unwrap()[0];
            list.lock().unwrap().push((ticket.number(), first));
        });
        let (mut refused, mut wanted) = (0, Vec::new());
        for _ in 0..30 {
            let mut all: Vec<Payload> = (0..10).map(|i| vec![i; 1000].into()).collect();
            let before = s.next_ticket();
            match s.send_many(&mut all) {
                Ok(n) => assert_eq!((n, all.len()), (10, 0)),
                Err(SendError::NoListener) => refused += 1,
                Err(e) => panic!("{e}"),
            }
            let taken = 10 - all.len() as u8;
            assert_eq!(s.next_ticket().since(before), i32::from(taken));
            for (payload, i) in all.iter().zip(taken..) {
                assert_eq!(payload.segments()[0].bytes().unwrap()[0], i);
            }
            wanted.extend((0..taken).map(|i| (before.plus(i.into()).number(), i)));
        }
        assert!(refused > 0, "{mode:?}: nobody said that nobody is there");
        while s.outstanding() > 0 {
            match s.wait_all(LONG) {
                Ok(()) | Err(SendError::NoListener) => {}
                Err(e) => panic!("{e}"),
            }
        }
        let mut back = back.lock().unwrap().clone();
        back.sort_unstable();
        assert_eq!(back, wanted, "{mode:?}");
    }
}

/// The answer to one datagram makes the first of the next batch fail. The sender sends it again,
/// and reports the error.
#[test]
fn an_error_of_an_earlier_datagram_is_told_and_the_batch_arrives() {
    own_process!();
    for mode in [SendMode::Copy, SendMode::ZeroCopy] {
        // Too few to go without links, linked because they differ, and without.
        for lens in [[100; 2].as_slice(), &[100, 200, 300, 400], &[100; 6]] {
            let (a, b) = udp_pair();
            let address = b.local_addr().unwrap();
            let peer = a.local_addr().unwrap();
            drop(b);
            let mut s = open(a, mode, &[]);
            s.send(vec![255; 100]).unwrap();
            let b = UdpSocket::bind(address).unwrap();
            b.connect(peer).unwrap();
            b.set_read_timeout(Some(LONG)).unwrap();
            let mut all: Vec<Payload> = lens.iter().zip(0..).map(|(n, i)| vec![i; *n].into()).collect();
            // Told by the call that met it, or the next one.
            let mut told = 0;
            for _ in 0..2 {
                for result in [s.send_many(&mut all).map(drop), s.poll().map(drop)] {
                    match result {
                        Ok(()) => {}
                        Err(SendError::NoListener) => told += 1,
                        Err(e) => panic!("{e}"),
                    }
                }
            }
            assert_eq!((told, all.len()), (1, 0), "{mode:?} {lens:?}");
            let mut got = [0; 1000];
            let mut numbers = Vec::new();
            while numbers.len() < lens.len() {
                let n = datagram(&b, &mut got);
                assert_eq!(n, lens[usize::from(got[0])]);
                numbers.push(got[0]);
            }
            numbers.sort_unstable();
            assert!(numbers.iter().copied().eq(0..lens.len() as u8), "{mode:?} {lens:?}: {numbers:?}");
            s.wait_all(LONG).unwrap();
            assert_eq!(s.counters().snapshot().dropped_total(), 0);
        }
    }
}

#[test]
fn unix_sockets_copy_and_say_why() {
    let (a, mut b) = UnixStream::pair().unwrap();
    let mut s = open(a, SendMode::ZeroCopy, &[]);
    s.send(pattern(1, 5000)).unwrap();
    let mut got = [0; 5000];
    b.read_exact(&mut got).unwrap();
    assert!(got[..] == pattern(1, 5000));
    assert_eq!(s.counters().snapshot().copied_bytes["unsupported"], 5000);
    assert!(s.path().contains("unix"), "{}", s.path());
    let (a, b) = UnixDatagram::pair().unwrap();
    let mut s = open(a, SendMode::Auto, &[]);
    let mut all: Vec<Payload> = (0..5).map(|i| pattern(i, 500).into()).collect();
    s.send_many(&mut all).unwrap();
    let mut got = [0; 1000];
    for i in 0..5 {
        assert_eq!(b.recv(&mut got).unwrap(), 500);
        assert!(got[..500] == pattern(i, 500));
    }
}

#[test]
fn files_are_sent_and_truncated_files_do_not_kill() {
    let mut t = tempfile::NamedTempFile::new().unwrap();
    let bytes = pattern(5, 300_000);
    t.write_all(&bytes).unwrap();
    let file = MappedFile::open(t.path()).unwrap();
    let (a, b) = tcp_pair();
    let mut s = open(a, SendMode::ZeroCopy, &[]);
    let reader = reader(b);
    s.send(file.slice(1..250_001).unwrap()).unwrap();
    s.wait_all(LONG).unwrap();
    drop(s);
    assert!(reader.join().unwrap() == bytes[1..250_001]);
    t.as_file().set_len(4096).unwrap();
    for mode in [SendMode::Copy, SendMode::ZeroCopy] {
        let (a, _b) = udp_pair();
        let mut s = open(a, mode, &[]);
        let e = s.send(file.slice(100_000..110_000).unwrap()).unwrap_err();
        assert_eq!(e.errno(), Some(libc::EFAULT), "{e}");
        s.send(vec![1, 2, 3]).unwrap();
        s.wait_all(LONG).unwrap();
    }
}
