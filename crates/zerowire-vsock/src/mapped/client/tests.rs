use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, recv, socketpair};
use zerowire_testkit::own_process;
use zerowire_testkit::process::{become_ordinary, limit};
use zerowire_wire::mapped::REPLY_LEN;

use super::*;

#[test]
fn a_connection_is_told_with_its_table_of_memory_or_not_at_all() {
    let table = [7; MAX_REGIONS * 16];
    for room in (4096..16_384).step_by(64) {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, room).expect("a buffer");
        let reply = MapReply::error(0, String::new());
        let e = loop {
            if let Err(e) = send_connection(&ours, &reply, &[ours.as_fd()], &table) {
                break e;
            }
        };
        assert_eq!(e.kind(), io::ErrorKind::WouldBlock, "with {room} bytes: {e}");
        let mut lengths = Vec::new();
        let mut buffer = [0; 2048];
        while let Ok((n, _)) = recv(&theirs, &mut buffer, RecvFlags::empty()) {
            lengths.push(n);
        }
        let whole = |pair: &[usize]| *pair == [REPLY_LEN, table.len()];
        assert!(lengths.chunks(2).all(whole), "with {room} bytes: {lengths:?}");
    }
}

/// The program is told nothing then, and the connection is tried again.
#[test]
fn a_user_may_have_too_many_descriptors_under_way() {
    own_process!();
    limit(libc::RLIMIT_NOFILE, 32, 32).expect("a lower limit");
    become_ordinary(60_000 + std::process::id() % 5000, 0);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair");
    let ((ours, theirs), (other, _unread)) = (pair(), pair());
    let reply = MapReply::error(0, String::new());
    while send_reply(&other, &reply, &[other.as_fd(); DESCRIPTORS]).is_ok() {}
    let e = send_connection(&ours, &reply, &[ours.as_fd()], &[7]).expect_err("too many");
    assert!(is_crowded(&e), "{e}");
    assert!(recv(&theirs, &mut [0; 16], RecvFlags::empty()).is_err());
    send_reply(&ours, &reply, &[]).expect("no descriptors");
}
