//! The receiver tells of an ICMP answer to an earlier datagram, and goes on receiving.
//! Needs root.

use crate::support::streams::{ALL, LONG, receiver};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use zerowire::recv::{Arrival, What};
use zerowire_testkit::frames::{ipv4, sum};
use zerowire_testkit::net::{in_netns, ip};

/// ICMP types and codes, and the errno that each means for a connected socket (net/ipv4/udp.c,
/// `__udp4_lib_err`).
const ANSWERS: [(u8, u8, i32); 8] = [
    (3, 2, libc::ENOPROTOOPT),
    (3, 3, libc::ECONNREFUSED),
    (3, 4, libc::EMSGSIZE),
    (3, 6, libc::ENETUNREACH),
    (3, 7, libc::EHOSTDOWN),
    (3, 8, libc::ENONET),
    (3, 10, libc::EHOSTUNREACH),
    (12, 0, libc::EPROTO),
];

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(v4) => v4,
        SocketAddr::V6(_) => panic!("{address}"),
    }
}

/// The ICMP message of a router on the way of a datagram that `from` sent to `to`.
fn answer(kind: u8, code: u8, from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    // The last two bytes are the MTU of the next hop (RFC 1191).
    let mut m = vec![kind, code, 0, 0, 0, 0, 0x05, 0];
    m.extend_from_slice(&ipv4(from.ip().octets(), to.ip().octets(), libc::IPPROTO_UDP as u8, 1400)[14..]);
    m.extend_from_slice(&from.port().to_be_bytes());
    m.extend_from_slice(&to.port().to_be_bytes());
    m.extend_from_slice(&[0x05, 0x78, 0, 0]);
    let checksum = !sum(&m, 0);
    m[2..4].copy_from_slice(&checksum.to_be_bytes());
    m
}

#[test]
fn a_datagram_socket_goes_on_after_an_error_of_an_earlier_datagram() {
    in_netns(|| {
        ip(&["link", "set", "lo", "up"]);
        let router = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).unwrap();
        for backend in ALL {
            let (near, far) = zerowire_testkit::net::udp_pair();
            let [from, to] = [&near, &far].map(|s: &UdpSocket| v4(s.local_addr().unwrap()));
            let mut r = receiver(backend.clone(), |_| {});
            let id = r.add(near.into()).unwrap();
            for (kind, code, errno) in ANSWERS {
                let case = format!("{backend:?}: type {kind} code {code}");
                let message = answer(kind, code, from, to);
                let at = SocketAddrV4::new(*from.ip(), 0);
                sendto(&router, &message, SendFlags::empty(), &at).unwrap();
                let mut batch = Vec::new();
                assert_eq!(r.recv(&mut batch, Some(LONG)).unwrap(), 1, "{case}");
                let Some(Arrival { connection, what: What::Failed(e) }) = batch.pop() else {
                    panic!("{case}")
                };
                assert_eq!((connection, e.raw_os_error()), (id, Some(errno)), "{case}");
                far.send(case.as_bytes()).unwrap();
                assert_eq!(r.recv(&mut batch, Some(LONG)).unwrap(), 1, "{case}");
                assert!(matches!(&batch[0].what, What::Data(l) if **l == *case.as_bytes()), "{batch:?}");
            }
        }
    });
}
