//! Guests that let less be under way than they may, whatever number that is, and never ask for
//! credit: when everything was read, they know.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::PATIENCE;
use crate::support::raw::{RawConn, RawGuest};
use crate::support::vsock::{Vm, VsockBackend, accept, pattern};
use zerowire::recv::vsock::{Dequeued, MappedListener, MappedOptions};
use zerowire_guest::vsock::{HOST_CID, Op, PacketHeader, SocketType};

const PORT: u32 = 9;

/// What a guest lets be under way, bytes.
const CAPS: [usize; 9] = [1, 2, 777, 4096, 32_768, 65_536, 131_071, 131_072, 262_144];

/// Payload of a packet at most, bytes: a transmit slot of the guest's.
const PACKET: usize = 32 << 10;

/// How often a guest sends as much as it lets be under way.
const ROUNDS: usize = 4;

/// `SEQ_EOM`.
const END: u32 = 1;

/// Sends as much as may be under way, in packets, and waits until the guest knows that all of it
/// has left.
fn send_and_wait(guest: &mut RawGuest, conn: &mut RawConn, cap: usize, message: bool) {
    let bytes = pattern(cap, 1);
    let mut packets = bytes.chunks(PACKET).peekable();
    while let Some(packet) = packets.next() {
        let last = packets.peek().is_none();
        guest.send(conn, packet, if message && last { END } else { 0 });
    }
    loop {
        let (header, _) = guest.next();
        if header.dst_port == conn.header.src_port && header.fwd_cnt == conn.sent {
            return;
        }
    }
}

/// Reads and forgets, in a thread that ends with the stream.
fn drain(mut stream: UnixStream) {
    stream.set_read_timeout(None).expect("no timeout");
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
    });
}

#[test]
fn a_stream_goes_on_whatever_its_guest_lets_be_under_way() {
    for buffer in [262_144, 1 << 20] {
        let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(buffer)]);
        let mut guest = RawGuest::start(&backend, "vm");
        let listener = backend.listen("vm", PORT);
        for cap in CAPS {
            let mut conn = guest.open(HOST_CID, PORT, SocketType::Stream);
            drain(accept(&listener));
            for _ in 0..ROUNDS {
                send_and_wait(&mut guest, &mut conn, cap, false);
            }
            guest.say(&conn, Op::Rst, 0);
        }
    }
}

#[test]
fn messages_go_on_whatever_their_guest_lets_be_under_way() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(1 << 20)]);
    let mut guest = RawGuest::start(&backend, "vm");
    let listener = backend.listen_messages("vm", PORT);
    // A longer message is none to a unix socket.
    for cap in CAPS.into_iter().filter(|c| *c < 200_000) {
        let mut conn = guest.open(HOST_CID, PORT, SocketType::SeqPacket);
        let messages = listener.accept();
        for _ in 0..ROUNDS {
            std::thread::scope(|scope| {
                scope.spawn(|| assert_eq!(messages.recv().len(), cap));
                send_and_wait(&mut guest, &mut conn, cap, true);
            });
        }
        guest.say(&conn, Op::Rst, 0);
    }
}

/// The program reads late, when the guest waits already: nothing but the program's reading tells
/// the device of it.
#[test]
fn a_guest_hears_of_what_is_read_late() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3).buffer(1 << 20)]);
    let mut guest = RawGuest::start(&backend, "vm");
    let listener = backend.listen("vm", PORT);
    for cap in [4096, 65_536, 262_144] {
        let mut conn = guest.open(HOST_CID, PORT, SocketType::Stream);
        let mut stream = accept(&listener);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                    assert!(crate::support::vsock::read_exact(&mut stream, cap) == pattern(cap, 1));
                }
            });
            for _ in 0..ROUNDS {
                send_and_wait(&mut guest, &mut conn, cap, false);
            }
        });
        guest.say(&conn, Op::Rst, 0);
    }
}

#[test]
fn a_mapped_connection_goes_on_whatever_its_guest_lets_be_under_way() {
    let backend = VsockBackend::one();
    let mut guest = RawGuest::start(&backend, "vm");
    let map = PathBuf::from(format!("{}.map", backend.uds("vm").display()));
    for kind in [SocketType::Stream, SocketType::SeqPacket] {
        let message = kind == SocketType::SeqPacket;
        let options = if message { MappedOptions::seqpacket() } else { MappedOptions::stream() };
        let listener =
            MappedListener::bind(&map, PORT, &options.credit(1 << 20)).unwrap_or_else(|e| panic!("{e}"));
        for cap in CAPS {
            let mut conn = guest.open(HOST_CID, PORT, kind);
            let program = listener.accept_within(Some(PATIENCE)).expect("accepted").expect("in time");
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut got = 0;
                    while got < (ROUNDS * cap) as u64 {
                        match program.dequeue().unwrap_or_else(|e| panic!("{e}")) {
                            Dequeued::Window(w) => got += w.len(),
                            Dequeued::NotYet => {
                                assert!(
                                    program.wait(Some(PATIENCE)).expect("it waits"),
                                    "{got} bytes of {cap}"
                                );
                            }
                            Dequeued::End => panic!("the end after {got} bytes"),
                        }
                    }
                });
                for _ in 0..ROUNDS {
                    send_and_wait(&mut guest, &mut conn, cap, message);
                }
            });
            guest.say(&conn, Op::Rst, 0);
        }
    }
}

/// Between two guests: the receiver has room for all, and says nothing.
#[test]
fn a_sender_to_a_sibling_goes_on_whatever_it_lets_be_under_way() {
    let backend = VsockBackend::start(&[Vm::new("a", 3), Vm::new("b", 4)]);
    let (mut a, mut b) = (RawGuest::start(&backend, "a"), RawGuest::start(&backend, "b"));
    let header = a.header(4, PORT, SocketType::Stream, Op::Request);
    a.put(&header, &[]);
    let (request, _) = b.next_of(Op::Request);
    let mut answer = b.header(3, request.src_port, SocketType::Stream, Op::Response);
    (answer.src_port, answer.buf_alloc) = (PORT, 1 << 20);
    b.put(&answer, &[]);
    a.next_of(Op::Response);
    let mut conn = RawConn { header: PacketHeader { op: Op::Rw as u16, ..header }, sent: 0 };
    let mut at_b = RawConn { header: answer, sent: 0 };
    for cap in CAPS.into_iter().filter(|c| *c <= 65_536) {
        for _ in 0..ROUNDS {
            std::thread::scope(|scope| {
                let (b, at_b) = (&mut b, &mut at_b);
                scope.spawn(move || b.recv(at_b, cap));
                send_and_wait(&mut a, &mut conn, cap, false);
            });
        }
    }
}

/// A neighbour that is busy all the time: the thread of the group is never idle.
#[test]
fn a_busy_neighbour_does_not_keep_credit_back() {
    let backend = VsockBackend::start(&[Vm::new("vm", 3), Vm::new("busy", 4)]);
    let mut guest = RawGuest::start(&backend, "vm");
    let listener = backend.listen("vm", PORT);
    let done = Arc::new(AtomicBool::new(false));
    let noise = std::thread::spawn({
        let (mut busy, done) = (backend.guest("busy"), done.clone());
        let (out, noise) = backend.open("busy", &mut busy, PORT);
        drain(noise);
        move || {
            while !done.load(Ordering::Relaxed) {
                busy.send(out, &[0; 4096]);
            }
        }
    });
    let mut conn = guest.open(HOST_CID, PORT, SocketType::Stream);
    drain(accept(&listener));
    for _ in 0..ROUNDS {
        send_and_wait(&mut guest, &mut conn, 5000, false);
    }
    done.store(true, Ordering::Relaxed);
    noise.join().expect("it ends");
}
