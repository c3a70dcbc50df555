//! Groups hold whatever sockets are called: no guest reaches a socket of the back end through a
//! port of its own.

use std::os::unix::fs::symlink;

use crate::support::vsock::{Vm, VsockBackend, accept};
use zerowire_guest::vsock::{HOST_CID, SocketType};

/// Ports whose paths lead to sockets of another VM, by links of both kinds, are as ports of nobody.
#[test]
fn links_to_sockets_of_the_back_end_are_not_followed() {
    let backend =
        VsockBackend::start(&[Vm::new("vm", 3).groups(&["one"]), Vm::new("other", 4).groups(&["two"])]);
    let mut guest = backend.guest("vm");
    let beside = |suffix: &str| {
        let mut path = backend.uds("other").into_os_string();
        path.push(suffix);
        path
    };
    for (port, suffix) in (1..).zip(["", ".vhost"]) {
        symlink(beside(suffix), backend.port_path("vm", port)).expect("a link");
        std::fs::hard_link(beside(suffix), backend.port_path("vm", port + 10)).expect("a second name");
        for port in [port, port + 10] {
            let conn = guest.stack.connect(HOST_CID, port, SocketType::Stream).expect("asked");
            let connected = guest.stack.wait_connected(conn, crate::support::PATIENCE).expect("answered");
            assert!(!connected, "port {port} is {suffix:?} of the other VM");
        }
    }
    symlink(beside(".seqpacket"), backend.port_path("vm", 30)).expect("a link");
    let conn = guest.stack.connect(HOST_CID, 30, SocketType::SeqPacket).expect("asked");
    assert!(!guest.stack.wait_connected(conn, crate::support::PATIENCE).expect("answered"));
    let other = backend.stats("other");
    assert_eq!((other.connections, other.totals.bad_handshakes), (0, 0), "nothing arrived there");

    // A link to a program's socket is one more name of that program.
    let listener = backend.listen("vm", 40);
    symlink(backend.port_path("vm", 40), backend.port_path("vm", 41)).expect("a link");
    let conn = guest.connect(41);
    let mut stream = accept(&listener);
    guest.ping(conn, &mut stream);
}
