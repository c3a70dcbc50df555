//! Connections that the guest makes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::connection::MappedConnection;
use super::error::Error;
use super::handshake;
use super::options::{MappedKind, MappedOptions};
use zerowire_wire::mapped::MapOp;

/// Listens on a port of the host (CID 2) for connections of the guest. Dropping it ends the
/// listening; connections stay. The port is free when no process has the descriptor any more. A
/// child has it between fork(2) and execve(2).
#[derive(Debug)]
pub struct MappedListener {
    socket: OwnedFd,
    path: PathBuf,
    port: u32,
    kind: MappedKind,
}

impl MappedListener {
    /// Listens. `path` is the daemon's `UDS.map`; `options` are those of each connection.
    ///
    /// # Errors
    /// [`Error::PortTaken`]; otherwise those of [`connect`](super::connect) about the daemon and
    /// the options.
    pub fn bind(path: &Path, port: u32, options: &MappedOptions) -> Result<Self, Error> {
        let (socket, _) = handshake::ask(path, MapOp::Listen, port, options)?;
        Ok(Self { socket, path: path.to_owned(), port, kind: options.kind })
    }

    /// Waits for the next connection.
    ///
    /// # Errors
    /// [`Error::Disconnected`]: the daemon is gone. [`Error::Status`]: it refuses, or has no room.
    /// [`Error::BrokenHandshake`], [`Error::System`].
    pub fn accept(&self) -> Result<MappedConnection, Error> {
        loop {
            if let Some(connection) = self.accept_within(None)? {
                return Ok(connection);
            }
        }
    }

    /// The next connection, if there is one already.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn try_accept(&self) -> Result<Option<MappedConnection>, Error> {
        self.accept_within(Some(Duration::ZERO))
    }

    /// The next connection, or None if `timeout` passes without one; None waits without a limit.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn accept_within(&self, timeout: Option<Duration>) -> Result<Option<MappedConnection>, Error> {
        let answer = handshake::answer(&self.socket, &self.path, self.port, timeout)?;
        let Some(answer) = answer else { return Ok(None) };
        let parts = handshake::parts(answer, &self.socket, &self.path)?;
        MappedConnection::new(parts, &self.path, self.kind).map(Some)
    }

    /// The host's port.
    pub fn port(&self) -> u32 {
        self.port
    }
}

impl AsFd for MappedListener {
    /// Readable when a connection waits, or when the daemon is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
