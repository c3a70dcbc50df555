//! From a guest that keeps to the rules to a host program that reads when it likes. Buffers have 4
//! KiB to 256 KiB; the program's socket keeps more than the small ones.

use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};

use crate::support::end::{End, Habit, bytes};
use proptest::prelude::*;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use zerowire_vsock::VsockLimits;
use zerowire_vsock::packet::{HOST_CID, Kind, Op, SEQ_EOM};
use zerowire_vsock::testing::{Guest, Harness, Layout};

/// What the socket of a program keeps at least, bytes.
const SOCKET_BYTES: u32 = 192 << 10;

const PORT: u32 = 5;

/// Turns until something that must come has come.
const PATIENCE: u32 = 100;

/// The device, a guest on it, and its connection to a program.
struct World<P> {
    harness: Harness,
    guest: Guest,
    end: End,
    program: P,
    buffer: u32,
    /// Bytes that the program has read.
    read: u32,
    _dir: tempfile::TempDir,
}

impl<P> World<P> {
    /// Opens the connection; `bind` makes the listening socket, `accept` the program's.
    fn open<L>(
        kind: Kind,
        buffer: u32,
        bind: impl FnOnce(&std::path::Path) -> L,
        accept: impl FnOnce(&L) -> P,
    ) -> Self {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        let limits = VsockLimits::default().buffer_bytes(buffer);
        let mut harness = Harness::new(dir.path(), &[3], limits).expect("a device");
        let listener = bind(&dir.path().join(format!("3_{PORT}")));
        let mut guest = Guest::new().expect("memory");
        harness.set_memory(0, guest.memory());
        harness.start(0, &guest).expect("rings");
        let mut end = End::new((3, 1000), (HOST_CID, PORT), kind, Habit::Half, 64 << 10, buffer);
        end.say(Op::Request, 0);
        assert!(guest.post(4096, Layout(0)) && end.push(&mut guest, Layout(0)));
        harness.rest();
        end.pull(&mut guest);
        assert!(end.open && end.peer_alloc == buffer, "{end:?}");
        let program = accept(&listener);
        Self { harness, guest, end, program, buffer, read: 0, _dir: dir }
    }

    /// The guest has buffers and takes what comes, until the device has nothing more to do.
    fn settle(&mut self) {
        for _ in 0..PATIENCE {
            self.end.push(&mut self.guest, Layout(0));
            while self.guest.post(4096, Layout(0)) {}
            self.harness.rest();
            if !self.end.pull(&mut self.guest) && self.end.out.is_empty() {
                break;
            }
        }
        assert!(self.end.out.is_empty() && !self.end.gone, "{:?}", self.end);
    }

    /// What either side does, but for the program's reading.
    fn act(&mut self, what: u8, n: u32) {
        match what {
            0 | 1 => {
                self.harness.turn();
            }
            2 => {
                self.end.push(&mut self.guest, Layout(n as u8));
            }
            3 => {
                self.end.pull(&mut self.guest);
            }
            4 => {
                self.guest.post(45 + n as usize % 5000, Layout(n as u8));
            }
            5 if n.is_multiple_of(4) => self.end.say(Op::CreditRequest, 0),
            6 => self.harness.rest(),
            _ => {}
        }
    }
}

type Stream = World<UnixStream>;

impl Stream {
    fn new(buffer: u32) -> Self {
        let bind = |path: &_| UnixListener::bind(path).expect("a listening socket");
        Self::open(Kind::Stream, buffer, bind, |listener| {
            let (stream, _) = listener.accept().expect("a connection");
            stream.set_nonblocking(true).expect("non-blocking");
            stream
        })
    }

    /// The program reads up to `n` bytes.
    fn read(&mut self, n: usize) -> usize {
        let mut buffer = vec![0; n];
        match self.program.read(&mut buffer) {
            Ok(len) => {
                assert!(len > 0 || n == 0, "an end that nobody made");
                assert!(
                    buffer[..len] == bytes(self.read, len as u32),
                    "bytes lost, doubled, changed or out of order"
                );
                self.read += len as u32;
                len
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}");
                0
            }
        }
    }

    /// The guest has credit for what the program has read, and some ahead of that. Ahead is what
    /// the socket keeps beside a buffer full. Or it is what may be unread while the kernel calls
    /// the socket writable: a quarter of its room.
    fn check(&self) {
        let usual = rustix::net::sockopt::socket_send_buffer_size(&self.program).expect("a size") as u32;
        let room = usual.max(2 * self.buffer.max(SOCKET_BYTES));
        let ahead = SOCKET_BYTES.saturating_sub(self.buffer).max(room / 4);
        let (given, read) = (self.end.peer_forwarded, self.read);
        assert!(
            given <= read + ahead,
            "credit again for {given} bytes, of which {read} were read: {}",
            self.buffer
        );
        let unread = self.end.sent - read;
        assert!(unread <= self.buffer + ahead, "{unread} bytes are under way");
    }

    fn send(&mut self, n: u32) -> u32 {
        if n > 0 { self.end.send(n, 0) } else { 0 }
    }
}

/// The guest has used up its credit. The device could give most of it again, but the guest has no
/// buffer for that news. The program reads nothing: there is nothing to do until either changes.
#[test]
fn a_device_rests_while_its_guest_has_no_buffer_for_news_of_credit() {
    // The socket keeps two bytes fewer beside a buffer full.
    let buffer = SOCKET_BYTES / 2 + 1;
    let mut w = Stream::new(buffer);
    while w.send(6144) > 0 {}
    assert_eq!(w.end.credit(), 0);
    w.end.push(&mut w.guest, Layout(1));
    w.harness.rest();
    w.settle();
    assert_eq!(w.end.credit(), buffer - 2);
    w.check();
    // The rest comes unasked, although two bytes are little.
    while w.read(1 << 16) > 0 {}
    w.settle();
    assert_eq!((w.read, w.end.credit()), (buffer, buffer));
}

fn buffer() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => Just(4096u32), 2 => 4096u32..20_000, 2 => 20_000u32..190_000, 1 => Just(SOCKET_BYTES), 1 => SOCKET_BYTES..=256 << 10,
    ]
}

fn sizes() -> impl Strategy<Value = u32> {
    prop_oneof![2 => 1u32..200, 3 => 1u32..5000, 3 => 4000u32..17_000]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_byte_arrives_and_credit_comes_again_with_reading(
        buffer in buffer(),
        actions in proptest::collection::vec((0u8..16, sizes()), 0..300),
    ) {
        let mut w = Stream::new(buffer);
        for (what, n) in actions {
            match what {
                7..=11 => {
                    w.send(n);
                },
                12 | 13 => {
                    w.read(n as usize);
                },
                // All that it may, packet by packet.
                14 => {
                    for _ in 0..64 {
                        w.send(n);
                    }
                }
                15 if n.is_multiple_of(3) => {
                    // A program that has read everything has its guest told, unasked, of more than
                    // half.
                    for _ in 0..PATIENCE {
                        w.settle();
                        while w.read(1 << 16) > 0 {}
                        if w.read == w.end.sent {
                            break;
                        }
                    }
                    w.settle();
                    w.check();
                    prop_assert_eq!(w.read, w.end.sent);
                    prop_assert!(w.end.credit() >= buffer / 2, "{} of {} bytes", w.end.credit(), buffer);
                }
                _ => w.act(what, n),
            }
            w.check();
        }
        // The guest sends as much again as the socket keeps, without asking, to a program that
        // reads whatever is there.
        let goal = w.end.sent + 2 * (buffer + SOCKET_BYTES);
        let mut still = 0;
        while w.read < goal {
            let before = w.read;
            while w.end.sent < goal && w.send(goal - w.end.sent) > 0 {}
            w.settle();
            w.check();
            while w.read(10_000) > 0 {}
            still = if w.read > before { 0 } else { still + 1 };
            prop_assert!(still < PATIENCE, "stuck: {} of {} bytes, {:?}", w.read, goal, w.end);
        }
        // Asked, the device tells of all.
        w.end.say(Op::CreditRequest, 0);
        w.settle();
        prop_assert_eq!(w.end.credit(), buffer);
        prop_assert_eq!(w.harness.held_bytes(0), 0);
        prop_assert_eq!(w.harness.totals(0).transmit.bytes, u64::from(goal));
    }

    /// Messages up to the whole buffer, which come in parts, to a program that takes them when it
    /// likes.
    #[test]
    fn messages_arrive_whole_and_credit_comes_for_the_rest_of_one(
        buffer in buffer(),
        messages in proptest::collection::vec(prop_oneof![Just(100u32), 0u32..=100], 1..12),
        actions in proptest::collection::vec((0u8..12, sizes()), 0..200),
    ) {
        let mut w = World::open(Kind::SeqPacket, buffer, listen_messages, |listener| {
            rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC).expect("a connection")
        });
        // No message of no bytes: to the program it looks like the end.
        let messages: Vec<u32> = messages.iter().map(|part| (buffer * part / 100).max(1)).collect();
        let (mut at, mut sent, mut got) = (0, 0, Vec::new());
        let mut room = vec![0; buffer as usize + 1];
        let mut send = |w: &mut World<OwnedFd>, n: u32| {
            let Some(len) = messages.get(at) else { return };
            let part = n.min(len - sent);
            sent += w.end.send(part, if part == len - sent { SEQ_EOM } else { 0 });
            if sent == *len {
                (at, sent) = (at + 1, 0);
            }
        };
        let mut read = |w: &mut World<OwnedFd>, got: &mut Vec<u32>| {
            match rustix::net::recv(&w.program, &mut room[..], RecvFlags::empty()) {
                Ok((n, _)) => {
                    assert!(room[..n] == bytes(w.read, n as u32), "bytes lost, doubled, changed or out of order");
                    w.read += n as u32;
                    got.push(n as u32);
                    true
                }
                Err(e) => {
                    assert_eq!(e, rustix::io::Errno::AGAIN);
                    false
                }
            }
        };
        for (what, n) in actions {
            match what {
                7..=9 => send(&mut w, n),
                10 => {
                    read(&mut w, &mut got);
                },
                11 => (0..8).for_each(|_| send(&mut w, n)),
                _ => w.act(what, n),
            }
        }
        let mut still = 0;
        while got.len() < messages.len() {
            let before = (got.len(), w.end.sent);
            send(&mut w, u32::MAX);
            w.settle();
            while read(&mut w, &mut got) {}
            still = if (got.len(), w.end.sent) == before { still + 1 } else { 0 };
            prop_assert!(still < PATIENCE, "stuck: {} of {} messages, {:?}", got.len(), messages.len(), w.end);
        }
        prop_assert_eq!(&got, &messages);
        w.settle();
        prop_assert!(w.end.credit() >= buffer / 2, "{} of {} bytes", w.end.credit(), buffer);
        prop_assert_eq!(w.harness.held_bytes(0), 0);
    }
}

fn listen_messages(path: &std::path::Path) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a socket");
    rustix::net::bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("a free path");
    rustix::net::listen(&socket, 4).expect("listening");
    socket
}
