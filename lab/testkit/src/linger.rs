//! A descriptor that takes an hour to close.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_linger, set_socket_recv_buffer_size};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// A TCP socket that lingers for an hour when it is closed (SO_LINGER), since its peer, the second
/// value, does not read. It takes that hour for as long as the peer is there.
pub fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    set_socket_recv_buffer_size(&listener, 4096).expect("a small buffer");
    let mut socket = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (peer, _) = listener.accept().expect("it connects");
    socket.set_nonblocking(true).expect("set");
    while socket.write(&[0; 65536]).is_ok() {}
    set_socket_linger(&socket, Some(Duration::from_secs(3600))).expect("set");
    (socket, peer)
}

/// Sends bytes, and the last descriptor of a [`lingering`] socket with them. Returns the socket's
/// peer.
pub fn send_lingering(to: impl AsFd, bytes: &[u8]) -> Result<TcpStream, Errno> {
    let (socket, peer) = lingering();
    send_descriptor(to, bytes, &socket).map(|_| peer)
}

/// Sends bytes with a descriptor.
pub fn send_descriptor(to: impl AsFd, bytes: &[u8], file: impl AsFd) -> Result<usize, Errno> {
    let (files, mut space) = ([file.as_fd()], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
    sendmsg(to, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}
