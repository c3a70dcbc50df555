use std::os::fd::AsFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, recv, socketpair};
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
