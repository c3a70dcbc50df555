//! A socket that was not taken.

use std::error::Error;
use std::fmt;
use std::os::fd::OwnedFd;

/// Why a socket was not taken, with the socket, which is as it was but for options that were set on
/// it.
#[derive(Debug)]
pub struct SocketError<E> {
    /// The socket. Dropping it closes it.
    pub socket: OwnedFd,
    /// Why.
    pub error: E,
}

impl<E: fmt::Display> fmt::Display for SocketError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

/// The same error with a socket beside it: its cause is that one's.
impl<E: Error> Error for SocketError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}
