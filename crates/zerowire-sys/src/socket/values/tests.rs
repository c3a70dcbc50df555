use std::net::UdpSocket;

use super::*;

#[test]
fn ints_are_set_and_read_and_a_filter_is_none() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    set_int(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY, 5).expect("set");
    assert_eq!(get_int(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY).expect("read"), 5);
    let e = set_int(&socket, libc::SOL_SOCKET, libc::SO_DOMAIN, 5).expect_err("it can't be set");
    assert_eq!(e.raw_os_error(), Some(libc::ENOPROTOOPT));
    // Four instructions are longer than an int (net/core/filter.c, `sk_get_filter`).
    let keep = libc::sock_filter { code: 6, jt: 0, jf: 0, k: u32::MAX };
    attach_filter(&socket, &mut [keep; 4]).expect("a filter");
    let e = get_int(&socket, libc::SOL_SOCKET, libc::SO_GET_FILTER).expect_err("it is no int");
    assert_eq!(e.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn addresses_are_those_that_were_bound() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port = socket.local_addr().expect("an address").port();
    let address: libc::sockaddr = bound_address(&socket).expect("an address");
    let [a, b, ip @ ..] = address.sa_data.map(|byte| byte as u8);
    assert_eq!((i32::from(address.sa_family), u16::from_be_bytes([a, b])), (libc::AF_INET, port));
    assert_eq!(ip[..4], [127, 0, 0, 1]);
    // It has one already.
    assert_eq!(bind(&socket, &address).expect_err("bound").raw_os_error(), Some(libc::EINVAL));
    connect(&socket, &address).expect("to itself");
    assert_eq!(socket.peer_addr().expect("an address").port(), port);
}
