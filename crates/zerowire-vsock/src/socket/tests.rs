use zerowire_sys::socket::Received;
use zerowire_vhost::memory::IoList;

use super::*;

fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("a pair")
}

#[test]
fn messages_are_measured_before_they_are_taken() {
    let (a, b) = pair(SocketType::SEQPACKET);
    let mut list = Vec::new();
    send_runs(&a, [&b"hello"[..], b" world"].into_iter(), &mut list).expect("room");
    assert_eq!(peek_message(&b).expect("a message"), 11);
    let mut got = [0u8; 32];
    let mut into = IoList::new(&mut list);
    into.add_private(&mut got);
    let r = receive(&b, &mut into).expect("a message");
    assert_eq!(r, Received { len: 11, interrupted: false });
    assert_eq!(&got[..11], b"hello world");
    assert!(would_block(&peek_message(&b).expect_err("nothing left")));
}

#[test]
fn a_full_socket_says_so() {
    let (a, _b) = pair(SocketType::STREAM);
    let block = vec![0; 1 << 20];
    let room = reserve(&a, 0);
    assert!(unread(&a) == 0 && is_writable(0, room));
    let mut sent = 0;
    let e = loop {
        match send_bytes(&a, &block) {
            Ok(n) => sent += n,
            Err(e) => break e,
        }
    };
    assert!(would_block(&e) && sent > 0);
    assert!(unread(&a) >= sent && !is_writable(sent, room));
}
