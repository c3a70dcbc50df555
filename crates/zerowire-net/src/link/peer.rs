//! Who is at the other end of a unix socket.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The process that made the connection, as a descriptor (SO_PEERPIDFD, Linux 6.5).
pub(super) fn process(stream: &UnixStream) -> Option<OwnedFd> {
    zerowire_sys::socket::peer_process(stream).ok()
}
