//! What every way of sending asks of a connection and does to it.

use super::super::kind::{SocketFamily, SocketKind};
use std::io;
use std::os::fd::OwnedFd;
use zerowire_sys::socket::{self, Charges};

/// Bytes that may still be charged to the socket's send buffer.
pub(in crate::send) fn send_room(socket: &OwnedFd) -> io::Result<usize> {
    let charges = Charges::of(socket)?;
    Ok(charges.send_buffer().saturating_sub(charges.sending()) as usize)
}

/// Resets a stream's connection, so that the kernel lets go of what is lent soon.
pub(in crate::send) fn reset(socket: &OwnedFd, kind: SocketKind) {
    match kind.kind {
        SocketFamily::Tcp => {
            // The notifications can still be read.
            let _ = socket::disconnect(socket);
        }
        SocketFamily::Vsock | SocketFamily::Unix => {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
        SocketFamily::Udp | SocketFamily::Other => {}
    }
}
