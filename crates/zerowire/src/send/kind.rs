//! What a socket is.

use super::SendError;
use std::fmt;
use std::os::fd::AsFd;
use zerowire_sys::socket::get_int;

/// The kinds of socket that differ in how they lend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketFamily {
    Tcp,
    Udp,
    /// AF_VSOCK streams and messages.
    Vsock,
    Unix,
    Other,
}

/// What a socket is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SocketKind {
    pub kind: SocketFamily,
    /// A stream may take a part of a payload; others take all or nothing.
    pub stream: bool,
}

impl SocketKind {
    /// Asks the socket.
    ///
    /// # Errors
    /// It is none, or has no peer.
    pub fn of(socket: impl AsFd) -> Result<Self, SendError> {
        let get = |option| {
            get_int(&socket, libc::SOL_SOCKET, option)
                .map_err(SendError::system("getsockopt (what the socket is)"))
        };
        let (domain, kind, protocol) = (get(libc::SO_DOMAIN)?, get(libc::SO_TYPE)?, get(libc::SO_PROTOCOL)?);
        let kind_of = match (domain, kind, protocol) {
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_STREAM, libc::IPPROTO_TCP) => SocketFamily::Tcp,
            (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP) => SocketFamily::Udp,
            (libc::AF_VSOCK, _, _) => SocketFamily::Vsock,
            (libc::AF_UNIX, _, _) => SocketFamily::Unix,
            _ => SocketFamily::Other,
        };
        if kind_of != SocketFamily::Other {
            match rustix::net::getpeername(&socket) {
                Err(rustix::io::Errno::NOTCONN) => return Err(SendError::NotConnected),
                Err(e) => return Err(SendError::System { call: "getpeername", cause: e.into() }),
                Ok(_) => {}
            }
        }
        Ok(Self { kind: kind_of, stream: kind == libc::SOCK_STREAM })
    }
}

impl fmt::Display for SocketFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Vsock => "vsock",
            Self::Unix => "unix",
            Self::Other => "another kind of socket",
        })
    }
}
