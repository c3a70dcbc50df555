//! The vsock device with a hostile guest and hostile host programs, by random scripts. The fuzz
//! target `vsock_muxer` plays the same; here they are as many as every test run can afford.

use std::io::Write;
use std::os::unix::net::UnixStream;

use crate::support::harness::{one_guest, received};
use proptest::prelude::*;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use zerowire_testkit::own_process;
use zerowire_vsock::packet::{Header, Op};
use zerowire_vsock::testing::{Layout, play};
use zerowire_vsock::{TX_QUEUE, VsockLimits};

/// An action with its arguments, so that random scripts get further than random bytes.
fn action() -> impl Strategy<Value = Vec<u8>> {
    let weighted = prop_oneof![
        6 => 0u8..4, 3 => Just(4u8), 2 => Just(5u8), 3 => Just(6u8), 4 => Just(7u8), 3 => Just(8u8), 2 => Just(9u8),
        1 => Just(10u8), 1 => Just(11u8), 5 => 12u8..15, 2 => Just(15u8),
    ];
    (weighted, proptest::collection::vec(any::<u8>(), 0..9)).prop_map(|(what, with)| {
        let mut bytes = vec![what];
        bytes.extend(with);
        bytes
    })
}

/// No panic, bounded memory, every chain given back once, and the other VM's connection unharmed.
#[test]
fn nothing_that_a_guest_does_harms_another() {
    own_process!();
    let config = ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(script in proptest::collection::vec(action(), 0..150))| {
        let dir = tempfile::tempdir().expect("a directory for sockets");
        play(dir.path(), &script.concat());
    });
}

/// The program's end doesn't count as a message, even where the device reads between the last
/// message and the news of the end.
#[test]
fn the_end_of_a_program_that_sends_messages_is_no_empty_message() {
    own_process!();
    for turns in 0..8 {
        end_after(turns);
    }
}

fn end_after(turns: usize) {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let program =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
    let at = SocketAddrUnix::new(dir.path().join("3.seqpacket")).expect("an address");
    rustix::net::connect(&program, &at).expect("the device listens");
    rustix::net::send(&program, b"CONNECT 9\n", SendFlags::empty()).expect("room");
    harness.rest();
    let [(request, _)] = received(&mut guest)[..] else { panic!("one packet: the request") };
    let accept = Header {
        src_cid: 3,
        dst_cid: 2,
        src_port: request.dst_port,
        dst_port: request.src_port,
        kind: request.kind,
        op: Op::Response as u16,
        buf_alloc: 65_536,
        ..Header::default()
    };
    assert!(guest.send(&accept.to_bytes(), 0, Layout(0)));
    harness.rest();
    let mut line = [0; 32];
    let (n, _) = rustix::net::recv(&program, &mut line[..], RecvFlags::empty()).expect("a line");
    assert!(line[..n].starts_with(b"OK "));
    for message in ["", "two", ""] {
        rustix::net::send(&program, message.as_bytes(), SendFlags::empty()).expect("room");
    }
    for _ in 0..turns {
        harness.turn();
    }
    drop(program);
    harness.rest();
    let packets = received(&mut guest);
    let payload: Vec<_> = packets.iter().filter(|p| p.0.op == Op::Rw as u16).map(|p| &p.1[..]).collect();
    // Empty messages at the very end can't be told from it.
    assert_eq!(payload[..2], [&b""[..], b"two"], "{packets:?}");
    assert!(payload.len() == 2 || payload[2..] == [b""], "{packets:?}");
    let end = packets.last().expect("packets").0;
    assert_eq!((end.op, end.flags), (Op::Shutdown as u16, 3));
}

/// A guest without room answers each question; the device does not go on asking.
#[test]
fn a_guest_without_room_is_asked_once() {
    let dir = tempfile::tempdir().expect("a directory for sockets");
    let (mut harness, mut guest) = one_guest(dir.path(), VsockLimits::default());
    let mut program = UnixStream::connect(dir.path().join("3")).expect("the device listens");
    program.write_all(b"CONNECT 9\n").expect("room");
    harness.rest();
    let [(request, _)] = received(&mut guest)[..] else { panic!("one packet: the request") };
    let say = |op: Op, forwarded: u32| {
        let h = Header {
            src_cid: 3,
            dst_cid: 2,
            src_port: request.dst_port,
            dst_port: request.src_port,
            kind: request.kind,
            op: op as u16,
            buf_alloc: 4096,
            fwd_cnt: forwarded,
            ..Header::default()
        };
        h.to_bytes()
    };
    assert!(guest.send(&say(Op::Response, 0), 0, Layout(0)));
    harness.rest();
    program.write_all(&[7; 100_000]).expect("room");
    let mut taken = 0;
    for rounds in [20, 20] {
        let (mut asked, mut came) = (0, 0);
        for _ in 0..rounds {
            harness.rest();
            guest.reap(TX_QUEUE, |_| {});
            for (h, _) in received(&mut guest) {
                came += h.len;
                if h.op == Op::CreditRequest as u16 {
                    asked += 1;
                    assert!(guest.send(&say(Op::CreditUpdate, taken), 0, Layout(0)));
                }
            }
        }
        assert_eq!((asked, came), (1, 4096));
        // Now it reads, and says so.
        taken += came;
        assert!(guest.send(&say(Op::CreditUpdate, taken), 0, Layout(0)));
    }
}
