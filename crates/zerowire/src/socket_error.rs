//! A socket that was not taken.

use std::os::fd::OwnedFd;
use thiserror::Error;

/// Why a socket was not taken, with the socket, which is as it was but for options that were set on
/// it.
#[derive(Debug, Error)]
#[error("{error}")]
pub struct SocketError<E: std::error::Error + 'static> {
    /// The socket. Dropping it closes it.
    pub socket: OwnedFd,
    /// Why.
    #[source]
    pub error: E,
}

impl<E: std::error::Error> SocketError<E> {
    /// From what a function that takes a socket gives back.
    pub(crate) fn new((socket, error): (OwnedFd, E)) -> Self {
        Self { socket, error }
    }
}
