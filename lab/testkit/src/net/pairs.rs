//! Connected pairs of sockets over loopback.

use std::net::{TcpListener, TcpStream, UdpSocket};

/// The two ends of a TCP connection.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let a = TcpStream::connect(listener.local_addr().expect("an address")).expect("connected");
    (a, listener.accept().expect("a connection").0)
}

/// Two UDP sockets, each connected to the other.
pub fn udp_pair() -> (UdpSocket, UdpSocket) {
    let a = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let b = UdpSocket::bind("127.0.0.1:0").expect("a port");
    a.connect(b.local_addr().expect("an address")).expect("connected");
    b.connect(a.local_addr().expect("an address")).expect("connected");
    (a, b)
}
