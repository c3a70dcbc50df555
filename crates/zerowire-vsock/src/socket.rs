//! Unix sockets with scatter lists over guest memory.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use zerowire_sys::socket;
pub use zerowire_sys::socket::{MAX_IOV, has_ended, peek_message};
pub use zerowire_vhost::memory::access::{MAX_MESSAGES, receive, send, send_messages, send_runs};

use super::packet::Kind;

/// The type of a host program's socket.
pub fn socket_type(kind: Kind) -> SocketType {
    match kind {
        Kind::Stream => SocketType::STREAM,
        Kind::SeqPacket => SocketType::SEQPACKET,
    }
}

/// A connected socket, to which the program can't send descriptors.
pub fn connect(path: &Path, kind: Kind) -> io::Result<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, socket_type(kind), flags, None)?;
    socket::refuse_descriptors(&socket)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Asks for room for `bytes` in what is sent and not read yet, as far as the system allows
/// (`net.core.wmem_max`). It never makes the room smaller. Returns the room that there is now, the
/// kernel's own needs included.
pub fn reserve(socket: &OwnedFd, bytes: usize) -> usize {
    let room = || rustix::net::sockopt::socket_send_buffer_size(socket).unwrap_or(0);
    // The kernel doubles the size, for its own needs (net/core/sock.c).
    if room() >= 2 * bytes {
        return room();
    }
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(socket, bytes);
    room()
}

/// Sends private bytes.
pub fn send_bytes(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut no_descriptors = SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut no_descriptors, flags)?)
}

/// Receives private bytes, in one call that does not wait. A kernel before 6.16 closes descriptors
/// beside them here ([`socket::refuse_descriptors`]).
pub fn receive_bytes(socket: &OwnedFd, bytes: &mut [u8], flags: RecvFlags) -> Result<usize, Errno> {
    let mut no_descriptors = RecvAncillaryBuffer::default();
    let list = &mut [IoSliceMut::new(bytes)];
    let got = rustix::net::recvmsg(socket, list, &mut no_descriptors, flags | RecvFlags::DONTWAIT)?;
    Ok(got.bytes)
}

/// Bytes that were sent and not read yet, with what the kernel needs to keep them; 0 where it does
/// not say.
pub fn unread(socket: &OwnedFd) -> usize {
    socket::unsent(socket).unwrap_or(0)
}

/// Whether the kernel calls a socket with `room` writable with this much unread: a quarter of it
/// (net/unix/af_unix.c, `unix_writable`).
pub fn is_writable(unread: usize, room: usize) -> bool {
    4 * unread <= room
}

/// Whether the call can succeed once the socket is ready.
pub fn would_block(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
