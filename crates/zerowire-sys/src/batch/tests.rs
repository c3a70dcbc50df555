use std::os::fd::AsFd;

use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

use super::*;

/// Through a pair of unix sockets, which keep a message's bounds.
#[test]
fn messages_go_in_order_up_to_a_full_socket() {
    let (a, b) =
        socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None).expect("a pair");
    set_socket_send_buffer_size(&a, 50_000).expect("a bound");
    let payloads: Vec<[u8; 2]> = (0..3 * MAX_BATCH).map(|i| (i as u16).to_le_bytes()).collect();
    let lists: Vec<[libc::iovec; 2]> = payloads
        .iter()
        .map(|p| [0, 1].map(|i| libc::iovec { iov_base: p[i..].as_ptr().cast_mut().cast(), iov_len: 1 }))
        .collect();
    let ops: Vec<Op> = (0..lists.len())
        .map(|i| Op { slot: i as u16, write: true, iov: lists[i].as_ptr(), len: 2 })
        .collect();
    let mut done = Vec::new();
    // SAFETY: lists and payloads live across the call.
    let calls = unsafe { Messages::default().run(a.as_fd(), &ops, &mut done) };
    let sent = done.iter().take_while(|d| d.result == 2).count();
    assert!(sent > MAX_BATCH && sent < ops.len(), "{sent} of {} messages fit", ops.len());
    assert!(calls as usize <= sent / MAX_BATCH + 2, "{calls} calls");
    assert!(done.iter().enumerate().all(|(i, d)| usize::from(d.slot) == i));
    assert!(done[sent..].iter().all(|d| d.result == -libc::EAGAIN) && done.len() == ops.len());
    let mut bytes = [0; 8];
    for expected in &payloads[..sent] {
        assert_eq!(recv(&b, &mut bytes[..], RecvFlags::empty()).map(|(n, _)| n), Ok(2));
        assert_eq!(&bytes[..2], expected);
    }
    assert!(recv(&b, &mut bytes[..], RecvFlags::empty()).is_err(), "no more than was said");
}

#[test]
fn an_error_is_that_of_its_message() {
    let (a, b) =
        socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::NONBLOCK, None).expect("a pair");
    drop(b);
    let byte = 7u8;
    let list = [libc::iovec { iov_base: (&raw const byte).cast_mut().cast(), iov_len: 1 }];
    let ops = [3, 4].map(|slot| Op { slot, write: true, iov: list.as_ptr(), len: 1 });
    let mut done = Vec::new();
    // SAFETY: the list and its byte live across the call.
    let calls = unsafe { Messages::default().run(a.as_fd(), &ops, &mut done) };
    // A pair whose other end is closed says so once, and is not connected then.
    let expected = [(3, libc::ECONNREFUSED), (4, libc::ENOTCONN)].map(|(slot, e)| Done { slot, result: -e });
    assert_eq!((calls, done), (2, expected.to_vec()));
}
